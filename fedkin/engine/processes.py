"""Persistent worker processes on this machine, one thread each.

The samples are written once to a file that all workers map into memory, so that N workers do not
hold N copies. Processes are spawned, not forked, which is safe with threads and on every system,
and they do not import the user's main script: it works from notebooks and unguarded scripts too.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from fedkin.engine import wire
from fedkin.engine.worker import Site, Worker
from fedkin.errors import FedkinError


class Pool:
    """Worker processes, and a private folder through which they are told what to work on."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.folder = Path(tempfile.mkdtemp(prefix="fedkin-"))
        self.executor = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(str(self.folder),),
        )

    def close(self, at_once: bool = False) -> None:
        """End the processes, after what they are doing or at once, and remove the folder."""
        if at_once:
            for process in list((self.executor._processes or {}).values()):
                process.kill()
            # A worker that was killed while it sent a result leaves half of it in the pipe. With our own end for
            # writing closed, the executor's thread reads to the end of it; otherwise it would wait for the rest.
            self.executor._result_queue._writer.close()  # type: ignore[attr-defined]
        self.executor.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)


_shared: Pool | None = None


@contextmanager
def shared_pool(workers: int) -> Iterator[None]:
    """Inside, runs with this many workers share one pool: starting it takes seconds."""
    global _shared
    before, _shared = _shared, Pool(workers)
    try:
        yield
    finally:
        _shared.close()
        _shared = before


class Processes:
    """Runs a site on a pool of workers; each call goes to whichever is free."""

    def __init__(self, site: Site, workers: int) -> None:
        self.own = _shared is None or _shared.workers != workers
        self.pool = Pool(workers) if self.own or _shared is None else _shared
        self.folder = Path(tempfile.mkdtemp(dir=self.pool.folder))
        try:
            np.save(self.folder / "x.npy", site.x)
            (self.folder / "site").write_bytes(cloudpickle.dumps(replace(site, x=site.x[:0])))
            # Start all workers now, so that no round's time contains it.
            self.map("ready", [()] * workers)
        except OSError as error:
            self.close()
            raise FedkinError(
                f"cannot write the samples to {self.pool.folder} for the workers: {error.strerror or error}; set "
                "TMPDIR to a folder with more room, or use --engine inline"
            ) from error
        except BaseException:
            self.close()
            raise

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of `worker.function(*call)` for each call, in the order of the calls."""
        try:
            with _main_hidden():
                futures = [
                    self.pool.executor.submit(_call, str(self.folder), function, wire.pack(call)) for call in calls
                ]
            return [wire.unpack(future.result()) for future in futures]
        except BrokenProcessPool:
            raise FedkinError(
                "a worker process died, most often because memory ran out: use fewer --workers or a "
                "smaller --batch; a run with a folder can be resumed"
            ) from None

    def close(self, at_once: bool = False) -> None:
        """End what was started for this site; after a failure at once, whatever the workers are doing."""
        if self.own or at_once:
            self.pool.close(at_once)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep spawned processes from importing the user's main script: all they need is sent to them.

    They also start with Ctrl-C blocked, which a terminal sends to all of them: ending them is our job.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    main = sys.modules["__main__"]
    names = ("__spec__", "__file__")
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in names if name in vars(main)}
    vars(main)["__spec__"] = None
    try:
        yield
    finally:
        vars(main).update(hidden)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent(folder: str) -> None:
    """A killed run must not leave workers or files behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


@lru_cache(maxsize=1)
def _worker(folder: str) -> Worker:
    samples = np.load(Path(folder) / "x.npy", mmap_mode="c", allow_pickle=False)
    return Worker(replace(cloudpickle.loads((Path(folder) / "site").read_bytes()), x=samples))


def _call(folder: str, function: str, call: Any) -> Any:
    return wire.pack(getattr(_worker(folder), function)(*wire.unpack(call)))
