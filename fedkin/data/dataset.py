"""What a dataset is to the rest of fedkin: arrays, names and normalisation constants."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """All samples of a dataset, train and test files together.

    Images stay uint8 in memory and are normalised batch by batch, `(x / 255 - mean) / std` per
    channel; anything else is float32 and becomes `(x - mean) / std`.
    """

    name: str
    x: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    """[n, channels, height, width] images, [n, channels, time] windows or [n, features]."""
    y: Indices
    """[n] labels in 0..K-1."""
    classes: tuple[str, ...]
    """K names, `classes[y]` is what a person calls label y."""
    mean: tuple[float, ...]
    """One number per channel (axis 1 of x), or a single one for all."""
    std: tuple[float, ...]
    is_test: npt.NDArray[np.bool_]
    """[n] true where the publisher ships the sample in its test file."""
    owner: Indices | None = None
    """[n] natural client of each sample (writer, subject, domain), if the data have one."""
    owners: tuple[str, ...] = ()
    """Names of the natural clients."""

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Split:
    """Who owns which samples: one index array per client into the dataset, train and test."""

    train: tuple[Indices, ...]
    test: tuple[Indices, ...]
    names: tuple[str, ...]
    public: Indices = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Samples that belong to nobody and that everybody has."""

    def __len__(self) -> int:
        return len(self.train)
