"""Progress: one live line on a terminal, plain lines elsewhere. All of it goes to stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from fedkin.result import Round
    from fedkin.simulate import Watch

QUIET_SECONDS = 2.0
"""Least time between two plain lines."""


@contextmanager
def shown(label: str, rounds: int) -> Iterator[Watch]:
    """A watcher that shows round, accuracy, rounds per second and time left."""
    console = Console(stderr=True)
    begin = time.monotonic()
    first = accuracy = None
    last_line = -QUIET_SECONDS
    with Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else _nothing() as live:

        def watch(happened: Round, _seconds: float) -> None:
            nonlocal first, accuracy, last_line
            first = first or happened.round
            if happened.scores:
                accuracy = happened.scores[0].headline
            elapsed = time.monotonic() - begin
            speed = (happened.round - first + 1) / elapsed
            left = (rounds - happened.round) / speed
            text = f"{label}  round {happened.round}/{rounds}"
            text += f"  accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
            text += f"  {speed:.2f} rounds/s  {clock(left)} left"
            if isinstance(live, Live):
                live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
            elif elapsed - last_line >= QUIET_SECONDS or happened.round == rounds:
                last_line = elapsed
                print(text, file=console.file, flush=True)

        yield watch


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def clock(seconds: float) -> str:
    """`4s`, `3m05s`, `2h10m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
