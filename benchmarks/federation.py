"""What a trip from the server to all clients and back costs in a real federation, on this machine.

    python benchmarks/federation.py [--clients 3] [--rounds 6]

Clients run once as `fedkin client` and once as Flower's own programs, which load PyTorch for every message; the
training itself, of a small network on a few hundred digits, takes some hundredths of a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedkin.deploy.programs import Programs, environment, free_port, listening


def fedkin(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "fedkin", *args], check=True, capture_output=True)


def trips(folder: Path, data: Path, names: list[str], plain: bool, port: int) -> list[float]:
    """Seconds of each round's trip after the first."""
    with Programs() as programs:
        log = folder / "log.txt"
        programs.start([sys.executable, "-m", "fedkin", "server", str(folder)], os.environ, log, "server")
        while not listening(port):
            time.sleep(0.2)
        for name in names:
            home = folder / "clients" / name
            if plain:
                node = [
                    *("flower-supernode", "--superlink", f"127.0.0.1:{port}"),
                    *("--root-certificates", str(home / "ca.crt")),
                    *("--auth-supernode-private-key", str(home / "node.key"), "--port", str(free_port())),
                    *("--node-config", f'data="{data / name}" home="{home / "state"}"'),
                ]  # fmt: skip
                env = environment(home / "flower")
                del env["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
                programs.start(node, env, log, name)
            else:
                node = [
                    sys.executable,
                    "-m",
                    "fedkin",
                    "client",
                    str(folder),
                    "--name",
                    name,
                    "--data",
                    str(data / name),
                ]
                programs.start(node, os.environ, log, name)
        fedkin("start", str(folder))
    [run] = (folder / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    return [line["train"] for line in lines[1:]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        fedkin("data", "folders", "digits", str(root / "data"), "--clients", str(given.clients), "--partition", "iid")
        names = sorted(path.name for path in (root / "data").iterdir())
        for plain in (False, True):
            folder, port = root / f"plain-{plain}", free_port()
            fedkin(
                *("federation", "init", str(folder), "--clients", ",".join(names), "--like", "digits"),
                *("--method", "fedavg", "--rounds", str(given.rounds), "--evaluate-every", str(given.rounds)),
                *("--epochs", "1", "--port", str(port)),
            )
            seconds = trips(folder, root / "data", names, plain, port)
            kind = "Flower's own programs" if plain else "fedkin client"
            print(f"{kind}: {statistics.median(seconds):.1f} s a trip ({min(seconds):.1f} to {max(seconds):.1f})")


if __name__ == "__main__":
    main()
