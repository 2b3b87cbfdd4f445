"""What a round costs beyond its gradient steps.

    python benchmarks/overhead.py [--repeats 7]

A round of FedAvg (100 clients on images of CIFAR-10's size, Dirichlet 0.1, ten of them taking part,
five local epochs, batch 32, LeNet-5 with batch norm) against a bare PyTorch loop that takes just the
same gradient steps with torch.optim.SGD on tensors that are normalised beforehand. Bare loop and
round take turns within one run, so that both see the same machine; ratios are medians over the turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fedkin import Federation, models
from fedkin.api import prepare
from fedkin.data.dataset import Dataset
from fedkin.data.partition import split
from fedkin.schedule import participants
from fedkin.setup import Setup
from fedkin.simulate import Simulation, running

CLIENTS, EPOCHS, BATCH, LR = 100, 5, 32, 0.01


def federation() -> Federation:
    """Random pixels and labels: the arithmetic is the same, and nothing needs to be downloaded."""
    rng = np.random.default_rng(0)
    n = 60_000
    data = Dataset(
        name="random pixels",
        x=rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8),
        y=rng.integers(0, 10, n),
        classes=tuple("0123456789"),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        is_test=np.zeros(n, dtype=bool),
    )
    return Federation(data, split(data, "dirichlet:0.1", CLIENTS, seed=0))


class Bare:
    """What one would write without any library: a model, an optimiser and a loop."""

    def __init__(self, fed: Federation) -> None:
        x = torch.from_numpy(fed.data.x).float() / 255
        self.x, self.y = (x - 0.5) / 0.25, torch.from_numpy(fed.data.y)
        self.rows = [torch.from_numpy(rows) for rows in fed.split.train]
        self.model = models.build("lenet5-bn", fed.shape, fed.classes)
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}

    def steps(self, clients: list[int]) -> int:
        """Train each client from the start, as a round does; the number of gradient steps."""
        count = 0
        self.model.train()
        for i in clients:
            self.model.load_state_dict(self.start)
            optimizer = torch.optim.SGD(self.model.parameters(), LR)
            for _ in range(EPOCHS):
                batches = list(self.rows[i][torch.randperm(len(self.rows[i]))].split(BATCH))
                if len(batches[-1]) == 1:  # batch norm cannot train on a single sample
                    batches[-2:] = [torch.cat(batches[-2:])]
                for batch in batches:
                    loss = nn.functional.cross_entropy(self.model(self.x[batch]), self.y[batch])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    count += 1
        return count


def setup(fed: Federation, workers: int, method: str = "fedavg", evaluate_every: int = 10**6) -> Setup:
    return prepare(
        method, data=fed, model="lenet5-bn", join=0.1, rounds=10**6, epochs=EPOCHS, batch=BATCH, lr=LR,
        engine="processes", workers=workers, evaluate_every=evaluate_every,
    )  # fmt: skip


def one_worker(fed: Federation, repeats: int) -> tuple[float, float]:
    """Milliseconds a step: bare loop, and round on one worker; medians of interleaved turns."""
    bare, ratios, plain = Bare(fed), [], []
    chosen = setup(fed, 1)
    with running(chosen) as engine:
        simulation = Simulation(chosen, engine)
        simulation.round()
        for t in range(2, repeats + 2):
            clients = participants(0, t, CLIENTS, 0.1)
            begin = time.perf_counter()
            steps = bare.steps(clients)
            middle = time.perf_counter()
            happened, _ = simulation.round()
            end = time.perf_counter()
            assert happened.steps == steps
            assert happened.participants == clients
            plain.append((middle - begin) / steps)
            ratios.append((end - middle) / (middle - begin))
    return 1e3 * median(plain), median(ratios)


def _bare_loop(barrier: Barrier, turns: int, half: int, results: Any) -> None:
    torch.set_num_threads(1)
    bare = Bare(federation())
    bare.steps([0])
    for t in range(turns):
        barrier.wait()
        begin = time.perf_counter()
        steps = bare.steps(participants(0, t + 2, CLIENTS, 0.1)[half::2])
        results.put((t, steps, time.perf_counter() - begin))
        barrier.wait()


def two_workers(fed: Federation, repeats: int) -> float:
    """Steps a second of a round on two workers, over those of two bare loops side by side."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    loops = [context.Process(target=_bare_loop, args=(barrier, repeats, k, results)) for k in range(2)]
    for loop in loops:
        loop.start()
    ratios = []
    chosen = setup(fed, 2)
    with running(chosen) as engine:
        simulation = Simulation(chosen, engine)
        simulation.round()
        for _ in range(repeats):
            barrier.wait()
            pair = [results.get() for _ in loops]
            barrier.wait()
            # Each loop's own speed, added up: a loop that ends early does not count as waiting.
            bare = sum(steps / seconds for _, steps, seconds in pair)
            begin = time.perf_counter()
            happened, _ = simulation.round()
            ratios.append(happened.steps / (time.perf_counter() - begin) / bare)
    for loop in loops:
        loop.join()
    return float(median(ratios))


def evaluation(fed: Federation, method: str, repeats: int) -> float:
    """Seconds for judging all clients after every round, over the seconds of the round itself."""
    chosen = setup(fed, 2, method, evaluate_every=1)
    with running(chosen) as engine:
        simulation = Simulation(chosen, engine)
        simulation.round()
        timings = [simulation.round()[1] for _ in range(repeats)]
    return median(t["evaluate"] / t["train"] for t in timings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    fed = federation()
    step, ratio = one_worker(fed, repeats)
    table = Table("what", "measured", "aim")
    table.add_row("bare loop, one step of LeNet-5, batch 32", f"{step:.2f} ms", "")
    table.add_row("round on one worker / bare loop", f"{ratio:.3f}", "at most 1.10")
    table.add_row("two workers / two bare loops, steps a second", f"{two_workers(fed, repeats):.3f}", "at least 0.92")
    changed = evaluation(fed, "local-only", repeats)
    table.add_row("judging 100 personal models every round (10 change)", f"+{100 * changed:.1f} %", "at most 15 %")
    shared = evaluation(fed, "fedavg", repeats)
    table.add_row("judging one new global model on all 100 clients", f"+{100 * shared:.1f} %", "")
    Console().print(table)


if __name__ == "__main__":
    main()
