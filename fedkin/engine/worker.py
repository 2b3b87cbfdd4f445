"""A worker stands in for clients: it holds their data and runs the client half of a method for them."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedkin import randomness
from fedkin.client import Client, Networks, Samples
from fedkin.cohort import Cohort
from fedkin.config import Training
from fedkin.data.dataset import Indices
from fedkin.engine.memory import keep_freed_memory
from fedkin.layout import Block, Bound, Layout
from fedkin.method import Message, Method, Predictor, trained
from fedkin.models import best_format

STATISTICS = "statistics"
"""The name under which a client keeps its running statistics, if it keeps them to itself."""


def keeps_statistics(training: Training, layout: Layout) -> bool:
    """Whether clients keep the running statistics of batch norm to themselves."""
    return training.statistics == "local" and bool(layout.norm_statistics.ranges)


@dataclass(frozen=True)
class Site:
    """All that a worker needs to know; it can be sent to another process or machine."""

    method: Method
    module: nn.Module
    """The network with its initial weights."""
    classifier: str | None
    x: npt.NDArray[Any]
    y: Indices
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    public: Indices
    classes: int
    training: Training
    seed: int
    device: str


@dataclass(frozen=True)
class Job:
    """A message for one client, with the private state that this client has kept."""

    client: int
    message: Message
    private: dict[str, Any]
    round: int = 0
    """0 outside of rounds: what a model scores depends on the model alone, not on when it is asked."""
    exchange: str = "evaluate"


@dataclass(frozen=True)
class Done:
    """What a client sent back, and its private state afterwards."""

    client: int
    reply: Message
    private: dict[str, Any]
    loss: float
    """Mean training loss over its gradient steps; NaN if it took none."""
    steps: int
    seconds: float = 0.0
    """Processor time of its work, where that is known."""


@dataclass(frozen=True)
class Scored:
    """How a client's model did on that client's own test samples."""

    client: int
    correct: int
    total: int
    loss: float
    """Sum over the samples."""


class Worker:
    """Runs clients one after another on one working module."""

    def __init__(self, site: Site) -> None:
        keep_freed_memory()
        self.site = site
        self.device = torch.device(site.device)
        self.bound = Bound(copy.deepcopy(site.module).to(self.device), site.classifier)
        self.initial = self.bound.w.clone()
        self.keeps_statistics = keeps_statistics(site.training, self.bound.layout)
        self._places: dict[int, tuple[Tensor, Block]] = {}
        self.samples = self._samples()
        self.networks = Networks(site.x.shape[1:], site.classes, self.bound.w)
        self.train = [torch.from_numpy(rows).to(self.device) for rows in site.train]
        self.public = torch.from_numpy(site.public).to(self.device)
        self.test = [torch.from_numpy(rows).to(self.device) for rows in site.test]

    def _samples(self) -> Samples:
        site, dtype = self.site, self.bound.w.dtype
        per_channel = (-1, *[1] * (site.x.ndim - 2))
        unit = 255.0 if site.x.dtype == np.uint8 else 1.0
        mean, std = (torch.tensor(v, dtype=torch.float64).reshape(per_channel) for v in (site.mean, site.std))
        return Samples(
            x=torch.from_numpy(site.x).to(self.device),
            y=torch.from_numpy(site.y).to(self.device),
            scale=(1 / (unit * std)).to(self.device, dtype),
            shift=(-mean / std).to(self.device, dtype),
            memory=best_format(self.bound.module, site.x.shape[1:]),
        )

    def ready(self) -> None:
        """Nothing; an answer means that the worker is there."""

    def client(self, job: Job) -> Client:
        """The client of a job, ready to work."""
        return Client(
            id=job.client,
            round=job.round,
            exchange=job.exchange,
            seed=self.site.seed,
            samples=self.samples,
            train=self.train[job.client],
            test=self.test[job.client],
            public=self.public,
            bound=self.bound,
            networks=self.networks,
            initial=self.initial,
            training=self.site.training,
            classes=self.site.classes,
            private=self._here(job.private),
        )

    def local(self, jobs: Sequence[Job], vectorize: bool) -> list[Done]:
        """The method's local work for each job; a vectorised cohort does all of them at once."""
        if vectorize:
            return self._cohort(jobs)
        done = []
        for job in jobs:
            begin = time.process_time()
            client = self.client(job)
            with randomness.seeded_globally(self.site.seed, f"{job.exchange}/layers", job.round, job.client):
                message = self._message(job)
                reply = self.site.method.local(client, message)
            if self.keeps_statistics:
                self._keep_statistics(client, message, reply)
            loss = float(client.loss_sum) / client.steps if client.steps else float("nan")
            reply, private, seconds = _out(reply), _out(client.private), time.process_time() - begin
            done.append(Done(job.client, reply, private, loss, client.steps, seconds))
        return done

    def _cohort(self, jobs: Sequence[Job]) -> list[Done]:
        begin = time.process_time()
        cohort = Cohort([self.client(job) for job in jobs])
        messages = [self._here(job.message) for job in jobs]
        stacked = {
            name: torch.stack([m[name] for m in messages]) if isinstance(value, Tensor) else value
            for name, value in messages[0].items()
        }
        reply = self.site.method.local(cohort, stacked)
        each = (time.process_time() - begin) / len(jobs)
        return [
            Done(client.id, {name: _row(v, k) for name, v in reply.items()}, _out(client.private), loss, steps, each)
            for k, (client, loss, steps) in enumerate(
                zip(cohort.clients, cohort.mean_losses, cohort.step_counts, strict=True)
            )
        ]

    def score(self, jobs: Sequence[Job]) -> list[Scored]:
        """Each client's own model on its own test samples."""
        scored = []
        for job in jobs:
            client = self.client(job)
            with randomness.seeded_globally(self.site.seed, "evaluate/layers", 0, job.client):
                predict = self.site.method.predictor(client, self._message(job))
            scored += self._judge(predict, [job.client])
        return scored

    def score_sent(self, jobs: Sequence[Job]) -> list[Scored]:
        """The model that each client was sent, on its own test samples, with its own running statistics."""
        return [s for job in jobs for s in self._judge(self.bound.eval(self._message(job)["w"]), [job.client])]

    def score_everywhere(self, jobs: Sequence[Job], as_sent: bool) -> list[Scored]:
        """Each client's own model, or the one it was sent, on the test samples of all clients."""
        scored = []
        for job in jobs:
            message = self._message(job)
            with randomness.seeded_globally(self.site.seed, "evaluate/layers", 0, job.client):
                predict = (
                    self.bound.eval(message["w"]) if as_sent else self.site.method.predictor(self.client(job), message)
                )
            parts = self._judge(predict, range(len(self.test)))
            sums = (sum(s.correct for s in parts), sum(s.total for s in parts), math.fsum(s.loss for s in parts))
            scored.append(Scored(job.client, *sums))
        return scored

    def score_finetuned(self, jobs: Sequence[Job], steps: int, lr: float, batch: int) -> list[Scored]:
        """Each client's own model on its own test samples, after some more steps on its training samples."""
        scored = []
        for job in jobs:
            client = self.client(replace(job, exchange="finetune"))
            client.training = replace(client.training, batch=batch)
            with randomness.seeded_globally(self.site.seed, "finetune/layers", 0, job.client):
                predict = self.site.method.finetune(client, self._message(job), steps, lr)
            scored += self._judge(predict, [job.client])
        return scored

    def score_models(self, pairs: Sequence[tuple[Tensor, Sequence[int]]]) -> list[list[Scored]]:
        """Each model [D] on the test samples of the clients that it comes with."""
        results = []
        for w, clients in pairs:
            results.append(self._judge(self.bound.eval(w), clients))
        return results

    @torch.inference_mode()
    def _judge(self, predict: Predictor, clients: Sequence[int]) -> list[Scored]:
        rows = torch.cat([self.test[i] for i in clients])
        right, losses = [], []
        for x, y in self.samples.test_batches(rows):
            scores = predict(x)
            right.append(scores.argmax(1) == y)
            losses.append(nn.functional.cross_entropy(scores, y, reduction="none"))
        sizes = [len(self.test[i]) for i in clients]
        by_client = zip(clients, torch.cat(right).split(sizes), torch.cat(losses).split(sizes), strict=True)
        return [Scored(i, int(r.sum()), len(r), float(loss.double().sum())) for i, r, loss in by_client]

    def keep(self, jobs: Sequence[Job]) -> list[tuple[Tensor, tuple[str, Tensor] | None]]:
        """Each client's own model as a vector [D], and what it has beside it: the very ones that `score` judges."""
        kept = []
        for job in jobs:
            client = self.client(job)
            with randomness.seeded_globally(self.site.seed, "evaluate/layers", 0, job.client):
                w = self.site.method.personalise(client, self._message(job)).detach().cpu()
                second = self.site.method.beside(client)
            kept.append((w, (second[0], second[1].detach().cpu()) if second else None))
        return kept

    def _message(self, job: Job) -> Message:
        """What a client was sent, on this worker's device; with its own running statistics if it keeps them."""
        message = self._here(job.message)
        own = job.private.get(STATISTICS)
        if self.keeps_statistics and own is not None and isinstance(message.get("w"), Tensor):
            statistics, place = self._statistics(message["w"])
            place.put(message["w"], own.to(message["w"])[..., statistics])
        return message

    def _keep_statistics(self, client: Client, sent: Message, reply: Message) -> None:
        """Remember the running statistics of a model that a client has trained."""
        w = trained(sent, reply)
        if w is not None:
            statistics, place = self._statistics(w)
            own = client.private.get(STATISTICS, self.bound.layout.norm_statistics.of(self.initial).clone())
            own[statistics] = place.of(w)
            client.private[STATISTICS] = own

    def _statistics(self, w: Tensor) -> tuple[Tensor, Block]:
        """Which of all running statistics are in a vector of columns that travel, and where."""
        size = w.shape[-1]
        if size not in self._places:
            layout = self.bound.layout
            columns = torch.arange(layout.size)
            travel = columns if size == layout.size else self.site.method.shared(layout).of(columns)
            every = layout.norm_statistics.of(columns)
            here = torch.isin(every, travel)
            at = torch.searchsorted(travel, every[here]).tolist()
            self._places[size] = (here.nonzero().squeeze(1), Block.join((k, k + 1) for k in at))
        return self._places[size]

    def _here(self, values: dict[str, Any]) -> dict[str, Any]:
        # Copies, so that a method cannot reach into the server or into another client by accident.
        return {k: v.detach().to(self.device, copy=True) if isinstance(v, Tensor) else v for k, v in values.items()}


def _out(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu() if isinstance(v, Tensor) else v for k, v in values.items()}


def _row(value: Any, k: int) -> Any:
    if isinstance(value, Tensor):
        return value[k].cpu() if value.ndim > 1 else value[k].item()
    return value
