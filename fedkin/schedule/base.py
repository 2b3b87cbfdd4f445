"""What a schedule says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Task:
    """Work that a client is given."""

    client: int
    number: int
    """How many tasks this client was given before."""
    round: int
    start: float
    """When the server sends it."""
    down: int = 0
    up: int = 0
    """Bytes of the message and of the reply."""
    steps: float = 0.0
    """Gradient steps."""


@dataclass(frozen=True)
class Plan:
    """How a task will end."""

    end: float
    """When the reply arrives, or when the client is lost."""
    lost: bool = False
    """Whether the client drops out before it has replied."""
    back: float = 0.0
    """When a lost client can be given work again."""


@dataclass(frozen=True)
class Schedule:
    """When replies arrive, and when the server acts. Neither `first` nor `window`: when all have replied."""

    example: ClassVar[str]
    timed: ClassVar[bool] = False
    """Whether the end of a task depends on its bytes and gradient steps."""

    clients: int
    seed: int

    @property
    def first(self) -> int | None:
        """Act when so many have replied."""
        return None

    @property
    def window(self) -> float | None:
        """Act after so much time."""
        return None

    def plan(self, task: Task) -> Plan:
        """When a task ends."""
        raise NotImplementedError

    def online(self, client: int, now: float) -> float:
        """The first time from `now` on at which a client can be given work."""
        return now
