"""One worker in this process: the simplest engine, good for debugging and small runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedkin.engine.worker import Site, Worker


class Inline:
    """Calls a worker directly."""

    def __init__(self, site: Site) -> None:
        self.worker = Worker(site)

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of `worker.function(*call)` for each call."""
        return [getattr(self.worker, function)(*call) for call in calls]

    def close(self, at_once: bool = False) -> None:
        """Nothing to end."""
