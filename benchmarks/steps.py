"""A gradient step with the images' channels first and last, and with the memory of the step before; cohorts.

    python benchmarks/steps.py [--repeats 40]

The two layouts take turns, in one process with memory as the system hands it out and in another as workers have it,
kept from step to step: what a process did before changes how the system hands it out. Networks get batches of the
papers' sizes; cohorts are FedAvg on handwritten digits with equally large clients and the small dense network that is
the default there.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

import fedkin
from fedkin import models
from fedkin.engine.memory import keep_freed_memory

CIFAR, MNIST = (3, 32, 32), (1, 28, 28)
NETWORKS = [
    ("lenet5-bn", CIFAR, 32), ("lenet5", CIFAR, 32), ("spfl-cnn", MNIST, 128), ("spfl-cnn", CIFAR, 128),
    ("mnist-cnn", MNIST, 50), ("cifar10-cnn", CIFAR, 50), ("alexnet", CIFAR, 50), ("mobilenetv2", CIFAR, 32),
]  # fmt: skip
AT_ONCE = (1, 2, 4, 8, 16, 32)


def step(name: str, shape: tuple[int, ...], batch: int, repeats: int, kept: bool) -> tuple[float, float]:
    """Seconds of a gradient step with the channels first, and last."""
    torch.set_num_threads(1)
    if kept:
        keep_freed_memory()
    network, y = models.build(name, shape, 10), torch.randint(0, 10, (batch,))
    plain = torch.randn(batch, *shape)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for x, times in zip((plain, plain.to(memory_format=torch.channels_last)), seconds, strict=True):
            begin = time.perf_counter()
            network.zero_grad()
            cross_entropy(network(x), y).backward()
            times.append(time.perf_counter() - begin)
    return median(seconds[0]), median(seconds[1])


def client_step(clients: int, vectorize: str) -> float:
    """Seconds per gradient step of one client, if so many take part in a round."""
    begin = time.perf_counter()
    result = fedkin.run(
        "fedavg", data="digits", partition="iid", clients=40, join=clients / 40, rounds=max(4, 80 // clients),
        evaluate_every=1000, engine="inline", vectorize=vectorize,
    )  # fmt: skip
    return (time.perf_counter() - begin) / sum(r.steps for r in result.history)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("network, batch", "first", "last", "kept, first", "kept, last", title="ms a step, by channels")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh:
        for name, shape, batch in NETWORKS:
            times = [fresh.submit(step, name, shape, batch, arguments.repeats, kept).result() for kept in (False, True)]
            what = f"{name}, {batch} x {'x'.join(map(str, shape))}"
            table.add_row(what, *(f"{seconds * 1e3:.1f}" for pair in times for seconds in pair))
    Console().print(table)
    table = Table("clients a round", "one by one", "cohort", "times faster")
    client_step(1, "on")  # What is imported and compiled once does not count.
    for clients in AT_ONCE:
        alone, together = client_step(clients, "off"), client_step(clients, "on")
        table.add_row(str(clients), f"{alone * 1e3:.2f} ms", f"{together * 1e3:.2f} ms", f"{alone / together:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
