"""Archives of image files. They are decoded once; the pixels are kept in one .npz file beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedkin.data.dataset import Dataset
from fedkin.data.fetch import Download
from fedkin.data.sources.cifar import TEN
from fedkin.data.sources.entry import Entry, Part
from fedkin.data.sources.pixels import Arrays, Numbers, cached, decode, statistics
from fedkin.errors import FedkinError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp"}
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
DOMAINNET_CLASSES = 20
DOMAINNET_SHARE = 0.3
KEYS = ("x", "label", "classes", "domain", "domains")
MEASURED = ("is_test", "mean", "std")
PACS_DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


class Sample(NamedTuple):
    """One image file and what is known of it."""

    path: Path
    label: int
    is_test: bool = False
    domain: int = 0


def read_cinic10(root: Path) -> Dataset:
    """CINIC-10, x [270000, 3, 32, 32]; its validation images count as training images."""
    folder = root / "CINIC-10"

    def build() -> Arrays:
        samples = [
            Sample(path, label, is_test=split == "test")
            for split in ("train", "valid", "test")
            for label, name in enumerate(TEN)
            for path in files(folder / split / name)
        ]
        _require_complete(folder, samples)
        return _arrays(samples, TEN, size=32)

    return _dataset("cinic10", cached(folder / "cinic32.npz", KEYS + MEASURED, build))


def read_tiny_imagenet(root: Path) -> Dataset:
    """Tiny ImageNet, x [110000, 3, 64, 64]; its labelled validation images are the test file."""
    folder = root / "tiny-imagenet-200"

    def build() -> Arrays:
        words = {row[0]: row[1] for row in _rows(folder / "words.txt")}
        ids = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
        label_of = {name: label for label, name in enumerate(ids)}
        train = [Sample(path, label_of[i]) for i in ids for path in files(folder / "train" / i / "images")]
        test = [
            Sample(folder / "val" / "images" / row[0], label_of.get(row[1], -1), is_test=True)
            for row in _rows(folder / "val" / "val_annotations.txt")
        ]
        _require_complete(folder, train + test)
        return _arrays(train + test, [words.get(i, i).split(",")[0] for i in ids], size=64)

    return _dataset("tiny-imagenet", cached(folder / "tiny64.npz", KEYS + MEASURED, build))


def read_domainnet(root: Path) -> Dataset:
    """DomainNet as in pFedSim's appendix B.3, x [n, 3, 64, 64]: 20 of its 345 classes, 30 % of each.

    The paper does not name its classes. Here they are the 20 with the most images over all six
    domains, and of each class and domain every file is taken that a regular step of 1 / 0.3 through
    the sorted names meets, so that the choice is the same on every machine.
    """
    folder = root / "domainnet"

    def build() -> Arrays:
        tested = {row[0] for domain in DOMAINS for row in _rows(folder / f"{domain}_test.txt", " ")}
        sizes = Counter[str]()
        for domain in DOMAINS:
            sizes.update({path.name: len(files(path)) for path in sorted((folder / domain).iterdir())})
        names = sorted(sorted(sizes, key=lambda name: (-sizes[name], name))[:DOMAINNET_CLASSES])
        samples = [
            Sample(path, label, path.relative_to(folder).as_posix() in tested, owner)
            for owner, domain in enumerate(DOMAINS)
            for label, name in enumerate(names)
            for path in _thinned(files(folder / domain / name))
        ]
        return _arrays(samples, names, size=64, domains=DOMAINS)

    return _dataset("domainnet", cached(folder / "domainnet64.npz", KEYS + MEASURED, build))


def read_pacs(root: Path) -> Dataset:
    """PACS, x [9991, 3, 64, 64], resized; the publisher names no test images."""
    folder = root / "pacs"

    def build() -> Arrays:
        samples = [
            Sample(path, label, domain=owner)
            for owner, domain in enumerate(PACS_DOMAINS)
            for label, name in enumerate(PACS_CLASSES)
            for path in files(folder / domain / name)
        ]
        return _arrays(samples, PACS_CLASSES, size=64, domains=PACS_DOMAINS)

    arrays = cached(folder / "pacs64.npz", KEYS, build)
    return _dataset("pacs", arrays, ((0.7626, 0.7430, 0.7144), (0.2956, 0.3052, 0.3346)))


def files(folder: Path) -> list[Path]:
    """The image files in a folder, sorted by name."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _arrays(samples: list[Sample], classes: Iterable[str], size: int, domains: Iterable[str] = ()) -> Arrays:
    if not samples:
        raise FedkinError("no images were found: the archive is not unpacked as its publisher ships it")
    x = decode([sample.path for sample in samples], (size, size))
    is_test = np.array([sample.is_test for sample in samples])
    mean, std = statistics(x[~is_test] if not is_test.all() else x)
    return {
        "x": x,
        "label": np.array([sample.label for sample in samples]),
        "is_test": is_test,
        "domain": np.array([sample.domain for sample in samples]),
        "classes": np.array(list(classes)),
        "domains": np.array(list(domains), np.str_),
        "mean": np.array(mean),
        "std": np.array(std),
    }


