"""Every rule of fedkin.data.partition: what always holds, the papers' cases, and the refusals."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedkin.data.chart import class_table
from fedkin.data.dataset import Dataset, Indices, Split
from fedkin.data.partition import parse, rules, split, split_owned
from fedkin.data.partitions.dirichlet import log_gamma, proportions, top_up
from fedkin.data.partitions.shards import different_classes, shards_per_class
from fedkin.data.partitions.task import hold_out
from fedkin.errors import FedkinError
from fedkin.reproduce.cells import printed

MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
DIGITS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]

RULES = [
    "iid",
    "classes:2",
    "classes:2,form=iid",
    "classes:2,form=spfl",
    "classes:2,form=spfl-iid",
    "dirichlet:0.1",
    "dirichlet:100",
    "dirichlet:0.001,min=2",
    "dirichlet:0.5,form=pfedsim",
    "dirichlet:0.5,form=balanced",
    "dirichlet:0.001,form=balanced,min=2",
    "dirichlet:0.5,form=client",
    "dirichlet:0.001,form=client",
    "shards:2",
    "shards:2,form=by-lot",
    "one-class",
    "natural",
    "natural,min=5",
]
USES_ALL = {rule for rule in RULES if not rule.startswith(("classes", "one-class", "natural,"))}


def dataset(train: Sequence[int], test: Sequence[int] = (), owners: int = 0) -> Dataset:
    """Shuffled labels with `train[c]` and `test[c]` samples of class c; sample i owned by i mod `owners`."""
    counts = [*train, *test]
    y = np.repeat(np.arange(len(counts)) % len(train), counts)
    is_test = np.repeat(np.arange(len(counts)) >= len(train), counts)
    shuffle = np.random.default_rng(0).permutation(len(y))
    return Dataset(
        name="toy",
        x=np.zeros((len(y), 1), dtype=np.float32),
        y=y[shuffle],
        classes=tuple(f"class {c}" for c in range(len(train))),
        mean=(0.0,),
        std=(1.0,),
        is_test=is_test[shuffle],
        owner=np.arange(len(y)) % owners if owners else None,
        owners=tuple(f"writer {o}" for o in range(owners)),
    )


CIFAR10 = dataset([5000] * 10, [1000] * 10)
SMALL = dataset([40, 50, 60, 45, 55], [8, 10, 12, 9, 11], owners=10)


def sizes(parts: Split) -> Indices:
    return np.array([len(a) + len(b) for a, b in zip(parts.train, parts.test, strict=True)])


def used(parts: Split) -> Indices:
    return np.concatenate([*parts.train, *parts.test])


def same(a: Split, b: Split) -> bool:
    pairs = zip(a.train + a.test, b.train + b.test, strict=True)
    return a.names == b.names and all(np.array_equal(p, q) for p, q in pairs)


def check(parts: Split, data: Dataset) -> None:
    """What holds for every split."""
    assert len(parts.train) == len(parts.test) == len(parts.names) == len(set(parts.names))
    assert all(len(part) for part in parts.train + parts.test)
    everything = used(parts)
    assert everything.dtype == np.int64
    assert everything.min() >= 0
    assert everything.max() < len(data)
    assert len(np.unique(everything)) == len(everything)


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    train = draw(st.lists(st.integers(1, 60), min_size=1, max_size=7))
    test = [draw(st.integers(0, 20)) for _ in train] if draw(st.booleans()) else []
    return dataset(train, test, draw(st.sampled_from([0, 1, 3, 8])))


# ---------------------------------------------------------------- what always holds


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=datasets(),
    rule=st.sampled_from(RULES),
    clients=st.integers(0, 40),
    seed=st.integers(0, 2**40),
    test_ratio=st.none() | st.floats(0.01, 0.99),
    pool=st.sampled_from([None, "all", "train"]),
)
def test_any_split_is_sound_or_refused_in_a_sentence(
    data: Dataset, rule: str, clients: int, seed: int, test_ratio: float | None, pool: str | None
) -> None:
    start = time.process_time()
    try:
        parts = split(data, rule, clients, seed, test_ratio, pool)
    except FedkinError:
        return
    assert time.process_time() - start < 2
    check(parts, data)
    assert len(parts) == clients or (clients == 0 and rule.startswith("natural"))
    takes_part = ~data.is_test if (pool or parse(rule)[0].pool) == "train" else np.ones(len(data), dtype=bool)
    assert takes_part[used(parts)].all()
    if rule in USES_ALL and rule != "natural":
        assert len(used(parts)) == takes_part.sum()


@pytest.mark.parametrize("rule", RULES)
def test_enough_data_is_always_shared_out(rule: str) -> None:
    parts = split(SMALL, rule, 10, seed=1)
    check(parts, SMALL)
    if rule in USES_ALL:
        assert len(used(parts)) == len(SMALL)


@pytest.mark.parametrize("rule", RULES)
def test_the_seed_decides_and_nothing_else(rule: str) -> None:
    first = split(SMALL, rule, 10, seed=1)
    assert same(first, split(SMALL, rule, 10, seed=1))
    assert same(first, split(SMALL, rule, 10, seed=2)) == rule.endswith(("form=pfedsim", "form=spfl", "form=spfl-iid"))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "one-class"])
def test_the_test_ratio_does_not_change_who_owns_what(rule: str) -> None:
    few, many = (split(SMALL, rule, 10, 0, test_ratio=ratio) for ratio in (0.1, 0.6))
    near = 2 if "form=spfl" in rule else 1  # It rounds in each of its two classes.
    for i in range(10):
        assert set(few.train[i]) | set(few.test[i]) == set(many.train[i]) | set(many.test[i])
        assert abs(len(few.test[i]) - 0.1 * sizes(few)[i]) <= near
        assert abs(len(many.test[i]) - 0.6 * sizes(many)[i]) <= near


def test_defaults_follow_the_papers() -> None:
    defaults = {(rule.name, rule.form): (rule.test_ratio, rule.pool) for rule in rules()}
    assert defaults == {
        ("iid", ""): (0.2, "all"),
        ("classes", "non-iid"): (0.2, "train"),
        ("classes", "iid"): (0.2, "train"),
        ("classes", "spfl"): (0.2, "train"),
        ("classes", "spfl-iid"): (0.2, "train"),
        ("dirichlet", "class"): (0.5, "all"),
        ("dirichlet", "pfedsim"): (0.5, "all"),
        ("dirichlet", "balanced"): (0.2, "all"),
        ("dirichlet", "client"): (0.2, "all"),
        ("shards", "classes"): (0.2, "all"),
        ("shards", "by-lot"): (0.2, "all"),
        ("one-class", ""): (None, "all"),
        ("natural", ""): (0.2, "all"),
    }
    assert [rule.syntax for rule in rules()][:6] == [
        "iid",
        "classes:k[,form=non-iid]",
        "classes:k,form=iid",
        "classes:k,form=spfl[,draw=...]",
        "classes:k,form=spfl-iid[,draw=...]",
        "dirichlet:alpha[,form=class][,min=...]",
    ]
    assert all(rule.description.endswith(".") for rule in rules())


# ---------------------------------------------------------------- train and test within a client


@given(
    counts=st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=5),
    ratio=st.floats(0.01, 0.99),
    seed=st.integers(0, 1000),
)
def test_test_samples_are_a_part_of_each_class(counts: list[list[int]], ratio: float, seed: int) -> None:
    table = np.array([row for row in counts if sum(row) >= 2])
    if not len(table):
        return
    client = np.repeat(np.arange(len(table)), table.sum(axis=1))
    y = np.concatenate([np.repeat(np.arange(3), row) for row in table])
    held_out = hold_out(client, y, ratio, np.random.default_rng(seed))
    for i, row in enumerate(table):
        mine = held_out[client == i]
        assert 1 <= mine.sum() <= len(mine) - 1
        assert abs(mine.sum() - ratio * len(mine)) <= 1
        per_class = np.bincount(y[client == i][mine], minlength=3)
        assert (np.abs(per_class - ratio * row) <= 1).all()


@pytest.mark.parametrize("counts", [(9, 1), (8, 2), (1, 1, 8), (5, 2, 2, 1)])
def test_the_last_sample_of_a_class_is_trained_on(counts: tuple[int, ...]) -> None:
    y = np.repeat(np.arange(len(counts)), counts)
    held_out = hold_out(np.zeros_like(y), y, 0.5, np.random.default_rng(0))
    assert held_out.sum() == 5
    assert len(np.unique(y[~held_out])) == len(counts)


# ---------------------------------------------------------------- iid


@pytest.mark.parametrize("clients", [1, 7, 50])
def test_iid_shares_are_equal_in_size_and_class(clients: int) -> None:
    data = dataset(DIGITS)
    table = class_table(data.y, split(data, "iid", clients, 0))
    assert np.ptp(table.sum(axis=1)) <= 1
    assert np.ptp(table, axis=0).max() <= 1


# ---------------------------------------------------------------- classes:k, SPFL


def test_spfl_figure_3() -> None:
    """N = 4 clients, K = 3 classes, k = 2: every client has a quarter of two classes."""
    data = dataset([40, 40, 40])
    for form in ("non-iid", "iid"):
        table = class_table(data.y, split(data, f"classes:2,form={form}", 4, seed=3))
        assert ((table == 10) | (table == 0)).all()
        assert ((table > 0).sum(axis=1) == 2).all()
        if form == "iid":
            assert (table == table[0]).all()


def test_clients_draw_their_classes_independently() -> None:
    data = dataset([400] * 5)
    table = class_table(data.y, split(data, "classes:2", 200, seed=0))
    drawn = {tuple(np.flatnonzero(row)) for row in table}
    assert len(drawn) == 10, "all pairs of five classes"
    assert (table > 0).sum(axis=0).min() > 60, "each class is drawn by about 80 clients"


def test_spfl_client_sizes_on_cifar10() -> None:
    """Table 5: 2400 to train and 600 to test, 80/20 in each class."""
    parts = split(CIFAR10, "classes:6", 10, seed=0)
    assert {len(part) for part in parts.train} == {2400}
    assert {len(part) for part in parts.test} == {600}
    assert set(np.unique(np.bincount(CIFAR10.y[parts.train[0]]))) <= {0, 400}
    assert not CIFAR10.is_test[used(parts)].any()


def test_spfl_client_sizes_on_mnist() -> None:
    """Table 5 says 2800 and 700: six buckets, each a tenth of a class of the training file."""
    data = dataset(MNIST_TRAIN, MNIST_TEST)
    for rule in ("classes:6", "classes:6,form=iid"):
        parts = split(data, rule, 10, seed=0)
        for row in class_table(data.y, parts):
            owned = np.flatnonzero(row)
            assert len(owned) == 6
            assert all(abs(row[c] - MNIST_TRAIN[c] / 10) < 1 for c in owned)
        assert np.mean([len(part) for part in parts.train]) == pytest.approx(2800, rel=0.05)
        assert np.mean([len(part) for part in parts.test]) == pytest.approx(700, rel=0.05)


def can_be(accuracy: float, samples: int) -> bool:
    """Whether a whole number of so many samples is a printed accuracy, rounded or cut off."""
    possible = 100 * np.arange(samples + 1) / samples
    return bool(
        ((abs(possible - accuracy) < 0.0051) | ((possible >= accuracy - 1e-9) & (possible < accuracy + 0.01))).any()
    )


def test_spfls_own_split_has_the_test_sets_of_its_table_6() -> None:
    data = dataset(MNIST_TRAIN, MNIST_TEST)

    rows = ("3-1-3 MNIST non-IID independent", "3-1-4 MNIST non-IID federated")
    accuracies = [[printed()["spfl-table6", row, f"c{i + 1}"][0] for i in range(10)] for row in rows]

    def possible(draw: int) -> int:
        parts = split(data, f"classes:6,form=spfl,draw={draw}", 10, seed=0)
        return sum(can_be(a, len(test)) for row in accuracies for a, test in zip(row, parts.test, strict=True))

    assert possible(777) == 20
    assert max(possible(draw) for draw in range(20)) <= 10


def test_spfls_own_split_is_that_of_its_authors_generator() -> None:
    parts = split(CIFAR10, "classes:6,form=spfl", 10, seed=0)
    check(parts, CIFAR10)
    assert {len(part) for part in parts.train} == {2400}
    owned = [set(CIFAR10.y[part]) for part in parts.train]
    assert owned[0] == {1, 4, 5, 7, 8, 9}
    assert owned[9] == {0, 1, 4, 6, 7, 9}
    slow = np.random.RandomState(777)
    train = np.flatnonzero(~CIFAR10.is_test)
    of_class = [train[CIFAR10.y[train] == c][slow.choice(5000, 5000, replace=False)] for c in range(10)]
    used_up = [0] * 10
    for i in range(10):
        own, held_out = [], []
        for c in slow.choice(10, 6, replace=False):
            bucket = of_class[c][used_up[c] : used_up[c] + 500]
            used_up[c] += 500
            own.extend(bucket[:400])
            held_out.extend(bucket[400:])
        assert np.array_equal(parts.train[i], np.sort(own))
        assert np.array_equal(parts.test[i], np.sort(held_out))
    shared = split(CIFAR10, "classes:6,form=spfl-iid", 10, seed=0)
    check(shared, CIFAR10)
    assert len({frozenset(CIFAR10.y[part]) for part in shared.train}) == 1
    with pytest.raises(FedkinError, match="into 20 buckets, of which one would have 1"):
        split(dataset([39, 60]), "classes:1,form=spfl", 20, 0)


# ---------------------------------------------------------------- dirichlet


@pytest.mark.parametrize(("alpha", "paper"), [(0.1, 487), (0.5, 170)])
def test_pfedsim_table_4(alpha: float, paper: int) -> None:
    """Client sizes on CIFAR-10, mean and spread: the paper's single draw is an ordinary one of ours."""
    spreads = []
    for seed in range(20):
        parts = split(CIFAR10, f"dirichlet:{alpha}", 100, seed)
        assert sizes(parts).mean() == 600
        assert sizes(parts).min() >= 40
        spreads.append(sizes(parts).std())
    assert np.mean(spreads) == pytest.approx(paper, rel=0.2)
    assert abs(np.mean(spreads) - paper) < 2.5 * np.std(spreads)


