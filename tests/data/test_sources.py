"""Readers of publishers' formats, on tiny files of those formats and on the real ones where they are."""

from __future__ import annotations

import bz2
import gzip
import json
import math
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.io
from PIL import Image

from fedkin.data import catalogue
from fedkin.data.sources import idx
from fedkin.data.sources.pixels import statistics
from fedkin.errors import FedkinError

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> npt.NDArray[np.uint8]:
    return RNG.integers(0, 256, shape, np.uint8)


def write_idx(path: Path, array: npt.ArrayLike, integers: bool = False) -> None:
    """In the idx format; gzipped if the name says so."""
    values = np.asarray(array, ">i4" if integers else np.uint8)
    head = bytes([0, 0, 12 if integers else 8, values.ndim])
    raw = head + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def write_mnist(folder: Path, train: int = 4, test: int = 2, end: str = "") -> None:
    for part, n in (("train", train), ("t10k", test)):
        write_idx(folder / f"{part}-images-idx3-ubyte{end}", pixels(n, 28, 28))
        write_idx(folder / f"{part}-labels-idx1-ubyte{end}", np.arange(n) % 10)


def write_image(path: Path, value: int, size: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (value, value, value)).save(path)


# The catalogue


def test_every_dataset_says_what_it_is_and_whom_to_cite() -> None:
    assert len(catalogue.names()) == 16
    for name in catalogue.names():
        entry = catalogue.entry(name)
        assert entry.name == name
        assert all([entry.description, entry.source, entry.licence])
        assert entry.home.startswith("http")
        for part in entry.parts:
            assert part.downloads or part.by_hand
            assert all(item.checksum for item in part.downloads)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(FedkinError, match="did you mean 'cifar10'"):
        catalogue.load("cifar-10")


def test_the_data_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    assert catalogue.data_root() == tmp_path
    write_mnist(tmp_path / "mnist")
    assert catalogue.is_ready("mnist")
    monkeypatch.delenv("FEDKIN_DATA")
    assert catalogue.data_root().name == "data"


# scikit-learn's digits


def test_digits_come_without_any_file(tmp_path: Path) -> None:
    data = catalogue.load("digits", tmp_path, download=False)
    assert data.x.shape == (1797, 1, 8, 8)
    assert (data.x.dtype, data.x.max()) == (np.uint8, 255)
    mean, std = statistics(data.x)
    assert data.mean == pytest.approx(mean, abs=1e-4)
    assert data.std == pytest.approx(std, abs=1e-4)


# The idx format


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_are_read_plain_or_gzipped(tmp_path: Path, name: str, end: str) -> None:
    write_mnist(tmp_path / name, end=end)
    data = catalogue.load(name, tmp_path, download=False)
    assert data.x.shape == (6, 1, 28, 28)
    assert data.y.tolist() == [0, 1, 2, 3, 0, 1]
    assert data.is_test.tolist() == [False] * 4 + [True] * 2
    original = idx.read_idx(tmp_path / name / f"t10k-images-idx3-ubyte{end}")
    assert (data.x[4:, 0] == original).all()


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "debian", end=".gz")
    monkeypatch.setattr(idx, "DEBIAN", str(tmp_path / "debian"))
    assert idx.read_fashion_mnist(tmp_path / "empty").classes[0] == "T-shirt/top"


@pytest.mark.parametrize("folder", ["emnist", "emnist/gzip"])
def test_emnist_stands_upright(tmp_path: Path, folder: str) -> None:
    stored = pixels(3, 28, 28)
    for part in ("train", "test"):
        write_idx(tmp_path / folder / f"emnist-balanced-{part}-images-idx3-ubyte.gz", stored)
        write_idx(tmp_path / folder / f"emnist-balanced-{part}-labels-idx1-ubyte.gz", [0, 10, 46])
    data = catalogue.load("emnist", tmp_path, download=False)
    assert (data.x[0, 0] == stored[0].T).all()
    assert len(data.classes) == 47
    assert [data.classes[y] for y in data.y[:3]] == ["0", "A", "t"]


