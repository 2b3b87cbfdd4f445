"""Who is late, when the server acts, and what becomes of late replies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import blobs as make_blobs
from stopping import Stop, same, stop_after

import fedkin
from fedkin import Federation, FedkinError
from fedkin.api import prepare
from fedkin.engine import shared_workers
from fedkin.layout import Layout
from fedkin.methods import registry
from fedkin.report.figures import curves, timeline
from fedkin.result import Ended, Round
from fedkin.schedule import Task, schedule
from fedkin.schedule.latency import Latency, draw

QUICK: dict[str, Any] = {"epochs": 1, "batch": 8, "lr": 0.05, "join": 1.0, "engine": "inline", "minibatches": 0}
LATENCY = "latency:compute=lognormal/0.5/1,dropout=0.2,away=20,first=2"


@cache
def ten() -> Federation:
    return make_blobs(clients=10)


def run(name: str, text: str, data: Federation | None = None, **settings: Any) -> fedkin.Result:
    return fedkin.run(name, data=data or ten(), schedule=text, **(QUICK | settings))


def fates(happened: Round, clients: int) -> str:
    """A letter a client: `L` late, `.` in time, `-` nothing."""
    letters = {task.client: {"late": "L", "in time": ".", "lost": "x"}[task.fate] for task in happened.tasks}
    return "".join(letters.get(i, "-") for i in range(clients))


def test_the_calendar_of_five_stragglers_round_by_round() -> None:
    """Clients 0 to 4 miss 1 to 5 rounds, upload late, and take part once afresh; the others are always in time."""
    history = run("fedavg", "stragglers:5", rounds=14, evaluate_every=14).history
    assert [fates(r, 10) for r in history] == [
        "----- .....".replace(" ", ""),  # 1: all ten download, the stragglers are not back
        "L---- .....".replace(" ", ""),  # 2: client 0 missed round 1
        ".L--- .....".replace(" ", ""),  # 3: client 0 afresh; client 1 missed 1 and 2
        "-.L-- .....".replace(" ", ""),  # 4
        "L-.L- .....".replace(" ", ""),  # 5
        ".--.L .....".replace(" ", ""),  # 6: client 4 missed 1 to 5
        "-L--. .....".replace(" ", ""),  # 7
        "L.--- .....".replace(" ", ""),  # 8
        ".-L-- .....".replace(" ", ""),  # 9
        "--.-- .....".replace(" ", ""),  # 10
        "LL-L- .....".replace(" ", ""),  # 11
        "..-.- .....".replace(" ", ""),  # 12
        "----L .....".replace(" ", ""),  # 13
        "L-L-. .....".replace(" ", ""),  # 14
    ]
    for happened in history:
        for task in happened.tasks:
            late = happened.round - task.sent
            assert late == (task.client + 1 if task.fate == "late" else 0)
        assert happened.time == happened.round
        assert happened.participants == [task.client for task in happened.tasks]


def test_without_fresh_rounds_a_straggler_takes_part_in_one_round_of_d_plus_one() -> None:
    history = run("fedavg", "stragglers:2,fresh=0", rounds=9, evaluate_every=9).history
    assert [r.round for r in history if 0 in r.participants] == [2, 4, 6, 8]
    assert [r.round for r in history if 1 in r.participants] == [3, 6, 9]


@pytest.mark.parametrize("name", registry())
def test_no_stragglers_is_the_synchronous_result_bit_for_bit(name: str, blobs: Federation) -> None:
    sync = run(name, "sync", blobs, rounds=4, join=0.5)
    none = run(name, "stragglers:0", blobs, rounds=4, join=0.5)
    waited = run(name, "stragglers:2", blobs, rounds=4, join=0.5, late="wait")
    for other in (none, waited):
        assert torch.equal(sync.models.rows, other.models.rows)
        assert [r.scores for r in sync.history] == [r.scores for r in other.history]
        assert [r.participants for r in sync.history] == [r.participants for r in other.history]
    assert [r.time for r in none.history] == [1, 2, 3, 4]


def test_waiting_takes_as_long_as_the_slowest() -> None:
    history = run("fedavg", "stragglers:5", rounds=3, late="wait").history
    assert [r.time for r in history] == [6, 7, 13]
    assert all(len(r.participants) == 10 for r in history)


def test_dropped_replies_have_no_part_in_the_model() -> None:
    """Client 0 is late in rounds 2 and 5, in time in 3 and 6: its late replies change nothing."""
    history = run("fedavg", "stragglers:1", rounds=6, late="drop").history
    assert [0 in r.participants for r in history] == [False, False, True, False, False, True]
    assert [task.fate for r in history for task in r.tasks if task.client == 0] == [
        *("dropped", "in time", "dropped", "in time")
    ]
    dropped, taken = (run("fedavg", "stragglers:1", rounds=2, late=late).models.rows for late in ("drop", "stale"))
    assert not torch.equal(dropped, taken)


def test_a_round_in_which_nobody_replies_changes_nothing(blobs: Federation) -> None:
    result = run("fedavg", "stragglers:4", blobs, rounds=1)
    assert result.history[0].participants == []
    module = prepare("fedavg", data=blobs, **QUICK).module
    assert torch.equal(result.models.rows[0], Layout(module).flatten(module))


@pytest.mark.parametrize("text", ["stragglers:2", LATENCY])
@pytest.mark.parametrize("name", registry())
def test_every_method_runs_with_late_clients_and_resumes_exactly(
    name: str, text: str, tmp_path: Path, blobs: Federation
) -> None:
    """Stopped while clients are at work, with replies that came late before and after."""
    settings = QUICK | {"data": blobs, "rounds": 6, "checkpoint_every": 1, "schedule": text}
    whole = fedkin.run(name, out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        fedkin.run(name, out=tmp_path / "stopped", watch=stop_after(3), **settings)
    resumed = fedkin.resume(tmp_path / "stopped", data=blobs)
    assert same(whole, resumed)
    assert any(task.fate in ("late", "leapt") for r in whole.history for task in r.tasks)


@pytest.mark.parametrize("text", ["stragglers:3", LATENCY])
def test_a_run_resumes_exactly_from_every_round(text: str, tmp_path: Path) -> None:
    settings = (
        QUICK
        | {"data": ten(), "rounds": 8, "checkpoint_every": 3, "schedule": text}
        | {"judge_local": True, "judge_union": True}
    )
    whole = fedkin.run("plga", out=tmp_path / "whole", **settings)
    for stop in range(1, 9):
        out = tmp_path / f"stopped-{stop}"
        with pytest.raises(Stop):
            fedkin.run("plga", out=out, watch=stop_after(stop), **settings)
        assert same(whole, fedkin.resume(out, data=ten()))


@pytest.fixture(scope="module", params=[1, 2, 4])
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    with shared_workers(request.param):
        yield request.param


@pytest.mark.slow
@pytest.mark.parametrize("late", ["stale", "leap"])
@pytest.mark.parametrize("name", ["plga", "fedasync", "pfedsim", "fedsimsup", "scaffold"])
def test_the_same_events_in_the_same_order_on_every_engine(name: str, late: str, workers: int) -> None:
    vectorize = "auto" if workers == 2 else "off"
    settings: dict[str, Any] = {"rounds": 12, "late": late, "vectorize": vectorize, "join": 0.8}
    one = run(name, LATENCY, **settings)
    other = run(name, LATENCY, **settings | {"engine": "processes", "workers": workers})
    assert same(one, other)
    assert [r.tasks for r in one.history] == [r.tasks for r in other.history]


def test_another_seed_is_another_order() -> None:
    one, two = (run("fedavg", LATENCY, rounds=12, seed=seed) for seed in (0, 1))
    assert [r.participants for r in one.history] != [r.participants for r in two.history]


# The virtual clock.


def test_the_time_of_a_task_is_bytes_steps_and_bytes() -> None:
    slow = schedule("latency:compute=0.5,down=100,up=50,jitter=0", 3, 0)
    assert slow.plan(Task(1, 0, 1, start=7.0, down=1000, up=200, steps=6)).end == 7 + 10 + 3 + 4
    assert slow.first == 1


def test_a_run_takes_as_long_as_its_messages_and_steps_say(blobs: Federation) -> None:
    """Everybody the same speed, and the server waits for all: a round lasts as long as its largest client's task."""
    result = run("fedavg", "latency:compute=0.5,down=1000,up=500,jitter=0", blobs, rounds=3, late="wait")
    model = 4 * result.models.rows.shape[1]
    steps = math.ceil(max(len(rows) for rows in blobs.split.train) / 8)
    expected = model / 1000 + 0.5 * steps + (model + 8) / 500
    assert [r.time for r in result.history] == pytest.approx([expected, 2 * expected, 3 * expected])


