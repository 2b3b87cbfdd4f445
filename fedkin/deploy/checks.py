"""What the server accepts from a client. A reply that is not as it should be is refused and recorded, never used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.deploy.terms import site_of
from fedkin.engine.worker import Job, Site, Worker
from fedkin.errors import FedkinError
from fedkin.method import Message
from fedkin.setup import Setup

Kind = tuple[str, tuple[int, ...]]
"""Type and shape of a value; a number or a word has no shape."""


class Refused(FedkinError):
    """A reply that the server does not use, and why."""


@dataclass
class Replies:
    """Knows what replies look like, from what the method itself replies on samples made up here."""

    setup: Setup
    known: dict[str, dict[str, Kind]] = field(default_factory=dict)
    """What is sent in an exchange to what is replied, by the kinds of their values."""
    private: dict[str, Any] = field(default_factory=dict)
    """What the client made up here keeps to itself."""

    def expect(self, job: Job) -> None:
        """Find out what the reply to a job will look like, once for every kind of message."""
        if _asked(job) not in self.known:
            worker = Worker(_made_up(self.setup, job.client))
            done = worker.local([replace(job, private=self.private)], False)[0]
            self.private |= done.private
            self.known[_asked(job)] = kinds(done.reply)

    def check(self, reply: Message, job: Job) -> None:
        """Refuse a reply with other values than expected, of another shape, or with numbers that are none."""
        expected, given = self.known[_asked(job)], kinds(reply)
        if given != expected:
            odd = sorted(name for name in given.keys() | expected.keys() if given.get(name) != expected.get(name))
            raise Refused(f"{odd[0]} is {_told(given.get(odd[0]))}, {_told(expected.get(odd[0]))} expected")
        for name, value in reply.items():
            if isinstance(value, Tensor | float) and not torch.isfinite(torch.as_tensor(value)).all():
                raise Refused(f"{name} has numbers that are NaN or infinite")
            if name == "n" and isinstance(value, int | float) and not 0 < value < 1e9:
                raise Refused(f"n is {value:g}: it cannot have learnt from so many samples")


def most_bytes(setup: Setup) -> int:
    """The longest message that a client may send: sixteen models in double precision, and a mebibyte."""
    return (1 << 20) + 16 * 8 * sum(p.numel() for p in setup.module.parameters())


def _asked(job: Job) -> str:
    return f"{job.exchange} {sorted(kinds(job.message).items())}"


def kinds(message: Mapping[str, Any]) -> dict[str, Kind]:
    """Type and shape of all values; whole numbers pass as numbers."""
    return {
        name: (str(value.dtype), tuple(value.shape))
        if isinstance(value, Tensor)
        else ("number" if isinstance(value, int | float) else type(value).__name__, ())
        for name, value in message.items()
    }


def _told(kind: Kind | None) -> str:
    return f"{kind[0]} {list(kind[1])}" if kind and kind[1] else kind[0] if kind else "missing"


def _made_up(setup: Setup, client: int) -> Site:
    """A site on which a client has four samples of noise of every class, and a short training."""
    classes, shape = setup.federation.classes, setup.federation.shape
    rows = np.arange(4 * classes)
    noise = np.random.default_rng(0).integers(0, 256, (len(rows), *shape))
    site = site_of(setup, client, noise.astype(setup.federation.data.x.dtype), rows % classes, rows, rows)
    training = replace(site.training, epochs=1, minibatches=min(1, site.training.minibatches))
    return replace(site, training=training, device="cpu")