def test_emnist_letters_begin_at_one_in_the_file_and_at_zero_here(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_idx(tmp_path / "emnist" / f"emnist-letters-{part}-images-idx3-ubyte", pixels(2, 28, 28))
        write_idx(tmp_path / "emnist" / f"emnist-letters-{part}-labels-idx1-ubyte", [1, 26])
    data = catalogue.load("emnist-letters", tmp_path, download=False)
    assert [data.classes[y] for y in data.y[:2]] == ["A", "Z"]


def test_writers_come_from_the_third_column_of_qmnist(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=3, test=2)
    train = [[0, 0, 50, 0, 0, 0, 0, 0], [1, 0, 7, 0, 0, 0, 0, 0], [2, 0, 50, 0, 0, 0, 0, 0]]
    test = [[0, 4, 99, 0, 0, 0, 0, 0], [1, 4, 7, 0, 0, 0, 0, 0], [9, 4, 1000, 0, 0, 0, 0, 0]]
    write_idx(tmp_path / "mnist" / "qmnist-train-labels-idx2-int.gz", train, integers=True)
    write_idx(tmp_path / "mnist" / "qmnist-test-labels-idx2-int", test, integers=True)
    data = catalogue.load("mnist-by-writer", tmp_path, download=False)
    assert data.owners == ("writer 7", "writer 50", "writer 99")
    assert data.owner is not None
    assert data.owner.tolist() == [1, 0, 1, 2, 0]


def test_writers_of_other_digits_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=1, test=1)
    for part in ("train", "test"):
        rows = [[5, 0, 1, 0, 0, 0, 0, 0]]
        write_idx(tmp_path / "mnist" / f"qmnist-{part}-labels-idx2-int", rows, integers=True)
    with pytest.raises(FedkinError, match="do not belong"):
        catalogue.load("mnist-by-writer", tmp_path, download=False)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-5], "3147 bytes, 3152 expected"),
        (lambda raw: raw[:6], "cut short"),
        (lambda raw: b"", "not an idx file"),
        (lambda raw: b"\x89PNG" + raw[4:], "begins with 89 50 4e 47"),
    ],
)
def test_a_damaged_idx_file_is_named_with_what_was_found(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FedkinError, match=words) as caught:
        catalogue.load("mnist", tmp_path, download=False)
    assert str(path) in str(caught.value)


def test_a_gzip_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", end=".gz")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FedkinError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        catalogue.load("mnist", tmp_path, download=False)


def test_labels_beyond_the_classes_and_unequal_counts_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte", [0, 10])
    with pytest.raises(FedkinError, match="labels 0 to 10, 0 to 9 expected"):
        catalogue.load("mnist", tmp_path, download=False)
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte", [0, 1, 2])
    with pytest.raises(FedkinError, match="n images and n labels"):
        catalogue.load("mnist", tmp_path, download=False)


# CIFAR


def write_cifar(folder: Path, files: tuple[str, ...], labels: list[int]) -> npt.NDArray[np.uint8]:
    folder.mkdir()
    image = pixels(3, 32, 32)
    for file in files:
        (folder / file).write_bytes(bytes(labels) + image.tobytes())
    return image


def test_cifar10_is_read_from_its_six_files(tmp_path: Path) -> None:
    files = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
    image = write_cifar(tmp_path / "cifar-10-batches-bin", files, [9])
    data = catalogue.load("cifar10", tmp_path, download=False)
    assert (data.x == image).all()
    assert data.x.shape == (6, 3, 32, 32)
    assert data.is_test.tolist() == [False] * 5 + [True]
    assert {data.classes[y] for y in data.y} == {"truck"}


def test_cifar100_takes_the_fine_label(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-100-binary", ("train.bin", "test.bin"), [4, 99])
    data = catalogue.load("cifar100", tmp_path, download=False)
    assert [data.classes[y] for y in data.y] == ["worm", "worm"]
    assert len(data.classes) == 100


def test_a_cifar_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-100-binary", ("train.bin", "test.bin"), [4, 99])
    path = tmp_path / "cifar-100-binary" / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedkinError, match=r"test\.bin has 3073 bytes, a multiple of 3074 expected"):
        catalogue.load("cifar100", tmp_path, download=False)


# Archives of images

CINIC = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def write_cinic(root: Path) -> None:
    for split in ("train", "valid", "test"):
        for k, name in enumerate(CINIC):
            write_image(root / "CINIC-10" / split / name / "1.png", 20 * k, 32)


