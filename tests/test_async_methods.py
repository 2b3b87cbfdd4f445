"""LGA, PLGA and the other asynchronous methods: equations by hand, and whole runs against a slow reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from reference import SETTINGS, Reference, Weights, close, combine, flat, numbers, weights
from torch import Tensor, nn

import fedkin
from fedkin import Federation
from fedkin.config import Training
from fedkin.layout import Layout
from fedkin.leap import Leap, normalised, personal
from fedkin.method import Message, Method, Overview, Replies, State, Trip
from fedkin.methods import make

NET = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).double()
"""Four columns: weight and bias of the first stage, weight and bias of the second."""
LAYOUT = Layout(NET)


def state_of(method: Method, w: Tensor, clients: int = 3, round: int = 5, lr: float = 0.1) -> State:
    training = Training(epochs=1, batch=8, lr=lr, momentum=0.0, weight_decay=0.0)
    fed = Overview(clients, 10, 0, 2, LAYOUT, w, training)
    state = method.start(fed)
    state.round = round
    return state


def replies(messages: Sequence[Message], trips: Sequence[Trip]) -> Replies:
    return Replies("train", range(len(messages)), messages, trips)


E = math.e


# The leap: w^t0 = (0, 0 | 0, 0), w^t1 = (3, 4 | 1, 0), w^tau = (5, 5 | 2, 1), w_k = (4, 3 | 0, 2).
# Stage 1: cos((3, 4), (4, 3)) = 24/25. Stage 2: cos((1, 0), (0, 2)) = 0.

START, LATER, NOW, TRAINED = numbers(0, 0, 0, 0), numbers(3, 4, 1, 0), numbers(5, 5, 2, 1), numbers(4, 3, 0, 2)
S1, S2 = E**0.96 / (E + E**0.96), 1 / (E + 1)


def test_the_coefficient_is_the_softmax_of_the_cosine_and_one() -> None:
    """(9): e^S / (e + e^S), which is 1/2 for a client that moved just as the server did."""
    assert normalised(numbers(1.0)).item() == pytest.approx(0.5)
    assert normalised(numbers(0.0)).item() == pytest.approx(1 / (E + 1))
    assert normalised(numbers(-1.0)).item() == pytest.approx(E**-1 / (E + E**-1))


def test_equations_8_and_13_give_each_stage_its_coefficient() -> None:
    s = Leap().weights((LATER - START)[None], (TRAINED - START)[None], LAYOUT)
    close(s[0], numbers(S1, S1, S2, S2))


def test_the_coefficient_may_be_the_cosine_itself_or_one_for_every_tensor() -> None:
    cosine = Leap(coefficient="cosine").weights((LATER - START)[None], (TRAINED - START)[None], LAYOUT)
    close(cosine[0], numbers(0.96, 0.96, 0, 0))
    tensor = Leap(similarity="tensor", coefficient="cosine")
    # Single numbers have cosine 1, or 0 where one of them is 0.
    close(tensor.weights((LATER - START)[None], (TRAINED - START)[None], LAYOUT)[0], numbers(1, 1, 0, 0))
    whole = Leap(stages="1", coefficient="cosine").weights((LATER - START)[None], (TRAINED - START)[None], LAYOUT)
    close(whole[0], numbers(*[24 / (math.sqrt(26) * math.sqrt(29))] * 4))


def test_equation_11_leaps_from_where_the_server_is_now() -> None:
    s = numbers(S1, S1, S2, S2)[None]
    leapt = Leap().model(START, NOW, LATER, (TRAINED - START)[None], s)[0]
    close(leapt, numbers(5 + S1 * 16 * 2 + 4, 5 + S1 * 9 * 1 + 3, 2 + 0 + 0, 1 + S2 * 4 * 1 + 2))


def test_equation_10_leaps_from_where_the_client_started() -> None:
    s = numbers(S1, S1, S2, S2)[None]
    leapt = Leap(form="10").model(START, NOW, LATER, (TRAINED - START)[None], s)[0]
    close(leapt, numbers(0 + S1 * 16 * 2 + 4, 0 + S1 * 9 * 1 + 3, 0, S2 * 4 * 1 + 2))


def test_equation_14_lies_between_the_leapt_and_the_global_model() -> None:
    start, now, leapt = numbers(1, 1, 1, 1), numbers(3, 3, 3, 3), numbers(5, 7, 5, 7)
    ours = personal(start, now, leapt, numbers(0.25, 0.25, 0.5, 0.5))
    close(ours, numbers(1 + 0.75 * 4 + 0.25 * 2, 1 + 0.75 * 6 + 0.25 * 2, 1 + 2 + 1, 1 + 3 + 1))


LATE = Trip({"w": START}, 2, START, LATER)
IN_TIME = Trip({"w": NOW})


def test_lga_averages_the_leapt_model_with_those_in_time() -> None:
    method = make("lga")
    state = state_of(method, NOW)
    fresh = numbers(6, 4, 2, 3)
    method.aggregate(state, replies([{"w": TRAINED, "n": 1}, {"w": fresh, "n": 3}], [LATE, IN_TIME]))
    leapt = numbers(5 + S1 * 16 * 2 + 4, 5 + S1 * 9 * 1 + 3, 2 + 0 + 0, 1 + S2 * 4 * 1 + 2)
    close(state["w"], leapt / 4 + fresh * 3 / 4)


def test_one_round_late_the_product_vanishes() -> None:
    """d = 1: w^tau is w^t1, and the late client's move is just added to it."""
    method = make("lga")
    state = state_of(method, LATER)
    method.aggregate(state, replies([{"w": TRAINED, "n": 1}], [Trip({"w": START}, 1, START, LATER)]))
    close(state["w"], LATER + TRAINED)


