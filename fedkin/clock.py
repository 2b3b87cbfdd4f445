"""The virtual clock: who is at work, whose reply comes when, and when the server acts.

Every client has at most one task at a time. Tasks end in the order of (time, client), so the same seed gives the same
order on every engine. What a task computes is not needed before it ends, which lets tasks run side by side.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedkin.engine.worker import Done
from fedkin.errors import FedkinError
from fedkin.method import Message
from fedkin.schedule import Plan, Schedule, Sync, Task, at_once, in_turn


@dataclass
class Flight:
    """A task under way, from the message that the server sends to the reply that it gets."""

    client: int
    round: int
    """The round in which it was sent."""
    message: Message
    start: float
    plan: Plan = field(default_factory=lambda: Plan(0.0))
    before: Tensor | None = None
    """[D] w^t0: the server's model when it was sent."""
    after: Tensor | None = None
    """[D] w^t1: the server's model one round later."""
    done: Done | None = None
    """What the client computed, as soon as that is known."""


class Clock:
    """Tasks under way and the time; everything in here is saved with a checkpoint."""

    def __init__(self, schedule: Schedule, join: float, wait: bool = False) -> None:
        self.schedule, self.wait = schedule, wait
        self.capacity = at_once(schedule.clients, join)
        self.now = 0.0
        self.flights: dict[int, Flight] = {}
        self.idle = set(range(schedule.clients))
        self.tasks = [0] * schedule.clients
        """How many tasks each client was given."""
        self.effort: tuple[float, int] | None = None
        """Gradient steps per planned one and bytes of a reply, as the first task has shown."""
        self._queue: list[tuple[float, int]] = []
        self._away: list[tuple[float, int]] = []

    @property
    def tells(self) -> bool:
        """Whether its time means something: not where every round takes just as long."""
        return not isinstance(self.schedule, Sync)

    @property
    def timed(self) -> bool:
        """Whether it wants to know how long a task will take before it sends it."""
        return self.schedule.timed

    @property
    def synchronous(self) -> bool:
        """Whether the server always waits for everybody."""
        return self.wait or (self.schedule.first is None and self.schedule.window is None)

    def choose(self, round: int) -> list[int]:
        """Clients to be given work now, ascending: as many as may work at once, among those that are free."""
        chosen = self._choose(round)
        while not chosen and not self.flights and self.schedule.window is None:
            back = min((time for time, _ in self._away), default=math.inf)
            if back == math.inf:
                raise FedkinError(f"after {self.now:g} s of the trace no client will ever be online again")
            self.now = max(self.now, back)
            chosen = self._choose(round)
        return chosen

    def _choose(self, round: int) -> list[int]:
        while self._away and self._away[0][0] <= self.now:
            self.idle.add(heapq.heappop(self._away)[1])
        count = self.capacity - len(self.flights)
        if count <= 0:
            return []
        everyone = count >= len(self.idle)
        order: Iterable[int] = (
            sorted(self.idle) if everyone else in_turn(self.schedule.seed, round, self.schedule.clients)
        )
        chosen: list[int] = []
        for client in order:
            if len(chosen) == count:
                break
            if client not in self.idle:
                continue
            time = self.schedule.online(client, self.now)
            if time > self.now:
                self._leave(client, time)
            else:
                chosen.append(client)
        return sorted(chosen)

    def _leave(self, client: int, back: float) -> None:
        self.idle.discard(client)
        heapq.heappush(self._away, (back, client))

    def launch(self, flight: Flight, steps: float = 0.0, down: int = 0) -> None:
        """Send a task on its way; `steps` are the gradient steps that plain training would take."""
        ratio, up = self.effort or (1.0, 0)
        number = self.tasks[flight.client]
        flight.plan = self.schedule.plan(
            Task(flight.client, number, flight.round, flight.start, down, up, ratio * steps)
        )
        self._put(flight)
        self.tasks[flight.client] = number + 1

    def _put(self, flight: Flight) -> None:
        self.idle.discard(flight.client)
        self.flights[flight.client] = flight
        heapq.heappush(self._queue, (flight.plan.end, flight.client))

    def soonest(self, count: int) -> list[Flight]:
        """The tasks under way that will be replied to next."""
        coming = (self.flights[client] for _, client in heapq.nsmallest(2 * count, self._queue))
        return [flight for flight in coming if not flight.plan.lost][:count]

    def advance(self, counts: Callable[[Flight], bool]) -> list[Flight]:
        """Let time pass until the server acts; what ended on the way, in order of time.

        `counts` says which replies count towards the first K.
        """
        wanted, deadline = self._goal()
        ended: list[Flight] = []
        while self._queue and wanted > 0 and self._queue[0][0] <= deadline:
            time, client = heapq.heappop(self._queue)
            self.now = max(self.now, time)
            flight = self.flights.pop(client)
            ended.append(flight)
            if flight.plan.lost:
                self._leave(client, flight.plan.back)
            else:
                self.idle.add(client)
                wanted -= counts(flight)
        if deadline < math.inf:
            self.now = deadline
        return ended

    def _goal(self) -> tuple[float, float]:
        """When the server acts: how many replies it wants, and until when it waits for them."""
        if self.synchronous:
            return math.inf, math.inf
        window = self.schedule.window
        return self.schedule.first or math.inf, self.now + window if window else math.inf

    # Saving and restoring.

    def save(self) -> dict[str, Any]:
        """Plain values and tensors; a tensor that several tasks share is there once."""
        tensors: dict[str, Tensor] = {}
        names: dict[int, str] = {}

        def packed(values: Message) -> dict[str, Any]:
            return {k: [name_of(v)] if isinstance(v, Tensor) else v for k, v in values.items()}

        def name_of(tensor: Tensor) -> str:
            name = names.setdefault(id(tensor), f"tensor/{len(names)}")
            tensors[name] = tensor
            return name

        flights = []
        for f in self.flights.values():
            models = {k: v for k, v in (("before", f.before), ("after", f.after)) if v is not None}
            done = None
            if f.done:
                done = [packed(f.done.reply), packed(f.done.private), f.done.loss, f.done.steps]
            flights.append([f.client, f.round, packed(f.message), f.start, vars(f.plan), packed(models), done])
        away = sorted(self._away)
        return {
            "now": self.now,
            "flights": flights,
            "away": away,
            "tasks": self.tasks,
            "effort": self.effort,
            **tensors,
        }

    def restore(self, values: dict[str, Any]) -> None:
        """The inverse of `save`."""

        def unpacked(packed: dict[str, Any]) -> Message:
            return {k: values[v[0]] if isinstance(v, list) else v for k, v in packed.items()}

        self.now, self.tasks = values["now"], list(values["tasks"])
        self.effort = tuple(values["effort"]) if values["effort"] else None
        self.idle = set(range(self.schedule.clients))
        for back, client in values["away"]:
            self._leave(client, back)
        for client, round, message, start, plan, models, done in values["flights"]:
            flight = Flight(client, round, unpacked(message), start, Plan(**plan), **unpacked(models))
            if done:
                flight.done = Done(client, unpacked(done[0]), unpacked(done[1]), done[2], done[3])
            self._put(flight)


def share(messages: Sequence[Message]) -> list[Message]:
    """Messages as they are now, whatever the server changes afterwards; the same tensor is copied once."""
    copies: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key not in copies:
            copies[key] = tensor.clone()
        return copies[key]

    return [{k: copy(v) if isinstance(v, Tensor) else v for k, v in message.items()} for message in messages]
