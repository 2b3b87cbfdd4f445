"""Tables, figures and the report show the numbers of the results; the page needs nobody, trusts nobody."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from rich.console import Console

import fedkin
from fedkin.config import Config
from fedkin.errors import FedkinError
from fedkin.report import charts, figures, html, summary
from fedkin.result import Ended, Models, Result, Round
from fedkin.runs.mixing import MixingRecord
from fedkin.scores import OWN, UNION, Score

CLIENTS = 20


def result(
    method: str,
    accuracies: list[int],
    *,
    seed: int = 0,
    shared: int | None = None,
    names: list[str] | None = None,
    data: str = "own",
) -> Result:
    """A run whose client i gets `accuracy + i` of 100 + i samples right, one accuracy for each round."""
    history = []
    for k, accuracy in enumerate(accuracies):
        total = [100 + i for i in range(CLIENTS)]
        scores = [
            Score(
                "personalised",
                "after aggregation",
                OWN,
                [accuracy + i for i in range(CLIENTS)],
                total,
                [1.0] * CLIENTS,
            )
        ]
        if shared is not None:
            scores.append(Score("global", "after aggregation", UNION, [shared] * CLIENTS, total, [1.0] * CLIENTS))
        history.append(Round(2 * k + 2, [0], 5, 0.5, 1_000_000, 500_000, scores))
    return Result(
        config=Config(method=method, data=data, seed=seed, clients=CLIENTS),
        method=method,
        history=history,
        models=Models(torch.zeros(1, 3), [0] * CLIENTS),
        client_names=tuple(names or [f"client-{i:02d}" for i in range(CLIENTS)]),
        seconds=10.0 * (seed + 1),
    )


def mean(accuracy: int) -> float:
    return fmean(100 * (accuracy + i) / (100 + i) for i in range(CLIENTS))


@pytest.fixture
def results() -> dict[str, list[Result]]:
    return {
        "fedavg": [
            result("fedavg", [30, 60, 50], shared=40),
            result("fedavg", [30, 62, 58], seed=1, shared=44),
        ],
        "kin": [result("kin", [40, 60, 70]), result("kin", [40, 60, 76], seed=1)],
    }


# summary


def test_a_line_has_the_mean_and_deviation_over_seeds(results: dict[str, list[Result]]) -> None:
    fedavg, kin = summary.lines(results)
    assert (fedavg.method, kin.method) == ("fedavg", "kin")
    assert fedavg.mean == pytest.approx((mean(50) + mean(58)) / 2)
    assert fedavg.std == pytest.approx(stdev([mean(50), mean(58)]))
    assert fedavg.accuracy == f"{fedavg.mean:.2f} ± {fedavg.std:.2f}"
    assert kin.mean == pytest.approx((mean(70) + mean(76)) / 2)
    assert (fedavg.is_best, kin.is_best) == (False, True)
    assert kin.judged == "personalised model after aggregation, on each client's own test set, mean over clients"


def test_a_line_has_every_other_average(results: dict[str, list[Result]]) -> None:
    fedavg, kin = summary.lines(results)
    samples = sum(100 + i for i in range(CLIENTS))
    right = [sum(a + i for i in range(CLIENTS)) for a in (50, 58)]
    assert fedavg.weighted == pytest.approx(100 * sum(right) / 2 / samples)
    assert fedavg.worst == pytest.approx(fmean(fmean([100 * a / 100, 100 * (a + 1) / 101]) for a in (50, 58))), (
        "two of twenty clients"
    )
    assert fedavg.global_model == pytest.approx(100 * CLIENTS * (40 + 44) / 2 / samples)
    assert kin.global_model is None
    assert fedavg.best_round == pytest.approx((mean(60) + mean(62)) / 2)
    assert fedavg.megabytes == pytest.approx(3 * 1.5)
    assert fedavg.seconds == 15.0


def test_a_single_seed_has_no_deviation() -> None:
    (line,) = summary.lines({"kin": [result("kin", [70])]})
    assert line.std is None
    assert line.accuracy == f"{mean(70):.2f}"
    assert line.is_best


def test_equally_good_methods_are_all_best() -> None:
    both = {"a": [result("a", [70])], "b": [result("b", [70])], "c": [result("c", [69])]}
    assert [line.is_best for line in summary.lines(both)] == [True, True, False]


def printed(results: dict[str, list[Result]], width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=width, color_system="standard").print(summary.table(results))
    return out.getvalue()


def test_the_table_fits_a_terminal_and_has_the_best_in_bold(results: dict[str, list[Result]]) -> None:
    fedavg, kin = summary.lines(results)
    text = printed(results, width=80)
    assert f"\x1b[1m{kin.accuracy}\x1b[0m" in text
    assert fedavg.accuracy in text
    assert f"\x1b[1m{fedavg.accuracy}" not in text
    row = next(line for line in text.splitlines() if "fedavg" in line)
    for number in (fedavg.weighted, fedavg.worst, fedavg.global_model, fedavg.best_round):
        assert f"{number:.2f}" in row
    assert "–" in next(line for line in text.splitlines() if " kin " in line)


def test_a_method_whose_name_looks_like_markup_is_shown_as_it_is() -> None:
    name = "[red]mine[/].py:Kin"
    assert name in printed({name: [result("kin", [70])]})


# figures


def test_the_figure_has_one_line_a_method_with_the_results_in_it(results: dict[str, list[Result]]) -> None:
    figure = figures.compare([run for runs in results.values() for run in runs])
    rounds, clients = figure.axes
    assert [line.get_label() for line in rounds.lines] == ["fedavg", "kin"]
    assert [line.get_label() for line in clients.lines] == ["fedavg", "kin"]
    for line, last in zip(rounds.lines, ((50, 58), (70, 76)), strict=True):
        assert list(line.get_xdata()) == [2, 4, 6]
        assert line.get_ydata()[-1] == pytest.approx(fmean(map(mean, last)))
    assert len(rounds.collections) == 2, "a band for each method with several seeds"
    band = rounds.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(fmean(map(mean, (60, 62))) + stdev(map(mean, (60, 62))))
    heights = np.asarray(clients.lines[0].get_ydata())
    assert len(heights) == CLIENTS
    assert (np.diff(heights) >= 0).all(), "from worst to best"
    assert heights[0] == pytest.approx(54)


def test_a_single_run_draws_no_band_and_can_be_saved(tmp_path: Path) -> None:
    figure = result("kin", [50, 70]).plot()
    assert not figure.axes[0].collections
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


# the HTML report


class Page(HTMLParser):
    """What a browser would see: tags with attributes, cells of tables, and scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "script":
            self.scripts.append("")
        if tag not in ("meta", "br"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag, "tags are well nested"

    def handle_data(self, data: str) -> None:
        where = self.inside[-1] if self.inside else ""
        if where == "script":
            self.scripts[-1] += data
        else:
            self.words.append(data)
        if where in ("td", "th"):
            self.rows[-1][-1] += data


def page(results: dict[str, list[Result]], tmp_path: Path) -> Page:
    html.write(results, tmp_path / "new" / "report.html")
    return Page((tmp_path / "new" / "report.html").read_text("utf-8"))


def test_the_report_has_a_row_per_method_with_the_numbers_of_its_results(
    results: dict[str, list[Result]], tmp_path: Path
) -> None:
    rows = page(results, tmp_path).rows
    assert [row[0] for row in rows[:3]] == ["method", "fedavg", "kin"]
    for row, line in zip(rows[1:3], summary.lines(results), strict=True):
        shared = "–" if line.global_model is None else f"{line.global_model:.2f}"
        assert row == [
            line.method,
            line.accuracy,
            f"{line.weighted:.2f}",
            f"{line.worst:.2f}",
            shared,
            f"{line.best_round:.2f}",
            f"{line.megabytes:.1f}",
            f"{line.seconds:.1f}",
        ]


def test_only_the_best_is_marked(results: dict[str, list[Result]], tmp_path: Path) -> None:
    html.write(results, tmp_path / "report.html")
    (best,) = re.findall(r'<td class="best">([^<]*)</td>', (tmp_path / "report.html").read_text("utf-8"))
    assert best == summary.lines(results)[1].accuracy


def test_the_report_tells_every_setting_of_every_run(results: dict[str, list[Result]], tmp_path: Path) -> None:
    words = "".join(page(results, tmp_path).words)
    for method in results:
        for seed in (0, 1):
            assert f"{method}, seed {seed}" in words
    for name in Config.model_fields:
        assert words.count(f'"{name}": ') == 4


def test_the_curves_are_those_of_the_results(results: dict[str, list[Result]]) -> None:
    curves = [trace for trace in charts.curves(results).data if trace.name]
    assert [trace.name for trace in curves] == ["fedavg", "kin"]
    assert list(curves[0].x) == [2, 4, 6]
    assert list(curves[0].y) == pytest.approx([fmean(map(mean, pair)) for pair in ((30, 30), (60, 62), (50, 58))])


def test_clients_stand_from_worst_to_best_and_beside_fedavg(results: dict[str, list[Result]]) -> None:
    ours, theirs, beside, line = charts.clients(results).data
    each = [fmean(100 * (a + i) / (100 + i) for a in (50, 58)) for i in range(CLIENTS)]
    assert list(ours.y) == pytest.approx(sorted(each))
    assert list(ours.text) == [f"client-{i:02d}" for i in np.argsort(each)]
    assert list(beside.x) == pytest.approx(each)
    assert list(beside.y) == pytest.approx([fmean(100 * (a + i) / (100 + i) for a in (70, 76)) for i in range(CLIENTS)])
    assert list(theirs.y) == pytest.approx(sorted(beside.y))
    assert list(line.x) == list(line.y)


def test_bytes_and_seconds_are_those_of_the_runs(results: dict[str, list[Result]]) -> None:
    sent, took = charts.costs(results).data
    assert list(sent.y) == [4.5, 4.5]
    assert list(took.y) == [15.0, 15.0]


def mixed(rounds: dict[int, dict[str, np.ndarray]], **more: object) -> Result:
    """A run with given mixing matrices."""
    record = MixingRecord(None)
    for k, blocks in rounds.items():
        record.add(k, {name: torch.from_numpy(m) for name, m in blocks.items()})
    clients = len(next(iter(rounds[min(rounds)].values())))
    run = result("kin", [70])
    return replace(run, record=record, client_names=tuple(f"c{i}" for i in range(clients)), **more)


def two_families(own: float) -> np.ndarray:
    """Even clients learn from even ones and odd from odd ones."""
    kin = np.array([[float(i % 2 == j % 2) for j in range(6)] for i in range(6)]) / 3
    return own * np.eye(6) + (1 - own) * kin


def test_clients_that_are_kin_stand_side_by_side_with_a_step_for_every_round_that_changed() -> None:
    counts = [[10, 0] if i % 2 else [0, 10] for i in range(6)]
    run = mixed({1: {"body": two_families(0.9)}, 4: {"body": two_families(0.1)}}, label_counts=counts)
    figure = charts.kin(run)
    assert figure is not None
    body, overlap = figure.data
    order = [int(name[1:]) for name in body.x]
    assert {frozenset(order[:3]), frozenset(order[3:])} == {frozenset({0, 2, 4}), frozenset({1, 3, 5})}
    np.testing.assert_allclose(body.z, two_families(0.1)[np.ix_(order, order)], atol=1e-4)
    np.testing.assert_allclose(overlap.z, [[float(i % 2 == j % 2) for j in order] for i in order], atol=1e-6)
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["1", "4"]
    np.testing.assert_allclose(slider.steps[0].args[0]["z"][0], two_families(0.9)[np.ix_(order, order)], atol=1e-4)


def test_blocks_that_are_mixed_alike_are_one_and_layers_tell_what_is_a_clients_own() -> None:
    run = mixed({1: {"conv1": two_families(0.5), "conv2": two_families(0.5), "classifier": np.eye(6)}})
    assert list(charts.matrices(run)[1]) == ["conv1 … conv2", "classifier"]
    figure = charts.layers(run)
    assert figure is not None
    np.testing.assert_allclose(figure.data[0].y, [0.5 + 0.5 / 3] * 2 + [1.0])
    assert charts.kin(result("kin", [70])) is None


def test_groups_are_clients_that_share_a_model() -> None:
    assert charts.groups(mixed({1: {"body": two_families(0.0)}})) == [["c0", "c2", "c4"], ["c1", "c3", "c5"]]
    assert charts.groups(mixed({1: {"body": two_families(0.5)}})) == []
    assert charts.groups(mixed({1: {"body": np.full((6, 6), 1 / 6)}})) == []


def test_a_timeline_has_a_bar_for_every_task() -> None:
    run = result("kin", [70])
    tasks = [Ended(0, 1, 0.0, 1.0, "in time"), Ended(3, 1, 0.0, 2.5, "late")]
    run.history[0].tasks.extend(tasks)
    figure = charts.timeline(run)
    assert figure is not None
    assert [(bar.name, list(bar.base), list(bar.x), list(bar.y)) for bar in figure.data] == [
        ("in time", [0.0], [1.0], ["client-00"]),
        ("late", [0.0], [2.5], ["client-03"]),
    ]
    assert charts.timeline(result("kin", [70])) is None


def test_the_similarity_figure_shows_the_round_that_was_asked_for(tmp_path: Path) -> None:
    run = mixed({1: {"body": two_families(0.9)}, 4: {"body": two_families(0.1)}})
    early, late = (figures.similarity(run, k).axes[0].images[0].get_array() for k in (2, None))
    assert early is not None
    assert late is not None
    assert early.max() == pytest.approx(0.9 + 0.1 / 3)
    assert late.max() == pytest.approx(0.1 + 0.9 / 3)
    figures.similarity(run).savefig(tmp_path / "x.png")
    with pytest.raises(FedkinError, match="mixes nothing"):
        figures.similarity(result("kin", [70]))


def test_the_report_needs_nothing_from_anywhere(results: dict[str, list[Result]], tmp_path: Path) -> None:
    seen = page(results, tmp_path)
    assert {tag for tag, _ in seen.tags} <= {
        *("html", "head", "meta", "title", "style", "script", "body", "h1", "h2", "p", "table", "tr", "th"),
        *("td", "div", "details", "summary", "pre", "nav", "a", "h3"),
    }
    for tag, attributes in seen.tags:
        assert not {"src", "action", "data", "srcset", "background"} & attributes.keys(), tag
        assert attributes.get("href", "#").startswith("#"), "links lead to places on the page"
    assert not re.search(r"@import|url\(", "".join(seen.words))
    assert max(map(len, seen.scripts)) > 1_000_000, "the library that draws is part of the page"
    assert sum("Plotly.newPlot" in script for script in seen.scripts[1:]) == 3


HOSTILE = "<script>alert(1)</script>"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    names = [HOSTILE, '"><img src=x onerror=alert(1)>', "</script><script>alert(2)</script>", "{{ 7 * 7 }}"]
    names += [f"client-{i}" for i in range(4, CLIENTS)]
    quiet = page({"kin": [result("kin", [70])]}, tmp_path)
    hostile = page({f"{HOSTILE}.py:Kin": [result("kin", [70], names=names, data=f"{HOSTILE}'\"&amp;")]}, tmp_path)
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in quiet.tags], "nothing became a tag"
    words = "".join(hostile.words)
    assert f"Personalised federated learning on {HOSTILE}'\"&amp;" in words
    assert hostile.rows[1][0] == f"{HOSTILE}.py:Kin"
    for script in hostile.scripts[1:]:
        assert "<" not in script.split("Plotly.newPlot")[-1], "names cannot end the script they are in"


