"""The clients of a run, as the loop sees them: the work they do on an engine, what they keep, and their models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedkin.cohort import SIZE
from fedkin.engine import Engine
from fedkin.engine.worker import Done, Job
from fedkin.evaluate import Fingerprints, serves_models
from fedkin.method import Message, State
from fedkin.result import Models
from fedkin.setup import Setup


class Clients:
    """All of them; their private states lie here between jobs and are for nobody else to read."""

    def __init__(self, setup: Setup, engine: Engine) -> None:
        self.setup, self.engine = setup, engine
        self.train_sizes = [len(rows) for rows in setup.federation.split.train]
        self.vectorized = setup.vectorized
        self.private: dict[int, dict[str, Any]] = {}
        self.trained: Counter[int] = Counter()
        """How often each has ended its work, which is when its private state changes."""

    def job(self, client: int, message: Message, round: int, exchange: str) -> Job:
        """Work for one of them."""
        return Job(client, message, self.private.get(client, {}), round, exchange)

    def work(self, jobs: Sequence[Job]) -> list[Done | None]:
        """Local work in one kind of exchange; in the order of the jobs, None for a client that is lost."""
        # The longest first, so that no worker is left alone with a long job at the end.
        order = sorted(jobs, key=lambda job: (-self.train_sizes[job.client], job.client))
        vectorize = self.vectorized and jobs[0].exchange in self.setup.method.vectorizes
        size = SIZE if vectorize else 1
        calls = [(order[k : k + size], vectorize) for k in range(0, len(order), size)]
        done = {d.client: d for results in self.engine.map("local", calls) for d in results}
        return [done.get(job.client) for job in jobs]

    def keep(self, done: Done) -> None:
        """A client has ended its work: what it keeps to itself is now this."""
        self.trained[done.client] += 1
        if done.private:
            self.private[done.client] = self.private.get(done.client, {}) | done.private

    def served(self, state: State) -> list[Job]:
        """For every client what it needs to have its current model."""
        serve = self.setup.method.serve
        return [Job(i, serve(state, i), self.private.get(i, {})) for i in range(len(self.train_sizes))]

    def models(self, state: State, whole: bool) -> Models:
        """Every client's model as it is now; `whole` if what a server has of a model is all of it."""
        jobs = self.served(state)
        beside: dict[int, tuple[str, Tensor]] = {}
        if serves_models(self.setup.method) and whole:
            vectors: list[Tensor] = [job.message["w"] for job in jobs]
        else:
            kept = [each for batch in self.engine.map("keep", [([job],) for job in jobs]) for each in batch]
            vectors = [w for w, _ in kept]
            beside = {i: second for i, (_, second) in enumerate(kept) if second is not None}
        fingerprint = Fingerprints()
        prints = [fingerprint({"w": w}) for w in vectors]
        different = dict(zip(prints, vectors, strict=True))
        order = {p: k for k, p in enumerate(different)}
        return Models(torch.stack(list(different.values())), [order[p] for p in prints], beside)