def test_a_method_that_computes_twice_as_much_takes_twice_as_long(blobs: Federation) -> None:
    """SPFL takes two gradient steps on every batch, and its clock knows."""
    text = "latency:compute=1,down=1e15,up=1e15,jitter=0"
    once, twice = (run("spfl", text, blobs, rounds=1, late="wait", local_steps=k).history[0].time for k in (1, 2))
    assert once is not None
    assert twice == pytest.approx(2 * once)


def test_the_server_acts_on_the_first_k_replies() -> None:
    history = run("fedavg", "latency:first=3", rounds=6).history
    assert all(len(r.participants) == 3 for r in history)
    times = [r.time for r in history]
    assert times == sorted(times)
    for r in history:
        assert [task.end for task in r.tasks] == sorted(task.end for task in r.tasks)
        assert r.tasks[-1].end == r.time


def test_each_reply_counts_by_default() -> None:
    assert all(len(r.participants) == 1 for r in run("fedasync", "latency", rounds=5).history)


def test_a_window_ends_by_the_clock() -> None:
    history = run("fedavg", "latency:compute=uniform/1/20,window=30", rounds=6).history
    assert [r.time for r in history] == [30, 60, 90, 120, 150, 180]
    assert all(r.time - 30 < task.end <= r.time for r in history for task in r.tasks if r.time)


