"""An engine whose workers are the clients themselves, and the clock on the wall."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedkin.clock import Clock, Flight
from fedkin.deploy.checks import Refused, Replies
from fedkin.deploy.post import PAUSE, VERSION, Letter, Post
from fedkin.engine.worker import Done, Job, Scored
from fedkin.errors import FedkinError
from fedkin.method import TRAIN, Message
from fedkin.schedule import Plan, Schedule, Task


class Remote:
    """Calls a worker's functions, each on the machine of the client that it is for."""

    def __init__(self, post: Post, replies: Replies) -> None:
        self.post, self.replies = post, replies

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """As `Engine.map`; the work of a client that is lost is missing, its score is of no samples."""
        if function == "score_models":
            asked = [[(Job(i, {"w": w}, {}), ()) for w, clients in pairs for i in clients] for (pairs,) in calls]
        else:
            asked = [[(job, call[1:] if function == "score_finetuned" else ()) for job in call[0]] for call in calls]
        letters = [[self.letter(function, job, extra) for job, extra in call] for call in asked]
        flat = [letter for call in letters for letter in call]
        for letter in flat:
            self.post.send(letter)
        self.post.wait(flat)
        if function == "local":
            return [[d for letter in call if (d := done(letter))] for call in letters]
        results: list[Any] = [[scored(letter) for letter in call] for call in letters]
        if function != "score_models":
            return results
        return [_by_model(pairs, row) for (pairs,), row in zip(calls, results, strict=True)]

    def letter(self, function: str, job: Job, extra: tuple[Any, ...] = ()) -> Letter:
        """A letter that asks for a job."""
        if function == "local":
            self.replies.expect(job)
        return Letter(job, function, extra)

    def close(self, at_once: bool = False) -> None:
        """Nothing: the clients go on without us."""


def _by_model(pairs: Sequence[tuple[Any, Sequence[int]]], row: list[Scored]) -> list[list[Scored]]:
    at, result = 0, []
    for _, clients in pairs:
        result.append(row[at : at + len(clients)])
        at += len(clients)
    return result


def check(replies: Replies) -> Callable[[Letter, Message, Mapping[str, Any]], None]:
    """What is looked at before an answer is used."""

    def look(letter: Letter, values: Message, about: Mapping[str, Any]) -> None:
        if letter.function == "local":
            replies.check(values, letter.job)
            steps, loss, version = about.get("steps"), about.get("loss"), about.get(VERSION)
            if type(steps) is not int or steps < 0 or not isinstance(loss, float) or not isinstance(version, str):
                raise Refused("it does not say what it did")
        elif letter.function != "finish":
            correct, total, loss = about.get("scored") or (None, None, None)
            counts = type(correct) is int and type(total) is int and 0 <= correct <= total
            if not counts or not isinstance(loss, float) or not math.isfinite(loss):
                raise Refused("its score is not one")

    return look


def done(letter: Letter) -> Done | None:
    """What a client did, if it did."""
    if letter.answer is None:
        return None
    about = letter.about
    private = {VERSION: about[VERSION]} if about[VERSION] else {}
    return Done(letter.job.client, letter.answer, private, about["loss"], about["steps"])


def scored(letter: Letter) -> Scored:
    """How a client's model did."""
    correct, total, loss = letter.about.get("scored", (0, 0, 0.0)) if letter.answer is not None else (0, 0, 0.0)
    return Scored(letter.job.client, correct, total, loss)


@dataclass(frozen=True)
class RealTime(Schedule):
    """Replies arrive when they do; the server acts on the first K, after a window of seconds, or on all."""

    example: ClassVar[str] = "sync"
    first: int | None = None
    window: float | None = None

    def plan(self, task: Task) -> Plan:
        """Nobody knows."""
        return Plan(task.start)


class WallClock(Clock):
    """Tasks are under way on clients' machines; time passes by itself."""

    def __init__(self, schedule: RealTime, join: float, wait: bool, remote: Remote) -> None:
        super().__init__(schedule, join, wait)
        self.remote = remote
        self.private: Callable[[int], dict[str, Any]] = lambda client: {}
        """The versions of what clients keep, by client."""
        self._letters: dict[int, Letter] = {}
        self._zero = time.monotonic()

    @property
    def tells(self) -> bool:
        """It does."""
        return True

    @property
    def timed(self) -> bool:
        """No task's end is planned."""
        return False

    def choose(self, round: int) -> list[int]:
        """Clients to be given work now."""
        self._tick()
        return super().choose(round)

    def _tick(self) -> None:
        self.now = max(self.now, time.monotonic() - self._zero)

    def _put(self, flight: Flight) -> None:
        self.idle.discard(flight.client)
        self.flights[flight.client] = flight
        job = Job(flight.client, flight.message, self.private(flight.client), flight.round, TRAIN)
        letter = self.remote.letter("local", job)
        self._letters[flight.client] = letter
        self.remote.post.send(letter)

    def soonest(self, count: int) -> list[Flight]:
        """Nobody knows."""
        return []

    def advance(self, counts: Callable[[Flight], bool]) -> list[Flight]:
        """Until the server acts; what ended on the way, in order of time."""
        wanted, deadline = self._goal()
        ended: list[Flight] = []
        while self.flights and wanted > 0 and self.now < deadline:
            stepped = self.remote.post.step()
            self._tick()
            for flight in self._landed():
                ended.append(flight)
                wanted -= not flight.plan.lost and counts(flight)
                if wanted <= 0:
                    break
            if not stepped:
                time.sleep(PAUSE)
        if ended and all(flight.plan.lost for flight in ended) and not self.flights:
            raise FedkinError("none of the clients that were asked has replied: see events.jsonl")
        return ended

    def _landed(self) -> Iterator[Flight]:
        """Tasks that have ended, in order of time; those that are not taken stay for the next time."""
        ends = sorted((letter.end, i) for i, letter in self._letters.items() if letter.end is not None)
        for end, client in ends:
            flight = self.flights.pop(client)
            flight.done = done(self._letters.pop(client))
            flight.plan = Plan(max(flight.start, end - self._zero), lost=flight.done is None)
            self.idle.add(client)
            yield flight

    def restore(self, values: dict[str, Any]) -> None:
        """Go on; who was at work is asked again, and does the same again."""
        super().restore(values)
        self._zero = time.monotonic() - self.now