def _dataset(name: str, arrays: Arrays, normalisation: tuple[Numbers, Numbers] | None = None) -> Dataset:
    mean, std = normalisation or (tuple(arrays[key].tolist()) for key in ("mean", "std"))
    y = arrays["label"].astype(np.int64)
    domains = tuple(arrays["domains"].tolist())
    return Dataset(
        name=name,
        x=arrays["x"],
        y=y,
        classes=tuple(arrays["classes"].tolist()),
        mean=mean,
        std=std,
        is_test=arrays.get("is_test", np.zeros(len(y), np.bool_)),
        owner=arrays["domain"].astype(np.int64) if domains else None,
        owners=domains,
    )


def _thinned(paths: list[Path]) -> list[Path]:
    keep = int(len(paths) * DOMAINNET_SHARE)
    return [paths[k * len(paths) // keep] for k in range(keep)]


def _require_complete(folder: Path, samples: list[Sample]) -> None:
    """Both archives have equally many images in every class; one that is unpacked halfway has not."""
    for is_test in (False, True):
        counts = Counter({sample.label: 0 for sample in samples})
        counts.update(sample.label for sample in samples if sample.is_test == is_test)
        if len(set(counts.values())) != 1:
            low, high = min(counts.values(), default=0), max(counts.values(), default=0)
            part = "test" if is_test else "training"
            raise FedkinError(
                f"{folder} has between {low} and {high} {part} images in a class, equally many expected: "
                "it is not unpacked completely"
            )


def _rows(path: Path, separator: str = "\t") -> list[list[str]]:
    """The lines of a text file, each cut into two cells or more."""
    try:
        rows = [line.split(separator) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise FedkinError(f"{path} cannot be read: {error}") from error
    for row in rows:
        if len(row) < 2:
            raise FedkinError(f"{path} has a line {row[0][:60]!r}, two cells or more expected")
    return rows


CINIC_HOME = "https://datashare.ed.ac.uk/handle/10283/3192"
CINIC_ARCHIVE = Download(
    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
    "CINIC-10",
    "md5:6ee4d0c996905fe93221de577967a372",
    unpack=True,
)
TINY_HOME = "http://cs231n.stanford.edu/"
TINY_ARCHIVE = Download(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ".",
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
    unpack=True,
)
DOMAINNET_HOME = "http://ai.bu.edu/M3SDA/"
DOMAINNET_ADDRESS = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
DOMAINNET_MD5 = {
    "groundtruth/clipart.zip": "cd0d8f2d77a4e181449b78ed62bccf1e",
    "infograph.zip": "720380b86f9e6ab4805bb38b6bd135f8",
    "groundtruth/painting.zip": "1ae32cdb4f98fe7ab5eb0a351768abfd",
    "quickdraw.zip": "bdc1b6f09f277da1a263389efe0c7a66",
    "real.zip": "dcc47055e8935767784b7162e7c7cca6",
    "sketch.zip": "658d8009644040ff7ce30bb2e820850f",
    "domainnet/txt/clipart_test.txt": "f5ddbcfd657a3acf9d0f7da10db22565",
    "domainnet/txt/infograph_test.txt": "779626b50869edffe8ea6941c3755c71",
    "domainnet/txt/painting_test.txt": "232b35dc53f26d414686ae579e38d9b5",
    "domainnet/txt/quickdraw_test.txt": "c1a828fdfe216fb109f1c0083a252c6f",
    "domainnet/txt/real_test.txt": "6098816791c3ebed543c71ffa11b9054",
    "domainnet/txt/sketch_test.txt": "d8a222e4672cfd585298aa14d02ea441",
}


def _domainnet_part(path: str, md5: str) -> Part:
    unpack = path.endswith(".zip")
    item = Download(f"{DOMAINNET_ADDRESS}{path}", "domainnet", f"md5:{md5}", unpack)
    name = Path(path).stem if unpack else Path(path).name
    return Part("domainnet", (name,), DOMAINNET_HOME, (item,), compact="domainnet64.npz")


ENTRIES = (
    Entry(
        name="cinic10",
        description="CIFAR-10's classes, most of the photographs from ImageNet",
        classes=10,
        samples=270_000,
        shape=(3, 32, 32),
        source="Darlow, Crowley, Antoniou and Storkey, CINIC-10 is not ImageNet or CIFAR-10, 2018",
        home=CINIC_HOME,
        licence="CC BY 4.0",
        read=read_cinic10,
        parts=(Part("CINIC-10", ("train", "valid", "test"), CINIC_HOME, (CINIC_ARCHIVE,), compact="cinic32.npz"),),
    ),
    Entry(
        name="tiny-imagenet",
        description="200 of ImageNet's classes, small",
        classes=200,
        samples=110_000,
        shape=(3, 64, 64),
        source="Le and Yang, Tiny ImageNet visual recognition challenge, 2015",
        home=TINY_HOME,
        licence="ImageNet's terms: non-commercial research and education",
        read=read_tiny_imagenet,
        parts=(
            Part(
                folder="tiny-imagenet-200",
                files=("train", "val/val_annotations.txt", "words.txt"),
                home=TINY_HOME,
                downloads=(TINY_ARCHIVE,),
                compact="tiny64.npz",
            ),
        ),
    ),
    Entry(
        name="domainnet",
        description="20 of DomainNet's classes in six styles, 30 % of each",
        classes=DOMAINNET_CLASSES,
        samples=None,
        shape=(3, 64, 64),
        source="Peng et al., Moment matching for multi-source domain adaptation, 2019",
        home=DOMAINNET_HOME,
        licence="non-commercial research and education",
        read=read_domainnet,
        parts=tuple(_domainnet_part(path, md5) for path, md5 in DOMAINNET_MD5.items()),
        clients="6 domains",
    ),
    Entry(
        name="pacs",
        description="seven kinds of things as photographs, paintings, cartoons and sketches",
        classes=7,
        samples=9_991,
        shape=(3, 64, 64),
        source="Li, Yang, Song and Hospedales, Deeper, broader and artier domain generalization, 2017",
        home="https://dali-dl.github.io/project_iccv2017.html",
        licence="none stated by the publisher",
        read=read_pacs,
        parts=(
            Part(
                folder="pacs",
                files=PACS_DOMAINS,
                home="https://dali-dl.github.io/project_iccv2017.html",
                by_hand="unpack the publisher's images there as DOMAIN/CLASS/*.jpg",
                compact="pacs64.npz",
            ),
        ),
        clients="4 domains",
    ),
)
