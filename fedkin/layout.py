"""A model is a vector: which column is which, and a module whose tensors are views into one.

Columns come in the module's own order, parameters first and floating-point buffers (the running
statistics of batch norm) after them. A `Block` is a set of columns with a meaning: a layer, the
extractor, the classifier. Server steps work on blocks of a matrix with one such row per client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError, unknown

NORM_TYPES = (
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.LocalResponseNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class Block:
    """A set of columns, kept as sorted ranges `(start, stop)` that neither touch nor overlap."""

    ranges: tuple[tuple[int, int], ...]

    @staticmethod
    def join(ranges: Iterable[tuple[int, int]]) -> Block:
        """The block that covers all of `ranges`, given in any order."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(r for r in ranges if r[0] < r[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return Block(tuple(merged))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def __iter__(self) -> Iterator[slice]:
        return (slice(start, stop) for start, stop in self.ranges)

    def __or__(self, other: Block) -> Block:
        return Block.join((*self.ranges, *other.ranges))

    def __and__(self, other: Block) -> Block:
        return Block.join((max(a, c), min(b, d)) for a, b in self.ranges for c, d in other.ranges)

    def __sub__(self, other: Block) -> Block:
        kept = list(self.ranges)
        for c, d in other.ranges:
            kept = [part for a, b in kept for part in ((a, min(b, c)), (max(a, d), b)) if part[0] < part[1]]
        return Block.join(kept)

    def of(self, w: Tensor) -> Tensor:
        """These columns of `w` [..., D]: a view where they are one range, otherwise a copy."""
        parts = [w[..., columns] for columns in self]
        return parts[0] if len(parts) == 1 else torch.cat([w[..., :0], *parts], dim=-1)

    def put(self, w: Tensor, values: Tensor) -> Tensor:
        """Write `values` [..., len(self)] into these columns of `w` [..., D], in place; returns `w`."""
        at = 0
        for columns in self:
            width = columns.stop - columns.start
            w[..., columns] = values[..., at : at + width]
            at += width
        return w

    def copy(self, source: Tensor, target: Tensor) -> Tensor:
        """Copy these columns from `source` [..., D] to `target` [..., D], in place; returns `target`."""
        for columns in self:
            target[..., columns] = source[..., columns]
        return target


