"""Replies that take as long as clients' devices and networks do, on a virtual clock.

    time of a task = bytes down / bandwidth down + gradient steps * compute * jitter + bytes up / bandwidth up

`compute` (seconds a gradient step), `down` and `up` (bytes a second) are drawn once for every client: a number,
`uniform/LOW/HIGH`, `lognormal/MEDIAN/SIGMA`, `exponential/MEAN` or `pareto/LEAST/SHAPE`. `jitter` is the sigma of a
lognormal factor drawn for every task. With probability `dropout` a client drops out at some moment of a task and is
`away` for a time. `trace=FILE` takes speeds and hours online from a file instead (see `fedkin.schedule.trace`).

The server acts on the `first` K replies, 1 unless told, or at the end of every `window` of seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator

from fedkin.config import Count, Fraction, Nonnegative, Positive
from fedkin.errors import FedkinError
from fedkin.randomness import numpy_generator
from fedkin.schedule.base import Plan, Schedule, Task
from fedkin.schedule.trace import Device, Trace

SHAPES = {"uniform": 2, "lognormal": 2, "exponential": 1, "pareto": 2}
"""Distributions, and how many numbers each takes."""


def draw(text: str, rng: np.random.Generator) -> float:
    """A positive number from a distribution given as text."""
    name, numbers = _read(text)
    if name == "uniform":
        return float(rng.uniform(numbers[0], numbers[1]))
    if name == "lognormal":
        return float(numbers[0] * np.exp(numbers[1] * rng.standard_normal()))
    if name == "exponential":
        return float(rng.exponential(numbers[0]))
    if name == "pareto":
        return float(numbers[0] * (1 + rng.pareto(numbers[1])))
    return numbers[0]


@cache
def _read(text: str) -> tuple[str, tuple[float, ...]]:
    name, *parts = text.split("/")
    if name not in SHAPES:
        name, parts = "constant", [name, *parts]
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        numbers = ()
    positive = len(numbers) == SHAPES.get(name, 1) and all(0 < n < np.inf for n in numbers)
    if not positive or (name == "uniform" and numbers[0] > numbers[1]):
        raise ValueError(
            "should be a positive number, uniform/LOW/HIGH, lognormal/MEDIAN/SIGMA, exponential/MEAN or "
            "pareto/LEAST/SHAPE"
        )
    return name, numbers


def _checked(text: str) -> str:
    _read(text)
    return text


Distribution = Annotated[str, AfterValidator(_checked)]


@dataclass(frozen=True)
class Latency(Schedule):
    """Devices and networks of different speeds, some of which drop out and return."""

    example: ClassVar[str] = "latency:compute=lognormal/0.05/0.5,first=10"
    timed: ClassVar[bool] = True

    compute: Distribution = "lognormal/0.05/0.5"
    down: Distribution = "lognormal/1e6/0.5"
    up: Distribution = "lognormal/250e3/0.5"
    jitter: Nonnegative = 0.1
    dropout: Fraction = 0.0
    away: Distribution = "exponential/600"
    trace: Path | None = None
    repeat: Positive | None = None
    """Seconds after which the trace begins again."""
    first: Count | None = None
    window: Positive | None = None

    def __post_init__(self) -> None:
        if self.first and self.window:
            raise FedkinError("a latency schedule acts on first=K replies or after window=SECONDS, not on both")
        if self.repeat and not self.trace:
            raise FedkinError("repeat=SECONDS says when a trace begins again, but no trace=FILE was given")
        if not self.first and not self.window:
            object.__setattr__(self, "first", 1)
        _ = self.traced

    @cached_property
    def traced(self) -> Trace | None:
        """What the trace file says."""
        return Trace.read(self.trace, self.clients, self.repeat) if self.trace else None

    @cached_property
    def _devices(self) -> dict[int, Device]:
        return {}

    def device(self, client: int, now: float) -> Device:
        """A client's speeds, and how long it will be online."""
        if self.traced:
            return self.traced.device(client, now)
        if client not in self._devices:
            speeds = (
                draw(text, numpy_generator(self.seed, f"latency/{name}", 0, client))
                for name, text in (("compute", self.compute), ("down", self.down), ("up", self.up))
            )
            self._devices[client] = Device(*speeds)
        return self._devices[client]

    def plan(self, task: Task) -> Plan:
        """When the reply arrives, if it does."""
        device = self.device(task.client, task.start)
        rng = numpy_generator(self.seed, "latency/task", task.round, task.client)
        compute = device.compute * np.exp(self.jitter * rng.standard_normal())
        seconds = task.down / device.down + task.steps * compute + task.up / device.up
        end = float(task.start + seconds)
        chance, moment = rng.uniform(size=2)
        if chance < self.dropout:
            end = float(task.start + moment * seconds)
            return Plan(end, True, end + draw(self.away, rng))
        if end > device.until:
            return Plan(device.until, True, self.online(task.client, device.until))
        return Plan(end)

    def online(self, client: int, now: float) -> float:
        """Now, or when the trace has the client next."""
        return self.traced.online(client, now) if self.traced else now
