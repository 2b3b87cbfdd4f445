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
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from fedkin.engine import wire
from fedkin.engine.worker import Site, Worker
from fedkin.errors import FedkinError

_worker: Worker


class Processes:
    """A pool of workers; each call goes to whichever is free."""

    def __init__(self, site: Site, workers: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedkin-"))
        try:
            np.save(self.folder / "x.npy", site.x)
            without_samples = cloudpickle.dumps(replace(site, x=site.x[:0]))
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(without_samples, str(self.folder)),
        )
        # Start all of them now, so that no round's time contains it.
        self.map("ready", [()] * workers)

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of `worker.function(*call)` for each call, in the order of the calls."""
        try:
            with _main_hidden():
                futures = [self.pool.submit(_call, function, wire.pack(call)) for call in calls]
            return [wire.unpack(future.result()) for future in futures]
        except BrokenProcessPool:
            raise FedkinError(
                "a worker process died, most often because memory ran out: use fewer --workers or a "
                "smaller --batch; a run with a folder can be resumed"
            ) from None

    def close(self) -> None:
        """End the processes and remove the shared samples."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Keep spawned processes from importing the user's main script: all they need is sent to them."""
    main = sys.modules["__main__"]
    names = ("__spec__", "__file__")
    hidden: dict[str, Any] = {name: vars(main).pop(name) for name in names if name in vars(main)}
    vars(main)["__spec__"] = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _begin(site: bytes, folder: str) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    torch.set_num_threads(1)
    samples = np.load(Path(folder) / "x.npy", mmap_mode="c", allow_pickle=False)
    _worker = Worker(replace(cloudpickle.loads(site), x=samples))


def _end_with_parent(folder: str) -> None:
    """A killed run must not leave workers or files behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _call(function: str, call: Any) -> Any:
    return wire.pack(getattr(_worker, function)(*wire.unpack(call)))
