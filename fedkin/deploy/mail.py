"""Letters in Flower's messages."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
    """Carries letters by Flower's Grid; `refusals` is where the gate notes whom it has sent away."""

    def __init__(self, grid: Grid, refusals: Path | None = None) -> None:
        self.grid, self.refusals = grid, refusals
        self._read = refusals.stat().st_size if refusals and refusals.exists() else 0
        # Flower waits for an answer that is announced and does not come: nobody else must wait with it.
        self._pool = ThreadPoolExecutor(max_workers=64, thread_name_prefix="answers")
        self._asked: dict[str, Future[list[Message]]] = {}
        self._next: dict[str, float] = {}

    def online(self) -> dict[bytes, int]:
        """The public keys of the nodes that are there, and their ids."""
        return {node.public_key: node.node_id for node in self.grid.get_nodes()}

    def send(self, letter: bytes, node: int, kind: str, ttl: float) -> str | None:
        """The id of what was sent; None if it could not be."""
        message = Message(wrapped(letter), node, kind, ttl=ttl)
        return next(iter(self.grid.push_messages([message])), "") or None

    def answers(self, ids: Iterable[str]) -> list[Came]:
        """What has come back."""
        wanted, came = list(ids), []
        rest = max(0.1, len(wanted) / 100)
        for id in wanted:
            if id not in self._asked and time.monotonic() >= self._next.get(id, 0.0):
                self._asked[id] = self._pool.submit(self._pull, id)
        for id in [id for id, asked in self._asked.items() if asked.done()]:
            messages = self._asked.pop(id).result()
            self._next[id] = time.monotonic() + rest
            came += [_came(message) for message in messages]
        return came

    def _pull(self, id: str) -> list[Message]:
        return list(self.grid.pull_messages([id]))

    def refused(self) -> list[tuple[bytes, str]]:
        """Whom the gate has sent away since this was last asked: their public keys, and why."""
        if not self.refusals or not self.refusals.exists() or self.refusals.stat().st_size == self._read:
            return []
        with self.refusals.open() as file:
            file.seek(self._read)
            lines = file.readlines()
            self._read = file.tell()
        told = [json.loads(line) for line in lines]
        return [(base64.b64decode(each["key"]), each["why"]) for each in told]


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
