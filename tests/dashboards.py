"""A dashboard on a folder of runs, and what is done to these runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the dashboard needs its extra")
pytest.importorskip("httpx", reason="starlette's test client needs httpx")
pytest.importorskip("uvicorn", reason="the dashboard needs its extra")

from starlette.testclient import TestClient

from fedkin.dashboard.server import application

HOSTILE = "<img src=x onerror=alert(1)>"


def client(root: Path, host: str = "127.0.0.1") -> TestClient:
    return TestClient(application(root, host), base_url="http://localhost:8050")


def listed(root: Path) -> dict[str, dict[str, Any]]:
    return {run["id"]: run for run in client(root).get("/api/runs").json()["runs"]}


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def cut_config(run: Path) -> None:
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text[: len(text) // 2])