def test_plga_gives_every_replier_its_own_model() -> None:
    """A late client's tau is the model before this round; for one in time t0 is that model, and tau the new one."""
    method = make("plga")
    state = state_of(method, NOW)
    fresh = numbers(6, 4, 2, 3)
    method.aggregate(state, replies([{"w": TRAINED, "n": 1}, {"w": fresh, "n": 3}], [LATE, IN_TIME]))
    leapt = numbers(5 + S1 * 16 * 2 + 4, 5 + S1 * 9 * 1 + 3, 2 + 0 + 0, 1 + S2 * 4 * 1 + 2)
    s = numbers(S1, S1, S2, S2)
    close(state["W"][0], START + (1 - s) * (leapt - START) + s * (NOW - START))
    new, move = state["w"], fresh - NOW
    s = torch.cat([tilde(new[:2] - NOW[:2], move[:2]).repeat(2), tilde(new[2:] - NOW[2:], move[2:]).repeat(2)])
    close(state["W"][1], NOW + (1 - s) * (new + move - NOW) + s * (new - NOW))
    close(state["W"][2], NOW)


def tilde(course: Tensor, move: Tensor) -> Tensor:
    cosine = (course @ move) / (course.norm() * move.norm())
    return (cosine.exp() / (E + cosine.exp()))[None]


# Whole runs in float64 against loops over dictionaries.

CALENDAR = {
    0: {1: None, 2: 1, 3: 3, 4: None, 5: 4, 6: 6, 7: None},
    1: {1: None, 2: None, 3: 1, 4: 4, 5: None, 6: None, 7: 5},
    2: {t: t for t in range(1, 8)},
    3: {t: t for t in range(1, 8)},
}
"""stragglers:2 of four clients: client and round to the round in which what it uploads was sent."""


