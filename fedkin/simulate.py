"""The loop: who takes part, what is sent, local work, aggregation, evaluation."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.cohort import SIZE, can_vectorize, is_dense
from fedkin.config import Config
from fedkin.data.federation import Federation
from fedkin.engine import Engine, default_workers, open_engine
from fedkin.engine.worker import Done, Job, Site
from fedkin.errors import FedkinError
from fedkin.evaluate import Evaluator, Fingerprints, serves_models
from fedkin.layout import Layout
from fedkin.method import Exchange, Message, Method, Mixing, Overview, Replies, State, byte_count
from fedkin.result import Models, Result, Round
from fedkin.runs.checkpoint import Checkpoint
from fedkin.runs.folder import RunFolder
from fedkin.runs.mixing import MixingRecord
from fedkin.schedule import participants
from fedkin.scores import OWN, Score

Watch = Callable[[Round, float], object]
"""Called after every round with what happened and the seconds it took."""


@dataclass(frozen=True)
class Setup:
    """All parts of a run, ready to go."""

    config: Config
    method: Method
    federation: Federation
    module: nn.Module
    """The network with its initial weights."""
    notes: tuple[str, ...] = ()
    """What a user should know of settings that were chosen for them."""

    def site(self) -> Site:
        """What workers need."""
        data, split = self.federation.data, self.federation.split
        return Site(
            method=self.method,
            module=self.module,
            classifier=self.config.classifier,
            x=data.x,
            y=data.y,
            mean=data.mean,
            std=data.std,
            train=split.train,
            test=split.test,
            public=split.public,
            classes=self.federation.classes,
            training=self.config.training,
            seed=self.config.seed,
            device=self.device,
        )

    @property
    def device(self) -> str:
        """Where tensors live: what was asked for, or the best there is."""
        if self.config.device != "auto":
            return self.config.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def vectorized(self) -> bool:
        """Whether the clients of a round train as a cohort."""
        able = bool(self.method.vectorizes) and can_vectorize(self.module)
        if self.config.vectorize == "on" and not able:
            raise FedkinError(
                f"vectorize=on: {self.method.name} on this model cannot train all clients at once "
                "(the method must allow it, and the model have no batch norm and no dropout)"
            )
        fast = is_dense(self.module) or self.device.startswith("cuda")
        return able and (self.config.vectorize == "on" or (self.config.vectorize == "auto" and fast))

    @property
    def engine(self) -> str:
        """Which engine: what was asked for, or processes where they pay."""
        if self.config.engine != "auto":
            return self.config.engine
        many = (self.config.workers or default_workers()) > 1
        return "processes" if many and not self.vectorized and self.device == "cpu" else "inline"


class Simulation:
    """A run under way: the server's state, and the clients' private states that it looks after."""

    def __init__(self, setup: Setup, engine: Engine, folder: Path | None = None) -> None:
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
        self.private: dict[int, dict[str, Any]] = {}
        self.trained: Counter[int] = Counter()
        self.train_sizes = [len(rows) for rows in federation.split.train]
        self.evaluate = Evaluator(setup.method, engine, [len(rows) for rows in federation.split.test])
        self.vectorized = setup.vectorized

    def round(self) -> tuple[Round, dict[str, float]]:
        """Play the next round; what happened, and the seconds for it."""
        begin = time.perf_counter()
        config, method, state = self.setup.config, self.setup.method, self.state
        state.round += 1
        chosen = participants(config.seed, state.round, self.fed.clients, config.join)
        done: list[Done] = []
        mixed: Mixing = {}
        down = 0
        for exchange in method.exchanges(state):
            clients = range(self.fed.clients) if exchange.everyone else chosen
            method.prepare(state, exchange.name, clients)
            messages = {i: method.dispatch(state, i, exchange.name) for i in clients}
            back = self._local(exchange, messages)
            down += sum(map(byte_count, messages.values()))
            done += back
            replies = Replies(exchange.name, [d.client for d in back], [d.reply for d in back])
            mixed |= method.aggregate(state, replies) or {}
        self.mixing.add(state.round, mixed)
        trained = time.perf_counter()
        due = state.round % config.evaluate_every == 0 or state.round == config.rounds
        scores = self.evaluate(state, self.private, self.trained) if due else []
        if state.round == config.rounds and config.finetune_steps:
            scores.append(self.finetuned())
        losses = [d.loss for d in done if d.steps]
        happened = Round(
            round=state.round,
            participants=list(chosen),
            steps=sum(d.steps for d in done),
            train_loss=math.fsum(losses) / len(losses) if losses else None,
            bytes_up=sum(byte_count(d.reply) for d in done),
            bytes_down=down,
            scores=scores,
        )
        return happened, {"train": trained - begin, "evaluate": time.perf_counter() - trained}

    def _local(self, exchange: Exchange, messages: dict[int, Message]) -> list[Done]:
        """Local work of all clients in an exchange; results in the order of the messages."""
        jobs = [Job(i, message, self.private.get(i, {})) for i, message in messages.items()]
        # The longest first, so that no worker is left alone with a long job at the end.
        jobs.sort(key=lambda job: (-self.train_sizes[job.client], job.client))
        vectorize = self.vectorized and exchange.name in self.setup.method.vectorizes
        size = SIZE if vectorize else 1
        groups = [jobs[k : k + size] for k in range(0, len(jobs), size)]
        calls = [(self.state.round, exchange.name, group, vectorize) for group in groups]
        done = {d.client: d for results in self.engine.map("local", calls) for d in results}
        for i, d in done.items():
            self.trained[i] += 1
            if d.private:
                self.private[i] = d.private
        return [done[i] for i in messages]

    def finetuned(self) -> Score:
        """Every client's model after some further steps on its own data."""
        config, clients = self.setup.config, range(self.fed.clients)
        jobs = [Job(i, self.setup.method.serve(self.state, i), self.private.get(i, {})) for i in clients]
        calls = [([job], config.finetune_steps, config.finetune_lr or config.lr) for job in jobs]
        scored = [s for batch in self.engine.map("score_finetuned", calls) for s in batch]
        return Score.of("personalised after fine-tuning", "after the last round", OWN, scored)

    def models(self) -> Models:
        """Every client's model as it is now."""
        method, clients = self.setup.method, range(self.fed.clients)
        messages = [method.serve(self.state, i) for i in clients]
        beside: dict[int, tuple[str, Tensor]] = {}
        if serves_models(method):
            vectors: list[Tensor] = [message["w"] for message in messages]
        else:
            calls = [([Job(i, messages[i], self.private.get(i, {}))],) for i in clients]
            kept = [each for batch in self.engine.map("keep", calls) for each in batch]
            vectors = [w for w, _ in kept]
            beside = {i: second for i, (_, second) in enumerate(kept) if second is not None}
        fingerprint = Fingerprints()
        prints = [fingerprint({"w": w}) for w in vectors]
        different = dict(zip(prints, vectors, strict=True))
        order = {p: k for k, p in enumerate(different)}
        return Models(torch.stack(list(different.values())), [order[p] for p in prints], beside)

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on from here."""
        return Checkpoint(self.state.round, dict(self.state), self.private)

    def restore(self, point: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.state = State(self.fed, point.state, point.round)
        self.private = point.private
        self.mixing.forget_after(point.round)


def simulate(setup: Setup, folder: RunFolder | None = None, watch: Watch | None = None) -> Result:
    """Run to the last round; with a folder, from its newest checkpoint on."""
    config = setup.config
    with one_thread(), running(setup) as engine:
        simulation = Simulation(setup, engine, folder.path if folder else None)
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
        while simulation.state.round < config.rounds:
            happened, timing = simulation.round()
            history.append(happened)
            seconds += sum(timing.values())
            if folder:
                folder.add(happened, timing)
                if happened.round % config.checkpoint_every == 0 or happened.round == config.rounds:
                    folder.checkpoint(simulation.checkpoint())
            if watch:
                watch(happened, seconds)
        result = Result(
            config=config,
            method=setup.method.name,
            history=history,
            models=simulation.models(),
            client_names=setup.federation.split.names,
            seconds=seconds,
            folder=folder.path if folder else None,
            record=simulation.mixing,
        )
    if folder:
        folder.finish(result.models, result.summary())
    return result


@contextmanager
def running(setup: Setup) -> Iterator[Engine]:
    """An engine for the time of a run."""
    engine = open_engine(setup.engine, setup.site(), setup.config.workers)
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
