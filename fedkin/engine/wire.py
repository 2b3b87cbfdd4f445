"""Tensors inside nested calls and results, as numpy arrays while they travel between processes.

Left to itself, PyTorch moves every tensor through a shared-memory file of its own, which costs
more than the copy for vectors of this size and uses up file descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Array:
    """Marks an array that was a tensor."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


def pack(value: Any) -> Any:
    """`value` with every tensor replaced by an array."""
    return walk(value, lambda leaf: Array(leaf.numpy()) if isinstance(leaf, Tensor) else leaf)


def unpack(value: Any) -> Any:
    """The inverse of `pack`."""
    return walk(value, lambda leaf: torch.from_numpy(leaf.array) if isinstance(leaf, Array) else leaf)


def walk(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with every leaf of nested dictionaries, lists and dataclasses changed."""
    if isinstance(value, dict):
        return {key: walk(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(walk(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: walk(getattr(value, f.name), change) for f in fields(value)})
    return change(value)
