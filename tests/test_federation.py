"""Federations from a user's own arrays and folders, and runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fedkin
from fedkin import Federation, FedkinError
from fedkin.api import prepare
from fedkin.engine.inline import Inline
from fedkin.export import Personal
from fedkin.runs.folder import RunFolder

TINY: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "lr": 0.05, "engine": "inline"}


def pair(n: int = 10, seed: int = 0, labels: Any = (0, 1)) -> tuple[np.ndarray[Any, Any], Any]:
    """Points in the plane, the two classes apart."""
    rng = np.random.default_rng(seed)
    k = np.arange(n) % 2
    return rng.normal(size=(n, 2)) + 4 * k[:, None], np.asarray(labels)[k]


# from_arrays


def test_a_list_is_numbered_and_a_mapping_keeps_its_names() -> None:
    numbered = Federation.from_arrays([pair(), pair(seed=1)])
    assert numbered.split.names == ("client-00", "client-01")
    named = Federation.from_arrays({"zoe": pair(), "adam": pair(seed=1)})
    assert named.split.names == ("zoe", "adam"), "in the order given"
    for federation in (numbered, named):
        assert (len(federation), federation.shape, federation.classes) == (2, (2,), 2)


def test_every_sample_stays_with_its_client_and_is_used_once() -> None:
    pairs = {"a": pair(10), "b": pair(15, seed=1)}
    federation = Federation.from_arrays(pairs, test_ratio=0.3)
    assert [(len(train), len(test)) for _, train, test in federation.owned] == [(7, 3), (11, 4)]
    for name, train, test in federation.owned:
        rows = np.concatenate([train, test])
        own = federation.data.x[rows]
        assert sorted(map(tuple, own)) == sorted(map(tuple, pairs[name][0].astype(np.float32)))


def test_test_samples_of_ones_own_are_tested_on_and_not_measured() -> None:
    train = {"a": pair(), "b": pair(seed=1)}
    test = {"b": (np.full((3, 2), 100.0), [0, 1, 1]), "a": (np.full((2, 2), -100.0), [0, 1])}
    federation = Federation.from_arrays(train, test=test)
    assert [len(rows) for rows in federation.split.test] == [2, 3]
    values = {name: set(federation.data.x[rows].ravel()) for name, _, rows in federation.owned}
    assert values == {"a": {-100.0}, "b": {100.0}}
    everything = np.concatenate([train["a"][0], train["b"][0]])
    assert federation.data.mean == pytest.approx(everything.mean(0), rel=1e-5)
    assert federation.data.std == pytest.approx(everything.std(0), rel=1e-5)
    assert Federation.from_arrays([pair(), pair()], test=[pair(4), pair(3)]).split.names[1] == "client-01"


@pytest.mark.parametrize(
    ("labels", "classes"),
    [(("yes", "no"), ("no", "yes")), ((7, 3), ("3", "7")), ((100, 7), ("7", "100")), ((True, False), None)],
)
def test_labels_may_be_anything_that_sorts(labels: Any, classes: tuple[str, ...] | None) -> None:
    given = pair(labels=labels)
    data = Federation.from_arrays([given, pair(seed=1, labels=labels)]).data
    assert data.classes == (classes or ("False", "True"))
    assert [data.classes[y] for y in data.y[:10]] == [str(label) for label in given[1]]


def test_labels_are_numbered_over_all_clients() -> None:
    data = Federation.from_arrays([pair(labels=(9, 5)), pair(labels=(1, 5))]).data
    assert data.classes == ("1", "5", "9")
    assert sorted(set(data.y[:10])) == [1, 2]
    assert sorted(set(data.y[10:])) == [0, 1]


def test_bytes_stay_images_and_other_numbers_become_float32() -> None:
    images = np.zeros((6, 3, 4, 4), np.uint8)
    images[:, 0] = 51
    images[::2, 1] = 255
    data = Federation.from_arrays([(images, np.arange(6) % 2)]).data
    assert data.x.dtype == np.uint8
    assert data.mean == pytest.approx((0.2, 0.5, 0.0))
    assert data.std == pytest.approx((1.0, 0.5, 1.0)), "a channel that never changes is divided by one"
    for kind in (np.float64, np.int32, np.bool_):
        x, y = pair()
        assert Federation.from_arrays([(x.astype(kind), y)]).data.x.dtype == np.float32


def test_a_constant_feature_does_no_harm_however_large_it_is() -> None:
    def padded(seed: int) -> Any:
        x, y = pair(40, seed)
        return np.hstack([x, np.full((40, 1), 1000.1)]), y

    federation = Federation.from_arrays([padded(0), padded(1)])
    assert federation.data.std[2] == 1.0, "it is not blown up by a deviation of nearly nothing"
    result = fedkin.run("fedavg", data=federation, **TINY | {"rounds": 8})
    assert result.accuracy > 0.9


def test_mean_and_std_can_be_given_for_all_channels_or_one_by_one() -> None:
    data = Federation.from_arrays([pair()], mean=0.5, std=(2, 3)).data
    assert (data.mean, data.std) == ((0.5,), (2.0, 3.0))


def test_given_constants_change_what_the_model_sees() -> None:
    plain, shifted = (Federation.from_arrays([pair(), pair(seed=1)], mean=m, std=1.0) for m in (0.0, 3.0))
    a, b = (fedkin.run("fedavg", data=d, **TINY) for d in (plain, shifted))
    assert not torch.equal(a.models.rows, b.models.rows)


X, Y = pair()


@pytest.mark.parametrize(
    ("clients", "options", "sentence"),
    [
        ([], {}, "at least one client, but none was given"),
        ({}, {}, "at least one client, but none was given"),
        ([(X, Y[:-1])], {}, r"client-00 has 10 samples, but labels of shape \(9,\): \(10,\) expected"),
        ([(X, Y[:, None])], {}, r"labels of shape \(10, 1\)"),
        ([(X, Y), (X[:, :1], Y)], {}, r"client-01 has samples of numbers \(1,\), but client-00 of .* \(2,\)"),
        ([(X, Y), (X.astype(np.uint8), Y)], {}, "client-01 has samples of bytes .* but client-00 of numbers"),
        ({"a": (X[:0], Y[:0]), "b": (X, Y)}, {}, "a has no samples"),
        ([([], [])], {}, r"client-00 has samples \(0,\) of type float64: numbers \[n, ...\] expected"),
        ({"a": (X[:1], Y[:1]), "b": (X, Y)}, {}, "a has one sample in own data"),
        ([(X[:, 0], Y)], {}, r"numbers \[n, ...\] expected"),
        ([(X.astype(str), Y)], {}, "numbers"),
        ([(np.array([{}] * 10)[:, None], Y)], {}, "of type object"),
        (
            [(np.where(X[3, 0] == X, np.nan, X), Y)],
            {},
            "NaN or infinite values in 1 samples, .* sample 3 of c",
        ),
        ([(X, Y), (np.where(X.max() == X, np.inf, X), Y)], {}, "of client-01: clean or drop them"),
        ([(X, np.where(Y == 0, np.nan, 1.0))], {}, "labels that are NaN"),
        ([(X, Y)], {"test": [(X[:0], Y[:0])]}, "client-00 has no samples"),
        ([(X, Y)], {"test": {"a": (X, Y)}}, r"given for \['a'\], but the clients are \['client-00'\]"),
        ([(X, Y)], {"test_ratio": 0.0}, "test_ratio lies between 0 and 1"),
        ([(X, Y)], {"test_ratio": 1.0}, "test_ratio lies between 0 and 1"),
        ([(X, Y)], {"mean": (1, 2, 3)}, "mean takes one number or 2"),
        ([(X, Y)], {"std": 0.0}, "no std of 0, but 0.0 was given"),
        ([(X, Y)], {"std": (1.0, float("nan"))}, "std takes one number or 2"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_that_do_not_fit_are_refused(clients: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedkinError, match=sentence):
        Federation.from_arrays(clients, **options)


def test_the_smallest_federation_runs() -> None:
    federation = Federation.from_arrays([(X[:2], Y[:2])])
    result = fedkin.run("fedavg", data=federation, **TINY)
    assert result.score.total == [1]
    assert result.config.clients == 1


# fingerprints


@pytest.mark.parametrize(
    ("seen", "low", "high", "mean", "std"), [("centred", -1, 1, [0.5], [0.5]), ("raw", 0, 255, [0.0], [1 / 255])]
)
def test_pixels_reach_networks_as_asked_for(
    pictures: Federation, tmp_path: Path, seen: Any, low: float, high: float, mean: list[float], std: list[float]
) -> None:
    federation = pictures.with_pixels(seen)
    x = Inline(prepare("fedavg", data=pictures, pixels=seen, **TINY).site()).worker.samples.inputs(torch.arange(9))
    assert torch.allclose(x, low + (high - low) * torch.from_numpy(pictures.data.x[:9] / 255).float(), atol=1e-6)
    assert federation.fingerprint != pictures.fingerprint
    run = fedkin.run("fedavg", data=pictures, pixels=seen, out=tmp_path / "run", **TINY)
    assert torch.equal(run.models[0], fedkin.run("fedavg", data=federation, **TINY).models[0])
    about = Personal.from_run(RunFolder.open(tmp_path / "run"), 0).about
    assert (about["mean"], about["std"]) == (mean, std)
    with pytest.raises(FedkinError, match=rf"pixels={seen} is about images, but .* has float32 numbers"):
        Federation.from_arrays([pair(), pair(seed=1)]).with_pixels(seen)


def test_equal_data_have_equal_fingerprints() -> None:
    a, b = (Federation.from_arrays([pair(), pair(seed=1)]) for _ in range(2))
    assert a.fingerprint == b.fingerprint


def changed(what: str) -> Federation:
    x, y = pair()
    test = [pair(4, seed=2), pair(4, seed=3)]
    first, second, options = (x[:5], y[:5]), (x[5:], y[5:]), {}
    if what == "a sample":
        first = (x[:5] + np.array([[0, 1e-6]] + [[0, 0]] * 4), y[:5])
    elif what == "a label":
        first = (x[:5], 1 - y[:5])
    elif what == "an owner":
        first, second = (x[:6], y[:6]), (x[6:], y[6:])
    elif what == "who tests on what":
        test = [(np.concatenate([test[0][0], test[1][0][:1]]), [0, 1, 0, 1, 0]), (test[1][0][1:], [1, 0, 1])]
    elif what == "the scale":
        options = {"std": 2.0}
    elif what == "the type":
        first, second = ((a.astype(np.uint8), b) for a, b in (first, second))
        test = [(a.astype(np.uint8), b) for a, b in test]
    return Federation.from_arrays([first, second], test=test, **options)


@pytest.mark.parametrize("what", ["a sample", "a label", "an owner", "who tests on what", "the scale", "the type"])
def test_a_fingerprint_differs_with(what: str) -> None:
    assert changed(what).fingerprint != changed("nothing").fingerprint


def test_a_split_by_another_seed_has_another_fingerprint() -> None:
    assert Federation.from_arrays([pair()], seed=0).fingerprint != Federation.from_arrays([pair()], seed=1).fingerprint


# from_folder


def bright(side: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """A grey image that is bright on one side."""
    x = rng.integers(0, 90, (16, 16))
    x[:, 8 * side : 8 * side + 8] += 150
    return x.astype(np.uint8)


def fill(place: Path, kind: str) -> None:
    """Two clients with 20 samples each, left or right."""
    rng = np.random.default_rng(0)
    for client in ("anna", "bert"):
        side = np.arange(20) % 2
        x = np.stack([bright(s, rng) for s in side])
        names = np.array(["left", "right"])[side]
        (place / client).mkdir(parents=True)
        if kind == "png":
            for k in range(20):
                (place / client / names[k]).mkdir(exist_ok=True)
                Image.fromarray(x[k]).save(place / client / names[k] / f"{k}.png")
        elif kind == "npz":
            np.savez(place / client / "samples.npz", x=x[:, None], y=names)
        else:
            rows = [f"{x[k, :, :8].mean()},{x[k, :, 8:].mean()},{names[k]}" for k in range(20)]
            (place / client / "samples.csv").write_text("\n".join(["l,r,label", *rows]) + "\n")


@pytest.mark.parametrize("kind", ["png", "npz", "csv"])
def test_a_folder_is_learnt_from_end_to_end(kind: str, tmp_path: Path) -> None:
    fill(tmp_path / "own", kind)
    federation = Federation.from_folder(tmp_path / "own", test_ratio=0.25)
    assert federation.shape == ((2,) if kind == "csv" else (1, 16, 16))
    assert federation.data.classes == ("left", "right")
    assert federation.split.names == ("anna", "bert")
    assert [len(rows) for rows in federation.split.test] == [5, 5]
    settings = TINY | {"rounds": 10, "lr": 0.2}
    by_object = fedkin.run("fedavg", data=federation, **settings)
    assert by_object.accuracy == 1.0
    by_name = fedkin.run("fedavg", data=str(tmp_path / "own"), test_ratio=0.25, **settings)
    assert torch.equal(by_object.models.rows, by_name.models.rows)
    assert by_name.config.data == str(tmp_path / "own")


def test_png_and_npz_of_the_same_pixels_are_the_same_samples(tmp_path: Path) -> None:
    federations = []
    for kind in ("png", "npz"):
        fill(tmp_path / kind, kind)
        federations.append(Federation.from_folder(tmp_path / kind))
    a, b = (sorted(map(bytes, federation.data.x)) for federation in federations)
    assert a == b
    assert federations[0].data.mean == pytest.approx(federations[1].data.mean)


def test_a_folder_can_be_resized_and_keeps_its_own_test_files(tmp_path: Path) -> None:
    fill(tmp_path / "own", "png")
    for client in ("anna", "bert"):
        Image.new("L", (16, 16)).save(tmp_path / "own" / client / "left" / "more.png")
        for part in ("train", "test"):
            (tmp_path / "own" / client / part).mkdir()
        (tmp_path / "own" / client / "left").rename(tmp_path / "own" / client / "train" / "left")
        (tmp_path / "own" / client / "right").rename(tmp_path / "own" / client / "test" / "right")
    federation = Federation.from_folder(tmp_path / "own", size=8)
    assert federation.shape == (1, 8, 8)
    assert [(len(train), len(test)) for _, train, test in federation.owned] == [(11, 10), (11, 10)]


def test_a_folder_with_test_files_for_some_clients_only_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "own", "npz")
    np.savez(tmp_path / "own" / "anna" / "test.npz", x=np.zeros((2, 1, 16, 16), np.uint8), y=["left"] * 2)
    with pytest.raises(FedkinError, match="bert has 20 samples to learn from and 0 to test on"):
        Federation.from_folder(tmp_path / "own")


# a user's own network


class Plain(torch.nn.Module):
    """No base class of ours, no special signature."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(2, 8)
        self.out = torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


