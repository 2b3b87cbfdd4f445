"""Periodic stragglers, as in the SPFL paper (section 4.2): client k of the first |S| comes d = k rounds late.

A straggler's cycle: it downloads the model of round t0, trains, misses d rounds, uploads in the round after them, and
then takes part once afresh, in time. For d = 2:

    round      1       2       3        4        5       6       7        8
    straggler  trains  late    uploads  afresh   trains  late    uploads  afresh

`fresh=0` leaves the fresh rounds out: every upload is late, so that one round in d + 1 has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedkin.errors import FedkinError
from fedkin.schedule.base import Plan, Schedule, Task
from fedkin.schedule.participation import round_half_up


@dataclass(frozen=True)
class Stragglers(Schedule):
    """A round takes one unit of time; the first `count` clients are late by 1, 2, ... rounds."""

    example: ClassVar[str] = "stragglers:5"

    count: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """|S|, or, below one, a share of the clients."""
    fresh: Annotated[int, Field(ge=0)] = 1
    """Rounds in which a straggler takes part in time between two late ones."""

    def __post_init__(self) -> None:
        if self.count > self.clients or (self.count >= 1 and self.count % 1):
            raise FedkinError(
                f"stragglers:{self.count:g} of {self.clients} clients: give a whole number up to {self.clients}, "
                "or a share below 1"
            )

    @property
    def size(self) -> int:
        """|S|."""
        return int(self.count) if self.count >= 1 else round_half_up(self.count * self.clients)

    @property
    def window(self) -> float:
        """The server acts at the end of every round."""
        return 1.0

    def plan(self, task: Task) -> Plan:
        """In time, or d rounds later."""
        late = task.client < self.size and task.number % (1 + self.fresh) == 0
        return Plan(task.start + 1 + (task.client + 1 if late else 0))
