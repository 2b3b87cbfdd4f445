"""Nobody else reads the dashboard, and it shows nothing but runs."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from dashboards import HOSTILE, client, edit


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
