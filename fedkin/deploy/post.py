"""The post between server and clients: letters go out, and answers come back in any order."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fedkin.deploy.at_client import LOST
from fedkin.deploy.checks import Refused
from fedkin.deploy.letter import pack, unpack
from fedkin.engine.worker import Job
from fedkin.errors import FedkinError
from fedkin.method import Message as Values

PAUSE = 0.05
"""Seconds between two looks for answers, when there is nothing else to do."""
VERSION = "version"
"""Under this name the server keeps, of what a client keeps to itself, the version."""
AGAIN = 2.0
"""Seconds after which a letter that came back is sent once more."""


@dataclass(frozen=True)
class Came:
    """What came back for a letter: an answer, or why there is none."""

    id: str
    node: int
    answer: bytes = b""
    error: str = ""


class Carrier(Protocol):
    """Takes letters to clients and brings back their answers."""

    def online(self) -> Mapping[bytes, int]:
        """The public keys of the clients that can be reached, and the nodes they are."""

    def send(self, letter: bytes, node: int, kind: str, ttl: float) -> str | None:
        """The id of a letter that was sent; None if it could not be. After `ttl` seconds it is given up."""

    def answers(self, ids: Iterable[str]) -> Iterable[Came]:
        """What has come back for some letters."""

    def refused(self) -> Iterable[tuple[bytes, str]]:
        """Whose answers were not let through since this was last asked: their public keys, and why."""


@dataclass(eq=False)
class Letter:
    """A letter under way to a client, until it is answered or given up."""

    job: Job
    function: str
    extra: tuple[Any, ...] = ()
    begin: float = field(default_factory=time.monotonic)
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    id: str | None = None
    """Flower's, while it is out."""
    node: int = 0
    not_before: float = 0.0
    answer: Values | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    """What came back, and what goes with it."""
    lost: str = ""
    """Why there is no answer, if there will be none."""
    end: float | None = None
    """When it was answered or lost."""


Check = Callable[[Letter, Values, Mapping[str, Any]], None]
Note = Callable[[int, str, str], None]
"""Told of everything out of the ordinary: client, what happened, and why."""


class Post:
    """Sends letters, sends them again where they come back, and checks what is answered."""

    def __init__(
        self,
        carrier: Carrier,
        keys: Mapping[bytes, int],
        about: Mapping[str, Any],
        patience: float,
        check: Check,
        note: Note,
        most: int,
    ) -> None:
        self.carrier, self.keys, self.about, self.patience = carrier, keys, dict(about), patience
        self.check, self.note, self.most = check, note, most
        self.out: list[Letter] = []
        self._nodes: dict[int, int] = {}
        self._looked = 0.0
        self._longest: dict[str, float] = {}

    def send(self, letter: Letter) -> None:
        """Take a letter; it leaves with the next `step`."""
        self.out.append(letter)

    def wait(self, letters: Sequence[Letter]) -> None:
        """Until all of them are answered or lost."""
        while any(letter.end is None for letter in letters):
            if not self.step():
                time.sleep(PAUSE)

    def step(self) -> bool:
        """Send what has to go out and take in what has come back; whether any letter has ended by that."""
        now = time.monotonic()
        if now - self._looked > 1.0:
            self._looked = now
            online = self.carrier.online()
            self._nodes = {self.keys[key]: node for key, node in online.items() if key in self.keys}
        for letter in self.out:
            if letter.id is None and now >= letter.not_before and letter.job.client in self._nodes:
                self._push(letter)
        self._pull()
        for key, why in self.carrier.refused():
            for letter in self.out:
                if letter.end is None and self.keys.get(key) == letter.job.client and letter.id:
                    self._lose(letter, f"refused: {why}")
        for letter in self.out:
            if letter.end is None and now - letter.begin > self.patience:
                self._lose(letter, f"no answer for {self.patience:g} s")
        before, self.out = len(self.out), [letter for letter in self.out if letter.end is None]
        return len(self.out) < before

    def _push(self, letter: Letter) -> None:
        job = letter.job
        about = {
            "function": letter.function,
            "client": job.client,
            "round": job.round,
            "exchange": job.exchange,
            "version": job.private.get(VERSION, ""),
            "extra": letter.extra,
            "nonce": letter.nonce,
        }
        letter.node = self._nodes[job.client]
        # A node that restarts at once forgets its letter without a word: three times the longest wait seen tells.
        left = self.patience - (time.monotonic() - letter.begin)
        longest = self._longest.get(letter.function, self.patience)
        kind = "train" if letter.function == "local" else "evaluate"
        ttl = max(1.0, min(left, 30 + 3 * longest))
        letter.id = self.carrier.send(pack(job.message, self.about | about), letter.node, kind, ttl)
        if letter.id is None:
            letter.not_before = time.monotonic() + AGAIN

    def _pull(self) -> None:
        waiting = {letter.id: letter for letter in self.out if letter.id}
        if not waiting:
            return
        for came in self.carrier.answers([id for id in waiting if id]):
            if came.id in waiting:
                self._open(waiting[came.id], came)

    def _open(self, letter: Letter, came: Came) -> None:
        client = letter.job.client
        letter.id = None
        if came.error:
            # The node went away, or its program failed: as long as there is time, ask again.
            self.note(client, "asked again", came.error)
            letter.not_before = time.monotonic() + AGAIN
            return
        try:
            values, about = self._read(letter, came)
            if about.get("failed") == LOST:
                self.note(client, "begins anew", "it no longer has what it kept to itself")
                letter.job = replace(letter.job, private={})
                return
            if "failed" in about:
                self._lose(letter, f"it could not do it ({about['failed']})")
                return
            self.check(letter, values, about)
        except FedkinError as error:
            self._lose(letter, f"refused: {error}")
            return
        letter.answer, letter.about, letter.end = values, about, time.monotonic()
        took = letter.end - letter.begin
        self._longest[letter.function] = max(took, self._longest.get(letter.function, 0.0))

    def _read(self, letter: Letter, came: Came) -> tuple[Values, dict[str, Any]]:
        if came.node != letter.node:
            raise Refused("it comes from another node")
        if len(came.answer) > self.most:
            raise Refused(f"it has {len(came.answer):,} bytes, at most {self.most:,} expected")
        values, about = unpack(came.answer)
        if about.get("nonce") != letter.nonce or about.get("client") != letter.job.client:
            raise Refused("it answers another letter, or in another client's name")
        return values, about

    def _lose(self, letter: Letter, why: str) -> None:
        letter.lost, letter.end = why, time.monotonic()
        self.note(letter.job.client, "left out", why)
