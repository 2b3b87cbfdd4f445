"""Flower's programs, started and stopped with us."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from fedkin.errors import FedkinError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}
"""Flower asks nobody on the internet and installs nothing."""
GRACE = 10.0


def environment(home: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """For a Flower program with its own home; programs beside this Python are found first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path, **(more or {})}


def program(name: str) -> str:
    """The whole path of a program."""
    found = shutil.which(name, path=environment(Path())["PATH"])
    if not found:
        raise FedkinError(f"{name} is not here: real federations need Flower, pip install 'fedkin[flower]'")
    return found


def free_port() -> int:
    """A port on loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody does."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


class Programs:
    """Programs that run side by side; leaving the block ends them."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, args: Sequence[str], env: Mapping[str, str], log: Path, name: str | None = None) -> None:
        """Start one, its output going to a file."""
        with log.open("ab") as file:
            self.running[name or args[0]] = subprocess.Popen(
                [program(args[0]), *args[1:]], env=dict(env), stdout=file, stderr=file, start_new_session=True
            )

    def ended(self) -> str | None:
        """The name of a program that is no longer running."""
        return next((name for name, process in self.running.items() if process.poll() is not None), None)

    def stop(self, name: str) -> None:
        """End one, and what it has started."""
        process = self.running.pop(name)
        for kind in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, kind)
                process.wait(GRACE)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        process.wait()

    def wait_for(self, port: int, log: Path, seconds: float = 60.0) -> None:
        """Until somebody listens."""
        end = time.monotonic() + seconds
        while not listening(port):
            if (name := self.ended()) or time.monotonic() > end:
                raise FedkinError(f"{name or 'Flower'} did not start: {last_words(log)}")
            time.sleep(0.1)

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name in list(self.running)[::-1]:
            self.stop(name)


def last_words(log: Path) -> str:
    """The end of a log."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    return f"{' '.join(lines[-3:])[-400:]} (all of it in {log})"
