"""Tell a federation's server what to do, from the machine that it runs on."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedkin.deploy.folder import CA, LOOPBACK
from fedkin.deploy.programs import environment, program
from fedkin.errors import FedkinError

NAME = "fedkin"
"""Of the connection in Flower's own configuration."""
FLOWER = "flower"
"""What Flower keeps, in the folder of a server or a client."""


def write_connection(folder: Path, port: int) -> None:
    """Tell Flower's commands where the server listens: `FLWR_HOME=DIR/server/flower flwr run DIR fedkin`."""
    home = folder / "server" / FLOWER
    home.mkdir(exist_ok=True)
    lines = ["[superlink]", f'default = "{NAME}"', "", f"[superlink.{NAME}]", f'address = "{LOOPBACK}:{port}"']
    lines.append(f"root-certificates = {json.dumps(str((folder / 'server' / CA).resolve()))}")
    (home / "config.toml").write_text("\n".join(lines) + "\n", "utf-8")


def inner_port(folder: Path) -> int:
    """The port on loopback that the server's Flower listens on."""
    try:
        text = (folder / "server" / FLOWER / "config.toml").read_text("utf-8")
        return int(tomllib.loads(text)["superlink"][NAME]["address"].rpartition(":")[2])
    except (OSError, ValueError, KeyError):
        raise FedkinError(f"the server of {folder} is not running: start it with fedkin server {folder}") from None


class Control:
    """Flower's control interface, on loopback."""

    def __init__(self, folder: Path, port: int) -> None:
        from flwr.supercore.control.control_http_client import ControlHttpClient

        authority = (folder / "server" / CA).read_bytes()
        self.client = ControlHttpClient.from_server_address(f"{LOOPBACK}:{port}", False, authority, ())

    def register(self, keys: Mapping[bytes, str]) -> None:
        """Let the nodes with these keys in, and no others that were let in before."""
        from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest

        known = {node.public_key: node.node_id for node in self.client.ListNodes(ListNodesRequest()).nodes_info}
        for key, name in keys.items():
            if key not in known:
                self.client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
        for key in known.keys() - keys.keys():
            self.client.UnregisterNode(UnregisterNodeRequest(node_id=known[key]))

    def status(self, run: int) -> tuple[str, str]:
        """Where a run stands and, if it has ended, how."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self.client.ListRuns(ListRunsRequest(run_id=run)).run_dict[run].status
        return found.status, f"{found.sub_status} {found.details}".strip()


def submit(folder: Path, run: str) -> int:
    """Submit the federation's app; Flower's number of the run."""
    home = folder / "server" / FLOWER
    inner_port(folder)
    args = [program("flwr"), "run", str(folder), NAME, "--run-config", f'run="{run}"', "--format", "json"]
    done = subprocess.run(args, env=environment(home), capture_output=True, text=True, check=False)
    for answer in _objects(done.stdout):
        if answer.get("run-id"):
            return int(answer["run-id"])
    words = " ".join((done.stdout + done.stderr).split())[-400:]
    raise FedkinError(f"the run could not be submitted; is fedkin server running? Flower says: {words}")


def _objects(text: str) -> Iterable[dict[str, Any]]:
    start = text.find("{")
    try:
        yield json.loads(text[start:]) if start >= 0 else {}
    except ValueError:
        return
