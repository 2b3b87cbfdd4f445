"""A federation: N clients with private samples, from a dataset and a partition or from a user's data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedkin.config import Config
from fedkin.data import catalogue, partition
from fedkin.data.dataset import Dataset, Indices, Split
from fedkin.data.folder import read_folder
from fedkin.data.sources.pixels import statistics
from fedkin.errors import FedkinError
from fedkin.randomness import numpy_generator

Pair = tuple[npt.ArrayLike, npt.ArrayLike]


@dataclass(frozen=True)
class Federation:
    """Samples and who owns them. Every client has at least one sample to learn from and one to test on."""

    data: Dataset
    split: Split

    def __post_init__(self) -> None:
        for name, train, test in zip(self.split.names, self.split.train, self.split.test, strict=True):
            if not len(train) or not len(test):
                raise FedkinError(
                    f"{name} has {len(train)} samples to learn from and {len(test)} to test on: every "
                    "client needs at least one of each"
                )
        if self.data.x.dtype != np.uint8:
            finite = np.isfinite(self.data.x.reshape(len(self.data), -1)).all(axis=1)
            if not finite.all():
                row = int(np.flatnonzero(~finite)[0])
                owner = next((n for n, *rows in self.owned if any(row in r for r in rows)), "nobody")
                raise FedkinError(
                    f"the data have NaN or infinite values in {(~finite).sum()} samples, the first of them "
                    f"sample {row} of {owner}: clean or drop them"
                )

    @property
    def owned(self) -> list[tuple[str, Indices, Indices]]:
        """Name, training rows and test rows of each client."""
        return list(zip(self.split.names, self.split.train, self.split.test, strict=True))

    def __len__(self) -> int:
        return len(self.split)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.data.x.shape[1:]

    @property
    def classes(self) -> int:
        """How many classes there are over all clients."""
        return len(self.data.classes)

    @cached_property
    def label_counts(self) -> list[list[int]] | None:
        """[N, K] training samples of each class that each client has."""
        rows = self.split.train
        return [np.bincount(self.data.y[own], minlength=self.classes).tolist() for own in rows]

    @cached_property
    def fingerprint(self) -> str:
        """Differs when any sample, its label, owner or scale differs; a resumed run compares it."""
        digest = hashlib.blake2b(digest_size=8)
        arrays = (self.data.x, self.data.y, *self.split.train, *self.split.test, self.split.public)
        shapes = [(array.shape, array.dtype.name) for array in arrays]
        digest.update(repr((shapes, self.data.mean, self.data.std)).encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def publishing(self, share: float, seed: int) -> Federation:
        """The same federation with a share of everybody's training samples made public (each keeps at least one)."""
        rng = numpy_generator(seed, "public")
        kept, public = [], []
        for rows in self.split.train:
            shuffled = rng.permutation(rows)
            cut = min(round(share * len(rows)), len(rows) - 1)
            public.append(shuffled[:cut])
            kept.append(np.sort(shuffled[cut:]))
        everybodys = np.sort(np.concatenate([self.split.public, *public]))
        return Federation(self.data, replace(self.split, train=tuple(kept), public=everybodys))

    def with_pixels(self, seen: Literal["centred", "raw"]) -> Federation:
        """The same federation with its pixels seen as -1..1 or 0..255, whatever their mean and deviation."""
        if self.data.x.dtype != np.uint8:
            raise FedkinError(f"pixels={seen} is about images, but {self.data.name} has {self.data.x.dtype} numbers")
        mean, std = {"centred": (0.5, 0.5), "raw": (0.0, 1 / 255)}[seen]
        channels = self.data.x.shape[1]
        return Federation(replace(self.data, mean=(mean,) * channels, std=(std,) * channels), self.split)

    @classmethod
    def of(cls, config: Config) -> Federation:
        """What a run's settings ask for: a dataset split by a rule, or a folder of the user's own."""
        if is_folder(config.data):
            return cls.from_folder(config.data, test_ratio=config.test_ratio or 0.2, seed=config.seed)
        if "/" in config.data:
            raise FedkinError(f"there is no folder {config.data}")
        data = _load(config.data, catalogue.data_root())
        split = partition.split(data, config.partition, config.clients, config.seed, config.test_ratio, config.pool)
        return cls(data, split)

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, Pair] | Sequence[Pair],
        *,
        test: Mapping[str, Pair] | Sequence[Pair] | None = None,
        test_ratio: float = 0.2,
        seed: int = 0,
        name: str = "own data",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> Federation:
        """A federation from arrays: one pair (x [n, ...], y [n]) per client, in a list or by name.

        Labels may be anything that sorts. `test` gives each client's test samples in the same form;
        without it a stratified `test_ratio` of every client is kept for testing. uint8 samples are
        taken as images in 0..255; `mean` and `std` (per channel, on the 0-1 scale for images)
        default to those of the samples to learn from.
        """
        pairs = _by_name(clients)
        parts = [(owner, x, y, False) for owner, (x, y) in pairs.items()]
        if test is not None:
            held_out = _by_name(test)
            if held_out.keys() != pairs.keys():
                raise FedkinError(f"test samples are given for {sorted(held_out)}, but the clients are {sorted(pairs)}")
            parts += [(owner, x, y, True) for owner, (x, y) in held_out.items()]
        data = _gather(name, parts, mean, std)
        return cls(data, partition.split_owned(data, None if test is not None else test_ratio, seed))

    @classmethod
    def from_folder(
        cls, path: str | Path, *, size: int | None = None, test_ratio: float = 0.2, seed: int = 0
    ) -> Federation:
        """A federation from disk: one folder (or .npz or .csv file) per client; see `read_folder`."""
        data = read_folder(Path(path), size=size)
        return cls(data, partition.split_owned(data, None if data.is_test.any() else test_ratio, seed))


