"""The loop: who takes part, what is sent, local work, aggregation, evaluation."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedkin.clients import Clients
from fedkin.clock import Clock, Flight, share
from fedkin.engine import Engine, open_engine
from fedkin.engine.worker import Done, keeps_statistics
from fedkin.evaluate import Evaluator
from fedkin.judging import LocalModels, finetuned, on_union
from fedkin.late import DROP, LATE, LEAP, WAIT, check_leap, courses, replies_of
from fedkin.layout import Layout
from fedkin.method import TRAIN, Exchange, Message, Mixing, Overview, Replies, State, Trip, byte_count
from fedkin.result import Ended, Models, Result, Round
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.folder import RunFolder
from fedkin.runs.mixing import MixingRecord
from fedkin.schedule import schedule
from fedkin.scores import Score
from fedkin.setup import Setup

AHEAD = 64
"""Tasks whose work is done at one go when replies come one by one. A fixed number, so that who trains in one
cohort never depends on how many workers there are."""
Watch = Callable[[Round, float], object]
"""Called after every round with what happened and the seconds it took."""
Show = Callable[[str, int], AbstractContextManager[Watch]]
"""Makes a watcher that shows a run, from its label and how many rounds it has."""


def watched(show: Show | None, label: str, rounds: int) -> AbstractContextManager[Watch | None]:
    """A watcher for a run, if there is anything to show it by."""
    return show(label, rounds) if show else nullcontext()


@dataclass
class Tally:
    """What adds up in a round."""

    down: int = 0
    """Bytes sent by the server."""
    done: list[Done] = field(default_factory=list)
    tasks: list[Ended] = field(default_factory=list)


class Simulation:
    """A run under way: the server's state and its clients."""

    def __init__(self, setup: Setup, engine: Engine, folder: Path | None = None, clock: Clock | None = None) -> None:
        self.setup, self.engine = setup, engine
        self.mixing = MixingRecord(folder)
        config, federation, layout = (
            setup.config,
            setup.federation,
            Layout(setup.module, setup.config.classifier),
        )
        self.fed = Overview(
            clients=len(federation),
            rounds=config.rounds,
            seed=config.seed,
            classes=federation.classes,
            layout=layout,
            initial=layout.flatten(setup.module).cpu(),
            training=config.training,
        )
        self.state = setup.method.start(self.fed)
        self.clients = Clients(setup, engine)
        statistics = keeps_statistics(config.training, layout)
        self.evaluate = Evaluator(setup.method, engine, [len(rows) for rows in federation.split.test], statistics)
        self.clock = clock or Clock(
            schedule(config.schedule, self.fed.clients, config.seed), config.join, wait=config.late == WAIT
        )
        self.leaps = setup.method.leaps or config.late == LEAP
        self.local_models = LocalModels(setup, self.fed.initial)

    def round(self) -> tuple[Round, dict[str, float]]:
        """Play the next round; what happened, and the seconds for it.

        Wall time of training and evaluation, and `local`: the mean over participants of processor time per sample.
        """
        begin = time.perf_counter()
        config, method, state = self.setup.config, self.setup.method, self.state
        state.round += 1
        acting = launched = self.clock.choose(state.round)
        tally = Tally()
        trained = False
        mixed: Mixing = {}
        for exchange in method.exchanges(state):
            if exchange.name == TRAIN:
                self._launch(acting, tally)
                acting, mixing = self._land(tally)
                trained = True
            else:
                clients = range(self.fed.clients) if exchange.everyone else acting
                mixing = self._side(exchange, clients, tally)
            mixed |= mixing or {}
        if not trained:
            mixed |= self._land(tally)[1] or {}
        self._note_courses(launched)
        self.mixing.add(state.round, mixed)
        aggregated = time.perf_counter()
        due = state.round % config.evaluate_every == 0 or state.round == config.rounds
        scores = self._judge() if due else []
        losses = [d.loss for d in tally.done if d.steps]
        # In a real federation the server knows neither how long clients worked nor how many samples they have.
        known = (d.seconds / self.clients.train_sizes[d.client] for d in tally.done if d.seconds)
        local = math.fsum(known) / max(1, len(acting))
        happened = Round(
            round=state.round,
            participants=list(acting),
            steps=sum(d.steps for d in tally.done),
            train_loss=math.fsum(losses) / len(losses) if losses else None,
            bytes_up=sum(byte_count(d.reply) for d in tally.done),
            bytes_down=tally.down,
            scores=scores,
            time=self.clock.now if self.clock.tells else None,
            tasks=tally.tasks,
        )
        return happened, {"train": aggregated - begin, "evaluate": time.perf_counter() - aggregated, "local": local}

    def _judge(self) -> list[Score]:
        """The headline first."""
        config, setup, state = self.setup.config, self.setup, self.state
        scores = self.evaluate(state, self.clients.private, self.clients.trained)
        if config.judge_union:
            scores.append(on_union(setup, self.engine, self.clients.served(state)))
        if config.judge_local:
            self._note_under_way()
            scores += self.local_models.judge(self.evaluate, self.clients.private)
        if config.finetune_steps and state.round == config.rounds:
            scores.append(finetuned(setup, self.engine, self.clients.served(state)))
        return scores

    def _messages(self, exchange: str, clients: Sequence[int], tally: Tally) -> list[Message]:
        self.setup.method.prepare(self.state, exchange, clients)
        messages = [self.setup.method.dispatch(self.state, i, exchange) for i in clients]
        tally.down += sum(map(byte_count, messages))
        return messages

    def _side(self, exchange: Exchange, clients: Sequence[int], tally: Tally) -> Mixing | None:
        """An exchange in which the server waits for all that it writes to."""
        messages = self._messages(exchange.name, clients, tally)
        jobs = [self.clients.job(i, m, self.state.round, exchange.name) for i, m in zip(clients, messages, strict=True)]
        came = {i: (Trip(m), d) for i, m, d in zip(clients, messages, self.clients.work(jobs), strict=True) if d}
        for _, d in came.values():
            self.clients.keep(d)
            tally.done.append(d)
        if not came:
            return None
        trips, done = zip(*came.values(), strict=True)
        return self.setup.method.aggregate(
            self.state, Replies(exchange.name, list(came), [d.reply for d in done], trips)
        )

    def _launch(self, clients: Sequence[int], tally: Tally) -> None:
        """Give clients work."""
        clock, state = self.clock, self.state
        if not clients:
            return
        messages = self._messages(TRAIN, clients, tally)
        if not clock.synchronous:
            messages = share(messages)
        flights = [Flight(i, state.round, m, clock.now) for i, m in zip(clients, messages, strict=True)]
        if self.leaps and not clock.synchronous:
            check_leap(self.setup.method, state, messages[0])
            for flight, w in zip(flights, courses(self.setup.method, state, clients), strict=True):
                flight.before = w
        if not clock.timed:
            for flight in flights:
                clock.launch(flight)
            return
        planned = [self.setup.config.training.steps(self.clients.train_sizes[i]) for i in clients]
        if clock.effort is None:
            self._compute(flights[:1])
            shown = flights[0].done
            clock.effort = (shown.steps / planned[0], byte_count(shown.reply)) if shown else (1.0, 0)
        for flight, steps in zip(flights, planned, strict=True):
            clock.launch(flight, steps, byte_count(flight.message))

    def _land(self, tally: Tally) -> tuple[list[int], Mixing | None]:
        """Let time pass until the server acts, and act; whose replies were used, and who was mixed with whom."""
        state, config = self.state, self.setup.config
        ended = self.clock.advance(self._in_time)
        self._compute([flight for flight in ended if not flight.plan.lost])
        # In a real federation a client may be lost although no schedule has planned it.
        landed = [flight for flight in ended if flight.done and not flight.plan.lost]
        for flight in landed:
            assert flight.done is not None
            self.clients.keep(flight.done)
            tally.done.append(flight.done)
        used = [flight for flight in landed if self._in_time(flight)]
        if self.clock.synchronous:
            used.sort(key=lambda flight: flight.client)
        if self.clock.tells:
            tally.tasks += [self._record(flight) for flight in ended]
        if not used:
            return [], None
        replies = replies_of(self.setup.method, state, used, config.late)
        if config.judge_local:
            self._note_local(used)
            moved = self.setup.method.moved(state, replies)
            if moved is not None:
                self.local_models.new |= dict(zip(replies.clients, moved, strict=True))
        return replies.clients, self.setup.method.aggregate(state, replies)

    def _note_under_way(self) -> None:
        """Models whose replies are still to come, unless they will be dropped; older ones have been judged before."""
        config, flights = self.setup.config, self.clock.flights.values()
        if config.late != DROP:
            since = self.state.round - config.evaluate_every
            new = [flight for flight in flights if flight.round > since and not flight.plan.lost]
            self._compute(new)
            self._note_local(new)

    def _note_local(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            if flight.done:
                self.local_models.note(flight.client, flight.message, flight.done.reply)

    def _in_time(self, flight: Flight) -> bool:
        """Whether the server uses a reply: late ones may be dropped."""
        return self.setup.config.late != DROP or flight.round == self.state.round

    def _record(self, flight: Flight) -> Ended:
        late = self.state.round - flight.round
        became = LATE[LEAP if self.setup.method.leaps else self.setup.config.late]
        fate = "lost" if flight.plan.lost or not flight.done else became if late else "in time"
        return Ended(flight.client, flight.round, flight.start, flight.plan.end, fate)

    def _note_courses(self, launched: Sequence[int]) -> None:
        """w^t1 of clients that were written to in this round and are still at work."""
        waiting = [i for i in launched if i in self.clock.flights] if self.leaps else []
        if waiting:
            then = State(self.fed, self.state, self.state.round + 1)
            for i, w in zip(waiting, courses(self.setup.method, then, waiting), strict=True):
                self.clock.flights[i].after = w

    def _compute(self, flights: Sequence[Flight]) -> None:
        """Have the work of flights done; while at it, that of the next ones to arrive, side by side."""
        missing = [flight for flight in flights if flight.done is None]
        if not missing:
            return
        if not self.clock.synchronous:
            missing += [f for f in self.clock.soonest(AHEAD) if f.done is None][: max(0, AHEAD - len(missing))]
        done = self.clients.work([self.clients.job(f.client, f.message, f.round, TRAIN) for f in missing])
        for flight, d in zip(missing, done, strict=True):
            flight.done = d

    def models(self) -> Models:
        """Every client's model as it is now."""
        return self.clients.models(self.state, whole=not self.evaluate.private_statistics)

    def result(self, models: Models, history: list[Round], seconds: float, folder: RunFolder | None) -> Result:
        """What came out."""
        return Result(
            config=self.setup.config,
            method=self.setup.method.name,
            history=history,
            models=models,
            client_names=self.setup.federation.split.names,
            seconds=seconds,
            folder=folder.path if folder else None,
            record=self.mixing,
            label_counts=self.setup.federation.label_counts,
        )

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on from here."""
        self.mixing.write()
        return Checkpoint(
            self.state.round, dict(self.state), self.clients.private, self.clock.save() | self.local_models.save()
        )

    def restore(self, point: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.state = State(self.fed, point.state, point.round)
        self.clients.private = point.private
        self.clock.restore(point.clock)
        self.local_models.restore(point.clock)
        self.mixing.forget_after(point.round)


def simulate(setup: Setup, folder: RunFolder | None = None, watch: Watch | None = None) -> Result:
    """Run to the last round; with a folder, from its newest checkpoint on."""
    with one_thread(), running(setup) as engine:
        simulation = Simulation(setup, engine, folder.path if folder else None)
        history, seconds = play(simulation, folder, watch)
        result = simulation.result(simulation.models(), history, seconds, folder)
    if folder:
        folder.finish(result.models, result.summary())
    return result


def play(
    simulation: Simulation, folder: RunFolder | None = None, watch: Watch | None = None, until: int | None = None
) -> tuple[list[Round], float]:
    """The rounds that are left, or those up to one, and those before; with the seconds that all of them took."""
    config = simulation.setup.config
    last = config.rounds if until is None else min(until, config.rounds)
    history: list[Round] = []
    seconds = 0.0
    if folder:
        point, complaints = folder.rewind()
        for complaint in complaints:
            print(complaint, file=sys.stderr, flush=True)
        if point:
            simulation.restore(point)
        else:
            simulation.mixing.forget_after(0)
        history, seconds = folder.history(), folder.seconds()
    telling = folder.telling_why() if folder else nullcontext()
    with telling, _logged(folder, len(history)) if folder and config.tensorboard else nullcontext() as log:
        while simulation.state.round < last:
            happened, timing = simulation.round()
            history.append(happened)
            seconds += timing["train"] + timing["evaluate"]
            if folder:
                folder.add(happened, timing)
                if happened.round % config.checkpoint_every == 0 or happened.round == last:
                    folder.checkpoint(simulation.checkpoint())
            for watcher in (watch, log):
                if watcher:
                    watcher(happened, seconds)
    return history, seconds


def _logged(folder: RunFolder, last: int) -> AbstractContextManager[Watch]:
    from fedkin.report.tensorboard import logged  # an extra, and it needs this module

    return logged(folder.path, last)


@contextmanager
def running(setup: Setup) -> Iterator[Engine]:
    """An engine for the time of a run."""
    engine = open_engine(setup.engine, setup.site(), setup.config.workers, setup.config.ray_address)
    try:
        yield engine
    except BaseException:
        engine.close(at_once=True)
        raise
    engine.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for the server's arithmetic too: sums then come out the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
