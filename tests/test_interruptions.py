"""A run that a full disk or Ctrl-C ends says so, leaves nothing half-written, and resumes bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import TINY, command, done, refused

from fedkin.runs.folder import METRICS

SAME = (METRICS, "models.safetensors")


# a disk that fails


WORDS = ["run", "local-only", "--clients", "20", "--rounds", "6", "--epochs", "1", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with nothing in its way."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done(*WORDS, "--engine", "inline", "--out", out)
    return out


def goes_on(out: Path, whole: Path) -> None:
    """It resumes and ends as if nothing had happened."""
    done("run", "--resume", out)
    for name in SAME:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert not list(out.rglob("*.part"))


LIMITED = """
import resource, sys
sys.dont_write_bytecode = True  # Python takes no notice when a compiled module is cut short, and others would read it.
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
from fedkin.cli import main
main()
"""


@pytest.mark.slow
def test_a_file_that_cannot_grow_is_told_and_the_run_resumes_bit_for_bit(tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    words = [*WORDS, "--engine", "inline", "--out", str(out)]
    run = subprocess.run([sys.executable, "-c", LIMITED, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    *progress, last = run.stderr.splitlines()
    assert all(line.startswith("local-only  round ") for line in progress)
    assert last.startswith(f"error: cannot write {out}/checkpoints/round-000002.safetensors: File too large")
    assert last.endswith(f"fedkin run --resume {out}")
    assert not list(out.rglob("*.part"))
    goes_on(out, whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "fedkin-test", str(place)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_and_the_run_resumes_bit_for_bit_once_there_is_room(
    small_disk: Path, tmp_path: Path, whole: Path
) -> None:
    out = small_disk / "run"
    said = command(*WORDS, "--engine", "inline", "--out", out)
    assert said.code == 2
    *progress, last = said.err.splitlines()
    assert all(line.startswith("local-only  round ") for line in progress)
    assert last.startswith(f"error: cannot write {out}/checkpoints/round-00000")
    assert "No space left on device" in last
    assert last.endswith(f"fedkin run --resume {out}")
    again = command("run", "--resume", out)
    assert again.code == 2, "still no room"
    assert "No space left on device" in again.err
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    goes_on(out, whole)


@contextmanager
def full_at(file: Path, begun: Path) -> Iterator[None]:
    """A disk that is full in the middle of one file, once another one is there."""
    opened = Path.open

    def failing(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        content = opened(self, mode, *args, **options)
        if mode in ("a", "wb") and str(self).startswith(str(file)) and begun.exists():
            content.write("{" if mode == "a" else b"{")
            content.flush()
            raise OSError(28, "No space left on device")
        return content

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", failing)
        yield


def stops_for_want_of_room(words: Sequence[object], out: Path, name: str, begun: str) -> None:
    with full_at(out / name, out / begun):
        said = command(*words, "--engine", "inline", "--out", out)
    assert said.code == 2
    last = said.err.splitlines()[-1]
    assert last.startswith(f"error: cannot write {out / name}: No space left on device; what was written")
    assert last.endswith(f"fedkin run --resume {out}")
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", "timings.jsonl", "models.safetensors", "result.json"),
        *("checkpoints/round-000004.safetensors", "checkpoints/round-000004.json"),
    ],
)
def test_whatever_cannot_be_written_the_run_resumes_bit_for_bit(name: str, tmp_path: Path, whole: Path) -> None:
    stops_for_want_of_room(WORDS, tmp_path / "run", name, "checkpoints")
    goes_on(tmp_path / "run", whole)


def test_a_mixing_matrix_that_cannot_be_written_is_told_too(tmp_path: Path) -> None:
    words = ("run", "fedavg", *TINY)
    done(*words, "--out", tmp_path / "whole")
    stops_for_want_of_room(words, tmp_path / "run", "mixing/round-000001.safetensors", "config.json")
    goes_on(tmp_path / "run", tmp_path / "whole")


def test_a_disk_that_fails_elsewhere_is_told_in_one_sentence_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("fedkin.simulate.open_engine", full)
    refused(command("run", "fedavg", *TINY, "--out", tmp_path / "run"), "No space left on device: 'somewhere'")


# Ctrl-C


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", "local-only", "--clients", "6", "--rounds", "5000", "--engine", "processes", "--workers", "2"]
    run = subprocess.Popen(
        [sys.executable, "-m", "fedkin", *words, "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore Ctrl-C, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (out / "timings.jsonl").exists() or not (out / "timings.jsonl").read_text().count("\n") > 1:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        workers = psutil.Process(run.pid).children(recursive=True)
        assert len(workers) >= 2
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130
    *progress, last = err.splitlines()
    assert last == f"stopped; go on with: fedkin run --resume {out}"
    assert all(line.startswith("local-only  round ") for line in progress), err
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


def test_ctrl_c_before_a_run_has_begun_ends_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedkin.api.prepare", interrupted)
    said = command("run", "fedavg", *TINY, "--out", tmp_path / "run")
    assert said.code in (1, 130), "which of them is up to typer's version"
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()


def test_ctrl_c_in_a_comparison_names_the_run_that_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedkin.methods.fedprox import FedProx

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FedProx, "aggregate", interrupted)
    said = command("compare", "local-only", "fedprox", *TINY, "--out", tmp_path / "all")
    assert said.code == 130
    last = said.err.splitlines()[-1]
    assert last == f"stopped; go on with: fedkin run --resume {tmp_path / 'all' / 'fedprox-s0'}"
    assert (tmp_path / "all" / "local-only-s0" / "result.json").exists()