def is_folder(data: str) -> bool:
    """Whether `data` means a user's folder: a dataset of that name comes first."""
    return bool(data) and data not in catalogue.names() and Path(data).is_dir()


@lru_cache(maxsize=1)
def _load(name: str, root: Path) -> Dataset:
    """The last dataset used is kept: a comparison splits it again for every seed."""
    return catalogue.load(name, root)


def _by_name(clients: Mapping[str, Pair] | Sequence[Pair]) -> dict[str, Pair]:
    if isinstance(clients, Mapping):
        return dict(clients)
    return {f"client-{i:02d}": pair for i, pair in enumerate(clients)}


def _gather(name: str, parts: list[tuple[str, Any, Any, bool]], mean: Any, std: Any) -> Dataset:
    """One dataset out of everybody's arrays."""
    if not parts:
        raise FedkinError("a federation needs at least one client, but none was given")
    xs = [np.asarray(x) for _, x, _, _ in parts]
    ys = [np.asarray(y) for _, _, y, _ in parts]
    for (owner, *_), x, y in zip(parts, xs, ys, strict=True):
        _check_pair(owner, x, y)
        ours, theirs = (f"{'bytes' if a.dtype == np.uint8 else 'numbers'} {a.shape[1:]}" for a in (xs[0], x))
        if ours != theirs:
            raise FedkinError(f"{owner} has samples of {theirs}, but {parts[0][0]} of {ours}")
    x = np.concatenate(xs)
    labels, y = np.unique(np.concatenate(ys), return_inverse=True)
    owners = tuple(dict.fromkeys(owner for owner, *_ in parts))
    lengths = [len(each) for each in xs]
    is_test = np.repeat([held_out for *_, held_out in parts], lengths)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told by the federation
        x = x if x.dtype == np.uint8 else x.astype(np.float32)
        measured = statistics(x[~is_test])
    return Dataset(
        name=name,
        x=x,
        y=y.astype(np.int64),
        classes=tuple(str(label) for label in labels),
        mean=measured[0] if mean is None else _scale("mean", mean, x.shape[1]),
        std=measured[1] if std is None else _scale("std", std, x.shape[1]),
        is_test=is_test,
        owner=np.repeat([owners.index(owner) for owner, *_ in parts], lengths).astype(np.int64),
        owners=owners,
    )


def _check_pair(owner: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
    """Samples and labels of one client that fit together."""
    if x.ndim < 2 or x.dtype.kind not in "fiub" or 0 in x.shape[1:]:
        raise FedkinError(f"{owner} has samples {x.shape} of type {x.dtype}: numbers [n, ...] expected")
    if y.ndim != 1 or len(x) != len(y):
        raise FedkinError(f"{owner} has {len(x)} samples, but labels of shape {y.shape}: ({len(x)},) expected")
    if not len(x):
        raise FedkinError(f"{owner} has no samples: every client needs at least two")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise FedkinError(f"{owner} has labels that are NaN or infinite")


def _scale(what: str, given: Any, channels: int) -> tuple[float, ...]:
    """A mean or deviation for all channels, or one for each."""
    values = np.ravel(given).astype(np.float64)
    least = 0 if what == "std" else -np.inf
    if len(values) not in (1, channels) or not np.isfinite(values).all() or not (values > least).all():
        raise FedkinError(f"{what} takes one number or {channels}, and no std of 0, but {given} was given")
    return tuple(values.tolist())