def test_a_plain_module_is_trained_as_it_is(tmp_path: Path) -> None:
    federation = Federation.from_arrays([pair(40), pair(40, seed=1)])
    settings = TINY | {"rounds": 10, "lr": 0.2}
    by_class = fedkin.run("fedavg", data=federation, model=Plain, out=tmp_path / "run", **settings)
    assert by_class.accuracy > 0.9
    assert by_class.models.rows.shape == (1, 2 * 8 + 8 + 8 * 2 + 2)
    finished = Plain()
    before = [p.clone() for p in finished.parameters()]
    by_object = fedkin.run("fedavg", data=federation, model=finished, **settings)
    assert by_object.accuracy > 0.9
    assert all(torch.equal(p, q) for p, q in zip(before, finished.parameters(), strict=True)), "a copy trains"
    module = Plain()
    torch.nn.utils.vector_to_parameters(by_class.models[0], module.parameters())
    data = federation.data
    for i, (_, _, test) in enumerate(federation.owned):
        x = (torch.tensor(data.x[test]) - torch.tensor(data.mean)) / torch.tensor(data.std)
        right = (module(x.float()).argmax(1).numpy() == data.y[test]).sum()
        assert by_class.score.correct[i] == right
    with pytest.raises(FedkinError, match="given its network as a Python object"):
        Personal.from_run(RunFolder.open(tmp_path / "run"), 0)


def test_a_module_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    x, y = pair(12, labels=("a", "b"))
    three = (x, np.resize(["a", "b", "c"], len(y)))
    with pytest.raises(FedkinError, match="'Plain' gives 2 outputs a sample, but the data have 3 classes"):
        fedkin.run("fedavg", data=Federation.from_arrays([three]), model=Plain, out=tmp_path / "run", **TINY)
    assert not (tmp_path / "run").exists()