def test_join_says_how_many_work_at_once() -> None:
    """With three at work, a client that replies makes room for one other."""
    history = run("fedavg", "latency:first=1", rounds=30, join=0.3).history
    begun = sorted((task.start, 1) for r in history for task in r.tasks)
    ended = sorted((task.end, -1) for r in history for task in r.tasks)
    working = most = 0
    for _, change in sorted([*begun, *ended]):
        working += change
        most = max(most, working)
    assert most == 3
    assert len({client for r in history for client in r.participants}) > 5


def test_clients_drop_out_and_return() -> None:
    history = run("fedavg", "latency:dropout=0.4,away=5,first=2", rounds=20).history
    lost = [(task.client, task.end) for r in history for task in r.tasks if task.fate == "lost"]
    assert lost
    for client, end in lost:
        after = [task.start for r in history for task in r.tasks if task.client == client and task.start >= end]
        assert all(start >= end + 5 for start in after)
    assert any(task.start >= end for client, end in lost for r in history for task in r.tasks if task.client == client)


def test_a_lost_clients_work_reaches_nobody() -> None:
    """If everybody always drops out, the model never changes, and the run ends all the same."""
    result = run("fedavg", "latency:dropout=1,away=1,window=100", rounds=3)
    assert all(r.participants == [] and r.steps == 0 for r in result.history)


def test_a_day_of_device_time_takes_seconds() -> None:
    result = run("fedavg", "latency:compute=60,window=3600", rounds=24, evaluate_every=24)
    assert result.history[-1].time == 86400
    assert result.seconds < 20