def test_names_are_not_taken_for_html_by_the_figures() -> None:
    names = ['<a href="http://elsewhere">x</a>', *(f"client-{i}" for i in range(1, CLIENTS))]
    results = {"<b>kin</b>": [result("kin", [70], names=names)]}
    (points,) = charts.clients(results).data
    assert '&lt;a href="http://elsewhere"&gt;x&lt;/a&gt;' in points.text
    assert points.name == charts.curves(results).data[0].name == "&lt;b&gt;kin&lt;/b&gt;"


# tensorboard


def test_a_tensorboard_log_has_the_accuracy_of_every_round(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="TensorBoard logs need the extra tensorboard")
    from tensorboardX.proto.event_pb2 import Event

    run = fedkin.run("fedavg", rounds=3, clients=4, epochs=1, tensorboard=True, out=tmp_path / "run")
    [path] = (tmp_path / "run/tensorboard").iterdir()
    content, at, seen = path.read_bytes(), 0, {}
    while at < len(content):  # records: length, its checksum, an event, its checksum
        length = int.from_bytes(content[at : at + 8], "little")
        event = Event.FromString(content[at + 12 : at + 12 + length])
        at += 12 + length + 4
        seen |= {(event.step, value.tag): value.simple_value for value in event.summary.value}
    for r in run.history:
        assert seen[r.round, "accuracy/global_own"] == pytest.approx(r.scores[0].headline)
        assert seen[r.round, "bytes/up"] == r.bytes_up