@pytest.mark.parametrize(("data", "alpha", "paper"), [
    (CIFAR10, 0.1, 487), (CIFAR10, 0.5, 170), (dataset([27_000] * 10), 0.1, 1962), (dataset([27_000] * 10), 0.5, 843),
    (dataset([550] * 200), 0.1, 118), (dataset([550] * 200), 0.5, 38),
])  # fmt: skip
def test_pfedsims_own_splits_have_the_spreads_of_its_table_4(data: Dataset, alpha: float, paper: int) -> None:
    parts = split(data, f"dirichlet:{alpha},form=pfedsim", 100, seed=0)
    check(parts, data)
    assert int(sizes(parts).std()) == paper


def test_pfedsims_own_split_is_the_same_for_all_seeds_and_halves_at_random() -> None:
    one, other = (split(CIFAR10, "dirichlet:0.5,form=pfedsim", 100, seed=seed) for seed in (0, 1))
    for train, test, again in zip(one.train, one.test, other.train, strict=True):
        assert np.array_equal(train, again)
        assert 0 <= len(test) - len(train) <= 1
    apart = class_table(CIFAR10.y, replace(one, test=tuple(np.empty(0, int) for _ in one.test))) * 2
    assert np.abs(apart - class_table(CIFAR10.y, one)).max() > 10, "classes are not halved one by one"
    another = split(CIFAR10, "dirichlet:0.5,form=pfedsim,draw=1", 100, seed=0)
    assert not np.array_equal(sizes(one), sizes(another))
    quarter = split(CIFAR10, "dirichlet:0.5,form=pfedsim", 100, seed=0, test_ratio=0.25)
    assert np.array_equal(sizes(one), sizes(quarter))
    assert sum(map(len, quarter.test)) == pytest.approx(15_000, abs=100)
    with pytest.raises(FedkinError, match="below 100 samples 300 times: use form=class"):
        split(CIFAR10, "dirichlet:0.1,form=pfedsim,min=100", 100, 0)


