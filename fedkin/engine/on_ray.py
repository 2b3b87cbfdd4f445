"""Workers on a Ray cluster: each is an actor that holds the data and stands in for any client.

The site goes into Ray's object store once and from there to every node; within one call of `map` a tensor that several
calls share, such as a global model, goes there once too. A worker's answer depends on nothing but what it was asked, so
when a node is lost its calls are simply given to the workers that are left.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np
from torch import Tensor

from fedkin.engine import wire
from fedkin.engine.worker import Site, Worker
from fedkin.errors import FedkinError

START_SECONDS = 120.0
"""A cluster that does not answer by then is given up."""
LARGE = 4096
"""Bytes from which on a tensor goes through the object store by itself."""


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise FedkinError("--engine ray needs Ray: pip install 'fedkin[ray]'") from None
    return ray


class OnRay:
    """Calls workers wherever the cluster has room for them."""

    def __init__(self, site: Site, workers: int, address: str | None = None) -> None:
        self.ray = _ray()
        self.own = not self.ray.is_initialized()
        if self.own:
            self._join(workers, address)
        self.room = workers
        samples = self.ray.put(site.x)
        rest = self.ray.put(cloudpickle.dumps(replace(site, x=site.x[:0])))
        self.site = (rest, samples)
        self.actor = self.ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        self.workers: list[Any] = []
        try:
            self._start(workers)
        except BaseException:
            self.close(at_once=True)
            raise

    def _join(self, workers: int, address: str | None) -> None:
        # Nothing of a run is anybody else's business, and a metrics page would be a server nobody asked for.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address is None:
            settings |= {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            _knock(address)
            self.ray.init(address=address or "local", **settings)
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            where = f"the Ray cluster at {address}" if address else "a local Ray cluster"
            raise FedkinError(f"{where} cannot be reached: {str(error).splitlines()[0]}") from None

    def _start(self, count: int) -> None:
        """Start workers; those that find no room on the cluster in time are left out, but one has to."""
        started = [self.actor.remote(*self.site) for _ in range(count)]
        waiting = {worker.ready.remote(): worker for worker in started}
        ready, late = self.ray.wait(list(waiting), num_returns=count, timeout=START_SECONDS)
        for reference in late:
            self.ray.kill(waiting[reference])
        for reference in ready:
            try:
                self.ray.get(reference)
                self.workers.append(waiting[reference])
            except self.ray.exceptions.RayActorError:
                continue
        if not self.workers:
            raise FedkinError(f"no worker could be started on the Ray cluster within {START_SECONDS:g} s")

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of `worker.function(*call)` for each call, in the order of the calls."""
        packed = self._packed(calls)
        results: dict[int, Any] = {}
        waiting = deque(range(len(calls)))
        free = deque(self.workers)
        running: dict[Any, tuple[int, Any]] = {}
        while len(results) < len(calls):
            while waiting and free:
                k, worker = waiting.popleft(), free.popleft()
                running[worker.call.remote(function, packed[k])] = (k, worker)
            if not running:
                self._replace_all(free)
                continue
            (reference, *_), _ = self.ray.wait(list(running), num_returns=1)
            k, worker = running.pop(reference)
            try:
                results[k] = wire.unpack(_writable(self.ray.get(reference)))
                free.append(worker)
            except self.ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
                # The node is gone, or the worker was killed: somebody else answers.
                self.workers.remove(worker)
                waiting.appendleft(k)
        return [results[k] for k in range(len(calls))]

    def _replace_all(self, free: deque[Any]) -> None:
        """Nobody is left: start anew where there is room."""
        try:
            self._start(self.room)
        except FedkinError:
            raise FedkinError("all workers on the Ray cluster were lost, and no new one could be started") from None
        free.extend(self.workers)

    def _packed(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls as they travel: large tensors as references, each distinct one put into the store once."""
        references: dict[tuple[int, tuple[int, ...]], Any] = {}

        def change(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if leaf.numel() * leaf.element_size() < LARGE:
                return wire.Array(leaf.numpy())
            key = (leaf.data_ptr(), tuple(leaf.shape))
            if key not in references:
                references[key] = self.ray.put(leaf.numpy())
            return _Stored(references[key])

        return [wire.walk(call, change) for call in calls]

    def close(self, at_once: bool = False) -> None:
        """End the workers, and the cluster if it was started here."""
        for worker in self.workers:
            self.ray.kill(worker)
        self.workers = []
        if self.own:
            self.ray.shutdown()


def _knock(address: str | None) -> None:
    """Fail at once where nobody listens: Ray itself would go on trying for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


class _Stored:
    """A tensor in the object store."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference


class _Actor:
    """A worker as a Ray actor."""

    def __init__(self, rest: bytes, samples: np.ndarray[Any, Any]) -> None:
        import torch

        # What comes from the object store is read-only, and is never written to.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        torch.set_num_threads(1)
        self.worker = Worker(replace(cloudpickle.loads(rest), x=samples))

    def ready(self) -> int:
        """The process, as a sign of life."""
        return os.getpid()

    def call(self, function: str, call: Any) -> Any:
        """One call of a worker's function."""
        import ray

        stored: list[Any] = []
        wire.walk(call, lambda leaf: stored.append(leaf.reference) if isinstance(leaf, _Stored) else None)
        arrays = dict(zip(stored, ray.get(stored), strict=True))
        here = wire.walk(call, lambda x: wire.Array(arrays[x.reference]) if isinstance(x, _Stored) else x)
        return wire.pack(getattr(self.worker, function)(*wire.unpack(here)))


def _writable(value: Any) -> Any:
    """Arrays from the object store as copies of our own: the server may write to what it is sent."""
    return wire.walk(value, lambda x: wire.Array(x.array.copy()) if isinstance(x, wire.Array) else x)
