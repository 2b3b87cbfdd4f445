"""Checkpoints without pickle: tensors in a safetensors file, everything else in a JSON file beside it.

The JSON file is written last and names the SHA-256 of both, so a checkpoint that was cut short or
altered is recognised and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.numpy
import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.runs.files import make_folder, write_whole

KEEP = 2
Values = dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands after a round."""

    round: int
    state: Values
    """What the server remembers."""
    private: dict[int, Values]
    """What each client keeps to itself; in a simulation it is saved with the rest."""
    clock: Values = field(default_factory=dict)
    """Who is at work."""


def stem(round: int) -> str:
    """The name, without its ending, of both files of a round's checkpoint."""
    return f"round-{round:06d}"


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and remove those before the last `KEEP`."""
    make_folder(folder)
    tensors: dict[str, Tensor] = {}
    others: dict[str, Any] = {}
    groups = {
        "state": checkpoint.state,
        "clock": checkpoint.clock,
        **{f"private/{i}": v for i, v in checkpoint.private.items()},
    }
    for group, values in groups.items():
        for name, value in values.items():
            (tensors if isinstance(value, Tensor) else others)[f"{group}/{name}"] = value
    content = safetensors.numpy.save({k: v.contiguous().numpy() for k, v in tensors.items()})
    path = folder / f"{stem(checkpoint.round)}.safetensors"
    write_whole(path, content)
    about = {
        "round": checkpoint.round,
        "values": others,
        "clients": sorted(checkpoint.private),
        "tensors_sha256": hashlib.sha256(content).hexdigest(),
    }
    about["sha256"] = _seal(about)
    write_whole(path.with_suffix(".json"), json.dumps(about, indent=1).encode())
    for old in sorted(folder.glob("round-*.json"))[:-KEEP]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint by its JSON file; refused if it is not just as it was written."""
    try:
        about = json.loads(path.read_text())
        seal = about.pop("sha256")
        content = path.with_suffix(".safetensors").read_bytes()
        whole = seal == _seal(about) and about["tensors_sha256"] == hashlib.sha256(content).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise FedkinError(f"checkpoint {path} is incomplete or was altered")
    private: dict[int, Values] = {i: {} for i in about["clients"]}
    state: Values = {}
    clock: Values = {}
    arrays = safetensors.numpy.load(content)
    for key, value in (about["values"] | {k: torch.from_numpy(v) for k, v in arrays.items()}).items():
        group, _, name = key.partition("/")
        if group in ("state", "clock"):
            (state if group == "state" else clock)[name] = value
        else:
            client, _, name = name.partition("/")
            private[int(client)][name] = value
    return Checkpoint(about["round"], state, private, clock)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a sentence for each that had to be passed over."""
    complaints: list[str] = []
    for path in sorted(folder.glob("round-*.json"), reverse=True):
        try:
            return load(path), complaints
        except FedkinError as error:
            complaints.append(f"{error}: going back to the one before")
    return None, complaints


def _seal(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
