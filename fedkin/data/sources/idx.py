"""MNIST and its relatives, in the idx format: a magic number, the shape, then the bytes.

Files are accepted plain or gzipped.
"""

from __future__ import annotations

import gzip
import math
import string
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedkin.data.dataset import Dataset
from fedkin.data.fetch import Download
from fedkin.data.sources.entry import Entry, Part, need
from fedkin.errors import FedkinError

DIGITS = tuple(string.digits)
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CHARACTERS = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
EMNIST_CLASSES = {
    "balanced": (*string.digits, *string.ascii_uppercase, *"abdefghnqrt"),
    "letters": tuple(string.ascii_uppercase),
    "byclass": CHARACTERS,
}
MNIST_FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
WRITER_FILES = ("qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int")
DEBIAN = "/usr/share/datasets/fashion-mnist"
TYPES: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint8), 12: np.dtype(">i4")}


def read_idx(path: Path) -> npt.NDArray[Any]:
    """The array in an idx file, plain or .gz, of bytes or of big-endian 32-bit integers."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise FedkinError(f"{path} cannot be read: {error}") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES:
        raise FedkinError(
            f"{path} is not an idx file: it begins with {raw[:4].hex(' ')}, 00 00 08 or 00 00 0c expected"
        )
    dtype, start = TYPES[raw[2]], 4 + 4 * raw[3]
    shape = np.frombuffer(raw[4:start].ljust(start - 4, b"\0"), ">u4").tolist()
    expected = start + dtype.itemsize * math.prod(shape)
    if len(raw) != expected:
        raise FedkinError(
            f"{path} has {len(raw)} bytes, {expected} expected for {' x '.join(map(str, shape))}: "
            "it is cut short or damaged"
        )
    return np.frombuffer(raw, dtype, offset=start).reshape(shape)


def read_images(
    root: Path,
    name: str,
    folders: Sequence[str],
    files: Sequence[str],
    classes: tuple[str, ...],
    normalisation: tuple[float, float] = (0.1307, 0.3081),
    first_label: int = 0,
    transposed: bool = False,
) -> Dataset:
    """Train images, train labels, test images and test labels as one dataset, x [n, 1, 28, 28]."""
    images, labels = [], []
    for image_file, label_file in zip(files[::2], files[1::2], strict=True):
        image, label = (read_idx(need(root, folders, file)) for file in (image_file, label_file))
        if image.ndim != 3 or label.shape != image.shape[:1]:
            raise FedkinError(
                f"{image_file} in {root / folders[0]} has shape {image.shape} and its labels {label.shape}: "
                "n images and n labels expected"
            )
        images.append(image.transpose(0, 2, 1) if transposed else image)
        labels.append(label)
    y = np.concatenate(labels).astype(np.int64) - first_label
    if len(y) and not 0 <= y.min() <= y.max() < len(classes):
        raise FedkinError(
            f"{name} in {root / folders[0]} has labels {y.min() + first_label} to {y.max() + first_label}, "
            f"{first_label} to {len(classes) - 1 + first_label} expected"
        )
    return Dataset(
        name=name,
        x=np.concatenate(images)[:, None],
        y=y,
        classes=classes,
        mean=normalisation[:1],
        std=normalisation[1:],
        is_test=np.arange(len(y)) >= len(labels[0]),
    )


def read_mnist(root: Path) -> Dataset:
    """MNIST, x [70000, 1, 28, 28]."""
    return read_images(root, "mnist", ["mnist"], MNIST_FILES, DIGITS)


def read_fashion_mnist(root: Path) -> Dataset:
    """Fashion-MNIST, x [70000, 1, 28, 28]; also found where Debian's dataset-fashion-mnist puts it."""
    folders = ["fashion-mnist", DEBIAN]
    return read_images(root, "fashion-mnist", folders, MNIST_FILES, CLOTHES, (0.2860, 0.3530))


def read_emnist(root: Path, split: str) -> Dataset:
    """One of EMNIST's splits, x [n, 1, 28, 28]. Its images are stored transposed; here they stand upright."""
    return read_images(
        root,
        name="emnist" if split == "balanced" else f"emnist-{split}",
        folders=["emnist", "emnist/gzip"],
        files=_emnist_files(split),
        classes=EMNIST_CLASSES[split],
        first_label=int(split == "letters"),
        transposed=True,
    )


