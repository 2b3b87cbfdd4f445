"""The papers' settings by name, and what methods cost."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedkin
from fedkin import FedkinError
from fedkin.api import prepare
from fedkin.config import Config
from fedkin.costs import cost, table
from fedkin.methods import make, registry
from fedkin.presets import presets
from fedkin.report.methods import markdown

SMALL = {"data": "digits", "model": "mlp", "clients": 5, "partition": "iid"}


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid(name: str) -> None:
    preset = presets()[name]
    Config.of(preset.settings)
    for method, hyper in preset.set.items():
        made = make(method, hyper)
        assert {key: getattr(made, key) for key in hyper} == hyper


def test_what_is_given_comes_before_the_preset_and_the_preset_before_the_method() -> None:
    setup = prepare("spfl", preset="pfedsim-table3", rounds=7, **SMALL)
    assert setup.config.rounds == 7
    assert (setup.config.join, setup.config.batch, setup.config.weight_decay) == (0.1, 32, 1e-4)
    assert prepare("fedprox", preset="fedsimsup-table1", mu=0.5, **SMALL).config.set == {"mu": 0.5}
    with pytest.raises(FedkinError, match="did you mean 'pfedsim-table3'"):
        prepare("spfl", preset="pfedsim-table", **SMALL)


def test_costs_are_multiples_of_fedavg() -> None:
    assert (cost("fedavg").down, cost("fedavg").up, cost("fedavg").steps) == (1, 1, 1)
    local = cost("local-only")
    assert (local.down, local.up, local.steps, local.sends) == (0, 0, 1, ())
    # One refresh in ten rounds, of one epoch in three, and two steps on every batch.
    spfl = cost("spfl")
    assert spfl.down == pytest.approx(1.1)
    assert spfl.steps == pytest.approx(2 * (10 * 3 + 1) / (10 * 3))


@pytest.mark.slow
def test_what_is_kept_of_costs_is_what_is_measured() -> None:
    assert (Path(fedkin.__file__).parent / "costs.csv").read_text() == table(), "run: make docs"


def test_the_page_of_methods_is_up_to_date() -> None:
    page = Path(__file__).parent.parent / "docs/methods.md"
    assert page.read_text() == markdown(), "run: make docs"
    assert all(f"## {name}\n" in page.read_text() for name in registry())