def test_cinic10_counts_its_validation_images_as_training(tmp_path: Path) -> None:
    write_cinic(tmp_path)
    data = catalogue.load("cinic10", tmp_path, download=False)
    assert data.x.shape == (30, 3, 32, 32)
    assert data.is_test.sum() == 10
    assert data.x[:10, 0, 0, 0].tolist() == [20 * k for k in range(10)]
    assert data.mean == pytest.approx(statistics(data.x)[0])


def test_decoded_images_are_kept_and_read_again_without_the_files(tmp_path: Path) -> None:
    write_cinic(tmp_path)
    first = catalogue.load("cinic10", tmp_path, download=False)
    for split in ("train", "valid", "test"):
        (tmp_path / "CINIC-10" / split).rename(tmp_path / split)
    assert [path.name for path in (tmp_path / "CINIC-10").iterdir()] == ["cinic32.npz"]
    second = catalogue.load("cinic10", tmp_path, download=False)
    assert (first.x == second.x).all()
    assert (first.mean, first.classes) == (second.mean, second.classes)


def test_an_archive_that_is_unpacked_halfway_is_refused(tmp_path: Path) -> None:
    write_cinic(tmp_path)
    (tmp_path / "CINIC-10" / "train" / "cat" / "1.png").unlink()
    with pytest.raises(FedkinError, match="between 1 and 2 training images"):
        catalogue.load("cinic10", tmp_path, download=False)


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    (tmp_path / "CINIC-10").mkdir()
    (tmp_path / "CINIC-10" / "cinic32.npz").write_bytes(b"PK nonsense")
    with pytest.raises(FedkinError, match=r"cinic32\.npz is not a readable"):
        catalogue.load("cinic10", tmp_path, download=False)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    write_cinic(tmp_path)
    (tmp_path / "CINIC-10" / "test" / "dog" / "1.png").write_bytes(b"not an image")
    with pytest.raises(FedkinError, match=r"dog/1\.png is not a readable image"):
        catalogue.load("cinic10", tmp_path, download=False)


