"""Where local work runs. An engine calls a worker's functions and returns results in order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fedkin.engine.inline import Inline
from fedkin.engine.processes import Processes, shared_pool
from fedkin.engine.worker import Site
from fedkin.errors import FedkinError, unknown


class Engine(Protocol):
    """Calls functions of a `Worker`, wherever workers live."""

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`[worker.function(*call) for call in calls]`, on any worker, results in the order of the calls."""

    def close(self, at_once: bool = False) -> None:
        """End the workers; `at_once` does not wait for what they are doing."""


NAMES = ("inline", "processes", "ray")


def default_workers() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_workers(workers: int | None = None) -> AbstractContextManager[None]:
    """Inside, runs on processes share their workers instead of starting new ones."""
    return shared_pool(workers or default_workers())


def open_engine(name: str, site: Site, workers: int | None = None, address: str | None = None) -> Engine:
    """Start an engine with its workers (by default one a core); `address` is that of a Ray cluster to join."""
    if workers is not None and workers < 1:
        raise FedkinError(f"a run needs at least one worker, but {workers} were asked for")
    if name == "inline":
        return Inline(site)
    if name == "processes":
        return Processes(site, workers or default_workers())
    if name == "ray":
        from fedkin.engine.on_ray import OnRay

        return OnRay(site, workers or default_workers(), address)
    raise unknown("engine", name, NAMES)
