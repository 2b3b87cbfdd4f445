"""Pixels: decoding image files, keeping them decoded, and measuring them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.console import Console
from rich.progress import track

from fedkin.data.fetch import temporary
from fedkin.errors import FedkinError

Pixels = npt.NDArray[np.uint8]
Arrays = dict[str, npt.NDArray[Any]]
Numbers = tuple[float, ...]


def decode(paths: Sequence[Path], size: tuple[int, int], mode: str = "RGB") -> Pixels:
    """Image files as one array [n, channels, height, width], resized to `size` = (width, height)."""
    width, height = size
    x = np.empty((len(paths), Image.getmodebands(mode), height, width), np.uint8)

    def one(index: int) -> None:
        try:
            with Image.open(paths[index]) as image:
                pixels = np.asarray(image.convert(mode).resize(size, Image.Resampling.BILINEAR))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise FedkinError(f"{paths[index]} is not a readable image: {error}") from error
        x[index] = pixels.reshape(height, width, -1).transpose(2, 0, 1)

    console = Console(stderr=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes outside the interpreter's lock
        done = pool.map(one, range(len(paths)))
        for _ in track(done, "decoding", len(paths), console=console, disable=not console.is_terminal):
            pass
    return x


def resize(x: Pixels, size: int) -> Pixels:
    """Grey images [n, height, width] as [n, size, size], interpolated bilinearly."""
    images = (Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR) for image in x)
    return np.stack([np.asarray(image) for image in images])


def statistics(x: npt.NDArray[Any]) -> tuple[Numbers, Numbers]:
    """Mean and standard deviation per entry of axis 1; uint8 counts as 0 to 1.

    A channel that never changes gets a deviation of 1: dividing by it then does no harm.
    """
    if x.dtype == np.uint8:
        counts = _histogram(x)
        share = counts / counts.sum(axis=1, keepdims=True)
        values = np.linspace(0, 1, 256)
        mean = share @ values
        std = np.sqrt((share * np.square(values - mean[:, None])).sum(axis=1))
    else:
        others = tuple(axis for axis in range(x.ndim) if axis != 1)
        mean, std = x.mean(axis=others, dtype=np.float64), x.std(axis=others, dtype=np.float64)
    std = np.where(std > 1e-6 * np.maximum(1e-6, np.abs(mean)), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def cached(path: Path, keys: Sequence[str], build: Callable[[], Arrays], stamp: str = "") -> Arrays:
    """The arrays `keys` (and any others) in the .npz file `path`, built first if it is not there.

    A file that was built from other sources, told by another `stamp`, is built again.
    """
    if path.exists():
        arrays = read_npz(path)
        if absent := [key for key in keys if key not in arrays]:
            raise FedkinError(f"{path} holds {', '.join(arrays)}, but {', '.join(absent)} expected as well")
        if not stamp or str(arrays.get("stamp", "")) == stamp:
            return arrays
    arrays = build() | {"stamp": np.array(stamp)}
    contents: dict[str, Any] = dict(arrays)
    # A folder that cannot be written to is no error: the files are decoded again next time.
    with suppress(OSError), temporary(path) as part:
        with part.open("wb") as file:
            np.savez(file, **contents)
        part.replace(path)
    return arrays


def read_npz(path: Path) -> Arrays:
    """All arrays of an .npz file. Nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise FedkinError(f"{path} is not a readable .npz file of plain arrays: {error}") from error


def _histogram(x: Pixels, chunk: int = 4096) -> npt.NDArray[np.int64]:
    """How often each of the 256 values occurs in each channel; [channels, 256].

    A chunk of samples at a time, because counting widens every pixel to eight bytes.
    """
    counts = np.zeros((x.shape[1], 256), np.int64)
    for start in range(0, len(x), chunk):
        for channel, total in enumerate(counts):
            total += np.bincount(x[start : start + chunk, channel].ravel(), minlength=256)
    return counts
