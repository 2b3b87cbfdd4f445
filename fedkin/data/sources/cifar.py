"""CIFAR-10 and CIFAR-100 in their binary version: label bytes, then 3072 bytes of pixels, per image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedkin.data.dataset import Dataset
from fedkin.data.fetch import Download
from fedkin.data.sources.entry import Entry, Part, need
from fedkin.data.sources.pixels import Numbers
from fedkin.errors import FedkinError

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
    lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
    shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
HUNDRED = tuple(NAMES.split())
TEN_FILES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
HUNDRED_FILES = ("train.bin", "test.bin")


def read_cifar10(root: Path) -> Dataset:
    """CIFAR-10, x [60000, 3, 32, 32]."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
    return _read(root, "cifar10", "cifar-10-batches-bin", TEN_FILES, TEN, 1, mean, std)


def read_cifar100(root: Path) -> Dataset:
    """CIFAR-100 with its hundred fine labels, x [60000, 3, 32, 32]."""
    mean, std = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    return _read(root, "cifar100", "cifar-100-binary", HUNDRED_FILES, HUNDRED, 2, mean, std)


def _read(
    root: Path,
    name: str,
    folder: str,
    files: tuple[str, ...],
    classes: tuple[str, ...],
    label_bytes: int,
    mean: Numbers,
    std: Numbers,
) -> Dataset:
    """All files as one dataset; the last file is the test file, the last label byte the label."""
    width = label_bytes + 3 * 32 * 32
    rows = []
    for file in files:
        path = need(root, [folder], file)
        size = path.stat().st_size
        if not size or size % width:
            raise FedkinError(f"{path} has {size} bytes, a multiple of {width} expected: it is cut short")
        # Mapped, not read: the pixels are then copied only once, into x.
        rows.append(np.asarray(np.memmap(path, np.uint8, "r")).reshape(-1, width))
    x = np.concatenate([r[:, label_bytes:] for r in rows]).reshape(-1, 3, 32, 32)
    y = np.concatenate([r[:, label_bytes - 1] for r in rows]).astype(np.int64)
    if y.max() >= len(classes):
        raise FedkinError(f"{root / folder} has a label {y.max()}, at most {len(classes) - 1} expected")
    is_test = np.arange(len(y)) >= len(y) - len(rows[-1])
    return Dataset(name, x, y, classes, mean, std, is_test)


def _entry(name: str, folder: str, files: tuple[str, ...], classes: int, sha256: str) -> Entry:
    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    archive = f"https://www.cs.toronto.edu/~kriz/cifar-{classes}-binary.tar.gz"
    return Entry(
        name=name,
        description=f"small colour photographs of {classes} kinds of things",
        classes=classes,
        samples=60_000,
        shape=(3, 32, 32),
        source="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        home=home,
        licence="none stated by the publisher",
        read=read_cifar10 if classes == 10 else read_cifar100,
        parts=(Part(folder, files, home, (Download(archive, ".", f"sha256:{sha256}", unpack=True),)),),
    )


ENTRIES = (
    _entry(
        "cifar10",
        "cifar-10-batches-bin",
        TEN_FILES,
        10,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    _entry(
        "cifar100",
        "cifar-100-binary",
        HUNDRED_FILES,
        100,
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
)
