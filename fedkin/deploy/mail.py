"""Letters in Flower's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from fedkin.deploy.at_client import Home, answer
from fedkin.deploy.post import Came

BODY = "letter"


def wrapped(letter: bytes) -> RecordDict:
    """A letter as the content of a message: one array, because every array travels by itself."""
    return RecordDict({BODY: ArrayRecord({BODY: Array(np.frombuffer(letter, dtype=np.uint8))})})


class ByFlower:
    """Carries letters by Flower's Grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def online(self) -> dict[bytes, int]:
        """The public keys of the nodes that are there, and their ids."""
        return {node.public_key: node.node_id for node in self.grid.get_nodes()}

    def send(self, letter: bytes, node: int, kind: str, ttl: float) -> str | None:
        """The id of what was sent; None if it could not be."""
        message = Message(wrapped(letter), node, kind, ttl=ttl)
        return next(iter(self.grid.push_messages([message])), "") or None

    def answers(self, ids: Iterable[str]) -> list[Came]:
        """What has come back."""
        return [_came(message) for message in self.grid.pull_messages(list(ids))]


def _came(message: Message) -> Came:
    about = message.metadata
    if message.has_error():
        error = str(message.error.reason or message.error.code)
        return Came(about.reply_to_message_id, about.src_node_id, error=error)
    try:
        array = message.content.array_records[BODY][BODY]
        if array.dtype != "uint8" or len(array.shape) != 1:
            raise ValueError
        return Came(about.reply_to_message_id, about.src_node_id, array.numpy().tobytes())
    except (KeyError, ValueError, TypeError, EOFError):
        return Came(about.reply_to_message_id, about.src_node_id, b"")


def answered(message: Message, context: Context, base: Path) -> Message:
    """The reply of a client to a message."""
    home = home_of(context.node_config, base)
    letter = message.content.array_records[BODY][BODY].numpy().tobytes()
    return Message(wrapped(answer(letter, home)), reply_to=message)


def home_of(node: Mapping[str, Any], base: Path) -> Home:
    """A client's machine as its node is told of it."""
    return Home(
        data=Path(str(node["data"])),
        folder=Path(str(node["home"])),
        base=base,
        public=Path(str(node["public"])) if node.get("public") else None,
        device=str(node.get("device", "cpu")),
        threads=int(node.get("threads", 1)),
    )


def hurry() -> None:
    """Where Flower asks for an object that is about to come, have it rest for a twentieth of a second, not a whole."""
    defaults = pull_objects.__kwdefaults__ or {}
    if "initial_backoff" in defaults:
        defaults["initial_backoff"] = 0.05
