"""pFedSim's figures from fresh runs: what they compute, and that what they say is what they measured."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import done

from fedkin import FedkinError, studies
from fedkin.api import prepare
from fedkin.config import Config
from fedkin.data import catalogue
from fedkin.data.federation import Federation
from fedkin.layout import Bound
from fedkin.reproduce import subsets
from fedkin.studies.base import Found
from fedkin.studies.classifier_similarity import judged, split_by_class
from fedkin.studies.data_distribution import spread
from fedkin.studies.enlarging import fitted
from fedkin.studies.layer_cka import centred_gram, cka, layer_outputs
from fedkin.studies.overhead import Ledger, Overhead

SMALL: dict[str, dict[str, Any]] = {
    "layer-cka": {"clients": 3, "rounds": 1, "epochs": 1, "samples": 40, "workers": 1},
    "classifier-similarity": {"passes": 2, "workers": 1},
    "data-distribution": {"clients": 6},
    "overhead": {"clients": 4, "join": 0.5, "rounds": 2, "epochs": 1},
}


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    return {name: studies.make(name, settings).run() for name, settings in SMALL.items()}


@pytest.mark.parametrize("name", SMALL)
def test_a_study_gives_a_table_a_picture_and_sentences(name: str, found: dict[str, Found], tmp_path: Path) -> None:
    result = found[name]
    assert len({tuple(row) for row in result.table}) == 1
    assert len(result.says) >= 2
    paths = result.write(tmp_path, name)
    assert [path.suffix for path in paths] == [".png", ".pdf", ".json"]
    assert json.loads(paths[2].read_text())["table"] == result.table


def small(model: str = "lenet5-bn") -> Federation:
    return fitted(Federation.of(Config.of({"data": "digits", "partition": "iid", "clients": 4})), model)


def test_images_too_small_for_a_model_are_enlarged_and_others_are_not() -> None:
    digits, enlarged = small("mlp"), small()
    assert digits.shape == (1, 8, 8)
    assert enlarged.shape == (1, 16, 16)
    assert (enlarged.data.x[:, :, ::2, ::2] == digits.data.x).all()
    assert (enlarged.data.x[:, :, 1::2, 1::2] == digits.data.x).all()
    assert (enlarged.data.name, digits.data.name) == ("digits enlarged to 16x16", "digits")


def test_cka_is_that_of_its_definition_and_blind_to_rotation_and_scale() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 7)) + 5, rng.normal(size=(30, 4))
    rotation = np.linalg.qr(rng.normal(size=(7, 7)))[0]
    grams = [centred_gram(torch.from_numpy(f)) for f in (x, y, 3 * x @ rotation + 2)]
    matrix = cka(grams).numpy()

    def slow(a: np.ndarray, b: np.ndarray) -> float:
        a, b = a - a.mean(0), b - b.mean(0)
        return float(np.linalg.norm(b.T @ a) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)))

    assert matrix[0, 1] == pytest.approx(slow(x, y), rel=1e-10)
    assert matrix[0, 2] == pytest.approx(1, abs=1e-10)
    assert 0 < matrix[0, 1] < 0.9


def test_a_layers_output_is_that_of_the_network_up_to_it() -> None:
    setup = prepare("fedavg", data=small(), model="lenet5-bn")
    network = setup.module.eval()
    inputs = torch.randn(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        bound = Bound(network)
        seen = layer_outputs(bound, bound.w.clone(), inputs)
        assert list(seen) == ["conv1", "conv2", "fc1", "fc2", "classifier"]
        assert torch.equal(seen["classifier"], network(inputs))
        assert torch.equal(seen["conv1"], network.get_submodule("conv1")(inputs).flatten(1))
        assert layer_outputs(bound, 2 * bound.w, inputs)["fc1"].ne(seen["fc1"]).any()


def test_models_of_one_global_model_are_alike_in_every_layer() -> None:
    same = studies.make("layer-cka", SMALL["layer-cka"] | {"method": "fedavg"}).run()
    assert [row["mean CKA"] for row in same.table] == pytest.approx([1] * 5, abs=1e-9)


def test_locally_trained_models_differ_and_the_sentence_names_where_most(found: dict[str, Found]) -> None:
    result = found["layer-cka"]
    means = {row["layer"]: row["mean CKA"] for row in result.table}
    assert all(0 <= row["least"] <= row["mean CKA"] <= row["most"] < 1 for row in result.table)
    lowest = min(means, key=means.__getitem__)
    assert f"least alike in {lowest} ({means[lowest]:.3f})" in result.says[1]


def test_one_client_cannot_be_compared() -> None:
    with pytest.raises(FedkinError, match="two or more, but 1 was given"):
        studies.make("layer-cka", {"clients": 1, "partition": "iid"}).run()


def test_classifier_similarity_is_the_mean_over_decision_boundaries() -> None:
    federation = fitted(subsets.subsets(catalogue.load("digits"), 0), "lenet5-bn")
    measured = subsets.measure(federation, 0, 1, workers=1)
    for pair, cosines in measured.boundaries.items():
        assert len(cosines) == 10
        assert measured.numbers["CS"][pair] == pytest.approx(np.mean(cosines), rel=1e-5)
    assert measured.numbers["Data Similarity"]["(i, i')"] == 1
    assert measured.numbers["Data Similarity"]["(i, k)"] == 0


def test_a_measure_is_judged_by_its_order_and_its_correlation() -> None:
    data = dict(zip(subsets.PAIRS, (1.0, 0.5, 0.3, 0.0), strict=True))
    follows = judged("CS", {pair: 2 * value + 1 for pair, value in data.items()}, data)
    against = judged("WDB", {pair: -value for pair, value in data.items()}, data)
    assert (follows["order"], against["order"]) == ("as the data", "another")
    assert (follows["correlation"], against["correlation"]) == (pytest.approx(1), pytest.approx(-1))


def test_boundaries_are_told_apart_by_who_has_the_class() -> None:
    labels = list(subsets.LABELS.values())
    cosines = {
        pair: [0.75 if (c in labels[i]) == (c in labels[j]) else 0.25 for c in range(10)]
        for pair, (i, j) in subsets.PAIRS.items()
    }
    said = split_by_class(subsets.Measured({}, cosines))
    assert "is 0.75 for classes that both or neither" in said
    assert "0.25 for classes that only one" in said


def test_the_four_subsets_need_ten_classes() -> None:
    rng = np.random.default_rng(0)
    data = Federation.from_arrays([(rng.normal(size=(20, 3)), np.arange(20) % 4)]).data
    with pytest.raises(FedkinError, match="ten classes, but own data has 4"):
        subsets.subsets(data, 0)


def test_the_spread_counts_classes_and_samples_of_clients() -> None:
    row = spread("dirichlet:1", np.array([[8, 2, 0], [0, 0, 30]]))
    assert row["classes of a client"] == 1.5
    assert row["share of its largest"] == pytest.approx(0.9)
    assert (row["mean samples"], row["std of samples"], row["least samples"], row["most samples"]) == (20, 10, 10, 30)


def test_a_smaller_alpha_leaves_clients_fewer_classes(found: dict[str, Found]) -> None:
    skewed, even = found["data-distribution"].table
    assert skewed["classes of a client"] < even["classes of a client"]
    assert skewed["share of its largest"] > even["share of its largest"]
    assert len(found["data-distribution"].figure.axes) == 2


def test_overhead_counts_the_bytes_of_a_model_for_each_participant(found: dict[str, Found]) -> None:
    rows = {row["method"]: row for row in found["overhead"].table}
    assert len(rows) == 12
    size = 4 * Bound(prepare("fedavg", data=small(), model="lenet5-bn").module).layout.size / 1000
    assert rows["FedAvg"]["kB down a round"] == pytest.approx(size)
    assert rows["FedAvg"]["kB up a round"] == pytest.approx(size, rel=0.01)
    assert rows["Local-Only"]["kB down a round"] == rows["Local-Only"]["kB up a round"] == 0
    assert rows["FedFomo"]["kB down a round"] == pytest.approx(3 * size), "the three others' models"
    assert rows["FedPer"]["kB up a round"] < rows["FedAvg"]["kB up a round"] < rows["FedGen"]["kB up a round"]


def test_time_is_that_of_each_participant_by_its_samples_without_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = studies.make("overhead", SMALL["overhead"])
    assert isinstance(study, Overhead)
    federation = fitted(Federation.of(Config.of({"data": "digits", "clients": 4})), "lenet5-bn")
    ledger = Ledger(study.setups(federation)["FedAvg"])
    ticks = count()
    monkeypatch.setattr("fedkin.engine.worker.time.process_time", lambda: next(ticks))
    ledger.round()
    assert ledger.per_sample == []
    happened = ledger.round()
    sizes = [len(federation.split.train[i]) for i in happened.participants]
    assert len(sizes) == 2
    assert ledger.per_sample == pytest.approx([np.mean([1 / size for size in sizes])]), "a second each"


def test_a_ratio_is_the_middle_one_of_the_rounds() -> None:
    setup = prepare("fedavg", data=small(), model="lenet5-bn")
    ours, base = Ledger(setup, [2.0, 9.0, 3.0], replies=1), Ledger(setup, [1.0, 1.0, 2.0], replies=1)
    row = ours.row(base)
    assert (row["time, x FedAvg"], row["least"], row["most"]) == (2, 1.5, 9)


def test_overhead_is_relative_to_fedavg(found: dict[str, Found]) -> None:
    rows = {row["method"]: row for row in found["overhead"].table}
    assert rows["FedAvg"]["time, x FedAvg"] == 1
    assert all(row["1e-4 s per sample"] > 0 for row in rows.values())
    assert "pFedSim takes" in found["overhead"].says[0]
    assert found["overhead"].says[2].startswith("FedFomo sends the most")


def test_the_command_makes_a_study_and_its_files(tmp_path: Path) -> None:
    words = [
        "data-distribution",
        "--set",
        "clients=5",
        "--set",
        "alphas=[0.2,1,5]",
        "--out",
        tmp_path / "out",
        "--json",
    ]
    said = done("study", *words)
    assert [row["partition"] for row in said.json["table"]] == ["dirichlet:0.2", "dirichlet:1", "dirichlet:5"]
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".png", ".pdf", ".json"}