def test_tiny_imagenet_takes_names_from_words_and_its_validation_images_as_test(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    for k, wnid in enumerate(["n01443537", "n02123045"]):
        for number in range(2):
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{number}.png", 10 * k, 64)
    Image.new("L", (64, 64), 77).save(folder / "grey.png")
    write_image(folder / "val" / "images" / "val_0.png", 99, 64)
    (folder / "grey.png").rename(folder / "val" / "images" / "val_1.png")
    (folder / "val" / "val_annotations.txt").write_text(
        "val_0.png\tn02123045\t0\t0\t9\t9\nval_1.png\tn01443537\t0\t0\t9\t9\n"
    )
    (folder / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn02123045\ttabby, tabby cat\nn9\tx\n")
    data = catalogue.load("tiny-imagenet", tmp_path, download=False)
    assert data.classes == ("goldfish", "tabby")
    assert data.x.shape == (6, 3, 64, 64)
    assert data.y.tolist() == [0, 0, 1, 1, 1, 0]
    assert data.x[:, 0, 0, 0].tolist() == [0, 0, 10, 10, 99, 77]
    assert data.is_test.tolist() == [False] * 4 + [True] * 2


def test_domainnet_takes_thirty_per_cent_of_the_twenty_largest_classes(tmp_path: Path) -> None:
    folder = tmp_path / "domainnet"
    for domain in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"):
        for k in range(21):
            count = 4 if k != 3 else 1
            for number in range(count if domain == "clipart" else 0):
                write_image(folder / domain / f"class{k:02}" / f"{number}.jpg", 5 * k)
        (folder / domain).mkdir(exist_ok=True)
        (folder / f"{domain}_test.txt").write_text("")
    for number in range(10):
        write_image(folder / "sketch" / "class20" / f"{number}.png", 200)
    (folder / "clipart_test.txt").write_text("clipart/class01/0.jpg 1\nclipart/class01/1.jpg 1\n")
    data = catalogue.load("domainnet", tmp_path, download=False)
    assert data.x.shape == (20 + 3, 3, 64, 64)
    assert len(data.classes) == 20
    assert "class03" not in data.classes
    assert data.owners == ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    assert data.owner is not None
    assert np.bincount(data.owner).tolist() == [20, 0, 0, 0, 0, 3]
    assert data.is_test.sum() == 1


def test_pacs_is_read_from_the_publishers_folders(tmp_path: Path) -> None:
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        for name in classes:
            write_image(tmp_path / "pacs" / domain / name / "pic_001.jpg", 100, 90)
    data = catalogue.load("pacs", tmp_path, download=False)
    assert data.x.shape == (28, 3, 64, 64)
    assert data.classes == classes
    assert data.owners == ("art_painting", "cartoon", "photo", "sketch")
    assert not data.is_test.any()


def test_a_compact_file_without_its_arrays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pacs").mkdir()
    np.savez(tmp_path / "pacs" / "pacs64.npz", x=pixels(1, 3, 64, 64), label=np.uint8([0]))
    with pytest.raises(FedkinError, match=r"pacs64\.npz holds x, label, but classes"):
        catalogue.load("pacs", tmp_path, download=False)


def test_arrays_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pacs").mkdir()
    arrays = {"x": pixels(2, 3, 64, 64), "domain": np.uint8([0, 0]), "domains": ["photo"], "classes": ["dog"]}
    for labels in ([0], [0, 1]):
        np.savez(tmp_path / "pacs" / "pacs64.npz", label=np.uint8(labels), **arrays)
        with pytest.raises(FedkinError, match="do not fit together"):
            catalogue.load("pacs", tmp_path, download=False)


def test_pacs_is_read_from_the_compact_file(tmp_path: Path) -> None:
    (tmp_path / "pacs").mkdir()
    x = pixels(3, 3, 64, 64)
    arrays = {"x": x, "label": np.uint8([0, 1, 1]), "domain": np.uint8([1, 0, 1])}
    np.savez(tmp_path / "pacs" / "pacs64.npz", domains=["photo", "sketch"], classes=["dog", "owl"], **arrays)
    data = catalogue.load("pacs", tmp_path, download=False)
    assert (data.x == x).all()
    assert data.owner is not None
    assert data.owner.tolist() == [1, 0, 1]


# LEAF, UCI, and the digits' domains


def write_leaf(path: Path, writers: dict[str, list[int]]) -> None:
    path.parent.mkdir(exist_ok=True)
    data = {w: {"x": [[k / 255] * 784 for k in y], "y": y} for w, y in writers.items()}
    counts = [len(y) for y in writers.values()]
    path.write_text(json.dumps({"users": list(writers), "num_samples": counts, "user_data": data}))


def test_femnist_keeps_each_writers_samples_together(tmp_path: Path) -> None:
    write_leaf(tmp_path / "femnist" / "all_data_0.json", {"f0001_41": [10, 61], "f0000_14": [0]})
    data = catalogue.load("femnist", tmp_path, download=False)
    assert data.x.shape == (3, 1, 28, 28)
    assert data.x[:, 0, 0, 0].tolist() == [10, 61, 0], "pixels are bytes again"
    assert [data.classes[y] for y in data.y] == ["A", "z", "0"]
    assert data.owners == ("f0000_14", "f0001_41")
    assert data.owner is not None
    assert data.owner.tolist() == [1, 1, 0]


def test_a_femnist_file_that_is_added_later_is_noticed(tmp_path: Path) -> None:
    write_leaf(tmp_path / "femnist" / "all_data_0.json", {"a": [1]})
    assert len(catalogue.load("femnist", tmp_path, download=False)) == 1
    write_leaf(tmp_path / "femnist" / "all_data_1.json", {"b": [2, 3]})
    assert len(catalogue.load("femnist", tmp_path, download=False)) == 3
    for path in (tmp_path / "femnist").glob("*.json"):
        path.unlink()
    assert len(catalogue.load("femnist", tmp_path, download=False)) == 3


@pytest.mark.parametrize("content", ["{}", "[1]", "{", '{"user_data": {"a": {"x": [[1, 2]], "y": [0]}}}'])
def test_a_json_file_that_is_not_leafs_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "all_data_0.json").write_text(content)
    with pytest.raises(FedkinError, match=r"all_data_0\.json is not one of LEAF's"):
        catalogue.load("femnist", tmp_path, download=False)


def write_har(root: Path) -> None:
    folder = root / "uci-har" / "UCI HAR Dataset"
    for part, subjects in (("train", [1, 3]), ("test", [2])):
        (folder / part / "Inertial Signals").mkdir(parents=True)
        np.savetxt(folder / part / f"y_{part}.txt", np.arange(1, len(subjects) + 1), "%d")
        np.savetxt(folder / part / f"subject_{part}.txt", subjects, "%d")
        names = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
        for channel, name in enumerate(names):
            signal = np.full((len(subjects), 128), channel / 8) + np.arange(128)
            np.savetxt(folder / part / "Inertial Signals" / f"{name}_{part}.txt", signal)


def test_uci_har_is_read_from_the_publishers_text(tmp_path: Path) -> None:
    write_har(tmp_path)
    data = catalogue.load("uci-har", tmp_path, download=False)
    assert data.x.shape == (3, 9, 128)
    assert data.x.dtype == np.float32
    assert data.x[0, :, 5].tolist() == [5 + channel / 8 for channel in range(9)]
    assert [data.classes[y] for y in data.y] == ["walking", "walking upstairs", "walking"]
    assert data.owners == ("subject 1", "subject 2", "subject 3")
    assert data.owner is not None
    assert data.owner.tolist() == [0, 2, 1]
    assert data.is_test.tolist() == [False, False, True]
    assert len(data.mean) == len(data.std) == 9


def test_uci_har_is_read_from_the_compact_file(tmp_path: Path) -> None:
    write_har(tmp_path)
    first = catalogue.load("uci-har", tmp_path, download=False)
    (tmp_path / "uci-har" / "UCI HAR Dataset").rename(tmp_path / "away")
    with np.load(tmp_path / "uci-har" / "uci_har_inertial.npz", allow_pickle=False) as file:
        assert file["X"].shape == (3, 128, 9)
    assert (catalogue.load("uci-har", tmp_path, download=False).x == first.x).all()


def test_uci_har_with_rows_missing_is_refused(tmp_path: Path) -> None:
    write_har(tmp_path)
    np.savetxt(tmp_path / "uci-har" / "UCI HAR Dataset" / "train" / "y_train.txt", [1], "%d")
    with pytest.raises(FedkinError, match="1 labels, 2 subjects"):
        catalogue.load("uci-har", tmp_path, download=False)


def write_svhn(folder: Path) -> npt.NDArray[np.uint8]:
    x = pixels(32, 32, 3, 2)
    for part in ("train", "test"):
        scipy.io.savemat(str(folder / f"{part}_32x32.mat"), {"X": x, "y": np.array([[10], [4]])})
    return x


def write_usps(folder: Path) -> None:
    cells = " ".join(f"{k}:{-1 if k < 129 else 1}" for k in range(1, 257))
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / name).write_bytes(bz2.compress(f"1 {cells}\n10 {cells}\n".encode()))