def read_mnist_by_writer(root: Path) -> Dataset:
    """MNIST with the people who wrote its digits, traced by QMNIST, as natural clients.

    QMNIST's rows follow MNIST's training file and, in its first 10,000 test rows, MNIST's test file.
    """
    mnist = read_mnist(root)
    tested = int(mnist.is_test.sum())
    train, test = (read_idx(need(root, ["mnist"], name)) for name in WRITER_FILES)
    rows = np.concatenate([train, test[:tested]]).astype(np.int64)
    if len(rows) != len(mnist) or (rows[:, 0] != mnist.y).any():
        raise FedkinError(
            f"the QMNIST labels in {root / 'mnist'} do not belong to the MNIST files beside them: "
            f"{len(rows)} rows for {len(mnist)} digits, or other digits in column 0"
        )
    writers, owner = np.unique(rows[:, 2], return_inverse=True)
    return replace(mnist, name="mnist-by-writer", owner=owner, owners=tuple(f"writer {w}" for w in writers.tolist()))


def _emnist_files(split: str) -> tuple[str, ...]:
    kinds = ("images-idx3", "labels-idx1")
    return tuple(f"emnist-{split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds)


def _gzipped(address: str, folder: str, md5: dict[str, str]) -> tuple[Download, ...]:
    return tuple(Download(f"{address}{name}.gz", folder, f"md5:{digest}") for name, digest in md5.items())


MNIST_HOME = "http://yann.lecun.com/exdb/mnist/"
MNIST = Part(
    folder="mnist",
    files=MNIST_FILES,
    home=MNIST_HOME,
    downloads=_gzipped(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        {
            "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
)
WRITERS = Part(
    folder="mnist",
    files=WRITER_FILES,
    home="https://github.com/facebookresearch/qmnist",
    downloads=_gzipped(
        "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
        "mnist",
        {
            "qmnist-train-labels-idx2-int": "0058f8dd561b90ffdd0f734c6a30e5e4",
            "qmnist-test-labels-idx2-int": "5b5b05890a5e13444e108efe57b788aa",
        },
    ),
)
FASHION_HOME = "https://github.com/zalandoresearch/fashion-mnist"
FASHION = Part(
    folder="fashion-mnist",
    files=MNIST_FILES,
    home=FASHION_HOME,
    elsewhere=(DEBIAN,),
    downloads=_gzipped(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "fashion-mnist",
        {
            "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
)
EMNIST_HOME = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
EMNIST_ARCHIVE = Download(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "emnist",
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    unpack=True,
)


def _emnist(split: str, description: str, samples: int) -> Entry:
    return Entry(
        name="emnist" if split == "balanced" else f"emnist-{split}",
        description=description,
        classes=len(EMNIST_CLASSES[split]),
        samples=samples,
        shape=(1, 28, 28),
        source="Cohen, Afshar, Tapson and van Schaik, EMNIST: extending MNIST to handwritten letters, 2017",
        home=EMNIST_HOME,
        licence="none stated; derived from NIST Special Database 19",
        read=partial(read_emnist, split=split),
        parts=(Part("emnist", _emnist_files(split), EMNIST_HOME, (EMNIST_ARCHIVE,), elsewhere=("emnist/gzip",)),),
    )


ENTRIES = (
    Entry(
        name="mnist",
        description="handwritten digits",
        classes=10,
        samples=70_000,
        shape=(1, 28, 28),
        source="LeCun et al., Gradient-based learning applied to document recognition, 1998",
        home=MNIST_HOME,
        licence="none stated by the publisher; often given as CC BY-SA 3.0",
        read=read_mnist,
        parts=(MNIST,),
    ),
    Entry(
        name="fashion-mnist",
        description="articles of clothing",
        classes=10,
        samples=70_000,
        shape=(1, 28, 28),
        source="Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset, 2017",
        home=FASHION_HOME,
        licence="MIT",
        read=read_fashion_mnist,
        parts=(FASHION,),
    ),
    _emnist("balanced", "handwritten characters, the balanced split", 131_600),
    _emnist("letters", "handwritten letters, capitals and small ones together", 145_600),
    _emnist("byclass", "handwritten characters, all of them", 814_255),
    Entry(
        name="mnist-by-writer",
        description="MNIST's digits and who wrote them",
        classes=10,
        samples=70_000,
        shape=(1, 28, 28),
        source="Yadav and Bottou, Cold case: the lost MNIST digits, 2019; LeCun et al., 1998",
        home="https://github.com/facebookresearch/qmnist",
        licence="BSD-style (QMNIST's labels)",
        read=read_mnist_by_writer,
        parts=(MNIST, WRITERS),
        clients="836 writers: 539 of the training file, 297 of the test file",
    ),
)