def test_pfedsim_trains_and_tests_on_halves() -> None:
    parts = split(CIFAR10, "dirichlet:0.1", 100, seed=0)
    for train, test in zip(parts.train, parts.test, strict=True):
        assert abs(len(train) - len(test)) <= 1
        by_class = np.bincount(CIFAR10.y[train], minlength=10) - np.bincount(CIFAR10.y[test], minlength=10)
        assert np.abs(by_class).max() <= 2


TRAPS = [
    (CIFAR10, "dirichlet:0.01", 500, 12),
    (CIFAR10, "dirichlet:0.001", 100, 40),
    (CIFAR10, "dirichlet:0.000001", 1000, 6),
    (CIFAR10, "dirichlet:0.1,min=60", 1000, 60),
    (CIFAR10, "dirichlet:0.05", 1000, 6),
    (CIFAR10, "dirichlet:0.001,form=balanced", 1000, 6),
    (CIFAR10, "dirichlet:0.001,form=client", 1000, 60),
    (dataset(DIGITS), "dirichlet:0.05", 800, 2),
    (dataset([550] * 200), "dirichlet:0.01", 1000, 11),
]


@pytest.mark.parametrize(("data", "rule", "clients", "least"), TRAPS)
def test_small_alpha_and_many_clients_end_soon(data: Dataset, rule: str, clients: int, least: int) -> None:
    start = time.process_time()
    parts = split(data, rule, clients, seed=0)
    assert time.process_time() - start < 2, "takes 0.3 s on an idle machine"
    check(parts, data)
    assert len(used(parts)) == len(data)
    assert sizes(parts).min() >= least