class Late(Reference):
    """FedAvg with two stragglers; `enters` says what becomes of a late model."""

    def play(self, rounds: int, enters: str, personal: bool = False) -> tuple[Weights, dict[int, Weights]]:
        w = {0: weights(self.initial())}
        own = dict.fromkeys(range(4), w[0])
        for t in range(1, rounds + 1):
            came: list[tuple[int, int, Weights]] = []
            for i in range(4):
                sent = CALENDAR[i][t]
                if sent is not None:
                    came.append((i, sent, weights(self.sgd(self.loaded(w[sent - 1]), i, sent))))
            if enters == "drop":
                came = [(i, sent, model) for i, sent, model in came if sent == t]
            entering = []
            for i, sent, model in came:
                if enters == "leap" and sent < t:
                    s = self.coefficients(w[sent - 1], w[sent], model)
                    model = self.leap(w[sent - 1], w[sent], w[t - 1], model, s)
                    own[i] = self.own(w[sent - 1], w[t - 1], model, s)
                entering.append((self.n[i], model))
            total = sum(n for n, _ in entering)
            w[t] = combine([(n / total, model) for n, model in entering])
            for i, sent, model in came:
                if sent == t:
                    s = self.coefficients(w[t - 1], w[t], model)
                    own[i] = self.own(w[t - 1], w[t], self.leap(w[t - 1], w[t], w[t], model, s), s)
        return w[rounds], own

    def coefficients(self, before: Weights, after: Weights, trained: Weights) -> dict[str, float]:
        names = list(before)
        stages = [names[:-2], names[-2:]]
        result = {}
        for stage in stages:
            course = torch.cat([(after[n] - before[n]).reshape(-1) for n in stage])
            move = torch.cat([(trained[n] - before[n]).reshape(-1) for n in stage])
            cosine = float(course @ move / (course.norm() * move.norm()))
            result |= {n: math.exp(cosine) / (E + math.exp(cosine)) for n in stage}
        return result

    def leap(self, before: Weights, after: Weights, now: Weights, trained: Weights, s: dict[str, float]) -> Weights:
        return {
            n: now[n] + s[n] * (trained[n] - before[n]) ** 2 * (now[n] - after[n]) + (trained[n] - before[n])
            for n in before
        }

    def own(self, before: Weights, now: Weights, leapt: Weights, s: dict[str, float]) -> Weights:
        return {n: before[n] + (1 - s[n]) * (leapt[n] - before[n]) + s[n] * (now[n] - before[n]) for n in before}


RUN: dict[str, Any] = SETTINGS | {
    "rounds": 7,
    "join": 1.0,
    "model": "mlp",
    "minibatches": 0,
    "schedule": "stragglers:2",
}


@pytest.mark.parametrize("late", ["stale", "drop", "leap"])
def test_fedavg_with_stragglers_is_what_loops_give(late: str, blobs: Federation) -> None:
    """FedAvg (Async), FedAvg (Sync), and FedAvg with leaps, which is LGA."""
    ours = fedkin.run("fedavg", data=blobs, late=late, **RUN)
    theirs, _ = Late(blobs, RUN).play(7, late)
    close(ours.models[0], flat(theirs))


def test_lga_is_fedavg_that_leaps(blobs: Federation) -> None:
    lga, fedavg = (
        fedkin.run(name, data=blobs, late=late, **RUN) for name, late in (("lga", "stale"), ("fedavg", "leap"))
    )
    assert torch.equal(lga.models.rows, fedavg.models.rows)


def test_plga_is_what_loops_give(blobs: Federation) -> None:
    ours = fedkin.run("plga", data=blobs, **RUN)
    _, own = Late(blobs, RUN).play(7, "leap")
    for i in range(4):
        close(ours.models[i], flat(own[i]))


def test_lga_s_numbers_can_be_read_off_a_run_of_plga(blobs: Federation) -> None:
    """Training is the same: the same global model, and the same models that leave the clients."""
    lga, plga = (fedkin.run(name, data=blobs, judge_local=True, **RUN) for name in ("lga", "plga"))
    for a, b in zip(lga.history, plga.history, strict=True):
        for model in ("global", "local"):
            (x,), (y,) = ([s for s in r.scores[1:] if s.model == model] for r in (a, b))
            assert x == y


