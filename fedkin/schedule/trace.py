"""Traces of real devices: a CSV file with a line for every stretch of time that a client was online.

    client,start,end,compute,down,up
    0,0,36000,0.05,1e6,2.5e5
    0,60000,,0.05,1e6,2.5e5

`client` counts from 0; `start` and `end` are seconds, an empty end is for ever; `compute` is seconds a gradient step,
`down` and `up` are bytes a second. Outside its stretches a client is offline, and what it was doing is lost.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fedkin.errors import FedkinError

COLUMNS = ("client", "start", "end", "compute", "down", "up")


@dataclass(frozen=True)
class Device:
    """How fast a client is for a stretch of time."""

    compute: float
    """Seconds a gradient step."""
    down: float
    up: float
    """Bytes a second."""
    start: float = 0.0
    until: float = math.inf


@dataclass(frozen=True)
class Trace:
    """The stretches of every client, in order of time."""

    stretches: list[list[Device]]
    repeat: float

    @staticmethod
    def read(path: Path, clients: int, repeat: float | None = None) -> Trace:
        """Read a trace file for so many clients."""
        stretches: list[list[Device]] = [[] for _ in range(clients)]
        try:
            with path.expanduser().open(newline="") as file:
                lines = csv.DictReader(file)
                missing = [name for name in COLUMNS if name not in (lines.fieldnames or ())]
                if missing:
                    raise FedkinError(f"trace {path} lacks the columns {', '.join(missing)}")
                for line in lines:
                    client, device = _device(line, f"trace {path}, line {lines.line_num}")
                    if client < clients:
                        stretches[client].append(device)
        except OSError as error:
            raise FedkinError(f"trace {path} cannot be read: {error.strerror or error}") from None
        for client, own in enumerate(stretches):
            own.sort(key=lambda device: device.start)
            if not own:
                raise FedkinError(f"trace {path} has no line for client {client}, but there are {clients} clients")
            if any(a.until > b.start for a, b in pairwise(own)):
                raise FedkinError(f"trace {path} has overlapping times for client {client}")
            if repeat and own[-1].until > repeat and own[-1].until != math.inf:
                raise FedkinError(f"trace {path} goes on after {repeat:g} s for client {client}, when it should repeat")
        return Trace(stretches, repeat or math.inf)

    def online(self, client: int, now: float) -> float:
        """The first time from `now` on at which a client is online; infinity if it never is again."""
        own = self.stretches[client]
        day, begin = self._day(now)
        k = bisect_right([d.start for d in own], day) - 1
        if k >= 0 and day < own[k].until:
            return now
        if k + 1 < len(own):
            return begin + own[k + 1].start
        return begin + self.repeat + own[0].start

    def device(self, client: int, now: float) -> Device:
        """How fast a client is that is online now, with times since the very beginning."""
        day, begin = self._day(now)
        device = next(d for d in self.stretches[client] if d.start <= day < d.until)
        until = min(begin + device.until, begin + self.repeat)
        return Device(device.compute, device.down, device.up, begin + device.start, until)

    def _day(self, now: float) -> tuple[float, float]:
        """The time since the trace last began, and when it did."""
        if self.repeat == math.inf:
            return now, 0.0
        begin = now // self.repeat * self.repeat
        return now - begin, begin


def _device(line: dict[str, str | None], where: str) -> tuple[int, Device]:
    try:
        client, start, end, compute, down, up = ((line[name] or "").strip() for name in COLUMNS)
        device = Device(float(compute), float(down), float(up), float(start), float(end) if end else math.inf)
        number = int(client)
    except ValueError as error:
        raise FedkinError(f"{where}: {error}") from None
    speeds = (device.compute, device.down, device.up)
    if number < 0 or not all(0 < speed < math.inf for speed in speeds) or not 0 <= device.start < device.until:
        raise FedkinError(f"{where}: speeds are positive, and a stretch of time ends after it starts")
    return number, device