class Layout:
    """Names for the columns of a module's vector.

    `classifier` names the module that decides between classes; by default it is the last linear
    layer. Normalisation layers are found by their type, never by their name.
    """

    def __init__(self, module: nn.Module, classifier: str | None = None) -> None:
        self.columns: dict[str, tuple[int, torch.Size]] = {}
        """Tensor name to (first column, shape), parameters first."""
        at = 0
        for name, tensor in module.named_parameters():
            self.columns[name] = (at, tensor.shape)
            at += tensor.numel()
        self.parameter_count = at
        for name, buffer in module.named_buffers():
            if buffer.is_floating_point():
                self.columns[name] = (at, buffer.shape)
                at += buffer.numel()
        self.size = at
        self._modules = dict(module.named_modules())
        for name, part in self._modules.items():
            if getattr(part, "momentum", 0) is None and getattr(part, "track_running_stats", False):
                raise FedkinError(
                    f"layer {name!r} has momentum=None, which averages over a count of batches that is "
                    "not part of the model's vector: give it a momentum such as 0.1"
                )
        self.layers: dict[str, Block] = {}
        """Module name to its own columns, weight, bias and buffers together, in the module's order."""
        self.norm = self.norm_statistics = Block(())
        for name, part in self._modules.items():
            own = self._tensors(name, part, recurse=False)
            if own.ranges:
                self.layers[name] = own
            if isinstance(part, NORM_TYPES):
                self.norm |= own
                self.norm_statistics |= own & self.buffers
        linear = [name for name, part in self._modules.items() if isinstance(part, nn.Linear)]
        if classifier is not None and classifier not in self._modules:
            raise unknown("layer", classifier, self.layers)
        self.classifier_name = classifier if classifier is not None else (linear[-1] if linear else None)

    def _tensors(self, prefix: str, part: nn.Module, recurse: bool) -> Block:
        named = [*part.named_parameters(prefix, recurse), *part.named_buffers(prefix, recurse)]
        return self.block(name for name, _ in named if name in self.columns)

    def block(self, tensors: Iterable[str]) -> Block:
        """The columns of the named tensors, such as `["fc1.weight", "fc1.bias"]`."""
        ranges = []
        for name in tensors:
            if name not in self.columns:
                raise unknown("tensor", name, self.columns)
            at, shape = self.columns[name]
            ranges.append((at, at + shape.numel()))
        return Block.join(ranges)

    def layer(self, name: str) -> Block:
        """The columns of one module and of all modules inside it."""
        if name not in self._modules:
            raise unknown("layer", name, self.layers)
        return self._tensors(name, self._modules[name], recurse=True)

    def stages(self, text: str) -> dict[str, Block]:
        """Layers grouped into stages, as text says, that cover every column.

        A number S makes the last S - 1 layers stages of their own and all before them the first;
        `conv1+conv2|fc1|classifier` names the layers of each.
        """
        last = self.classifier_name
        order = [n for n in self.layers if n != last] + [n for n in self.layers if n == last]
        if text.isdecimal():
            count = int(text)
            if not 1 <= count <= len(order):
                raise FedkinError(f"the model has {len(order)} layers, so it cannot have {text} stages")
            cut = len(order) - count + 1
            groups = [order[:cut], *([name] for name in order[cut:])]
        else:
            groups = [part.split("+") for part in text.split("|")]
        stages = {
            "+".join(group) if len(group) < 3 else f"{group[0]}..{group[-1]}": reduce(
                Block.__or__, (self.layer(name.strip()) for name in group)
            )
            for group in groups
        }
        covered = reduce(Block.__or__, stages.values())
        left = [name for name, block in self.layers.items() if (block - covered).ranges]
        if left or sum(map(len, stages.values())) != len(covered):
            problem = f"leave out {', '.join(left)}" if left else "have layers in common"
            raise FedkinError(f"stages {text!r} {problem}: every layer belongs to one stage")
        return stages

    @property
    def all(self) -> Block:
        """Every column."""
        return Block(((0, self.size),))

    @property
    def parameters(self) -> Block:
        """What gradient steps change."""
        return Block(((0, self.parameter_count),))

    @property
    def buffers(self) -> Block:
        """What gradient steps do not change: running statistics."""
        return Block.join([(self.parameter_count, self.size)])

    @cached_property
    def classifier(self) -> Block:
        """The last linear layer, or the layer that was named as the classifier."""
        if self.classifier_name is None:
            raise FedkinError(
                "the model has no linear layer to take as its classifier: name the layer that decides "
                f"between classes (classifier=...), one of {', '.join(self.layers)}"
            )
        return self.layer(self.classifier_name)

    @cached_property
    def extractor(self) -> Block:
        """Everything but the classifier."""
        return self.all - self.classifier

    def tensors(self, w: Tensor) -> dict[str, Tensor]:
        """The named tensors of a vector `w` [D] (or its first columns), as views."""
        return {
            name: w[at : at + shape.numel()].view(shape)
            for name, (at, shape) in self.columns.items()
            if at + shape.numel() <= len(w)
        }

    def flatten(self, module: nn.Module) -> Tensor:
        """A module's numbers as a new vector [D]."""
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return torch.cat([named[name].detach().reshape(-1) for name in self.columns])


class Bound:
    """A working module whose parameters, gradients and buffers are views into two vectors.

    Loading a client's model is one copy into `w`; a gradient step is one in-place add.
    """

    def __init__(self, module: nn.Module, classifier: str | None = None) -> None:
        self.module = module
        self.layout = layout = Layout(module, classifier)
        self.w = layout.flatten(module)
        """[D] the model."""
        self.p = self.w[: layout.parameter_count]
        """[P] its parameters, a view of `w`."""
        self.g = torch.zeros_like(self.p)
        """[P] the gradient of the last `backward`."""
        numbers, gradients = layout.tensors(self.w), layout.tensors(self.g)
        for name, parameter in module.named_parameters():
            parameter.data = numbers[name]
            parameter.grad = gradients[name]
        for name, _ in list(module.named_buffers()):
            if name in numbers:
                owner, _, leaf = name.rpartition(".")
                module.get_submodule(owner)._buffers[leaf] = numbers[name]

    def load(self, w: Tensor) -> None:
        """Take over the model `w` [D]."""
        self.w.copy_(w)

    def eval(self, w: Tensor) -> nn.Module:
        """The module with the model `w` [D], in evaluation mode."""
        self.load(w)
        return self.module.eval()

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the classifier is given for inputs [B, ...], and its class scores [B, K]: one forward pass."""
        assert self.layout.classifier.ranges
        seen: list[Tensor] = []
        classifier = self.module.get_submodule(self.layout.classifier_name or "")
        hook = classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            scores: Tensor = self.module(x)
        finally:
            hook.remove()
        return seen[-1], scores

    @contextmanager
    def learning(self, block: Block) -> Iterator[None]:
        """Inside, gradients are computed for the parameters in `block` alone, to save the rest."""
        frozen = [
            parameter
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad and not (self.layout.block([name]) & block).ranges
        ]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
