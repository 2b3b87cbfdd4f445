"""The dashboard shows what run folders hold as it changes, and nothing else to nobody else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import fedkin
from fedkin import api
from fedkin.errors import FedkinError
from fedkin.result import Result
from fedkin.runs.folder import RunFolder

pytest.importorskip("starlette", reason="the dashboard needs its extra")
pytest.importorskip("httpx", reason="starlette's test client needs httpx")
pytest.importorskip("uvicorn", reason="the dashboard needs its extra")

from starlette.testclient import TestClient

from fedkin.dashboard import runs as dashboard_runs
from fedkin.dashboard.runs import LONG, QUIET, Runs
from fedkin.dashboard.server import application, serve

HOSTILE = "<img src=x onerror=alert(1)>"
CLIENTS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run of three rounds; tests copy it."""
    path = tmp_path_factory.mktemp("made") / "run"
    return path, fedkin.run("spfl", data="digits", clients=CLIENTS, rounds=3, refresh=2, seed=5, out=path)


@pytest.fixture
def root(tmp_path: Path, made: tuple[Path, Result]) -> Path:
    """A folder with one run deep in it."""
    shutil.copytree(made[0], tmp_path / "runs/deep/good")
    return tmp_path / "runs"


def client(root: Path, host: str = "127.0.0.1") -> TestClient:
    return TestClient(application(root, host), base_url="http://localhost:8050")


def listed(root: Path) -> dict[str, dict[str, Any]]:
    return {run["id"]: run for run in client(root).get("/api/runs").json()["runs"]}


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


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


def cut_config(run: Path) -> None:
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text[: len(text) // 2])


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


# nobody else, and nothing else


@pytest.mark.parametrize(
    "id", ["..", "../outside", "deep/../../outside", "/etc", "link", "deep", "", "a\0b", "deep/good/"]
)
def test_only_runs_that_are_listed_can_be_asked_for(root: Path, id: str) -> None:
    shutil.copytree(root / "deep/good", root.parent / "outside")
    (root / "link").symlink_to(root.parent / "outside")
    page = client(root)
    assert [run["id"] for run in page.get("/api/runs").json()["runs"]] == ["deep/good"]
    assert page.get("/api/run", params={"run": id}).status_code == 404
    answer = page.get("/api/compare", params={"run": id}).json()
    assert "curves" not in answer
    assert "no run" in answer["wrong"][id]


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "events.jsonl", "mixing", "mixing/round-000001.safetensors"]
)
def test_links_in_a_run_that_lead_outside_are_not_read(root: Path, tmp_path: Path, name: str) -> None:
    inside, outside = root / "deep/good" / name, tmp_path / "outside"
    if inside.exists():
        shutil.move(inside, outside)
    else:
        outside.write_text(json.dumps({"time": "", "client": "secret", "event": "", "why": ""}) + "\n")
    inside.symlink_to(outside)
    page = client(root)
    (run,) = page.get("/api/runs").json()["runs"]
    assert "leads out of the folder" in run["wrong"]
    assert run["method"] is None
    found = page.get("/api/run", params={"run": "deep/good"})
    assert "clients" not in found.json()
    assert "secret" not in found.text


@pytest.mark.parametrize("path", ["/config.json", "/deep/good/config.json", "/..%2f..%2fetc/passwd", "/static/page.js"])
def test_no_files_are_served(root: Path, path: str) -> None:
    assert client(root).get(path).status_code == 404


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8050",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost:x",
        "10.1.2.3",
    ],
)
def test_who_calls_by_another_name_gets_nothing(root: Path, host: str) -> None:
    for path in ("/", "/api/runs"):
        answer = client(root).get(path, headers={"host": host})
        assert answer.status_code == 400
        assert "deep" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8050", "127.0.0.1:1", "[::1]:8050", "[::1]"])
def test_this_machine_may_call_by_its_own_names(root: Path, host: str) -> None:
    assert client(root).get("/api/runs", headers={"host": host}).status_code == 200


