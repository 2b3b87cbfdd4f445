"""A user's own data: one sub-folder, or one .npz or .csv file, per client."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedkin.data.dataset import Dataset, Split
from fedkin.data.sources.images import SUFFIXES
from fedkin.data.sources.pixels import Pixels, decode, read_npz, statistics
from fedkin.errors import FedkinError
from fedkin.runs.files import make_folder, write_whole

EXPECTED = "class folders of images (png, jpg, jpeg, bmp), .npz files with x and y, or .csv files"
GREY = {"1", "L", "LA"}


@dataclass(frozen=True)
class _Piece:
    """Samples of one client from one file or one class folder."""

    client: str
    source: Path
    is_test: bool
    kind: str
    labels: list[str]
    images: tuple[Path, ...] = ()
    table: npt.NDArray[Any] | None = None
    columns: tuple[str, ...] = ()


def read_folder(path: Path, size: int | None = None) -> Dataset:
    """Read a folder with one sub-folder, or one .npz or .csv file, per client.

    A client's folder holds class folders of images, or .npz files with x [n, ...] and y [n], or .csv
    files with a header, numbers, and a label column (`label`, `y`, or else the last one). Inside it,
    folders `train` and `test`, or a file named `test`, tell what the client is tested on.

    Images become uint8 [n, channels, height, width], grey only if all are, and must be of one size
    unless `size` asks for all of them as `size` x `size`. So do 4-D uint8 arrays; anything else
    becomes float32. Labels of any kind become 0 to K-1, sorted over all clients; mean and std are
    measured on what is not marked as test.
    """
    pieces: list[_Piece] = []
    for name, place in _clients(path).items():
        own = _read_client(name, place)
        if not any(piece.labels for piece in own):
            raise FedkinError(f"client {name} has no samples: {place} should hold {EXPECTED}")
        pieces += own
    for piece in pieces:
        if piece.kind != pieces[0].kind:
            raise FedkinError(
                f"{pieces[0].source} holds {pieces[0].kind}, but {piece.source} {piece.kind}: "
                "all clients need data of one kind"
            )
    x = _join_images(pieces, size) if pieces[0].kind == "images" else _join_tables(pieces)
    classes, y = _number([label for piece in pieces for label in piece.labels])
    lengths = [len(piece.labels) for piece in pieces]
    is_test = np.repeat([piece.is_test for piece in pieces], lengths)
    owners = tuple(dict.fromkeys(piece.client for piece in pieces))
    mean, std = statistics(x if is_test.all() else x[~is_test])
    return Dataset(
        name=path.resolve().name,
        x=x,
        y=y,
        classes=classes,
        mean=mean,
        std=std,
        is_test=is_test,
        owner=np.repeat([owners.index(piece.client) for piece in pieces], lengths).astype(np.int64),
        owners=owners,
    )


def write_folder(data: Dataset, split: Split, path: Path) -> None:
    """Write a folder for each client with train.npz and test.npz, as `read_folder` reads them."""
    names = np.array(data.classes)
    for client, train, test in zip(split.names, split.train, split.test, strict=True):
        make_folder(path / client)
        for part, rows in (("train", train), ("test", test)):
            with io.BytesIO() as buffer:
                np.savez_compressed(buffer, x=data.x[rows], y=names[data.y[rows]])
                write_whole(path / client / f"{part}.npz", buffer.getvalue())


def read_own(
    name: str, path: Path, classes: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """One client's samples [n, *shape], labels [n] by their place in `classes`, and [n] which are its test samples.

    `path` is what `read_folder` takes for a client. Images of another size are resized.
    """
    if not path.exists():
        raise FedkinError(f"there is no folder {path}")
    pieces = _read_client(name, path)
    if not any(piece.labels for piece in pieces):
        raise FedkinError(f"{path} has no samples: it should hold {EXPECTED}")
    kinds = sorted({piece.kind for piece in pieces})
    if len(kinds) > 1:
        raise FedkinError(f"{path} holds {' and '.join(kinds)}: data of one kind expected")
    if kinds == ["images"]:
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise FedkinError(f"{path} holds images, but samples of shape {shape} were agreed on")
        paths = [image for piece in pieces for image in piece.images]
        x: npt.NDArray[Any] = decode(paths, (shape[2], shape[1]), "L" if shape[0] == 1 else "RGB")
    else:
        x = _join_tables(pieces)
    if x.shape[1:] != shape:
        raise FedkinError(f"{path} has samples of shape {x.shape[1:]}, but {shape} was agreed on")
    place = {label: k for k, label in enumerate(classes)}
    labels = [label for piece in pieces for label in piece.labels]
    strange = sorted(set(labels) - place.keys())
    if strange:
        raise FedkinError(f"{path} has the classes {', '.join(strange)}, which are not among those agreed on")
    is_test = np.repeat([piece.is_test for piece in pieces], [len(piece.labels) for piece in pieces])
    return x, np.array([place[label] for label in labels], np.int64), is_test


def _clients(path: Path) -> dict[str, Path]:
    if not path.is_dir():
        raise FedkinError(f"{path} is not a folder: one with a sub-folder or file for each client expected")
    clients: dict[str, Path] = {}
    for place in _visible(path):
        if place.is_dir() or place.suffix.lower() in _READERS:
            name = place.name if place.is_dir() else place.stem
            if name in clients:
                raise FedkinError(f"{clients[name]} and {place} both stand for client {name}")
            clients[name] = place
    if not clients:
        raise FedkinError(f"{path} has no clients: a sub-folder, .npz or .csv file for each of them expected")
    return clients


def _read_client(name: str, place: Path) -> list[_Piece]:
    if place.is_file():
        return [_read_table(name, place, is_test=False)]
    inside = _visible(place)
    # Only these two and nothing else: a client may well have trains as one of its classes.
    if inside and all(child.is_dir() and child.name in {"train", "test"} for child in inside):
        return [piece for child in inside for piece in _read_part(name, child, child.name == "test")]
    return _read_part(name, place, is_test=False)


def _read_part(name: str, folder: Path, is_test: bool) -> list[_Piece]:
    """The pieces in one folder of a client: its tables and its class folders."""
    pieces = []
    for child in _visible(folder):
        suffix = child.suffix.lower()
        if child.is_dir():
            pieces.append(_read_class(name, child, is_test))
        elif suffix in _READERS:
            pieces.append(_read_table(name, child, is_test or child.stem == "test"))
        elif suffix in SUFFIXES:
            raise FedkinError(f"{child} lies in no class folder: expected {folder / 'CLASS' / child.name}")
    return pieces


def _read_class(name: str, folder: Path, is_test: bool) -> _Piece:
    images = tuple(_visible(folder))
    for image in images:
        if image.suffix.lower() not in SUFFIXES or not image.is_file():
            raise FedkinError(f"{image} is not a png, jpg, jpeg or bmp file: take it out of the class folder")
    return _Piece(name, folder, is_test, "images", [folder.name] * len(images), images)


def _read_table(name: str, path: Path, is_test: bool) -> _Piece:
    x, labels, columns = _READERS[path.suffix.lower()](path)
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # what overflows is infinite, and told below
            x = x.astype(np.float32)
        bad = ~np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
        if bad.any():
            raise FedkinError(
                f"{path} of client {name} has NaN or infinite values in {bad.sum()} samples, the first of "
                f"them sample {int(bad.argmax()) + 1}"
            )
    return _Piece(name, path, is_test, f"{path.suffix.lower()} data", labels, table=x, columns=columns)


def _read_npz(path: Path) -> tuple[npt.NDArray[Any], list[str], tuple[str, ...]]:
    arrays = read_npz(path)
    if not {"x", "y"} <= arrays.keys():
        raise FedkinError(f"{path} holds {', '.join(arrays) or 'nothing'}, x and y expected")
    x, y = arrays["x"], arrays["y"]
    if x.ndim < 2 or 0 in x.shape[1:] or y.shape not in {(len(x),), (len(x), 1)}:
        raise FedkinError(f"{path} has x {x.shape} and y {y.shape}, (n, ...) and (n,) expected")
    if x.dtype.kind not in "fiub":
        raise FedkinError(f"{path} has x of type {x.dtype}, numbers expected")
    y = y.ravel()
    if y.dtype.kind == "f" and not (np.isfinite(y).all() and (y == np.rint(y)).all()):
        raise FedkinError(f"{path} has labels that are no whole numbers: classes expected")
    if y.dtype.kind in "fiub":
        y = y.astype(np.int64)
    if x.dtype == np.uint8 and x.ndim != 4:
        x = x.astype(np.float32)
    return x, y.astype(np.str_).tolist(), ()


def _read_csv(path: Path) -> tuple[npt.NDArray[Any], list[str], tuple[str, ...]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FedkinError(f"{path} cannot be read: {error}") from error
    if not lines:
        raise FedkinError(f"{path} is empty: a header and one line for each sample expected")
    header = lines[0][1]
    if len(header) < 2 or all(_is_number(name) for name in header):
        raise FedkinError(f"{path} begins with {','.join(header)[:60]}: a header with column names expected")
    low = [name.lower() for name in header]
    label = next((low.index(name) for name in ("label", "y") if name in low), len(low) - 1)
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise FedkinError(f"{path} has {len(row)} cells in line {line}, {len(header)} expected")
        for column, cell in enumerate(row):
            if column != label and not _is_number(cell):
                raise FedkinError(f"{path} has {cell!r} in line {line}, column {header[column]}: no number")
        if row[label].lower() in {"", "nan"}:
            raise FedkinError(f"{path} has no label in line {line}, column {header[label]}")
    columns = tuple(header[:label] + header[label + 1 :])
    features = [[float(cell) for cell in row[:label] + row[label + 1 :]] for _, row in lines[1:]]
    x = np.array(features, np.float64).reshape(-1, len(columns))
    return x, [row[label] for _, row in lines[1:]], columns


_READERS = {".npz": _read_npz, ".csv": _read_csv}


def _join_tables(pieces: list[_Piece]) -> npt.NDArray[Any]:
    tables = [piece.table for piece in pieces if piece.table is not None]
    first = pieces[0]
    for piece, table in zip(pieces, tables, strict=True):
        if piece.columns != first.columns:
            raise FedkinError(
                f"{first.source} has the columns {', '.join(first.columns)}, but {piece.source} "
                f"{', '.join(piece.columns)}"
            )
        ours, theirs = (f"{t.dtype} {t.shape[1:]}" for t in (tables[0], table))
        if ours != theirs:
            raise FedkinError(f"{first.source} has samples of {ours}, but {piece.source} of {theirs}")
    return np.concatenate(tables)


def _join_images(pieces: list[_Piece], size: int | None) -> Pixels:
    paths = [path for piece in pieces for path in piece.images]
    headers = [_header(path) for path in paths]
    target = (size, size) if size else headers[0][0]
    for path, (found, _) in zip(paths, headers, strict=True):
        if not size and found != target:
            raise FedkinError(
                f"{paths[0]} is {target[0]} x {target[1]} pixels, but {path} {found[0]} x {found[1]}: "
                "make them one size, or give a size to have them resized"
            )
    return decode(paths, target, "L" if all(mode in GREY for _, mode in headers) else "RGB")


def _header(path: Path) -> tuple[tuple[int, int], str]:
    """Size and mode of an image, from its first bytes."""
    try:
        with Image.open(path) as image:
            size, mode = image.size, image.mode
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FedkinError(f"{path} is not a readable image: {error}") from error
    if mode[0] in "IF":
        raise FedkinError(f"{path} has more than 8 bits a pixel (mode {mode}): convert it to 8 bits first")
    return size, mode


def _number(labels: list[str]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Class names in order, by number if all are numbers, and each label's place among them."""
    names = set(labels)
    numeric = all(_is_number(name) for name in names)
    classes = tuple(sorted(names, key=lambda name: (float(name) if numeric else 0.0, name)))
    place = {name: index for index, name in enumerate(classes)}
    return classes, np.array([place[label] for label in labels], np.int64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _visible(folder: Path) -> Iterable[Path]:
    return sorted(child for child in folder.iterdir() if not child.name.startswith("."))
