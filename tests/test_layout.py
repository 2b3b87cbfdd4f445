"""A model is a vector: blocks of columns, and modules bound to one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedkin import FedkinError
from fedkin.layout import Block, Bound, Layout

ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5)


def columns(block: Block) -> set[int]:
    return {c for s in block for c in range(s.start, s.stop)}


@given(ranges, ranges)
def test_blocks_are_sets_of_columns(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    p, q = Block.join(a), Block.join(b)
    assert columns(p) == {c for start, stop in a for c in range(start, stop)}
    assert columns(p | q) == columns(p) | columns(q)
    assert columns(p & q) == columns(p) & columns(q)
    assert columns(p - q) == columns(p) - columns(q)
    assert len(p) == len(columns(p))
    assert all(x[1] < y[0] for x, y in zip(p.ranges, p.ranges[1:], strict=False))


@given(ranges)
def test_what_is_put_into_a_block_is_what_it_holds(a: list[tuple[int, int]]) -> None:
    block = Block.join(a)
    w = torch.arange(30.0).repeat(2, 1)
    values = torch.randn(2, len(block))
    assert torch.equal(block.of(block.put(w.clone(), values)), values)
    assert torch.equal((Block(((0, 30),)) - block).of(w), (Block(((0, 30),)) - block).of(block.put(w.clone(), values)))
    assert torch.equal(block.copy(w, torch.zeros(2, 30)).sum(1), block.of(w).sum(1))


class Net(nn.Module):
    """Its normalisation layers have names that say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 2, 3)
        self.b = nn.BatchNorm2d(2)
        self.c = nn.Sequential(nn.Linear(72, 4), nn.LayerNorm(4))
        self.d = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(self.c(self.b(self.a(x)).relu().flatten(1)))


def test_parameters_come_first_and_buffers_after_them() -> None:
    layout = Layout(Net())
    assert layout.parameter_count == 20 + 4 + 292 + 8 + 15
    assert layout.size == layout.parameter_count + 4
    assert columns(layout.buffers) == set(range(layout.parameter_count, layout.size))
    assert "b.num_batches_tracked" not in layout.columns


def test_layers_hold_weight_bias_and_statistics_together() -> None:
    layout = Layout(Net())
    assert list(layout.layers) == ["a", "b", "c.0", "c.1", "d"]
    assert [len(block) for block in layout.layers.values()] == [20, 8, 292, 8, 15]
    assert len(layout.layer("c")) == 300


def test_norm_modules_are_found_by_type() -> None:
    layout = Layout(Net())
    assert layout.norm == layout.layer("b") | layout.layer("c.1")
    assert layout.norm_statistics == layout.block(["b.running_mean", "b.running_var"])


def test_the_classifier_is_the_last_linear_layer_or_the_named_one() -> None:
    assert Layout(Net()).classifier == Layout(Net()).layer("d")
    assert Layout(Net(), "c.0").classifier == Layout(Net()).layer("c.0")
    layout = Layout(Net())
    assert columns(layout.extractor) == set(range(layout.size)) - columns(layout.classifier)


def test_a_missing_classifier_and_unknown_layers_are_told() -> None:
    with pytest.raises(FedkinError, match="no linear layer"):
        _ = Layout(nn.Sequential(nn.Conv2d(1, 2, 3))).classifier
    with pytest.raises(FedkinError, match=r"did you mean 'c\.0'"):
        Layout(Net(), "c0")
    with pytest.raises(FedkinError, match="momentum=None"):
        Layout(nn.BatchNorm1d(3, momentum=None))


def test_a_bound_module_computes_from_its_vector_and_fills_its_gradient() -> None:
    torch.manual_seed(0)
    free, x, y = Net(), torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    bound = Bound(Net())
    bound.load(bound.layout.flatten(free))
    for module in (free, bound.module):
        module.train()
        nn.functional.cross_entropy(module(x), y).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in free.parameters()])
    assert torch.equal(bound.g, gradient)
    # Batch norm has moved its statistics inside the vector.
    assert torch.equal(bound.w, bound.layout.flatten(free))
    assert not torch.equal(bound.layout.buffers.of(bound.w), torch.tensor([0.0, 0, 1, 1]))


def test_a_step_on_the_vector_is_a_step_of_the_module() -> None:
    bound = Bound(nn.Linear(3, 2))
    bound.p.add_(1.0)
    assert torch.equal(bound.module.weight.reshape(-1), bound.w[:6])
    bound.load(torch.zeros(8))
    assert bound.module(torch.ones(1, 3)).abs().sum() == 0


def test_features_are_what_the_classifier_is_given() -> None:
    bound = Bound(Net())
    x = torch.randn(5, 1, 8, 8)
    features, scores = bound.features(x)
    assert features.shape == (5, 4)
    assert torch.equal(bound.module.d(features), scores)
    scores.sum().backward()
    assert bound.layout.layer("a").of(bound.g).abs().sum() > 0


def test_gradients_outside_the_learning_block_are_not_computed() -> None:
    bound = Bound(Net())
    bound.g.fill_(7.0)
    with bound.learning(bound.layout.classifier):
        bound.module(torch.randn(4, 1, 8, 8)).sum().backward()
    rest = bound.layout.extractor & bound.layout.parameters
    assert (rest.of(bound.g) == 7.0).all()
    assert all(p.requires_grad for p in bound.module.parameters())