def test_distributions_have_their_shapes() -> None:
    from fedkin.randomness import numpy_generator

    def sample(text: str) -> torch.Tensor:
        return torch.tensor([draw(text, numpy_generator(0, text, 0, i)) for i in range(4000)])

    assert sample("3").unique().tolist() == [3]
    assert sample("uniform/2/4").mean() == pytest.approx(3, abs=0.05)
    assert sample("lognormal/5/0.5").median() == pytest.approx(5, rel=0.05)
    assert sample("lognormal/5/0.5").log().std() == pytest.approx(0.5, rel=0.05)
    assert sample("exponential/7").mean() == pytest.approx(7, rel=0.06)
    pareto = sample("pareto/2/3")
    assert pareto.min() >= 2
    assert pareto.mean() == pytest.approx(3, rel=0.06)


TRACE = """client,start,end,compute,down,up
0,0,100,1,1e12,1e12
0,500,,2,1e12,1e12
1,50,,1,1e12,1e12
"""


def trace(tmp_path: Path, text: str = TRACE, **options: Any) -> Latency:
    (tmp_path / "trace.csv").write_text(text)
    more = "".join(f",{k}={v}" for k, v in options.items())
    made = schedule(f"latency:trace={tmp_path / 'trace.csv'},jitter=0{more}", 2, 0)
    assert isinstance(made, Latency)
    return made


def test_a_trace_says_who_is_online_and_how_fast(tmp_path: Path) -> None:
    made = trace(tmp_path)
    assert made.online(1, 0) == 50
    assert made.online(0, 99) == 99
    assert made.online(0, 100) == 500
    assert made.plan(Task(0, 0, 1, 10, steps=30)).end == 40
    cut = made.plan(Task(0, 0, 1, 90, steps=30))
    assert (cut.end, cut.lost, cut.back) == (100, True, 500)
    assert made.plan(Task(0, 0, 1, 600, steps=30)).end == 660


def test_a_trace_can_repeat_every_day(tmp_path: Path) -> None:
    made = trace(tmp_path, TRACE.replace("0,500,,", "0,500,800,"), repeat=1000)
    assert made.online(0, 900) == 1000
    assert made.online(0, 1100) == 1500
    assert made.plan(Task(0, 0, 1, 1600, steps=30)).end == 1660
    assert made.plan(Task(0, 0, 1, 1790, steps=30)).end == 1800


def test_a_run_follows_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end,compute,down,up\n" + "".join(f"{i},{20 * i},,1,1e12,1e12\n" for i in range(4)))
    result = run("fedavg", f"latency:trace={path},first=1", make_blobs(), rounds=80, evaluate_every=80)
    begun = {i: min(task.start for r in result.history for task in r.tasks if task.client == i) for i in range(4)}
    assert all(begun[i] >= 20 * i for i in range(4))
    assert begun[0] == 0


def test_a_trace_in_which_everybody_leaves_for_good_ends_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end,compute,down,up\n" + "".join(f"{i},0,9,1,1e12,1e12\n" for i in range(4)))
    with pytest.raises(FedkinError, match="no client will ever be online again"):
        run("fedavg", f"latency:trace={path}", make_blobs(), rounds=50)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sometimes", "unknown schedule"),
        ("stragglers", "needs its count"),
        ("stragglers:11", "of 10 clients"),
        ("stragglers:2.5", "whole number"),
        ("stragglers:-1", "greater than or equal to 0"),
        ("stragglers:2,fresh=x", "fresh of schedule"),
        ("stragglers:2,often=3", "often"),
        ("stragglers:2,fresh", "not of the form option=value"),
        ("latency:first=2,first=3", "stands twice"),
        ("latency:compute=normal/3", "lognormal/MEDIAN/SIGMA"),
        ("latency:compute=uniform/3/2", "uniform/LOW/HIGH"),
        ("latency:compute=-1", "positive number"),
        ("latency:first=0", "first of schedule"),
        ("latency:first=2,window=3", "not on both"),
        ("latency:repeat=3", "no trace=FILE"),
        ("latency:dropout=2", "dropout of schedule"),
        ("latency:trace=missing.csv", "cannot be read"),
    ],
)
def test_a_wrong_schedule_is_explained(text: str, words: str) -> None:
    with pytest.raises(FedkinError, match=words):
        run("fedavg", text, rounds=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,start\n0,1\n", "lacks the columns end, compute, down, up"),
        (TRACE + "1,x,,1,1,1\n", "line 5"),
        (TRACE + "1,60,,1,1,1\n", "overlapping"),
        (TRACE.replace("\n1,50", "\n0,900"), "overlapping"),
        (TRACE.replace("1,50,,1", "1,50,,0"), "speeds are positive"),
        ("client,start,end,compute,down,up\n0,0,,1,1,1\n", "no line for client 1"),
    ],
)
def test_a_wrong_trace_is_explained(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=words):
        trace(tmp_path, text)


