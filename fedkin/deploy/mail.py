"""Letters in Flower's messages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

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
    node = context.node_config
    home = Home(
        data=Path(str(node["data"])),
        folder=Path(str(node["home"])),
        base=base,
        public=Path(str(node["public"])) if node.get("public") else None,
        device=str(node.get("device", "cpu")),
        threads=int(node.get("threads", 1)),
    )
    letter = message.content.array_records[BODY][BODY].numpy().tobytes()
    return Message(wrapped(answer(letter, home)), reply_to=message)
