"""Synchronous rounds: everybody replies, then the server acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedkin.schedule.base import Plan, Schedule, Task


@dataclass(frozen=True)
class Sync(Schedule):
    """A round takes one unit of time."""

    example: ClassVar[str] = "sync"

    def plan(self, task: Task) -> Plan:
        """The end of the round."""
        return Plan(task.start + 1)
