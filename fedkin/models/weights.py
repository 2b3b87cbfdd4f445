"""Weights to start from, out of a .safetensors file.

Tensors are found by their names. Where names differ but the layers are the same, as with weights that were published
for another program, layers are paired in order: dense layers come after all others, `features.10.1` comes after
`features.2.1`, and within a layer a tensor is known by the last part of its name. A last layer for another number of
classes is left as it is.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedkin.data.catalogue import data_root
from fedkin.errors import FedkinError

Layers = dict[str, dict[str, Tensor]]
"""Tensors by layer, and by the last part of their names."""


def whole_path(given: str | Path) -> str:
    """The whole path of a file that is there, so that a run can be resumed from anywhere; else what was given."""
    path = Path(given).expanduser()
    return str(path.resolve() if path.exists() else given)


def located(given: str | Path) -> Path:
    """Where weights are: a path, or a name in the folder `weights` under the one with all datasets."""
    return data_root() / "weights" / whole_path(given)


def fingerprint(given: str) -> str:
    """Differs when the file does."""
    return hashlib.sha256(located(given).read_bytes()).hexdigest()[:16]


def start_from(model: nn.Module, given: str | Path) -> str:
    """Put the weights in a file into a model; what is returned says what was done."""
    path = located(given)
    try:
        found = load_file(path)
    except FileNotFoundError:
        raise FedkinError(f"weights {path} do not exist") from None
    except (SafetensorError, OSError) as error:
        raise FedkinError(f"weights {path} cannot be read as a .safetensors file: {error}") from None
    ours, theirs = by_layer(model.state_dict()), by_layer(found)
    if len(ours) != len(theirs):
        raise FedkinError(f"weights {path} are not for this model: it has {len(ours)} layers, they have {len(theirs)}")
    if ours.keys() != theirs.keys():
        theirs = dict(zip(ours, in_order(theirs), strict=True))
    *body, (last, classifier) = ours.items()
    for name, tensors in body:
        if not fits(tensors, theirs[name]):
            raise FedkinError(f"weights {path} are not for this model: its layer {name} has no counterpart in them")
    for name, tensors in body:
        copy(theirs[name], tensors)
    if not fits(classifier, theirs[last]):
        return f"weights from {path}, but for {last}, which has other classes there"
    copy(theirs[last], classifier)
    return f"weights from {path}"


def by_layer(tensors: dict[str, Tensor]) -> Layers:
    """Tensors grouped by the layer that their names begin with; how many batches were counted is left out."""
    layers: Layers = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part != "num_batches_tracked":
            layers.setdefault(layer, {})[part] = tensor
    return layers


def in_order(layers: Layers) -> list[dict[str, Tensor]]:
    """Layers as a network has them one after another; a file has them by the alphabet."""

    def key(name: str) -> tuple[bool, list[tuple[int, str]]]:
        parts = [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]
        weight = layers[name].get("weight")
        return weight is not None and weight.ndim == 2, parts

    return [layers[name] for name in sorted(layers, key=key)]


def fits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Whether two layers have the same tensors."""
    return ours.keys() == theirs.keys() and all(theirs[part].shape == ours[part].shape for part in ours)


def copy(theirs: dict[str, Tensor], ours: dict[str, Tensor]) -> None:
    """A layer's tensors into those of a model, in place."""
    for part, tensor in ours.items():
        tensor.copy_(theirs[part])