def test_plga_may_start_training_from_personalised_models(blobs: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedkin.methods.lga import PLGA

    starts: dict[int, list[Tensor]] = {}
    local = PLGA.local

    def watched(self: PLGA, client: Any, message: Message) -> Message:
        starts.setdefault(client.id, []).append(message["w"])
        return local(self, client, message)

    monkeypatch.setattr(PLGA, "local", watched)
    ours = fedkin.run("plga", data=blobs, sends="personal", **RUN | {"rounds": 2})
    assert torch.equal(starts[2][0], starts[3][0])
    assert not torch.equal(starts[2][1], starts[3][1])
    assert len(ours.models.rows) > 1


# The others, by hand.


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"staleness": "constant"}, [0.6, 0.6, 0.6]),
        ({"staleness": "polynomial", "a": 0.5}, [0.6, 0.6 / 2, 0.6 / 3]),
        ({"staleness": "hinge", "a": 10, "b": 4}, [0.6, 0.6, 0.6 / (10 * 4 + 1)]),
    ],
)
def test_fedasync_mixes_in_what_comes_the_less_the_later(settings: dict[str, Any], expected: list[float]) -> None:
    method = make("fedasync", settings)
    for late, alpha in zip((0, 3, 8), expected, strict=True):
        state = state_of(method, numbers(1, 1, 1, 1))
        method.aggregate(state, replies([{"w": numbers(2, 3, 4, 5), "n": 7}], [Trip({"w": START}, late)]))
        close(state["w"], (1 - alpha) * numbers(1, 1, 1, 1) + alpha * numbers(2, 3, 4, 5))


def test_fedasync_takes_replies_in_turn_or_as_spfl_s_table_2_does() -> None:
    messages = [{"w": numbers(2, 2, 2, 2), "n": 1}, {"w": numbers(8, 8, 8, 8), "n": 3}]
    trips = [Trip({"w": START}, 3), Trip({"w": START}, 0)]
    state = state_of(make("fedasync"), numbers(1, 1, 1, 1))
    mixed = make("fedasync").aggregate(state, replies(messages, trips))
    first = 0.7 * 1 + 0.3 * 2
    close(state["w"], numbers(*[0.4 * first + 0.6 * 8] * 4))
    assert mixed is not None
    # 0.3 of the first is left over by the second to 0.4; of the move they make up 0.12 and 0.6.
    close(mixed["all"][0], numbers(0.12 / 0.72, 0.6 / 0.72, 0))
    method = make("fedasync", {"alpha": 0.8, "together": "mean"})
    state = state_of(method, numbers(1, 1, 1, 1))
    method.aggregate(state, replies(messages, trips))
    drawn = 0.4 * 2 + 0.6 * 1
    close(state["w"], numbers(*[drawn / 4 + 8 * 3 / 4] * 4))


def test_fedasync_holds_training_near_where_it_started(blobs: Federation) -> None:
    near, far = (
        fedkin.run("fedasync", data=blobs, rho=rho, **RUN | {"schedule": "sync", "rounds": 1}).models[0]
        for rho in (5.0, 0.0)
    )
    start = flat(weights(Late(blobs, RUN).initial()))
    assert (near - start).norm() < 0.8 * (far - start).norm()


def test_twafl_counts_old_models_less() -> None:
    """Client 0 was last sent a model in round 2, client 1 in round 5; client 2 was never heard of."""
    method = make("twafl")
    state = state_of(method, numbers(9, 9, 9, 9), round=3)
    method.aggregate(state, Replies("train", [0], [{"w": numbers(1, 1, 1, 1), "n": 2}], [Trip({}, 1)]))
    close(state["w"], numbers(1, 1, 1, 1))
    state.round = 5
    method.aggregate(state, Replies("train", [1], [{"w": numbers(4, 4, 4, 4), "n": 6}], [Trip({}, 0)]))
    old, new = 2 * (E / 2) ** -3, 6.0
    close(state["w"], numbers(*[(old * 1 + new * 4) / (old + new)] * 4))


def test_fedbuff_scales_late_updates_down_and_divides_by_their_number() -> None:
    method = make("fedbuff", {"server_lr": 0.5})
    state = state_of(method, numbers(1, 1, 1, 1))
    messages = [{"delta": numbers(2, 0, 0, 4)}, {"delta": numbers(0, 6, 0, 4)}]
    method.aggregate(state, replies(messages, [Trip({"w": START}, 0), Trip({"w": START}, 3)]))
    close(state["w"], numbers(1 + 0.5 * 1, 1 + 0.5 * 1.5, 1, 1 + 0.5 * (4 + 2) / 2))


