"""Events on the virtual clock: seconds for a thousand of them, from a hundred to ten thousand clients.

    python benchmarks/clock.py

FedAsync on a network with 163 parameters, all clients at work at the same time, the server acting on each reply: an
event is a reply that arrives, the server's step on it, and a new task for its client.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from torch import nn

from fedkin import Federation
from fedkin.api import prepare
from fedkin.engine.inline import Inline
from fedkin.simulate import Simulation, one_thread

SAMPLES, FEATURES, CLASSES = 20, 8, 3


def federation(clients: int) -> Federation:
    """Clients with twenty points each."""
    rng = np.random.default_rng(0)
    return Federation.from_arrays(
        [
            (rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32), np.arange(SAMPLES) % CLASSES)
            for _ in range(clients)
        ]
    )


def measure(clients: int, events: int, join: float) -> tuple[float, float]:
    """Seconds to set everybody to work, and seconds for a thousand events after that."""
    network = nn.Sequential(nn.Linear(FEATURES, 13), nn.ReLU(), nn.Linear(13, CLASSES))
    setup = prepare(
        "fedasync", data=federation(clients), model=network, rounds=10 * events, epochs=1, batch=10, rho=0.0,
        join=join, schedule="latency:compute=lognormal/0.05/1", evaluate_every=10 * events,
    )  # fmt: skip
    with one_thread():
        simulation = Simulation(setup, Inline(setup.site()))
        begin = time.perf_counter()
        simulation.round()
        started = time.perf_counter()
        for _ in range(events):
            simulation.round()
        ended = time.perf_counter()
    return started - begin, 1000 * (ended - started) / events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5000)
    events = parser.parse_args().events
    measure(100, 200, 1.0)
    print("clients  at work  start (s)  seconds per 1,000 events  relative")
    for join in (1.0, 0.1):
        first = None
        for clients in (100, 1000, 10_000):
            start, seconds = measure(clients, events, join)
            first = first or seconds
            print(f"{clients:7}  {round(join * clients):7}  {start:9.2f}  {seconds:24.3f}  {seconds / first:8.2f}")


if __name__ == "__main__":
    main()