def test_a_host_that_was_asked_for_may_be_called(root: Path) -> None:
    named, everywhere = client(root, "box.lan"), client(root, "0.0.0.0")
    assert named.get("/", headers={"host": "box.lan:8050"}).status_code == 200
    assert named.get("/", headers={"host": "10.1.2.3"}).status_code == 400
    assert everywhere.get("/", headers={"host": "10.1.2.3:8050"}).status_code == 200
    assert everywhere.get("/", headers={"host": "evil.example"}).status_code == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(root: Path, method: str) -> None:
    for path in ("/", "/api/runs", "/api/run?run=deep/good", "/plotly.js"):
        assert client(root).request(method, path).status_code == 405


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/page.css", "/plotly.js", "/api/runs", "/api/run?run=no", "/nothing"]
)
def test_every_answer_keeps_the_page_to_itself(root: Path, path: str) -> None:
    for headers in ({}, {"host": "evil.example"}):
        got = client(root).get(path, headers=headers).headers
        policy = dict(part.strip().split(" ", 1) for part in got["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in got["content-security-policy"]
        assert "http" not in got["content-security-policy"]
        assert got["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in got


def test_the_page_loads_only_its_own_files_and_takes_no_text_for_html(root: Path) -> None:
    page = client(root)
    asked: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not [name for name, _ in attrs if name.startswith("on")]
            asked.extend(value or "" for name, value in attrs if name in ("src", "href"))

    Reader().feed(page.get("/").text)
    assert sorted(asked) == ["data:,", "page.css", "page.js", "plotly.js"]
    for name in ("page.css", "page.js", "plotly.js"):
        assert page.get(f"/{name}").status_code == 200
    script = (resources.files("fedkin.dashboard") / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?:", script)


def test_charts_show_hostile_names_as_text(root: Path) -> None:
    (root / "deep").rename(root / HOSTILE)
    shutil.copytree(root / HOSTILE / "good", root / "<b>other<")
    edit(root / "<b>other<" / "config.json", lambda c: c["clients"].__setitem__(0, HOSTILE))
    page = client(root)
    ids = [run["id"] for run in page.get("/api/runs").json()["runs"]]
    compared = page.get("/api/compare", params=[("run", id) for id in ids]).json()
    names = [trace["name"] for trace in compared["curves"]["data"]]
    assert sorted(names) == ["&lt;b&gt;other&lt;", "&lt;img src=x onerror=alert(1)&gt;/good"]
    kin = page.get("/api/run", params={"run": "<b>other<"}).json()["kin"]
    assert "&lt;img src=x onerror=alert(1)&gt;" in kin["data"][0]["x"]
    assert "<img" not in json.dumps(kin)


def test_a_browser_that_has_it_already_is_not_sent_it_again(root: Path) -> None:
    page = client(root)
    for path in ("/plotly.js", "/api/runs", "/api/run?run=deep/good"):
        first = page.get(path)
        again = page.get(path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert "max-age" in page.get("/plotly.js").headers["cache-control"]


def test_more_runs_than_can_be_compared_are_refused(root: Path) -> None:
    answer = client(root).get("/api/compare", params=[("run", str(k)) for k in range(25)])
    assert (answer.status_code, answer.json()["error"].startswith("25 runs")) == (400, True)


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


# in a browser

SERVER = "import typer; from fedkin.cli import dashing; typer.run(dashing.dashboard)"


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    """The command as a user starts it; it ends in good order at Ctrl-C."""
    args = [sys.executable, "-c", SERVER, str(root), "--port", "0"]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, process.communicate(timeout=5)
        yield found.group(0)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=20)
        assert (process.returncode, said, errors) == (0, "ended\n", "")
    finally:
        process.kill()
        process.communicate()


def test_it_ends_in_good_order_as_soon_as_it_has_said_its_address(address: str) -> None:
    assert address


@pytest.fixture
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="the page is tried in a browser with selenium")
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium with chromedriver here to try the page in")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    from selenium.webdriver.chrome.service import Service

    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


def until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.2)
    return value


@pytest.mark.slow
def test_a_run_in_progress_is_followed_in_a_browser(root: Path, address: str, browser: Any, tmp_path: Path) -> None:
    shutil.copytree(root / "deep/good", root / HOSTILE)
    edit(root / HOSTILE / "config.json", lambda c: c["clients"].__setitem__(0, HOSTILE))
    cut_config(Path(shutil.copytree(root / "deep/good", root / "damaged")))
    artefacts = [tmp_path, *([Path(os.environ["FEDKIN_ARTEFACTS"])] if os.environ.get("FEDKIN_ARTEFACTS") else [])]

    def js(script: str) -> Any:
        return browser.execute_script(f"return {script}")

    def keep(name: str) -> None:
        for width in (1400, 700):
            browser.set_window_size(width, 1000)
            time.sleep(1)
            browser.set_window_size(width, js("document.documentElement.scrollHeight") + 200)
            time.sleep(1)
            assert js("document.documentElement.scrollWidth") <= width, "the page is no wider than its window"
            charts = "[...document.querySelectorAll('.chart')]"
            assert js(f"{charts}.every(c => c.scrollHeight <= c.clientHeight + 1)"), "charts stay in their places"
            for folder in artefacts:
                folder.mkdir(parents=True, exist_ok=True)
                assert browser.save_screenshot(str(folder / f"dashboard-{name}-{width}.png"))

    args = ["run", "spfl", "--data", "digits", "--clients", "8", "--rounds", "200", "--workers", "1"]
    run = subprocess.Popen(
        [sys.executable, "-m", "fedkin", *args, "--out", str(root / "going")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        browser.set_window_size(1400, 1000)
        browser.get(f"{address}/#run=deep/good")  # an address says what is chosen
        row = "document.querySelector('tr[data-run=going]')"
        until(lambda: js(f"{row} !== null"), "the run to appear")
        js(f"{row}.click()")
        points = "(document.getElementById('curves').data ?? []).find(t => t.name === 'going')?.x.length ?? 0"
        before = until(lambda: js(points), "its first round")
        until(lambda: js(points) > before, "its curve to grow")
        until(lambda: "running" in js(f"{row}.textContent"), "its state")
        until(lambda: js("document.getElementById('focus').value") == "going", "its details")
        cells = "(document.getElementById('kin').calcdata ?? []).map(t => [t[0].z.length, t[0].z[0].length])"
        shown = until(lambda: js(cells), "the heat maps")
        assert len(shown) >= 2
        assert shown == [[8, 8]] * len(shown)
        assert js("document.querySelectorAll('#kin .heatmaplayer image').length") == len(shown)
        assert js("document.querySelectorAll('#people-table tbody tr').length") == 8
        js("document.querySelector('#people-table th:nth-child(2) button').click()")
        column = js("[...document.querySelectorAll('#people-table tbody td:nth-child(2)')].map(c => +c.textContent)")
        assert column == sorted(column, reverse=True)
        keep("going")
    finally:
        run.kill()
        run.wait()

    # Hostile names are text in tables and charts; what is damaged is told.
    js(f"[...document.querySelectorAll('#runs tbody tr')].find(r => r.dataset.run === '{HOSTILE}').click()")
    until(lambda: HOSTILE in js("document.getElementById('people-table').textContent"), "the hostile client")
    until(lambda: HOSTILE in js("document.getElementById('curves').textContent"), "the hostile curve")
    assert js("document.querySelectorAll('img, main script').length") == 0
    assert "not valid JSON" in js("document.querySelector('tr[data-run=damaged]').textContent")
    # An earlier round on the slider changes what the map shows.
    steps = js("document.getElementById('kin').layout.sliders?.[0].steps.length ?? 0")
    assert steps > 1
    newest = js("JSON.stringify(document.getElementById('kin').calcdata[0][0].z)")
    js("document.querySelector('#kin .slider-rail-touch-rect').scrollIntoView()")
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    rail = browser.find_element(By.CSS_SELECTOR, "#kin .slider-rail-touch-rect")
    ActionChains(browser).move_to_element_with_offset(rail, -rail.size["width"] // 2 + 5, 0).click().perform()
    until(lambda: js("JSON.stringify(document.getElementById('kin').calcdata[0][0].z)") != newest, "an earlier round")
    # Search leaves what fits.
    js("(s => { s.value = 'damaged'; s.dispatchEvent(new Event('input')); })(document.getElementById('search'))")
    assert js("[...document.querySelectorAll('#runs tbody tr')].map(r => r.dataset.run)") == ["damaged"]
    js("(s => { s.value = ''; s.dispatchEvent(new Event('input')); })(document.getElementById('search'))")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    keep("dark")
    # What plotly would like in style attributes is refused, and that is all that is wrong.
    for entry in browser.get_log("browser"):
        assert "inline style" in entry["message"], entry