@pytest.mark.parametrize("name", ["local-only", "fedproto", "fedmd", "ifca", "fedfomo", "l2gd"])
def test_methods_that_send_no_model_say_that_they_cannot_leap(name: str, blobs: Federation) -> None:
    with pytest.raises(FedkinError, match="use wait, drop or stale"):
        run(name, "stragglers:2", blobs, rounds=4, late="leap")


def own_losses(name: str, **settings: Any) -> tuple[list[list[float]], list[tuple[Ended, int]]]:
    """Losses of clients' own models, round by round, and tasks that were late with where in this list they came."""
    history = run(name, "stragglers:5", rounds=14, judge_local=True, lr=0.5, evaluate_every=1, **settings).history
    losses = [list(next(s for s in r.scores if s.model == "local").loss) for r in history]
    late = [(task, came) for came, r in enumerate(history) for task in r.tasks if task.fate != "in time"]
    assert len(late) > 10
    return losses, late


@pytest.mark.parametrize("late", ["stale", "drop"])
def test_a_late_clients_own_model_is_the_one_it_has_just_trained_unless_that_will_be_dropped(late: str) -> None:
    losses, tasks = own_losses("fedavg", late=late)
    for task, came in tasks:
        sent = task.sent - 1
        seen = {losses[at][task.client] for at in range(sent, came + 1)}
        before = losses[sent - 1][task.client] if sent else None
        assert len(seen) == 1
        assert not sent or (seen == {before}) == (late == "drop")


@pytest.mark.parametrize(("name", "options"), [("lga", {}), ("fedasync", {"together": "mean"})])
def test_a_late_client_goes_on_with_what_the_server_moved_its_model_to(name: str, options: dict[str, Any]) -> None:
    losses, tasks = own_losses(name, **options)
    for task, came in tasks:
        trained, waiting, moved = (losses[at][task.client] for at in (task.sent - 1, came - 1, came))
        assert trained == waiting != moved


# Pictures.


def test_a_timeline_shows_every_task_and_when_the_server_acted(tmp_path: Path) -> None:
    result = run("fedavg", "stragglers:5", rounds=6, out=tmp_path / "run")
    figure = timeline(fedkin.load(tmp_path / "run"))
    (axes,) = figure.axes
    bars = [patch for patch in axes.patches if patch.get_width() > 0]
    assert len(bars) == sum(len(r.tasks) for r in result.history)
    assert sorted(text.get_text().strip() for text in axes.texts) == ["1", "1", "2", "3", "4", "5"]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(result.client_names)


def test_accuracy_is_drawn_over_virtual_time(tmp_path: Path) -> None:
    results = [run("fedavg", LATENCY, rounds=6, late=late) for late in ("stale", "wait")]
    (axes,) = curves(results, "time").axes
    for line, result in zip(axes.lines, results, strict=True):
        assert list(line.get_xdata()) == [r.time for r in result.history]
    with pytest.raises(FedkinError, match="has no virtual time"):
        curves([run("fedavg", "sync", rounds=1)], "time")
    with pytest.raises(FedkinError, match="no timeline without a virtual clock"):
        timeline(run("fedavg", "sync", rounds=1))
