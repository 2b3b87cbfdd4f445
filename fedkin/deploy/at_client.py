"""A client's half: open a letter, do what it asks with the client's own samples, and write the answer."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedkin import api
from fedkin.data.folder import read_own
from fedkin.data.partition import own_test
from fedkin.deploy.letter import pack, unpack
from fedkin.deploy.terms import Terms, read_public, site_of
from fedkin.engine.worker import Job, Scored, Worker
from fedkin.errors import FedkinError
from fedkin.export import Personal
from fedkin.method import Message
from fedkin.runs.files import make_folder, write_whole
from fedkin.setup import Setup

SCORES = ("score", "score_sent", "score_models", "score_finetuned")
FUNCTIONS = ("local", *SCORES, "finish")
MODEL = "model.safetensors"
LOST = "lost"
"""The answer of a client that no longer has what it kept."""


@dataclass(frozen=True)
class Home:
    """A client's own machine."""

    data: Path
    """Its samples, as a client's folder of `fedkin run --data`."""
    folder: Path
    """Where it keeps what is its own: private state and, in the end, its model."""
    base: Path | None = None
    """Where a method's own file is, if the federation brings one."""
    public: Path | None = None
    """Samples that everybody has, for methods that distil on them."""
    device: str = "cpu"
    threads: int = 1
    """More than one is faster for large models; sums then need not come out as in a simulation to the last bit."""


class Private:
    """What a client keeps to itself in one run, by version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, version: str) -> dict[str, Any] | None:
        """What there was at a version, nothing before the first; None if it is lost."""
        if not version:
            return {}
        path = self.folder / f"{word(version)}.safetensors"
        try:
            values, about = unpack(path.read_bytes())
        except (OSError, FedkinError):
            return None
        return values if about == {"version": version} else None

    def save(self, version: str, values: dict[str, Any], keep: int) -> None:
        """Write what there is now, and forget all but the newest `keep`."""
        make_folder(self.folder)
        self.folder.chmod(0o700)
        write_whole(self.folder / f"{word(version)}.safetensors", pack(values, {"version": version}))
        for old in sorted(self.folder.glob("*.safetensors"))[:-keep]:
            old.unlink(missing_ok=True)


def word(text: str) -> str:
    """A text that comes from the server and may become the name of a file."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", text):
        raise FedkinError(f"{text!r} cannot be a name")
    return text


def answer(content: bytes, home: Home) -> bytes:
    """The answer to a letter. Why something fails stays in this client's own log: it may tell of its samples."""
    about: Mapping[str, Any] = {}
    try:
        message, about = unpack(content)
        return _answer(message, about, home)
    except (FedkinError, OSError, KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        print(f"fedkin client: this could not be done: {error!r}", file=sys.stderr, flush=True)
        return pack({}, {"nonce": about.get("nonce"), "client": about.get("client"), "failed": type(error).__name__})


def _answer(message: Message, about: Mapping[str, Any], home: Home) -> bytes:
    client, function = about["client"], about["function"]
    if function not in FUNCTIONS:
        raise FedkinError(f"{function!r} is not what a client does")
    torch.set_num_threads(home.threads)
    head = {"nonce": about["nonce"], "client": client}
    private = Private(home.folder / "private" / word(about["run"]))
    kept = private.load(about["version"])
    if kept is None:
        return pack({}, head | {"failed": LOST})
    setup, worker = at_work(about["terms"], home, client)
    job = Job(client, message, kept, about["round"], about["exchange"])
    if function == "local":
        done = worker.local([job], False)[0]
        version, now = "", kept | done.private
        if now:
            version = f"{job.round:06d}-{job.exchange}"
            private.save(version, now, keep=2 * setup.config.checkpoint_every + 4)
        return pack(done.reply, head | {"version": version, "loss": done.loss, "steps": done.steps})
    if function == "finish":
        _write_model(setup, worker, job, home)
        return pack({}, head)
    if function == "score_models":
        scored: Scored = worker.score_models([(job.message["w"], [client])])[0][0]
    else:
        scored = getattr(worker, function)([job], *about["extra"])[0]
    return pack({}, head | {"scored": [scored.correct, scored.total, scored.loss]})


def _write_model(setup: Setup, worker: Worker, job: Job, home: Home) -> None:
    """The client's personalised model, on its own disk."""
    [(w, second)] = worker.keep([job])
    personal = Personal.of(api.describe(setup), setup.config.model, job.client, w, second)
    personal.save(home.folder / MODEL)


@lru_cache(maxsize=1)
def at_work(terms_text: str, home: Home, client: int) -> tuple[Setup, Worker]:
    """A run's parts and a worker with this client's samples and the public ones; the last ones are kept."""
    terms = Terms.of(json.loads(terms_text), "the terms that the server sent")
    if not 0 <= client < len(terms.clients):
        raise FedkinError(f"there is no client {client}")
    setup = terms.setup(home.base, read_public(home.public, terms.samples))
    x, y, is_test = own_samples(setup, home.data, client)
    site = site_of(setup, client, x, y, np.flatnonzero(~is_test), np.flatnonzero(is_test))
    return setup, Worker(replace(site, device=home.device))


def own_samples(
    setup: Setup, path: Path, client: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """A client's samples, labels, and which of them it tests on: as a simulation on everybody's folders has them."""
    federation, config = setup.federation, setup.config
    name = federation.split.names[client]
    x, y, is_test = read_own(name, path, federation.data.classes, federation.shape)
    if x.dtype != federation.data.x.dtype:
        raise FedkinError(f"{path} has samples of {x.dtype}, but {federation.data.x.dtype} was agreed on")
    if not is_test.any():
        is_test = own_test(y, config.test_ratio or 0.2, config.seed, client)
    if is_test.all() or not is_test.any():
        raise FedkinError(f"{path} needs at least one sample to learn from and one to test on")
    return x, y, is_test
