"""From a name, a file, a class or a finished model to a model that fits the data."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError, unknown
from fedkin.loading import object_from_file
from fedkin.models.catalogue import describe, names
from fedkin.models.layers import Shape

ModelLike = str | nn.Module | Callable[..., nn.Module]
"""A name of the catalogue, "path/to/file.py:ClassName", a class or factory, or a finished model."""
WIDE = 16
"""Channels that the first convolution must give for images to lie in memory with their channels last."""


def build(model: ModelLike, shape: Shape, classes: int) -> nn.Module:
    """A new model for samples of this shape, checked to give at least `classes` outputs for each.

    A class or factory needs no base class or signature of ours: it is called with the shape of a
    sample (`shape`, `in_shape`, `input_shape`), its number of channels (`in_channels`, `channels`)
    and the number of classes (`n_classes`, `num_classes`, `classes`), each only if it has a parameter
    of that name. A finished model is copied. Weights are drawn from torch's global generator.
    """
    if isinstance(model, str) and model in names():
        card = describe(model)
        card.check(shape)
        label, built = model, card.make(shape, classes)
    else:
        if isinstance(model, str) and ".py" not in model:
            raise unknown("model", model, names())
        source = object_from_file(model, nn.Module) if isinstance(model, str) else model
        label = _name(source)
        built = copy.deepcopy(source) if isinstance(source, nn.Module) else _call(source, shape, classes)
    _check(built, label, shape, classes)
    return built


def _call(source: object, shape: Shape, classes: int) -> nn.Module:
    """Call a class or factory with those of our facts that it has parameters for."""
    label = _name(source)
    if not callable(source) or (isinstance(source, type) and not issubclass(source, nn.Module)):
        raise FedkinError(f"{label!r} is neither an nn.Module nor a function that returns one")
    facts: dict[str, object] = {
        **dict.fromkeys(("shape", "in_shape", "input_shape"), shape),
        **dict.fromkeys(("in_channels", "channels"), shape[0]),
        **dict.fromkeys(("n_classes", "num_classes", "classes"), classes),
    }
    parameters = inspect.signature(source).parameters
    missing = [p.name for p in parameters.values() if _is_required(p) and p.name not in facts]
    if missing:
        raise FedkinError(
            f"model {label!r} cannot be built without {', '.join(missing)}: "
            f"fedkin fills only {', '.join(facts)}, so give the others a default value"
        )
    given = {name: fact for name, fact in facts.items() if name in parameters}
    try:
        built = source(**given)
    except Exception as error:
        call = ", ".join(f"{name}={fact}" for name, fact in given.items())
        raise FedkinError(f"model {label!r} fails when called as {label}({call}): {_one_line(error)}") from error
    if not isinstance(built, nn.Module):
        raise FedkinError(f"{label!r} returns {type(built).__name__}, but an nn.Module is expected")
    return built


def _is_required(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not variadic


def best_format(model: nn.Module, shape: Shape) -> torch.memory_format:
    """How batches for a model should lie in memory: wide convolutions over images are faster with the channels last.

    A model that uses `view` on what a convolution gives cannot take them so.
    """
    first = next((part for part in model.modules() if isinstance(part, nn.Conv2d)), None)
    if len(shape) != 3 or first is None or first.out_channels < WIDE:
        return torch.contiguous_format
    try:
        _try(model, shape, torch.channels_last)
    except Exception:
        return torch.contiguous_format
    return torch.channels_last


def _try(model: nn.Module, shape: Shape, memory: torch.memory_format = torch.contiguous_format) -> Any:
    """What a model predicts of two blank samples."""
    like = next(model.parameters(), torch.zeros(()))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            return model(torch.zeros(2, *shape, dtype=like.dtype, device=like.device).to(memory_format=memory))
    finally:
        for module, training in modes:
            module.training = training


def _check(model: nn.Module, label: str, shape: Shape, classes: int) -> None:
    """See whether the output for two samples is [2, classes or more]."""
    try:
        out = _try(model, shape)
    except Exception as error:
        raise FedkinError(f"model {label!r} cannot take samples of shape {shape}: {_one_line(error)}") from error
    if not isinstance(out, Tensor):
        raise FedkinError(f"model {label!r} gives {type(out).__name__}, but a tensor [samples, classes] is expected")
    if out.ndim != 2 or len(out) != 2:
        raise FedkinError(
            f"model {label!r} gives an output of shape {tuple(out.shape)} for 2 samples of shape {shape}, "
            f"but (2, {classes}) is expected"
        )
    if out.shape[1] < classes:
        raise FedkinError(f"model {label!r} gives {out.shape[1]} outputs a sample, but the data have {classes} classes")


def _name(source: object) -> str:
    """The name of a class or function, or that of an object's class."""
    return str(getattr(source, "__name__", type(source).__name__))


def _one_line(error: BaseException) -> str:
    """The kind of error and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
