"""Digits: the small set that comes with scikit-learn, and four kinds of digits as four domains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io

from fedkin.data.dataset import Dataset
from fedkin.data.fetch import Download
from fedkin.data.sources import idx
from fedkin.data.sources.entry import Entry, Part
from fedkin.data.sources.pixels import Arrays, Pixels, cached, decode, resize, statistics
from fedkin.errors import FedkinError

DOMAINS = ("mnist", "mnist-m", "svhn", "usps")
KEYS = ("x", "y", "is_train")


def read_digits(root: Path) -> Dataset:
    """scikit-learn's digits, x [1797, 1, 8, 8]. They come with the library; nothing is read from `root`."""
    from sklearn.datasets import load_digits  # slow to import, so only where it is used

    images, y = load_digits(return_X_y=True)
    return Dataset(
        name="digits",
        x=np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8),
        y=y.astype(np.int64),
        classes=idx.DIGITS,
        mean=(0.3053,),
        std=(0.3759,),
        is_test=np.zeros(len(y), np.bool_),
    )


def read_digits_domains(root: Path) -> Dataset:
    """Digits of four origins, x [n, 3, 32, 32]; the natural clients are mnist, mnist-m, svhn and usps.

    MNIST is framed by two black pixels on each side, USPS is enlarged from 16 x 16.
    """
    folder = root / "digits"
    mnist = idx.read_mnist(root)
    domains: list[Arrays] = [
        {"x": mnist.x[:, 0], "y": mnist.y, "is_train": ~mnist.is_test},
        cached(folder / "mnist_m.npz", KEYS, lambda: _read_mnist_m(folder / "mnist_m")),
        cached(folder / "svhn.npz", KEYS, lambda: _read_svhn(folder)),
        cached(folder / "usps.npz", KEYS, lambda: _read_usps(folder)),
    ]
    is_test = np.concatenate([~domain["is_train"] for domain in domains])
    sizes = [len(domain["y"]) for domain in domains]
    x = np.empty((sum(sizes), 3, 32, 32), np.uint8)
    for domain, end in zip(domains, np.cumsum(sizes), strict=True):
        x[end - len(domain["y"]) : end] = _framed(domain["x"])
    mean, std = statistics(x[~is_test])
    return Dataset(
        name="digits-domains",
        x=x,
        y=np.concatenate([domain["y"] for domain in domains]).astype(np.int64),
        classes=idx.DIGITS,
        mean=mean,
        std=std,
        is_test=is_test,
        owner=np.repeat(np.arange(len(DOMAINS)), sizes),
        owners=DOMAINS,
    )


def _framed(x: Pixels) -> Pixels:
    """Images [n, h, w] or [n, 3, 32, 32] as something that broadcasts to [n, 3, 32, 32]."""
    if x.ndim == 4:
        return x
    if x.shape[1:] == (28, 28):
        return np.pad(x, ((0, 0), (2, 2), (2, 2)))[:, None]
    return resize(x, 32)[:, None]


def _joined(train: tuple[Pixels, Pixels], test: tuple[Pixels, Pixels]) -> Arrays:
    (x, y), (test_x, test_y) = train, test
    return {
        "x": np.concatenate([x, test_x]),
        "y": np.concatenate([y, test_y]),
        "is_train": np.arange(len(y) + len(test_y)) < len(y),
    }


def _read_mnist_m(folder: Path) -> Arrays:
    """The publisher's folders of PNG files and their lists of names and labels."""

    def part(name: str) -> tuple[Pixels, Pixels]:
        labels = folder / f"mnist_m_{name}_labels.txt"
        try:
            rows = [line.split() for line in labels.read_text("utf-8").splitlines() if line.strip()]
            y = np.array([int(label) for _, label in rows], np.uint8)
        except (OSError, ValueError) as error:
            raise FedkinError(f"{labels} cannot be read: {error}") from error
        return decode([folder / f"mnist_m_{name}" / file for file, _ in rows], (32, 32)), y

    return _joined(part("train"), part("test"))


