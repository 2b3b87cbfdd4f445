"""Advice on a method: chosen on validation samples, by trials of which the better half goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from conftest import blobs
from torch import nn
from typer.testing import CliRunner

from fedkin import Federation, FedkinError, advise, api
from fedkin.advise import REFERENCES, Advice, Gap, Row, gap_between, go_on, rungs, simplest, trials, validation
from fedkin.cli import advising
from fedkin.errors import Stopped
from fedkin.runs.folder import EVENTS, RunFolder
from fedkin.simulate import Watch, simulate

QUICK: dict[str, Any] = {"rounds": 4, "epochs": 1, "batch": 16, "engine": "inline", "lr": 0.1, "seeds": 1}


def asked(out: Path, data: Federation | None = None, **changes: Any) -> Advice:
    return advise.advise(out, data=data or blobs(), **(QUICK | changes))


METHODS = ["fedper", "spfl", "ditto", "pfedsim"]


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Advice:
    return asked(tmp_path_factory.mktemp("whole"), methods=METHODS)


def row(method: str, clients: list[float]) -> Row:
    return Row(method, float(np.mean(clients)), 0.0, min(clients), 0.0, 0.0, 4, 0.0, 0.0, 0.0, clients)


def told(advice: Advice) -> dict[str, Any]:
    """All of an advice that does not differ from one time to the next."""
    said = advice.summary()
    del said["folder"]
    for line in said["table"]:
        del line["seconds"]
    return said


class TestValidationSamples:
    def test_come_from_each_clients_training_samples_and_leave_the_test_samples_alone(self) -> None:
        federation = blobs()
        held = validation(federation, 0)
        for (_, train, test), (_, left, judged) in zip(federation.owned, held.owned, strict=True):
            assert sorted([*left, *judged]) == sorted(train)
            assert not set(test) & {*left, *judged}
            assert len(judged) == round(0.25 * len(train))

    def test_have_each_class_in_its_proportion(self) -> None:
        federation = blobs()
        y = federation.data.y
        for (_, train, _), (_, _, judged) in zip(federation.owned, validation(federation, 0).owned, strict=True):
            expected = 0.25 * np.bincount(y[train], minlength=3)
            assert (np.abs(np.bincount(y[judged], minlength=3) - expected) < 1).all()

    def test_differ_from_seed_to_seed(self) -> None:
        one, two = (validation(blobs(), seed).split.test for seed in (0, 1))
        assert any(set(a) != set(b) for a, b in zip(one, two, strict=True))

    def test_leave_out_a_client_with_one_training_sample(self) -> None:
        x = np.random.default_rng(0).normal(size=(10, 3))
        y = np.arange(10) % 2
        federation = Federation.from_arrays({"a": (x, y), "lone": (x[:2], y[:2]), "b": (x, y)}, test_ratio=0.5)
        assert validation(federation, 0).split.names == ("a", "b")

    def test_alone_decide(self, tmp_path: Path) -> None:
        federation = blobs()
        y = federation.data.y.copy()
        for rows in federation.split.test:
            y[rows] = (y[rows] + 1) % 3
        spoilt = Federation(replace(federation.data, y=y), federation.split)
        methods = ["fedper", "ditto"]
        one, two = (
            asked(tmp_path / n, d, methods=methods, rounds=2) for n, d in (("one", federation), ("two", spoilt))
        )
        assert (one.method, one.gaps) == (two.method, two.gaps)
        assert told(one)["table"] == told(two)["table"]
        assert one.tested != two.tested


class TestTrials:
    @pytest.mark.parametrize("rounds", [1, 2, 3, 5, 16, 20, 33, 50, 200])
    def test_stop_at_rounds_that_are_evaluated_and_at_the_last(self, rounds: int) -> None:
        beat, at = rungs(rounds)
        assert at == sorted(set(at))
        assert at[-1] == rounds
        assert all(1 <= r < rounds and r % beat == 0 for r in at[:-1])

    @pytest.mark.parametrize("method", ["pfedsim", "ditto"])
    def test_that_were_paused_end_as_if_they_had_not_been(self, method: str, tmp_path: Path) -> None:
        settings = {"rounds": 4, "epochs": 1, "batch": 8, "lr": 0.1, "join": 0.5, "engine": "inline"}
        setup = api.prepare(method, data=blobs(), **settings)
        for until in (1, 2, 4):
            history, _ = go_on(setup, tmp_path / "run", until)
            assert [r.round for r in history] == list(range(1, until + 1))
        assert not (tmp_path / "run" / EVENTS).exists(), "a pause is nothing out of the ordinary"
        whole = simulate(setup)
        assert [r.to_json() for r in history] == [json.loads(json.dumps(r.to_json())) for r in whole.history]

    def test_are_not_run_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        setup = api.prepare("fedavg", data=blobs(), rounds=4, epochs=1, engine="inline")
        first, _ = go_on(setup, tmp_path / "run", 2)
        monkeypatch.delattr(trials, "play")
        again, _ = go_on(setup, tmp_path / "run", 1)
        assert again == first[:1]

    def test_of_the_worse_half_are_ended(self, tmp_path: Path) -> None:
        advice = asked(tmp_path / "out", methods=["fedprox", "fedper", "fedavg-ft", "ditto"])
        curves = {m: dict(curve) for m, curve in advice.curves.items()}
        ended = {r.method: r.rounds for r in advice.table if r.rounds < 4}
        assert ended
        for method, at in ended.items():
            on = [m for m, curve in curves.items() if max(curve) > at and m not in REFERENCES]
            assert all(curves[m][at] >= curves[method][at] for m in on)
            assert len(RunFolder.open(tmp_path / "out" / "trials" / f"{method}-lr0.1-s0").history()) == at

    def test_of_fedavg_and_of_what_is_warming_up_go_to_the_end(self, tmp_path: Path) -> None:
        methods = ["fedavg-ft", "fedper", "ditto", "apfl", "pfedsim", "fedalp"]
        advice = asked(tmp_path / "out", methods=methods, lr=0.001)
        reached = {r.method: r.rounds for r in advice.table}
        assert {reached[m] for m in (*REFERENCES, "pfedsim", "fedalp")} == {4}

    def test_of_the_same_accuracy_go_on_together(self, tmp_path: Path) -> None:
        # Weights that hardly move leave all methods with one model as they were.
        advice = asked(tmp_path / "out", methods=["fedprox", "moon", "fedper"], lr=1e-12)
        assert {r.rounds for r in advice.table} == {4}
        assert advice.method == "local-only"
        assert "give the same, but local-only is simpler" in advice.recommendation

    def test_end_with_the_budget(self, tmp_path: Path) -> None:
        advice = asked(tmp_path / "out", methods=["fedper", "fedavg-ft", "ditto", "pfedsim"], budget=1e-6)
        assert sum(r.rounds == 4 for r in advice.table) <= 3
        assert any("budget" in note for note in advice.notes)
        assert advice.method in advice.tested

    def test_without_a_learning_rate_find_one(self, tmp_path: Path) -> None:
        advice = asked(tmp_path / "out", methods=["fedper"], lr=None)
        note = advice.notes[0]
        assert note.startswith("learning rate 0.1 for all")
        assert {r.config.lr for r in advice.results.values()} == {0.1}
        assert (tmp_path / "out" / "trials" / "fedavg-lr0.01-s0").is_dir()


class TestGaps:
    def test_are_as_wide_as_clients_differ(self) -> None:
        best = row("ditto", [0.9] * 8)
        same = gap_between(best, row("fedavg", [0.8] * 8), [10] * 8, 0)
        assert (same.low, same.high) == pytest.approx((0.1, 0.1))
        mixed = gap_between(best, row("fedavg", [0.4, 1.0] * 4), [10] * 8, 0)
        assert mixed.low < 0 < mixed.high
        assert mixed.negligible
        assert not same.negligible

    def test_of_few_clients_are_as_wide_as_their_samples_are_few(self) -> None:
        best, other = row("ditto", [0.9, 0.9]), row("fedavg", [0.8, 0.8])
        assert gap_between(best, other, [10, 10], 0).negligible
        assert not gap_between(best, other, [1000, 1000], 0).negligible

    def test_that_may_be_chance_or_are_tiny_make_the_simpler_method_the_choice(self) -> None:
        gaps = {"spfl": Gap(0, 0, 0), "fedper": Gap(0.02, -0.01, 0.05), "fedavg": Gap(0.02, 0.01, 0.03)}
        assert simplest(gaps) == "fedper"
        assert simplest(gaps | {"local-only": Gap(0.004, 0.001, 0.007)}) == "local-only"
        assert simplest({"spfl": Gap(0, 0, 0), "mine.py:Own": Gap(0, 0, 0)}) == "spfl"


class TestEvidence:
    def test_counts_clients_that_are_better_and_worse_off_than_alone(self, whole: Advice) -> None:
        rows = {r.method: r for r in whole.table}
        alone, shared = (np.array(rows[m].clients) for m in ("local-only", "fedavg"))
        assert rows["fedavg"].better == (shared > alone).mean()
        assert rows["fedavg"].worse == (shared < alone).mean()
        assert (rows["local-only"].better, rows["local-only"].bytes) == (0, 0)
        assert rows["fedavg"].worst == shared.min()
        sent = whole.results["fedavg"].history[0]
        assert rows["fedavg"].bytes == (sent.bytes_up + sent.bytes_down) / 4
        assert rows["ditto"].steps == 2 * rows["fedavg"].steps

    def test_is_the_mean_over_seeds(self, tmp_path: Path) -> None:
        both = asked(tmp_path / "both", methods=["fedavg"], rounds=2, seeds=2)
        each = [asked(tmp_path / str(s), methods=["fedavg"], rounds=2, seed=s) for s in (0, 1)]
        single = [next(r for r in a.table if r.method == "fedavg").accuracy for a in each]
        assert next(r for r in both.table if r.method == "fedavg").accuracy == pytest.approx(np.mean(single))

    def test_is_from_all_training_samples_and_the_test_samples_at_the_end(self, whole: Advice) -> None:
        settings = {name: QUICK[name] for name in ("rounds", "epochs", "batch", "engine", "lr")}
        assert whole.tested["fedavg"] == api.run("fedavg", data=blobs(), **settings).accuracy
        assert f"fedavg {100 * whole.tested['fedavg']:.1f} %" in whole.recommendation

    def test_tells_which_methods_are_nothing_of_their_own_here(self, tmp_path: Path) -> None:
        plain = asked(tmp_path / "plain", rounds=1)
        assert plain.left_out.keys() == {"fedbn", "fedsimsup"}
        assert "normalisation" in plain.left_out["fedbn"]
        network = nn.Sequential(nn.Linear(6, 3))
        linear = asked(tmp_path / "linear", rounds=1, join=0.5, model=network)
        assert linear.left_out.keys() == {"fedbn", "fedper", "fedrep", "pfedsim", "spfl"}


class Interrupted:
    """Ctrl-C in the middle of the n-th run that has work to do."""

    def __init__(self, after: int) -> None:
        self.left = after

    @contextmanager
    def __call__(self, label: str, rounds: int) -> Iterator[Watch]:
        def watch(_happened: object, _seconds: float) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

        yield watch


@pytest.mark.parametrize("after", [2, 16])
def test_advice_that_was_stopped_goes_on(after: int, whole: Advice, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        asked(tmp_path / "out", methods=METHODS, show=Interrupted(after))
    assert told(asked(tmp_path / "out", methods=METHODS)) == told(whole)


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    asked(tmp_path / "out", methods=["fedavg"], rounds=1)
    with pytest.raises(FedkinError, match="other settings"):
        asked(tmp_path / "out", methods=["fedavg"], rounds=1, epochs=2)
    with pytest.raises(FedkinError, match="other data"):
        asked(tmp_path / "out", blobs(seed=1), methods=["fedavg"], rounds=1)
    with pytest.raises(FedkinError, match="unknown method 'fedpre'"):
        asked(tmp_path / "new", methods=["fedpre"])
    with pytest.raises(FedkinError, match="one client"):
        asked(tmp_path / "new", blobs(clients=1))
    with pytest.raises(FedkinError, match="at least one seed"):
        asked(tmp_path / "new", seeds=0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FedkinError, match="not empty"):
        asked(tmp_path / "full")


def command(*words: object) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(advising.advise)
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})


WORDS = ("--methods", "fedper, ditto", "--clients", 6, "--rounds", 2, "--epochs", 1, "--seeds", 1, "--engine", "inline",
         "--lr", 0.1)  # fmt: skip


def test_the_command_prints_a_table_and_a_recommendation_and_draws_a_picture(tmp_path: Path) -> None:
    said = command(*WORDS, "--out", tmp_path / "out")
    assert said.exit_code == 0, said.output
    assert "Take " in said.output
    assert "│ local-only" in said.output
    assert (tmp_path / "out" / "advice.png").read_bytes().startswith(b"\x89PNG")
    again = command(*WORDS, "--out", tmp_path / "out", "--json")
    summary = json.loads(again.stdout.splitlines()[-1])
    assert summary == json.loads((tmp_path / "out" / "advice.json").read_text())
    assert {line["method"] for line in summary["table"]} == {"local-only", "fedavg", "fedper", "ditto"}


def test_the_command_says_how_to_go_on_when_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advising, "shown", Interrupted(1))
    said = command(*WORDS, "--out", tmp_path / "out")
    assert isinstance(said.exception, Stopped)
    assert f"--out {tmp_path / 'out'}" in str(said.exception)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "never"), [("iid", {"local-only"}), ("classes:2,form=non-iid", {"fedavg", "fedprox"})]
)
def test_alike_clients_learn_together_and_different_ones_get_models_of_their_own(
    partition: str, never: set[str], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"partition": partition, "clients": 10, "rounds": 8, "lr": 0.1, "engine": "inline"}
    methods = ["fedprox", "fedper", "ditto"]
    advice = advise.advise(tmp_path / "out", data="digits", methods=methods, seeds=1, **settings)
    assert advice.method not in never
    assert advice.tested[advice.method] >= max(advice.tested.values()) - 0.02
