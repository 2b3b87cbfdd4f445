"""UCI HAR: windows of a telephone's inertial signals, by the person who carried it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.dataset import Dataset
from fedkin.data.fetch import Download
from fedkin.data.sources.entry import Entry, Part
from fedkin.data.sources.pixels import Arrays, cached
from fedkin.errors import FedkinError

ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
MEAN = (-0.000636, -0.000292, -0.000275, 0.000506, -0.000824, 0.000113, 0.804749, 0.028755, 0.086498)
STD = (0.194846, 0.122427, 0.106879, 0.406815, 0.381854, 0.255743, 0.414112, 0.390995, 0.357769)


def read_uci_har(root: Path) -> Dataset:
    """The nine inertial signals, x float32 [10299, 9, 128]; subjects are the natural clients."""
    folder = root / "uci-har"
    keys = ("X", "y", "subject", "is_official_train")
    arrays = cached(folder / "uci_har_inertial.npz", keys, lambda: _read_text(folder / "UCI HAR Dataset"))
    subjects, owner = np.unique(arrays["subject"], return_inverse=True)
    return Dataset(
        name="uci-har",
        x=np.ascontiguousarray(arrays["X"].transpose(0, 2, 1), np.float32),
        y=arrays["y"].astype(np.int64),
        classes=ACTIVITIES,
        mean=MEAN,
        std=STD,
        is_test=~arrays["is_official_train"],
        owner=owner,
        owners=tuple(f"subject {subject}" for subject in subjects.tolist()),
    )


def _read_text(folder: Path) -> Arrays:
    """The publisher's text files: X [n, 128, 9], y from 0, subject from 1, is_official_train."""
    parts = [_read_part(folder, "train"), _read_part(folder, "test")]
    arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return arrays | {"is_official_train": np.arange(len(arrays["y"])) < len(parts[0]["y"])}


def _read_part(folder: Path, part: str) -> Arrays:
    inertial = folder / part / "Inertial Signals"
    try:
        signals = [np.loadtxt(inertial / f"{name}_{part}.txt", np.float32, ndmin=2) for name in SIGNALS]
        y = np.loadtxt(folder / part / f"y_{part}.txt", np.int64, ndmin=1) - 1
        subject = np.loadtxt(folder / part / f"subject_{part}.txt", np.int64, ndmin=1)
    except (OSError, ValueError) as error:
        raise FedkinError(f"{folder / part} cannot be read: {error}") from error
    if {signal.shape for signal in signals} != {(len(y), 128)} or len(subject) != len(y):
        shapes = sorted({str(signal.shape) for signal in signals})
        raise FedkinError(
            f"{folder / part} has {len(y)} labels, {len(subject)} subjects and signals of shape "
            f"{', '.join(shapes)}: one row of 128 numbers for each label expected"
        )
    if not 0 <= y.min() <= y.max() < len(ACTIVITIES):
        raise FedkinError(f"{folder / part} has labels {y.min() + 1} to {y.max() + 1}, 1 to 6 expected")
    return {"X": np.stack(signals, axis=2), "y": y, "subject": subject}


HOME = "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones"
ENTRIES = (
    Entry(
        name="uci-har",
        description="what a person does, from a telephone's accelerometer and gyroscope",
        classes=6,
        samples=10_299,
        shape=(9, 128),
        source="Anguita et al., Human activity recognition using smartphones, 2013",
        home=HOME,
        licence="CC BY 4.0 (UCI); the archive's own notes forbid commercial use",
        read=read_uci_har,
        parts=(
            Part(
                folder="uci-har",
                files=("UCI HAR Dataset/train/y_train.txt", "UCI HAR Dataset/test/y_test.txt"),
                home=HOME,
                downloads=(
                    Download(
                        "https://archive.ics.uci.edu/static/public/240/"
                        "human+activity+recognition+using+smartphones.zip",
                        "uci-har",
                        "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                        unpack=True,
                    ),
                ),
                compact="uci_har_inertial.npz",
            ),
        ),
        clients="30 subjects",
    ),
)
