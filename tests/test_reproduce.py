"""The papers' tables: every printed number has a configuration, and a run is kept beside it."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from commands import command, done, refused
from stopping import Stop, stop_after

from fedkin import FedkinError
from fedkin.config import Config
from fedkin.data.dataset import Dataset
from fedkin.methods import make, registry
from fedkin.report import figures
from fedkin.reproduce import cells, page, subsets
from fedkin.reproduce.cells import Cell, Table, printed, tables
from fedkin.reproduce.running import Finished, estimate, path_of, reproduce
from fedkin.result import Round
from fedkin.simulate import Show

ROOT = Path(__file__).parent.parent
TINY = Cell(
    table="tiny", row="FedAvg", column="digits", mean=80.0, std=1.0, method="fedavg", set={},
    settings={
        "data": "digits", "partition": "dirichlet:0.5", "clients": 6, "rounds": 6, "join": 1.0, "epochs": 1,
        "batch": 16, "lr": 0.1, "model": "mlp", "checkpoint_every": 2, "finetune_steps": 2, "judge_union": True,
        "judge_local": True, "engine": "inline",
    },
    measure="own", run="fedavg--digits", reason="",
)  # fmt: skip


def test_every_printed_number_has_a_configuration() -> None:
    cells.check()
    assert len(printed()) == 928
    known = {(c.table, c.row, c.column): c for t in tables().values() for c in t.cells}
    assert known["pfedsim-table3", "pFedSim", "CIFAR-10 Dir(0.1)"].mean == 86.76
    assert known["spfl-table2", "PLGA", "CIFAR10 client"].std == 3.22


@pytest.mark.parametrize("name", tables())
def test_every_configuration_is_a_valid_run(name: str) -> None:
    for cell in tables()[name].cells:
        if cell.study or (cell.reason and not cell.method):
            continue
        config = Config.of({**cell.settings, "method": cell.method})
        made = make(cell.method, cell.set)
        assert {key: asdict(made)[key] for key in cell.set} == dict(cell.set)
        assert config.data == cell.settings["data"]


@pytest.mark.parametrize("name", tables())
def test_cells_share_a_run_if_and_only_if_they_have_the_same_configuration(name: str) -> None:
    by_run: dict[str, set[str]] = {}
    for cell in tables()[name].cells:
        if not cell.reason:
            by_run.setdefault(cell.run, set()).add(json.dumps([cell.method, dict(cell.set), dict(cell.settings)]))
    assert all(len(configurations) == 1 for configurations in by_run.values())


def test_a_column_comes_before_a_row_and_a_row_before_the_table() -> None:
    known = {(c.table, c.row, c.column): c for t in tables().values() for c in t.cells}
    iid = known["fedalp-table2", "MNIST MNIST-NN", "IID FedAvg"]
    assert (iid.settings["partition"], iid.settings["model"], iid.settings["clients"]) == ("iid", "mnist-nn", 100)
    assert known["spfl-table7", "N = 6", "MNIST IID"].settings["clients"] == 6
    assert known["spfl-table2", "LGA", "MNIST client"].measure == "local on own"
    assert known["spfl-table2", "PLGA", "MNIST client"].measure == "personalised on own"


def test_a_cell_runs_once_and_is_kept_as_a_small_file(tmp_path: Path) -> None:
    finished = reproduce(TINY, 0, tmp_path / "results", tmp_path / "work")
    path = path_of(TINY, 0, tmp_path / "results")
    kept = json.loads(path.read_text())
    assert path.stat().st_size < 10_000
    assert kept.keys() >= {"config", "seed", "versions", "scores", "curve", "seconds"}
    assert len(kept["scores"][0]["clients"]) == 6
    assert [point[0] for point in kept["curve"]] == [1, 2, 3, 4, 5, 6]
    before = path.stat().st_mtime_ns
    assert reproduce(TINY, 0, tmp_path / "results", tmp_path / "nowhere").values == json.loads(path.read_text())
    assert path.stat().st_mtime_ns == before
    numbers = {m: finished.measured(m) for m in ("own", "by sample", "fine-tuned", "global on union", "local on own")}
    assert numbers["by sample"] == pytest.approx(numbers["global on union"])
    (_, a, _, _, b, _), (_, m, _, _, n, _) = (kept["scores"][0][name] for name in ("clients", "samples"))
    assert m != n
    assert finished.measured("clients 1 of 3") == pytest.approx(100 * (a * m + b * n) / (m + n))
    assert finished.measured("local on union") < finished.measured("local on own")
    assert finished.measured("time per sample") > 0
    with pytest.raises(FedkinError, match="no number for"):
        finished.measured("supervisor on own")


def noting(seen: list[int], stop: int = 0) -> Show:
    """Write down which rounds are played; end a run with an error in one."""

    def watch(happened: Round, seconds: float) -> None:
        seen.append(happened.round)
        stop_after(stop)(happened, seconds)

    return lambda *_: nullcontext(watch)


def test_an_interrupted_cell_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = reproduce(TINY, 0, tmp_path / "a", tmp_path / "b")
    seen: list[int] = []
    with pytest.raises(Stop):
        reproduce(TINY, 0, tmp_path / "c", tmp_path / "d", show=noting(seen, 5))
    resumed = reproduce(TINY, 0, tmp_path / "c", tmp_path / "d", show=noting(seen))
    assert seen == [1, 2, 3, 4, 5, 5, 6], "the newest checkpoint is that of round 4"
    assert resumed.values["scores"] == whole.values["scores"]
    assert resumed.values["curve"] == whole.values["curve"]
    other = replace(TINY, settings={**TINY.settings, "lr": 0.2})
    with pytest.raises(FedkinError, match="holds a run with other settings"):
        reproduce(other, 0, tmp_path / "e", tmp_path / "d")


def test_a_folder_that_holds_something_else_is_refused_in_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "work" / TINY.table / path_of(TINY, 0, tmp_path).stem
    other.mkdir(parents=True)
    (other / "notes.txt").write_text("mine")
    with pytest.raises(FedkinError, match="is not empty"):
        reproduce(TINY, 0, tmp_path / "results", tmp_path / "work")


def test_cells_that_differ_in_fine_tuning_alone_share_their_rounds(tmp_path: Path) -> None:
    first, second, third = (
        replace(TINY, run=f"{steps}-{lr}", settings={**TINY.settings, "finetune_steps": steps, "lr": lr})
        for steps, lr in ((2, 0.1), (3, 0.1), (3, 0.2))
    )
    seen: list[int] = []
    reproduce(first, 0, tmp_path / "a", tmp_path / "work", show=noting(seen))
    shared = reproduce(second, 0, tmp_path / "a", tmp_path / "work", show=noting(seen))
    reproduce(third, 0, tmp_path / "a", tmp_path / "work", show=noting(seen))
    assert seen == [1, 2, 3, 4, 5, 6, 5, 6, 1, 2, 3, 4, 5, 6]
    alone = reproduce(second, 0, tmp_path / "b", tmp_path / "elsewhere")
    differ = {"seconds", "seconds_per_sample"}
    assert {k: v for k, v in shared.values.items() if k not in differ} == {
        k: v for k, v in alone.values.items() if k not in differ
    }


def test_a_run_that_stands_in_two_tables_is_made_once(tmp_path: Path) -> None:
    once = reproduce(TINY, 0, tmp_path / "results", tmp_path / "work")
    twin = replace(TINY, table="another", row="Same", run="same")
    again = reproduce(twin, 0, tmp_path / "results", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    assert again.values == {**once.values, "table": "another", "run": "same"}
    assert Finished.read(path_of(twin, 0, tmp_path / "results")) == again
    assert reproduce(twin, 1, tmp_path / "results", tmp_path / "work").values["seed"] == 1
    timed = replace(twin, table="timed", measure="time per sample")
    reproduce(timed, 0, tmp_path / "results", tmp_path / "timed")
    assert (tmp_path / "timed").exists(), "how long a run took is not taken over"


def test_what_stands_in_columns_is_compared_along_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [replace(TINY, column=name, run=name, mean=mean) for name, mean in (("A", 50.0), ("B", 60.0))]
    numbers = reproduce(TINY, 0, tmp_path / "elsewhere", tmp_path / "work").values
    for cell, accuracy in zip(cells, (0.7, 0.6), strict=True):
        path = path_of(cell, 0, tmp_path / "results")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**numbers, "scores": [{**numbers["scores"][0], "mean": accuracy}]}))
    table = Table("tiny", "A table of two columns", 1, "B", (), (), tuple(cells), across=True)
    monkeypatch.setattr(page, "tables", lambda: {"tiny": table})
    text = page.markdown(tmp_path / "results")
    assert "**FedAvg**" in text
    assert "| A | 50.00 ± 1.00 | 70.00 | **+20.00** |" in text
    assert "Order kept in 0 of 1 pairs. The best here is A, in print B. Three points or more apart: A." in text


def test_tenths_of_a_point_do_not_look_like_much() -> None:
    (axes,) = figures.beside({"near": [("a", 98.4, None, 98.3), ("b", 98.2, None, 98.3)]}).axes
    left, right = axes.get_xlim()
    assert (right - left, (left + right) / 2) == pytest.approx((3.0, 98.3))
    (axes,) = figures.beside({"far": [("a", 20.0, 5.0, 30.0)]}).axes
    assert axes.get_xlim()[0] < 15 < 30 < axes.get_xlim()[1] < 31


def test_a_difference_of_nothing_has_no_sign_of_its_own() -> None:
    assert [page._signed(d) for d in (-0.001, 0.001, -0.006)] == ["+0.00", "+0.00", "-0.01"]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"A": (50.0, 70.0), "B": (60.0, 80.0)}, "B is the best here too."),
        ({"A": (60.0, 70.0), "B": (50.0, 70.0)}, "The best here is B, in print A."),
        ({"A": (50.0, 80.0), "B": (60.0, 70.0)}, "The best here is A, in print B."),
        ({"A": (60.0, 80.0), "B": (50.0, 70.0)}, "A is the best here too."),
    ],
)
def test_the_best_is_told_here_and_in_print(numbers: dict[str, tuple[float, float]], said: str) -> None:
    own = [page.Compared(replace(TINY, row=name, mean=paper), [ours]) for name, (paper, ours) in numbers.items()]
    table = Table("tiny", "A table", 1, "B", (), (), tuple(c.cell for c in own))
    assert said in page._verdict(table, own)


def test_numbers_that_are_alike_in_print_have_no_order_and_no_best() -> None:
    own = [page.Compared(replace(TINY, row=name, mean=80.0), [ours]) for name, ours in (("A", 79.0), ("B", 81.0))]
    table = Table("tiny", "A table", 1, None, (), (), tuple(c.cell for c in own))
    assert page._glance(table, "digits", own) == "| [tiny](#tiny), digits | 2 | 2 | – | – |"


def test_the_page_has_paper_ours_difference_and_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = reproduce(TINY, 0, tmp_path / "results", tmp_path / "work")
    ours = finished.measured("own")
    better = replace(TINY, row="Better", run="better", mean=TINY.mean and TINY.mean + 5)
    first, *others = finished.values["scores"]
    worse = {**finished.values, "scores": [{**first, "mean": first["mean"] - 0.1}, *others]}
    path_of(better, 0, tmp_path / "results").write_text(json.dumps(worse))
    table = Table("tiny", "A table of two rows", 3, "Better", ("the seeds",), ("a cause",), (TINY, better))
    monkeypatch.setattr(page, "tables", lambda: {"tiny": table})
    text = page.markdown(tmp_path / "results")
    assert f"| FedAvg | 80.00 ± 1.00 | {ours:.2f} |" in text
    assert "Order kept in 0 of 1 pairs. The best here is FedAvg, in print Better." in text
    assert "- a cause" in text
    assert "- the seeds" in text
    assert "2 of 2 cells" in text
    near = sum(abs(number - paper) < 3 for number, paper in ((ours, 80), (ours - 10, 85)))
    assert f"| [tiny](#tiny), {TINY.column} | 2 | {near} | 0 of 1 | FedAvg |" in text


def test_times_are_compared_by_their_ratio_to_the_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = replace(TINY, measure="time per sample", mean=8.0, std=None)
    slower = replace(timed, row="Slower", run="slower", mean=12.0)
    for cell, seconds in ((timed, 2e-4), (slower, 5e-4)):
        path = path_of(cell, 0, tmp_path)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"scores": [], "seconds_per_sample": seconds}))
    table = Table("tiny", "A table of times", 1, None, (), (), (timed, slower))
    monkeypatch.setattr(page, "tables", lambda: {"tiny": table})
    text = page.markdown(tmp_path)
    assert "| | paper | ours | paper, × FedAvg | ours, × FedAvg |" in text
    assert "| Slower | 12.00 | 5.00 | 1.50 | 2.50 |" in text
    assert "points or more apart" not in text, "seconds are no points"


def test_a_figure_of_a_paper_is_drawn_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = reproduce(TINY, 0, tmp_path / "results", tmp_path / "work")
    table = Table("tiny", "A figure", 1, None, (), (), (TINY,), curves=True)
    monkeypatch.setattr(page, "tables", lambda: {"tiny": table})
    drawn = []
    for k in range(2):
        page.write(tmp_path / "results", tmp_path / str(k) / "R.md")
        (picture,) = (tmp_path / str(k) / "images").iterdir()
        assert f"](images/{picture.name})" in (tmp_path / str(k) / "R.md").read_text()
        drawn.append(picture.read_bytes())
    assert drawn[0] == drawn[1]
    (line,) = page.pictures(tmp_path / "results")[picture.name].axes[0].get_lines()
    assert line.axes.get_ylabel() == "accuracy (%), mean over clients"
    assert list(line.get_xdata()) == [r for r, _, _ in finished.values["curve"]]
    assert list(line.get_ydata()) == [100 * mean for _, mean, _ in finished.values["curve"]]
    by_sample = page.Compared(replace(TINY, measure="by sample"), [], finished.values["curve"])
    assert by_sample.line[1] == [weighted for _, _, weighted in finished.values["curve"]] != by_sample.line[0]


def test_a_table_is_drawn_with_the_printed_numbers_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = reproduce(TINY, 0, tmp_path / "results", tmp_path / "work").values
    rows = {"Low": (20.0, 30.0), "High": (90.0, 80.0), "Middle": (50.0, 51.0)}
    for name, (_, ours) in rows.items():
        path = tmp_path / "results" / TINY.table / f"{name}--s0.json"
        path.write_text(json.dumps({**values, "scores": [{**values["scores"][0], "mean": ours / 100}]}))
    cells = tuple(replace(TINY, row=name, run=name, mean=printed) for name, (printed, _) in rows.items())
    table = Table(TINY.table, "A table", 1, None, (), (), cells)
    monkeypatch.setattr(page, "tables", lambda: {TINY.table: table})
    page.write(tmp_path / "results", tmp_path / "R.md")
    assert f"](images/{TINY.table}.svg)" in (tmp_path / "R.md").read_text()
    assert (tmp_path / "images" / f"{TINY.table}.svg").exists()
    (axes,) = page.pictures(tmp_path / "results")[f"{TINY.table}.svg"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Low", "Middle", "High"]
    drawn = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines()}
    assert drawn["ours"] == pytest.approx([30.0, 51.0, 80.0])
    assert [20.0, 50.0, 90.0] in drawn.values()
    monkeypatch.setattr(page, "tables", lambda: {TINY.table: replace(table, cells=cells[:2])})
    assert page.pictures(tmp_path / "results") == {}, "two numbers are seen at a glance in their table"


def test_choices_name_options_of_runs_and_tables_that_have_results() -> None:
    of_methods = {field.name for method in registry().values() for field in fields(method)}
    for choice in cells.choices():
        option, _, key = choice["option"].strip("`").removeprefix("--").replace("-", "_").partition(" ")
        assert not option or option in Config.model_fields
        assert key in of_methods if option == "set" else not key
        for name in re.findall(r"\(#(.*?)\)", choice["number"]):
            assert list((ROOT / "results" / name).glob("*.json")), name


def test_the_page_in_the_repository_is_made_from_the_kept_results() -> None:
    assert (ROOT / "docs/RESULTS.md").read_text("utf-8") == page.markdown(ROOT / "results")


def test_every_kept_result_belongs_to_a_cell_and_has_its_configuration() -> None:
    by_run = {(c.table, c.run): c for t in tables().values() for c in t.cells if not c.reason}
    kept = sorted((ROOT / "results").glob("*/*.json"))
    assert kept
    for path in kept:
        finished = Finished.read(path)
        cell = by_run[path.parent.name, path.stem.rpartition("--s")[0]]
        if cell.study:
            assert finished.measured(cell.measure) is not None
            continue
        config = finished.values["config"]
        assert config["method"] == cell.method, path
        for name, value in cell.settings.items():
            if name not in ("engine", "clients"):
                assert config[name] == value, (path, name)
        for name, value in cell.set.items():
            assert config["set"][name] == value, (path, name)


def test_a_kept_result_is_shown_without_the_data_that_it_was_made_from(tmp_path: Path) -> None:
    nowhere = {"FEDKIN_DATA": str(tmp_path / "empty")}
    asked = ("reproduce", "fedalp-table2", "--row", "MNIST MNIST-NN", "--column", "IID FedAvg")
    (shown,) = done(*asked, "--results", ROOT / "results", "--json", **nowhere).json
    path = ROOT / "results" / "fedalp-table2" / "mnist-mnist-nn--iid-fedavg--s0.json"
    assert shown["ours"] == [Finished.read(path).measured("global on union")]
    said = command(*asked, "--results", ROOT / "results", "--seeds", 2, **nowhere)
    assert said.code == 2, "the second seed is not kept"
    assert "1 cell is skipped: the data mnist are not here" in said.err


def test_the_command_shows_times_as_ratios_and_accuracies_as_differences(tmp_path: Path) -> None:
    nowhere = {"FEDKIN_DATA": str(tmp_path / "empty")}
    kept = ("--results", ROOT / "results")
    times = done("reproduce", "pfedsim-table7", "--column", "ξ_p (×10^-4 s) CIFAR-10", *kept, **nowhere).out
    assert "paper, × FedAvg" in times
    assert "difference" not in times
    accuracies = done("reproduce", "pfedsim-table3", "--column", "CIFAR-10 Dir(0.1)", *kept, **nowhere).out
    assert "difference" in accuracies
    assert "×" not in accuracies


def test_cells_without_their_data_say_so_and_are_never_faked(tmp_path: Path) -> None:
    nowhere = {"FEDKIN_DATA": str(tmp_path / "empty")}
    said = command("reproduce", "pfedsim-table3", "--row", "pFedSim", "--results", tmp_path / "r", **nowhere)
    assert said.code == 2
    assert "the data cifar10 are not here" in said.err
    assert "none of the 10 cells can be run here" in said.err
    assert "the weights mobilenetv2-imagenet.safetensors are not here" in said.err
    assert not (tmp_path / "r").exists()


def test_rows_and_columns_may_be_several() -> None:
    rows, columns = (
        ("--row", "Local", "--row", "FedPac"),
        ("--column", "CIFAR10 100(0.1)", "--column", "CIFAR10 50(0.1)"),
    )
    listed = done("reproduce", "list", "fedsimsup-table1", *rows, *columns, "--json").json
    names = [(line["row"], line["column"]) for line in listed]
    assert names == [(r, c) for c in columns[1::2] for r in rows[1::2]]
    refused(command("reproduce", "fedsimsup-table1", *rows, "--row", "FedPack"), "did you mean 'FedPac'?")


def test_the_list_shows_all_cells_with_their_data(tmp_path: Path) -> None:
    lines = done("reproduce", "list", "--json", FEDKIN_DATA=str(tmp_path)).json
    assert len(lines) == sum(len(t.cells) for t in tables().values())
    assert {line["missing"] for line in lines if line["table"] == "spfl-table1"} >= {"the data mnist are not here"}
    shown = done("reproduce", "list", "pfedsim-table3", FEDKIN_DATA=str(tmp_path)).out
    assert "CIFAR-10 Dir(0.1)" in shown
    assert "cifar10 (not here)" in shown
    shown = done("reproduce", "list", "spfl-table7", FEDKIN_DATA=str(tmp_path)).out
    assert "8 more cannot be run: the paper does not say how many classes k3" in shown
    assert "name it, as in list pfedsim" in command("reproduce", "list", "--row", "pFedSim").err
    assert "one table at a time" in command("reproduce", "pfedsim-table3", "pfedsim-table6").err
    assert "row" in command("reproduce", "pfedsim-table3", "--row", "pFedSym").err
    assert "pfedsim-table3" in command("reproduce", "pfedsim-tabel3").err


def test_the_estimate_grows_with_the_work() -> None:
    short, long = (estimate(replace(TINY, settings={**TINY.settings, "rounds": rounds})) for rounds in (10, 100))
    assert long == pytest.approx(10 * short, rel=1e-6)


def test_the_four_subsets_share_no_sample_and_are_as_alike_as_the_paper_says() -> None:
    rng = np.random.default_rng(0)
    data = Dataset(
        name="noise", x=rng.integers(0, 255, (1000, 3, 32, 32)).astype(np.uint8), y=np.arange(1000) % 10,
        classes=tuple("0123456789"), is_test=np.zeros(1000, bool), mean=(0.5,) * 3, std=(0.5,) * 3,
    )  # fmt: skip
    federation = subsets.subsets(data, 0)
    rows = np.concatenate([*federation.split.train, *federation.split.test])
    assert len(np.unique(rows)) == len(rows) == 1000
    alike = [subsets.data_similarity(federation, i, j) for i, j in subsets.PAIRS.values()]
    assert alike == pytest.approx([1, 0.53, 0.32, 0], abs=0.03)