def test_dc_asgd_corrects_a_late_gradient_for_how_far_the_model_moved() -> None:
    method = make("dc-asgd", {"lam": 0.5})
    state = state_of(method, numbers(3, 3, 3, 3), lr=0.1)
    g, start = numbers(2, -1, 0, 4), numbers(1, 1, 1, 3)
    method.aggregate(state, replies([{"delta": -0.1 * g}], [Trip({"w": start}, 2)]))
    close(
        state["w"],
        numbers(*[3 - 0.1 * (x + 0.5 * x * x * (3 - at)) for x, at in zip(g.tolist(), start.tolist(), strict=True)]),
    )


def test_dc_asgd_adapts_lambda_to_the_mean_square_of_gradients() -> None:
    method = make("dc-asgd", {"lam": 2.0, "form": "adaptive", "m": 0.75})
    state = state_of(method, numbers(3, 3, 3, 3), lr=0.1)
    g, start = numbers(2, -1, 1, 4), numbers(1, 1, 1, 3)
    method.aggregate(state, replies([{"delta": -0.1 * g}], [Trip({"w": start}, 2)]))
    square = 0.25 * g * g
    lam = 2 / (square + 1e-7).sqrt()
    close(state["w"], 3 - 0.1 * (g + lam * g * g * (3 - start)))


def test_dc_asgd_sends_one_gradient_at_a_time(blobs: Federation) -> None:
    result = fedkin.run("dc-asgd", data=blobs, rounds=5, engine="inline")
    assert all(r.steps == 1 for r in result.history)


# Any method may leap.


def test_a_personal_method_leaps_from_what_each_client_would_be_sent(blobs: Federation) -> None:
    """SPFL sends g = w^t0 - w_k: one round late it enters as it is, two rounds late with the product."""
    one, two = (fedkin.run("spfl", data=blobs, late=late, **RUN | {"rounds": 2}) for late in ("stale", "leap"))
    torch.testing.assert_close(one.models.rows, two.models.rows)
    one, two = (fedkin.run("spfl", data=blobs, late=late, **RUN | {"rounds": 3}) for late in ("stale", "leap"))
    assert not torch.allclose(one.models.rows, two.models.rows, rtol=0, atol=1e-12)


def test_part_of_a_model_leaps_where_only_part_is_sent(blobs: Federation) -> None:
    """FedPer: the shared layers leap just as those of FedAvg would if the classifier did not exist."""
    stale, leapt = (fedkin.run("fedper", data=blobs, late=late, **RUN) for late in ("stale", "leap"))
    assert not torch.equal(stale.models.rows, leapt.models.rows)
    assert leapt.history[1].tasks[0].fate == "leapt"


def test_running_statistics_do_not_leap(pictures: Federation) -> None:
    """A variance that leapt could become negative; it is taken as the client sent it."""
    settings = RUN | {"model": "lenet5-bn", "rounds": 6, "epochs": 1}
    result = fedkin.run("fedavg", data=pictures, late="leap", **settings)
    layout = Layout(fedkin.api.prepare("fedavg", data=pictures, model="lenet5-bn").module)
    for name in (name for name in layout.columns if name.endswith("running_var")):
        assert (layout.block([name]).of(result.models.rows) > 0).all()


@pytest.mark.slow
def test_late_clients_learn_on_real_digits(tmp_path: Path) -> None:
    """Half of ten clients late, four classes each: all asynchronous methods learn, and PLGA's own models are best."""
    settings: dict[str, Any] = {
        "data": "digits", "partition": "classes:4", "clients": 10, "rounds": 60, "minibatches": 5, "batch": 16,
        "lr": 0.05, "schedule": "stragglers:5", "evaluate_every": 60, "judge_local": True,
    }  # fmt: skip
    reached = {name: fedkin.run(name, **settings) for name in ("fedavg", "lga", "plga", "twafl", "fedbuff", "fedasync")}
    for name, result in reached.items():
        assert result.accuracy > 0.6, (name, result.accuracy)
    assert reached["plga"].accuracy > reached["lga"].accuracy