def test_impossible_minimum_is_refused_with_what_would_work() -> None:
    with pytest.raises(FedkinError, match="at most 983 clients or min=60"):
        split(CIFAR10, "dirichlet:0.1,min=61", 1000, 0)
    with pytest.raises(FedkinError, match="at most 898"):
        split(dataset(DIGITS), "dirichlet:0.05", 1000, 0)
    split(CIFAR10, "dirichlet:0.1,min=61", 983, 0)


def test_smaller_alpha_means_fewer_classes() -> None:
    for form in ("class", "client"):
        effective = []
        for alpha in (0.01, 0.1, 1, 100):
            table = class_table(CIFAR10.y, split(CIFAR10, f"dirichlet:{alpha},form={form}", 50, 0))
            share = table / table.sum(axis=1, keepdims=True)
            effective.append((1 / (share**2).sum(axis=1)).mean())
        assert effective == sorted(effective)
        assert effective[0] < 2
        assert effective[-1] > 8


@given(
    table=st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=2, max_size=8),
    least=st.integers(1, 20),
)
def test_top_up_moves_no_more_than_it_must(table: list[list[int]], least: int) -> None:
    before = np.array(table)
    least = min(least, int(before.sum()) // len(before))
    after = before.copy()
    top_up(after, least)
    assert (after >= 0).all()
    assert (after.sum(axis=0) == before.sum(axis=0)).all()
    assert (after.sum(axis=1) >= least).all()
    lacked = np.maximum(least - before.sum(axis=1), 0).sum()
    assert np.maximum(after - before, 0).sum() == lacked
    poor = before.sum(axis=1) < least
    assert (after[poor].sum(axis=1) == least).all()


def test_top_up_keeps_the_class_a_client_has_most_of() -> None:
    counts = np.array([[0, 3, 0], [90, 20, 0], [0, 0, 50], [0, 0, 0]])
    top_up(counts, 10)
    # Client 0 gets more of class 1; client 3 has no class, so it gets the largest client's.
    assert counts.tolist() == [[0, 10, 0], [80, 13, 0], [0, 0, 50], [10, 0, 0]]


def test_log_gamma_draws_are_dirichlet() -> None:
    """Against the moments of Dir(alpha): mean 1/K, variance (K - 1) / (K^2 (K alpha + 1))."""
    rng = np.random.default_rng(0)
    for alpha in (0.05, 0.5, 5.0):
        share = proportions(log_gamma(alpha, (40_000, 4), rng))
        assert share.mean(axis=0) == pytest.approx([0.25] * 4, rel=0.05)
        assert share.var(axis=0) == pytest.approx([3 / 16 / (4 * alpha + 1)] * 4, rel=0.05)


def test_balanced_gives_the_larger_parts_of_a_class_to_those_who_have_less() -> None:
    data = dataset([3000, 5000])
    table = class_table(data.y, split(data, "dirichlet:0.3,form=balanced,min=2", 40, 0))
    more = table[:, None, :] - table[None, :, :]
    assert not (more > 1).all(axis=2).any(), "nobody has more than another of both classes, but for rounding"
    alike = [class_table(CIFAR10.y, split(CIFAR10, "dirichlet:0.1,form=balanced", 100, seed)) for seed in range(10)]
    assert min(table.sum(axis=1).min() for table in alike) > 200, "nobody is small"
    largest = np.mean([table.max(axis=1).sum() for table in alike]) / len(CIFAR10)
    assert largest == pytest.approx(0.78, abs=0.03), "Dir(0.1) by class has 0.75"


def test_by_client_uses_its_own_proportions_until_a_class_runs_out() -> None:
    data = dataset([1000, 3000])
    table = class_table(data.y, split(data, "dirichlet:1000000,form=client", 40, 0))
    assert (table.sum(axis=1) == 100).all()
    assert table[:, 0].mean() == 25
    assert np.abs(table[:, 0] - 25).max() < 25, "p is the data's class share"


# ---------------------------------------------------------------- shards:c


@pytest.mark.parametrize(("clients", "c"), [(100, 2), (5, 2), (30, 3), (7, 10), (40, 1)])
def test_every_client_has_exactly_c_classes(clients: int, c: int) -> None:
    for data in (dataset(DIGITS), dataset([20, 900, 40, 300, 80, 90, 100, 33, 50, 60])):
        parts = split(data, f"shards:{c}", clients, 0)
        table = class_table(data.y, parts)
        assert ((table > 0).sum(axis=1) == c).all()
        assert len(used(parts)) == len(data)
        for column in table.T:
            assert np.ptp(column[column > 0]) <= 1, "equal shards"


def test_equal_classes_give_equal_clients() -> None:
    table = class_table(CIFAR10.y, split(CIFAR10, "shards:2", 100, 0))
    assert set(np.unique(table)) == {0, 300}


def test_shards_by_lot_may_be_of_the_same_class() -> None:
    """McMahan et al.: 100 clients with two shards of 300 samples each; about every tenth client has one class."""
    table = class_table(CIFAR10.y, split(CIFAR10, "shards:2,form=by-lot", 100, 0))
    assert set(np.unique(table)) == {0, 300, 600}
    assert (table.sum(axis=1) == 600).all()
    assert 3 <= (table == 600).sum() <= 20


def test_shards_by_lot_are_as_equal_as_can_be() -> None:
    """Where classes cannot be cut evenly, a shard has the end of one and the start of the next."""
    table = class_table(data_y := dataset([50, 23, 30]).y, split(dataset([50, 23, 30]), "shards:3,form=by-lot", 5, 0))
    assert table.sum() == len(data_y)
    assert set(table.sum(axis=1)) <= {20, 21}


def test_a_larger_class_is_cut_more_often() -> None:
    assert shards_per_class(np.array([100, 200, 300]), np.array([9, 9, 9]), 6).tolist() == [1, 2, 3]
    assert shards_per_class(np.array([90, 200, 900]), np.array([4, 4, 4]), 8).tolist() == [1, 3, 4]


@given(
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    each=st.integers(1, 6),
)
def test_no_client_takes_a_class_twice(cuts: list[int], seed: int, each: int) -> None:
    each = min(each, len(cuts))
    clients = max(*cuts, -(-sum(cuts) // each), 1)
    shards = np.array(cuts)
    while shards.sum() < clients * each:  # fill up to `each` shards a client
        shards[shards.argmin()] += 1
    takes = different_classes(shards, clients, np.random.default_rng(seed))
    assert (takes.sum(axis=1) == each).all()
    assert (takes.sum(axis=0) == shards).all()


# ---------------------------------------------------------------- one-class, FedALP


def test_fedalp_on_mnist() -> None:
    """100 clients of 500 + 100 samples of one digit; MNIST's test file lacks some of five digits."""
    data = dataset(MNIST_TRAIN, MNIST_TEST)
    parts = split(data, "one-class", 100, 0)
    check(parts, data)
    assert {len(part) for part in parts.train} == {500}
    assert {len(part) for part in parts.test} == {100}
    digit = [np.unique(data.y[np.append(*both)]) for both in zip(parts.train, parts.test, strict=True)]
    assert [d.tolist() for d in digit] == [[i % 10] for i in range(100)]
    assert not data.is_test[np.concatenate(parts.train)].any()
    tested = np.concatenate(parts.test)
    from_test_file = np.bincount(data.y[tested[data.is_test[tested]]])
    assert from_test_file.tolist() == np.minimum(MNIST_TEST, 1000).tolist()


def test_one_class_shrinks_on_small_data() -> None:
    parts = split(dataset(DIGITS), "one-class", 20, 0)
    assert {len(part) for part in parts.train} == {73}
    assert {len(part) for part in parts.test} == {14}


@pytest.mark.parametrize(
    ("rule", "ratio", "train", "test"),
    [
        ("one-class,train=200", None, 200, 40),
        ("one-class,test=10", None, 50, 10),
        ("one-class,train=3", None, 3, 1),
        ("one-class,train=3", 0.01, 3, 1),
        ("one-class,train=30,test=70", None, 30, 70),
        ("one-class", 0.5, 300, 300),
        ("one-class,train=200,test=40", 0.25, 180, 60),
    ],
)
def test_one_class_amounts(rule: str, ratio: float | None, train: int, test: int) -> None:
    parts = split(CIFAR10, rule, 20, 0, test_ratio=ratio)
    assert {len(part) for part in parts.train} == {train}
    assert {len(part) for part in parts.test} == {test}


# ---------------------------------------------------------------- natural


def test_natural_clients_own_what_they_own() -> None:
    for clients in (0, 10):
        parts = split(SMALL, "natural", clients, 0)
        assert parts.names == SMALL.owners
        for i in range(10):
            assert (np.append(parts.train[i], parts.test[i]) % 10 == i).all()


def test_fewer_natural_clients_are_a_seeded_choice() -> None:
    chosen = {split(SMALL, "natural", 4, seed).names for seed in range(10)}
    assert len(chosen) > 1
    assert all(len(names) == 4 and list(names) == sorted(names) for names in chosen)


def test_domains_are_cut_label_iid() -> None:
    """pFedSim B.3: each domain becomes 20 clients."""
    y = np.tile(np.arange(5), 400)
    owner = np.repeat(np.arange(4), 500)
    data = replace(dataset([400] * 5), y=y, owner=owner, owners=("art_painting", "cartoon", "photo", "sketch"))
    parts = split(data, "natural", 80, 0)
    assert parts.names[:2] == ("art_painting-00", "art_painting-01")
    assert parts.names[-1] == "sketch-19"
    assert (class_table(y, parts) == 5).all()
    for i, (train, test) in enumerate(zip(parts.train, parts.test, strict=True)):
        assert (owner[np.append(train, test)] == i // 20).all()


def test_owners_with_too_few_samples_take_no_part() -> None:
    lonely = np.zeros_like(SMALL.y)
    lonely[0], lonely[1:4] = 1, 2
    data = replace(SMALL, owner=lonely)
    assert split(data, "natural", 0, 0).names == ("writer 0", "writer 2")
    assert split(data, "natural,min=4", 0, 0).names == ("writer 0",)
    with pytest.raises(FedkinError, match="5 clients are too many: 2 of the 10 natural clients"):
        split(data, "natural", 5, 0)
    with pytest.raises(FedkinError, match="writer 2 of toy has 3 samples, too few for 2 clients"):
        split(data, "natural", 4, 0)


def test_owned_data_keep_all_samples() -> None:
    parts = split_owned(SMALL, 0.3, seed=0)
    check(parts, SMALL)
    assert len(used(parts)) == len(SMALL)
    assert [len(part) for part in parts.test] == [9] * 10
    as_given = split_owned(SMALL, None, seed=0)
    assert (np.sort(np.concatenate(as_given.test)) == np.flatnonzero(SMALL.is_test)).all()
    with pytest.raises(FedkinError, match="writer 1 has no samples in toy"):
        split_owned(replace(SMALL, owner=np.zeros_like(SMALL.y)), 0.3, seed=0)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("rule", "clients", "message"),
    [
        ("dirchlet:1", 5, "did you mean 'dirichlet'"),
        ("", 5, "unknown partition ''"),
        ("dirichlet", 5, "needs a value: dirichlet:alpha"),
        ("dirichlet:", 5, "needs a value"),
        ("dirichlet:low", 5, "alpha of partition 'dirichlet' is a number, not 'low'"),
        ("dirichlet:nan", 5, "alpha from"),
        ("dirichlet:0", 5, "alpha from"),
        ("dirichlet:0.1,form=klient", 5, "did you mean 'client'"),
        ("dirichlet:0.1,mim=3", 5, "did you mean 'min'"),
        ("dirichlet:0.1,min=1", 5, "at least 2"),
        ("dirichlet:0.1,min=3,min=4", 5, "stands twice"),
        ("dirichlet:0.1,form=client,min=3", 5, "has no options"),
        ("iid:3", 5, "takes no value"),
        ("iid,form=class", 5, "has no options"),
        ("classes:2.5", 5, "is a whole number"),
        ("classes:6", 5, "from 1 to 5"),
        ("classes:3,iid", 5, "not of the form option=value"),
        ("classes:1", 40, "at most 20 clients always work"),
        ("shards:0", 5, "from 1 to 5"),
        ("shards:2", 2, "use shards:3 or 3 clients"),
        ("shards:5", 100, "at most 48 clients work"),
        ("shards:0,form=by-lot", 5, "at least 1, not 0"),
        ("one-class", 7, "use 5 or 10 clients, not 7"),
        ("one-class", 2, "use 5 or 10 clients, not 2"),
        ("one-class,train=30,test=1", 10, "at most 5 clients work"),
        ("one-class,train=500", 5, "lower train= and test="),
        ("one-class,train=5,test=0", 5, "not 5 and 0"),
        ("natural", 11, "10 of the 10 natural clients of toy"),
        ("natural,min=1", 5, "at least 2"),
        ("natural,min=1000", 5, "0 of the 10 natural clients"),
        ("iid", 0, "at least 1, not 0"),
        ("iid", -1, "at least 1, not -1"),
        ("iid", 151, "at most 150 are possible"),
    ],
)
def test_refusals_say_what_would_work(rule: str, clients: int, message: str) -> None:
    with pytest.raises(FedkinError) as refusal:
        split(SMALL, rule, clients, 0)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_refused_settings() -> None:
    with pytest.raises(FedkinError, match="did you mean 'train'"):
        split(SMALL, "iid", 5, 0, pool="trian")
    for ratio in (0.0, 1.0, float("nan")):
        with pytest.raises(FedkinError, match="between 0 and 1"):
            split(SMALL, "iid", 5, 0, test_ratio=ratio)
    with pytest.raises(FedkinError, match="has no natural clients"):
        split(CIFAR10, "natural", 5, 0)
    with pytest.raises(FedkinError, match="client-01 has one sample with shards:1 on toy"):
        split(dataset([1, 10]), "shards:1", 3, 0)


def test_a_class_without_samples_is_no_class() -> None:
    """Labels 0 and 2 of three classes: the rules see two."""
    data = dataset([50, 0, 50])
    table = class_table(data.y, split(data, "shards:2", 4, 0))
    assert (table[:, 1] == 0).all()
    with pytest.raises(FedkinError, match="from 1 to 2"):
        split(data, "classes:3", 4, 0)