def write_mnist_m(folder: Path) -> None:
    for part in ("train", "test"):
        write_image(folder / "mnist_m" / f"mnist_m_{part}" / "00000000.png", 50, 32)
        (folder / "mnist_m" / f"mnist_m_{part}_labels.txt").write_text("00000000.png 7\n")


def test_the_digits_domains_are_read_from_their_publishers_files(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    write_mnist(tmp_path / "mnist", train=1, test=1)
    write_mnist_m(folder)
    svhn = write_svhn(folder)
    write_usps(folder)
    data = catalogue.load("digits-domains", tmp_path, download=False)
    assert data.x.shape == (2 + 2 + 4 + 4, 3, 32, 32)
    assert data.x.dtype == np.uint8
    assert data.owners == ("mnist", "mnist-m", "svhn", "usps")
    assert data.owner is not None
    assert np.bincount(data.owner).tolist() == [2, 2, 4, 4]
    assert data.y.tolist() == [0, 0, 7, 7, 0, 4, 0, 4, 0, 9, 0, 9]
    assert data.is_test.tolist() == [False, True, False, True] + [False, False, True, True] * 2
    mnist = idx.read_idx(tmp_path / "mnist" / "train-images-idx3-ubyte")
    assert (data.x[0, :, 2:30, 2:30] == mnist[0]).all(), "MNIST is framed, not rescaled"
    assert (data.x[4] == svhn[..., 0].transpose(2, 0, 1)).all()
    assert (data.x[8, :, 0, :].max(), data.x[8, :, 31, :].min()) == (0, 255)


def test_the_digits_domains_are_read_from_the_compact_files(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", train=1, test=1)
    (tmp_path / "digits").mkdir()
    for name, shape in (("mnist_m", (3, 32, 32)), ("svhn", (3, 32, 32)), ("usps", (16, 16))):
        arrays = {"x": pixels(2, *shape), "y": np.uint8([1, 2]), "is_train": np.array([True, False])}
        np.savez(tmp_path / "digits" / f"{name}.npz", **arrays)
    data = catalogue.load("digits-domains", tmp_path, download=False)
    assert data.x.shape == (8, 3, 32, 32)
    assert data.is_test.tolist() == [False, True] * 4


@pytest.mark.parametrize("name", ["train_32x32.mat", "usps.bz2"])
def test_a_damaged_digits_file_is_named(tmp_path: Path, name: str) -> None:
    write_mnist(tmp_path / "mnist", train=1, test=1)
    write_mnist_m(tmp_path / "digits")
    write_svhn(tmp_path / "digits")
    write_usps(tmp_path / "digits")
    (tmp_path / "digits" / name).write_bytes(b"nonsense" * 40)
    with pytest.raises(FedkinError, match=name):
        catalogue.load("digits-domains", tmp_path, download=False)


# The real files, where they are

REAL = {
    "mnist": (70_000, 10_000, 0),
    "fashion-mnist": (70_000, 10_000, 0),
    "emnist": (131_600, 18_800, 0),
    "emnist-letters": (145_600, 20_800, 0),
    "cifar10": (60_000, 10_000, 0),
    "cifar100": (60_000, 10_000, 0),
    "cinic10": (270_000, 90_000, 0),
    "tiny-imagenet": (110_000, 10_000, 0),
    "uci-har": (10_299, 2_947, 30),
    "mnist-by-writer": (70_000, 10_000, 836),
    "pacs": (9_991, 0, 4),
}
BALANCED = {"fashion-mnist": 7_000, "cifar10": 6_000, "cifar100": 600, "emnist": 2_800, "cinic10": 27_000}


def real(name: str) -> Path:
    root = Path(os.environ.get("FEDKIN_DATA", ""))
    if "FEDKIN_DATA" not in os.environ or not catalogue.is_ready(name, root):
        pytest.skip(f"the real files of {name} are not in $FEDKIN_DATA")
    return root


@pytest.mark.parametrize("name", REAL)
def test_the_real_files_have_the_published_counts(name: str) -> None:
    data = catalogue.load(name, real(name), download=False)
    entry = catalogue.entry(name)
    assert (len(data), data.is_test.sum(), len(data.owners)) == REAL[name]
    assert data.x.shape == (entry.samples, *entry.shape)
    assert (data.x.dtype == np.uint8) == (name != "uci-har")
    counts = np.bincount(data.y, minlength=entry.classes)
    assert len(counts) == len(data.classes) == entry.classes
    assert set(counts) == {BALANCED[name]} if name in BALANCED else counts.min() > 0
    if data.owner is not None:
        assert set(data.owner) == set(range(len(data.owners)))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "uci-har", "pacs"])
def test_the_normalisation_constants_are_those_of_the_real_training_files(name: str) -> None:
    data = catalogue.load(name, real(name), download=False)
    mean, std = statistics(data.x[~data.is_test])
    assert data.mean == pytest.approx(mean, abs=1e-3)
    assert data.std == pytest.approx(std, abs=1e-3)


def test_the_real_mnist_has_the_published_digit_counts_and_needs_little_memory() -> None:
    root = real("mnist")
    tracemalloc.start()
    data = catalogue.load("mnist", root, download=False)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    published = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y[~data.is_test]).tolist() == published
    assert peak < 250e6


@pytest.mark.slow
def test_the_real_digits_domains_have_four_owners() -> None:
    data = catalogue.load("digits-domains", real("digits-domains"), download=False)
    assert data.owner is not None
    assert np.bincount(data.owner)[0] == 70_000
    assert np.bincount(data.owner)[3] == 9_298
    assert all(math.isfinite(value) for value in (*data.mean, *data.std))