def _read_svhn(folder: Path) -> Arrays:
    """The publisher's .mat files, X [32, 32, 3, n]; the digit 0 is labelled 10."""

    def part(name: str) -> tuple[Pixels, Pixels]:
        path = folder / f"{name}_32x32.mat"
        try:
            file = scipy.io.loadmat(str(path), variable_names=["X", "y"])
            x = np.ascontiguousarray(file["X"].transpose(3, 2, 0, 1), np.uint8)
            y = file["y"].ravel() % 10
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedkinError(f"{path} is not one of SVHN's .mat files: {error}") from error
        if x.shape != (len(y), 3, 32, 32):
            raise FedkinError(f"{path} has images {x.shape} and {len(y)} labels, ({len(y)}, 3, 32, 32) expected")
        return x, y.astype(np.uint8)

    return _joined(part("train"), part("test"))


def _read_usps(folder: Path) -> Arrays:
    """LIBSVM's text files: labels 1 to 10 for the digits 0 to 9, 256 pixels from -1 to 1."""
    from sklearn.datasets import load_svmlight_file

    def part(name: str) -> tuple[Pixels, Pixels]:
        path = folder / name
        try:
            x, y = load_svmlight_file(str(path), n_features=256, zero_based=False)
        except (OSError, ValueError, EOFError) as error:
            raise FedkinError(f"{path} is not one of LIBSVM's USPS files: {error}") from error
        grey = np.clip(np.rint((x.toarray() + 1) * 127.5), 0, 255)
        return grey.astype(np.uint8).reshape(-1, 16, 16), (y - 1).astype(np.uint8)

    return _joined(part("usps.bz2"), part("usps.t.bz2"))


SVHN_HOME = "http://ufldl.stanford.edu/housenumbers/"
SVHN = Part(
    folder="digits",
    files=("train_32x32.mat", "test_32x32.mat"),
    home=SVHN_HOME,
    downloads=(
        Download(f"{SVHN_HOME}train_32x32.mat", "digits", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download(f"{SVHN_HOME}test_32x32.mat", "digits", "md5:eb5a983be6a315427106f1b164d9cef3"),
    ),
    compact="svhn.npz",
)
USPS_ADDRESS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
USPS = Part(
    folder="digits",
    files=("usps.bz2", "usps.t.bz2"),
    home=f"{USPS_ADDRESS}.html#usps",
    downloads=(
        Download(f"{USPS_ADDRESS}/usps.bz2", "digits", "md5:ec16c51db3855ca6c91edd34d0e9b197"),
        Download(f"{USPS_ADDRESS}/usps.t.bz2", "digits", "md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
    compact="usps.npz",
)
MNIST_M = Part(
    folder="digits",
    files=("mnist_m/mnist_m_train_labels.txt", "mnist_m/mnist_m_test_labels.txt"),
    home="http://yaroslav.ganin.net/",
    by_hand="unpack the publisher's mnist_m.tar.gz there",
    compact="mnist_m.npz",
)
ENTRIES = (
    Entry(
        name="digits",
        description="very small handwritten digits, part of scikit-learn",
        classes=10,
        samples=1_797,
        shape=(1, 8, 8),
        source="Alpaydin and Kaynak, Optical recognition of handwritten digits, 1998",
        home="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        licence="CC BY 4.0",
        read=read_digits,
    ),
    Entry(
        name="digits-domains",
        description="digits of four origins: MNIST, MNIST-M, street numbers, postal codes",
        classes=10,
        samples=None,
        shape=(3, 32, 32),
        source="LeCun et al., 1998; Ganin and Lempitsky, 2015; Netzer et al., 2011; Hull, 1994",
        home="http://yaroslav.ganin.net/",
        licence="of each origin; SVHN for non-commercial use only",
        read=read_digits_domains,
        parts=(idx.MNIST, MNIST_M, SVHN, USPS),
        clients="4 domains: mnist, mnist-m, svhn, usps",
    ),
)
