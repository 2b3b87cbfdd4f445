"""The dashboard shows what run folders hold as it changes, and what is wrong with them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from dashboards import HOSTILE, client, cut_config, edit, listed

from fedkin import api
from fedkin.dashboard import runs as dashboard_runs
from fedkin.dashboard.runs import LONG, QUIET, Runs
from fedkin.dashboard.server import serve
from fedkin.errors import FedkinError
from fedkin.result import Result
from fedkin.runs.folder import RunFolder

CLIENTS = 4


# what is shown


def test_a_run_is_listed_with_what_it_came_to(root: Path, made: tuple[Path, Result]) -> None:
    (run,) = listed(root).values()
    assert (run["id"], run["state"], run["wrong"]) == ("deep/good", "finished", None)
    assert (run["method"], run["data"], run["seed"], run["clients"]) == ("spfl", "digits", 5, CLIENTS)
    assert (run["round"], run["rounds"]) == (3, 3)
    assert run["accuracy"] == made[1].accuracy


def test_a_folder_that_is_a_run_itself_is_shown(made: tuple[Path, Result]) -> None:
    assert listed(made[0])["."]["state"] == "finished"
    assert client(made[0]).get("/api/run", params={"run": "."}).json()["wrong"] == []


def test_a_run_without_new_rounds_is_idle_and_then_stopped(root: Path) -> None:
    (root / "deep/good/result.json").unlink()
    runs = Runs(root)
    (run,) = runs.summaries()
    states = [run.state(run.changed + s) for s in (0, QUIET - 1, QUIET + 1, LONG * QUIET - 1, LONG * QUIET + 1)]
    assert states == ["running", "running", "idle", "idle", "stopped"]
    assert runs.how_to_go_on("deep/good").startswith("fedkin run --resume ")


def test_a_run_that_says_why_it_stopped_is_stopped_at_once_until_it_goes_on(root: Path) -> None:
    (root / "deep/good/result.json").unlink()
    folder, runs = RunFolder.open(root / "deep/good"), Runs(root)
    with pytest.raises(ZeroDivisionError), folder.telling_why():
        1 / 0  # noqa: B018
    (run,) = runs.summaries()
    assert run.state(run.changed) == "stopped"
    assert runs.events("deep/good")[0]["why"] == "ZeroDivisionError: division by zero"
    with folder.telling_why():
        assert runs.summary("deep/good").state(run.changed) == "running"
    assert [event["event"] for event in runs.events("deep/good")] == ["resumed", "stopped"]


def test_slow_rounds_are_waited_for(root: Path) -> None:
    path = root / "deep/good"
    (path / "result.json").unlink()
    (path / "timings.jsonl").write_text('{"round": 1, "train": 90.0, "evaluate": 10.0}\n')
    (run,) = Runs(root).summaries()
    assert run.state(run.changed + 499) == "running"
    assert run.state(run.changed + 501) == "idle"


def test_a_run_grows_as_its_rounds_end(root: Path) -> None:
    path = root / "deep/good/metrics.jsonl"
    (root / "deep/good/result.json").unlink()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0])
    page = client(root)

    def curve() -> list[float]:
        return list(page.get("/api/compare", params={"run": "deep/good"}).json()["curves"]["data"][0]["x"])

    before = page.get("/api/runs").json()["runs"][0]
    assert (before["round"], before["state"], curve()) == (1, "running", [1])
    # Half of a line is being written: it does not count, and is no damage.
    path.write_text(lines[0] + lines[1][:50])
    half = page.get("/api/runs").json()["runs"][0]
    assert (half["round"], half["wrong"]) == (1, None)
    path.write_text("".join(lines[:2]))
    after = page.get("/api/runs").json()["runs"][0]
    assert (after["round"], curve()) == (2, [1, 2])
    assert before["version"] != after["version"]


def test_runs_appear_and_go(root: Path) -> None:
    runs = Runs(root)
    assert len(runs.summaries()) == 1
    shutil.copytree(root / "deep/good", root / "second")
    shutil.rmtree(root / "deep")
    time.sleep(1.1)
    assert [run.id for run in runs.summaries()] == ["second"]


def test_what_has_not_changed_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, reads = [], []
    load, lines = api.load, dashboard_runs._from_the_end
    monkeypatch.setattr(api, "load", lambda *a, **k: loads.append(a) or load(*a, **k))
    monkeypatch.setattr(dashboard_runs, "_from_the_end", lambda path: reads.append(path) or lines(path))
    runs = Runs(root)
    for _ in range(3):
        runs.summaries()
        runs.whole("deep/good")
    assert (len(loads), len(reads)) == (1, 2), "metrics and timings once"
    with (root / "deep/good/metrics.jsonl").open("a") as file:
        file.write("{")
    runs.whole("deep/good")
    assert (len(loads), len(reads)) == (2, 4)


def test_details_are_those_of_the_run(root: Path, made: tuple[Path, Result]) -> None:
    result = made[1]
    found = client(root).get("/api/run", params={"run": "deep/good"}).json()
    assert [row["client"] for row in found["clients"]] == list(result.client_names)
    assert [row["accuracy"] for row in found["clients"]] == result.score.clients
    samples = json.loads((made[0] / "config.json").read_text())["train_samples"]
    assert [row["train"] for row in found["clients"]] == samples
    assert found["up"] == sum(r.bytes_up for r in result.history)
    assert found["config"]["settings"]["seed"] == 5
    maps = [trace for trace in found["kin"]["data"] if trace["type"] == "heatmap"]
    assert len(maps) >= 2, "who learns from whom, and the overlap of labels"
    assert all(len(trace["x"]) == len(trace["y"]) == CLIENTS for trace in maps)
    assert result.record is not None
    steps = [step["label"] for step in found["kin"]["layout"]["sliders"][0]["steps"]]
    assert steps == [str(round) for round in result.record.rounds()]
    assert len(steps) > 1


def test_seeds_are_one_curve_when_they_are_put_together(root: Path) -> None:
    shutil.copytree(root / "deep/good", root / "deep/other")
    edit(root / "deep/other/config.json", lambda c: c["config"].update(seed=6))
    page, both = client(root), [("run", "deep/good"), ("run", "deep/other")]

    def names(query: list[tuple[str, str]]) -> list[str]:
        curves = page.get("/api/compare", params=query).json()["curves"]["data"]
        return [trace["name"] for trace in curves if "name" in trace]

    page.get("/api/runs")
    assert names(both) == ["good", "other"]
    assert names([*both, ("together", "1")]) == ["spfl"]


def test_events_of_a_real_federation_are_shown_newest_first(root: Path) -> None:
    path = root / "deep/good"
    edit(path / "config.json", lambda c: c.update(terms="{}", models="on clients", train_samples=[0] * CLIENTS))
    events = [{"time": f"2026-01-0{k}", "client": HOSTILE, "event": "left out", "why": f"reason {k}"} for k in (1, 2)]
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events) + '["not one"]\n{"time": ')
    page = client(root)
    assert page.get("/api/runs").json()["runs"][0]["data"] == "on its clients"
    found = page.get("/api/run", params={"run": "deep/good"}).json()
    assert found["events"] == events[::-1]
    assert {row["train"] for row in found["clients"]} == {None}, "only the clients know"
    assert found["resume"].startswith("fedkin start ")


# damage


def other_config(run: Path) -> None:
    (run / "config.json").write_text('{"model_type": "something else"}')


def no_config(run: Path) -> None:
    (run / "config.json").unlink()


def strange_settings(run: Path) -> None:
    edit(run / "config.json", lambda c: c["config"].update(rounds="many"))


def strange_clients(run: Path) -> None:
    edit(run / "config.json", lambda c: c.update(clients=7))


def rubbish_in_metrics(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"\x00\xff\xfe\n" * 4)


def missing_round(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0] + lines[2])


def strange_scores(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"scores": [{"model": 3}]}
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")


def deep_json(run: Path) -> None:
    (run / "config.json").write_text("[" * 100_000)


DAMAGE = [
    cut_config, other_config, no_config, strange_settings, strange_clients, rubbish_in_metrics, missing_round,
    strange_scores, deep_json,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_listed_with_what_is_wrong(root: Path, damage: Callable[[Path], None]) -> None:
    shutil.copytree(root / "deep/good", root / "bad")
    damage(root / "bad")
    page = client(root)
    runs = {run["id"]: run for run in page.get("/api/runs").json()["runs"]}
    assert runs["bad"]["state"] == "damaged"
    assert runs["bad"]["wrong"]
    assert runs["deep/good"]["state"] == "finished"
    assert page.get("/api/run", params={"run": "bad"}).json()["wrong"]
    both = page.get("/api/compare", params=[("run", "bad"), ("run", "deep/good")]).json()
    assert list(both["wrong"]) == ["bad"]
    assert [trace["name"] for trace in both["curves"]["data"]] == ["good"]


def test_a_line_that_was_damaged_long_ago_is_told_when_somebody_looks(root: Path) -> None:
    path = root / "deep/good/metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "{}\n", lines[2]]))
    page = client(root)
    page.get("/api/runs")
    assert "damaged after round 1: 2 rounds" in page.get("/api/run", params={"run": "deep/good"}).json()["wrong"][0]


@pytest.mark.parametrize("content", [b"rubbish", safetensors.numpy.save({"all": np.eye(9, dtype=np.float32)})])
def test_damaged_matrices_leave_the_rest_of_a_run_to_be_seen(root: Path, content: bytes) -> None:
    for path in (root / "deep/good/mixing").iterdir():
        path.write_bytes(content)
    page = client(root)
    page.get("/api/runs")
    found = page.get("/api/run", params={"run": "deep/good"}).json()
    assert any(line.startswith("kin cannot be shown") for line in found["wrong"])
    assert len(found["clients"]) == CLIENTS


# the command


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="is not a folder"):
        serve(tmp_path / "none", "127.0.0.1", 0, print)


def test_a_port_that_is_taken_is_a_mistake(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FedkinError, match=rf"port {port}: .* choose another with --port"):
            serve(root, "127.0.0.1", port, print)


def test_without_a_web_server_it_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(FedkinError, match=r"pip install 'fedkin\[dashboard\]'"):
        serve(root, "127.0.0.1", 0, print)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_it_warns_when_others_can_read(root: Path, monkeypatch: pytest.MonkeyPatch, host: str, warned: bool) -> None:
    import uvicorn

    async def end(self: uvicorn.Server) -> None:
        """In place of answering until Ctrl-C."""

    said: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "main_loop", end)
    serve(root, host, 0, said.append)
    assert [line.startswith("warning: anyone who reaches") for line in said] == [True] * warned + [False, False]
    assert re.search(rf"http://{host}:\d+ ", said[-2])
