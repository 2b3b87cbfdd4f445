"""All parts of a run, and the choices that are left to the machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fedkin.cohort import WORTH, can_vectorize, is_dense
from fedkin.config import Config
from fedkin.data.federation import Federation
from fedkin.engine import default_workers
from fedkin.engine.worker import Site
from fedkin.errors import FedkinError
from fedkin.method import Method
from fedkin.schedule.participation import at_once


@dataclass(frozen=True)
class Setup:
    """All parts of a run, ready to go."""

    config: Config
    method: Method
    federation: Federation
    module: nn.Module
    """The network with its initial weights."""
    notes: tuple[str, ...] = ()
    """What a user should know of settings that were chosen for them."""

    def site(self) -> Site:
        """What workers need."""
        data, split = self.federation.data, self.federation.split
        return Site(
            method=self.method,
            module=self.module,
            classifier=self.config.classifier,
            x=data.x,
            y=data.y,
            mean=data.mean,
            std=data.std,
            train=split.train,
            test=split.test,
            public=split.public,
            classes=self.federation.classes,
            training=self.config.training,
            seed=self.config.seed,
            device=self.device,
        )

    @property
    def device(self) -> str:
        """Where tensors live: what was asked for, or the best there is."""
        if self.config.device != "auto":
            return self.config.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def vectorized(self) -> bool:
        """Whether the clients of a round train as a cohort."""
        plain = self.config.augment == "none"
        able = bool(self.method.vectorizes) and can_vectorize(self.module) and plain
        if self.config.vectorize == "on" and not able:
            raise FedkinError(
                f"vectorize=on: {self.method.name} on this model cannot train all clients at once "
                "(the method must allow it, the model have no batch norm and no dropout, and augment be none)"
            )
        fast = self.many and (is_dense(self.module) or self.device.startswith("cuda"))
        return able and (self.config.vectorize == "on" or (self.config.vectorize == "auto" and fast))

    @property
    def many(self) -> bool:
        """Whether a round has clients enough for training dense models at once."""
        return at_once(len(self.federation), self.config.join) >= WORTH

    @property
    def engine(self) -> str:
        """Which engine: what was asked for, or processes where they pay."""
        if self.config.engine != "auto":
            return self.config.engine
        little = self.vectorized or (is_dense(self.module) and not self.many)
        pays = (self.config.workers or default_workers()) > 1 and not little and self.device == "cpu"
        return "processes" if pays else "inline"
