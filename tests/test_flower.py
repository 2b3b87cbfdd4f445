"""A real federation on loopback: Flower's SuperLink and three SuperNodes as processes, with TLS and keys."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import three_folders

import fedkin

pytest.importorskip("flwr", reason="real federations need the extra flower")

import httpx

from fedkin.deploy.at_client import MODEL
from fedkin.deploy.control import inner_port
from fedkin.deploy.folder import ClientFolder, public_keys
from fedkin.deploy.programs import environment, free_port
from fedkin.deploy.terms import FILE, Terms
from fedkin.export import Personal
from fedkin.layout import Layout

pytestmark = pytest.mark.slow
NAMES = ("north", "south", "west")
SETTINGS: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 16, "lr": 0.05, "seed": 3, "evaluate_every": 2}
STEADY = {"join": 1.0, "schedule": "sync", "late": "stale"}


@dataclass
class Party:
    """A federation in a folder, with its programs."""

    folder: Path
    data: Path
    port: int
    running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, name: str, *args: str, **env: str) -> subprocess.Popen[str]:
        log = (self.folder.parent / f"{name}.txt").open("w")
        command = [sys.executable, "-m", "fedkin", *args]
        process = subprocess.Popen(
            command, stdout=log, stderr=log, text=True, start_new_session=True, env={**os.environ, **env}
        )
        self.running[name] = process
        return process

    def serve(self) -> None:
        self.start("server", "server", str(self.folder))
        self.wait(lambda: "serving" in self.said("server"))

    def join(self, name: str, **env: str) -> None:
        self.start(name, "client", str(self.folder), "--name", name, "--data", str(self.data / name), **env)

    def said(self, name: str) -> str:
        path = self.folder.parent / f"{name}.txt"
        return path.read_text() if path.exists() else ""

    def stop(self, name: str, kind: signal.Signals = signal.SIGTERM) -> None:
        process = self.running.pop(name)
        if kind is signal.SIGKILL:
            for each in family(process.pid):
                os.kill(each, kind)
        else:
            process.send_signal(kind)
        process.wait(30)

    def wait(self, ready: Callable[[], bool], seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not ready():
            gone = [name for name, p in self.running.items() if p.poll() is not None]
            assert not gone, f"{gone}: {self.said(gone[0])}"
            assert time.monotonic() < end, {name: self.said(name)[-2000:] for name in self.running}
            time.sleep(0.1)

    def agree(self, **run: Any) -> None:
        """Write new terms; a run reads them when it starts."""
        terms = Terms.read(self.folder)
        whole = terms.model_copy(update={"run": SETTINGS | STEADY | {"model": "mlp"} | run}).complete()
        (self.folder / FILE).write_text(whole.to_toml())

    def run(self, *more: str, seconds: float = 240) -> dict[str, Any]:
        command = [sys.executable, "-m", "fedkin", "start", str(self.folder), "--json", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, done.stderr + done.stdout + self.log()
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    def log(self) -> str:
        return (self.folder / "server/server.log").read_text()[-3000:]

    def home(self, name: str) -> Path:
        return self.folder / "clients" / name / "state"

    def model(self, name: str) -> torch.Tensor:
        network = Personal.from_file(self.home(name) / MODEL).networks[""]
        return Layout(network).flatten(network)


def family(pid: int) -> list[int]:
    """A process and all that it has started."""
    import psutil

    process = psutil.Process(pid)
    return [p.pid for p in (*process.children(recursive=True), process)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_folders(tmp_path_factory.mktemp("data"), NAMES)


@pytest.fixture(scope="module")
def party(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Party]:
    folder, port = tmp_path_factory.mktemp("party") / "fed", free_port()
    made = subprocess.run(
        [
            *(sys.executable, "-m", "fedkin", "federation", "init", str(folder), "--clients", ",".join(NAMES)),
            *("--like", str(digits), "--method", "spfl", "--port", str(port), "--patience", "200"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    party = Party(folder, digits, port)
    try:
        party.serve()
        for name in NAMES:
            party.join(name)
        yield party
    finally:
        for name in list(party.running)[::-1]:
            if party.running[name].poll() is None:
                party.stop(name)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("spfl", {}),
        ("pfedsim", {"set": {"rho": 0.5}}),
        ("plga", {"schedule": "stragglers:1", "rounds": 3, "evaluate_every": 3}),
    ],
)
def test_a_federation_of_processes_ends_with_the_models_of_the_simulation(
    method: str, more: dict[str, Any], party: Party
) -> None:
    """FedSimSup does so further down, with a node and with the server killed."""
    party.agree(method=method, **more)
    result = party.run()
    settings = SETTINGS | STEADY | {"model": "mlp"} | more
    hyper = settings.pop("set", {})
    simulated = fedkin.run(method, data=str(party.data), engine="inline", vectorize="off", **settings, **hyper)
    for i, name in enumerate(NAMES):
        torch.testing.assert_close(party.model(name), simulated.models[i], rtol=0, atol=0)
    assert result["accuracy"] == simulated.accuracy
    assert result["folder"].startswith(str(party.folder / "runs"))
    predicts(party, "west")


def predicts(party: Party, name: str) -> None:
    """A client uses its own model on its own disk."""
    sample = party.folder.parent / "sample.npy"
    with np.load(party.data / name / "samples.npz") as arrays:
        np.save(sample, arrays["x"][0])
    command = [sys.executable, "-m", "fedkin", "predict", str(party.home(name) / MODEL), str(sample), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {str(k) for k in range(10)}


# A stranger at the gate.


def outside(party: Party) -> httpx.Client:
    authority = str(party.folder / "server/ca.crt")
    import ssl

    return httpx.Client(base_url=f"https://127.0.0.1:{party.port}", verify=ssl.create_default_context(cafile=authority))


def signed(key: Any) -> dict[str, str]:
    """The headers of a node with a key, as Flower's own nodes send them."""
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    stamp = now().isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public_key_to_bytes(key.public_key())).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(key, stamp.encode())).decode(),
        "content-type": "application/protobuf",
    }


def test_a_stranger_can_neither_register_a_key_nor_submit_a_run_nor_take_a_task(party: Party) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key = ec.generate_private_key(ec.SECP384R1())
    mine = public_key_to_bytes(key.public_key())
    with outside(party) as client:
        for path, request in {
            "control/register-node": RegisterNodeRequest(public_key=mine),
            "control/start-run": StartRunRequest(),
            "control/list-nodes": None,
            "control/stream-logs": None,
            "runtime/acquire-task": AcquireTaskRequest(),
            "runtime/push-messages": None,
            "fleet/register-node": RegisterNodeFleetRequest(public_key=mine),
            "fleet/unregister-node": None,
            "health": None,
            "../v1/control/list-nodes": None,
            "fleet/../control/list-nodes": None,
            "fleet/%2e%2e/control/list-nodes": None,
        }.items():
            body = request.SerializeToString() if request else b""
            for headers in ({}, signed(key)):
                answer = client.post(f"/v1/{path}", content=body, headers=headers)
                assert answer.status_code in (401, 404), (path, answer.status_code, answer.text)
        for name, request in (("activate-node", ActivateNodeRequest(public_key=mine)), ("get-fab", None)):
            body = request.SerializeToString() if request else b""
            for headers in ({}, signed(key), {"flwr-public-key": "rubbish"}):
                assert client.post(f"/v1/fleet/{name}", content=body, headers=headers).status_code == 401
        assert client.get("/v1/fleet/pull-messages").status_code == 405
        assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def test_a_node_with_a_key_cannot_speak_for_another_or_send_more_than_a_few_models(party: Party) -> None:
    from cryptography.hazmat.primitives import serialization
    from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    from fedkin.deploy.control import Control

    home = party.folder / "clients/north"
    key = serialization.load_ssh_private_key((home / "node.key").read_bytes(), None)
    from flwr.proto.control_pb2 import ListNodesRequest

    nodes = Control(party.folder, inner_port(party.folder)).client.ListNodes(ListNodesRequest()).nodes_info
    names = public_keys(party.folder)
    ids = {names[node.public_key]: node.node_id for node in nodes}
    forged = Message(metadata=Metadata(src_node_id=ids["south"], dst_node_id=1))
    with outside(party) as client:
        push = PushMessagesRequest(node=Node(node_id=ids["north"]), messages_list=[forged]).SerializeToString()
        assert client.post("/v1/fleet/push-messages", content=push, headers=signed(key)).status_code == 403
        pull = PullMessagesRequest(node=Node(node_id=ids["south"])).SerializeToString()
        assert client.post("/v1/fleet/pull-messages", content=pull, headers=signed(key)).status_code == 401
        huge = client.post("/v1/fleet/push-object", content=bytes(64 << 20), headers=signed(key))
        assert huge.status_code == 413


def test_plain_text_is_refused_and_flower_itself_listens_on_loopback_only(party: Party) -> None:
    with socket.create_connection(("127.0.0.1", party.port), timeout=5) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        plain.settimeout(10)
        try:
            came = plain.recv(4096)
        except ConnectionError:
            came = b""
    assert b"200" not in came
    import psutil

    inner = inner_port(party.folder)
    own = {pid for process in party.running.values() for pid in family(process.pid)}
    listening = [c for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in own]
    assert {inner, party.port} <= {c.laddr.port for c in listening}
    assert {c.laddr.ip for c in listening} <= {"127.0.0.1"}


def test_private_files_can_be_read_by_their_owner_only(party: Party) -> None:
    secrets = [party.folder / "server/server.key", party.folder / "server/secret"]
    secrets += [party.folder / "clients" / name / "node.key" for name in NAMES]
    assert all(oct(path.stat().st_mode)[-3:] == "600" for path in secrets)
    assert all(oct(path.stat().st_mode)[-3:] == "700" for path in (party.folder / "server", party.folder / "clients"))
    # What Flower sends to every node, and what `git add` would take, has none of them.
    built = subprocess.run(
        [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(party.folder)],
        cwd=party.folder.parent,
        env=environment(party.folder.parent / "builder"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    import zipfile

    [fab] = party.folder.parent.glob("*.fab")
    names = zipfile.ZipFile(fab).namelist()
    assert "federation_app.py" in names
    assert not any(part in name for name in names for part in ("clients", "server", "settings", ".key"))


# Faults.


def test_a_node_that_is_killed_in_mid_round_and_restarted_gets_its_own_back(party: Party) -> None:
    party.agree(method="fedsimsup", rounds=4, evaluate_every=4)
    command = [sys.executable, "-m", "fedkin", "start", str(party.folder), "--json"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = newest(party)
    party.wait(lambda: (folder() / "metrics.jsonl").exists() and len(lines(folder())) >= 1, 120)
    party.stop("south", signal.SIGKILL)
    party.join("south")
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err + party.log() + party.said("south")
    result = json.loads(out.splitlines()[-1])
    settings = SETTINGS | STEADY | {"model": "mlp", "rounds": 4, "evaluate_every": 4}
    simulated = fedkin.run("fedsimsup", data=str(party.data), engine="inline", vectorize="off", **settings)
    for i, name in enumerate(NAMES):
        torch.testing.assert_close(party.model(name), simulated.models[i], rtol=0, atol=0)
    assert result["accuracy"] == simulated.accuracy


def newest(party: Party) -> Callable[[], Path]:
    before = set((party.folder / "runs").iterdir())
    return lambda: next(iter(set((party.folder / "runs").iterdir()) - before), Path("none"))


def lines(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def test_a_server_that_is_killed_goes_on_from_its_checkpoint(party: Party) -> None:
    party.agree(method="fedsimsup", rounds=4, evaluate_every=4)
    command = [sys.executable, "-m", "fedkin", "start", str(party.folder)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = newest(party)
    party.wait(lambda: (folder() / "metrics.jsonl").exists() and len(lines(folder())) >= 2, 120)
    party.stop("server", signal.SIGKILL)
    run.kill()
    run.communicate()
    assert len(lines(folder())) < 4
    time.sleep(1)
    party.serve()
    party.run("--resume", folder().name, seconds=300)
    settings = SETTINGS | STEADY | {"model": "mlp", "rounds": 4, "evaluate_every": 4}
    simulated = fedkin.run("fedsimsup", data=str(party.data), engine="inline", vectorize="off", **settings)
    for i, name in enumerate(NAMES):
        torch.testing.assert_close(party.model(name), simulated.models[i], rtol=0, atol=0)


ROGUE = """
import os, sys
if "fedkin.deploy.warm" in sys.orig_argv:
    import torch
    import fedkin.deploy.at_client as at_client
    from fedkin.deploy.letter import pack, unpack
    honest = at_client.answer
    def answer(content, home):
        about = unpack(content)[1]
        message, head = unpack(honest(content, home))
        if about["function"] == "local":
            fault = about["round"]
            if fault == 1: message["w"] = message["w"] * torch.nan
            if fault == 2: message["w"] = message["w"][:7]
            if fault == 3: message["w"] = torch.zeros(8_000_000)
            if fault == 4: head["client"] = 0
        return pack(message, head)
    at_client.answer = answer
"""


def test_a_rogue_node_and_nodes_without_the_right_key_are_refused_and_the_run_goes_on(
    party: Party, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(ROGUE)
    party.stop("south")
    party.join("south", PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    # One with a key of its own making, one without a key, one in plain text.
    strange = tmp_path / "strange"
    shutil.copytree(party.folder / "clients/west", strange, ignore=shutil.ignore_patterns("state", "flower"))
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    own = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    (strange / "node.key").write_bytes(
        own.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )
    node = [str(Path(sys.executable).parent / "flower-supernode"), "--superlink", f"127.0.0.1:{party.port}"]
    trust = ["--root-certificates", str(strange / "ca.crt")]
    ways = ([*trust, "--auth-supernode-private-key", str(strange / "node.key")], trust, ["--insecure"])
    strangers = [
        subprocess.Popen(
            [*node, "--port", str(free_port()), "--max-retries", "1", *way],
            env=environment(tmp_path / f"home{k}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k, way in enumerate(ways)
    ]
    party.agree(method="fedavg", rounds=4, evaluate_every=4)
    result = party.run()
    run = Path(result["folder"])
    rounds = [json.loads(line) for line in lines(run)]
    assert [r["participants"] for r in rounds] == [[0, 2]] * 4
    told = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert {event["client"] for event in told} == {"south"}
    whys = " ".join(event["why"] for event in told)
    for word in ("NaN", "expected", "bytes", "another client"):
        assert word in whys
    for process in strangers:
        process.kill()
        assert "SuperNode ID" not in process.communicate()[0]
    party.stop("south")
    party.join("south")


def test_real_lateness_makes_stragglers_of_plga(party: Party) -> None:
    party.agree(method="plga", rounds=4, evaluate_every=4, schedule="latency:first=2")
    result = party.run()
    rounds = [json.loads(line) for line in lines(Path(result["folder"]))]
    assert all(len(r["participants"]) >= 2 for r in rounds)
    assert all(r["time"] > 0 for r in rounds)
    assert {task[4] for r in rounds for task in r["tasks"]} <= {"in time", "leapt"}


def test_the_folder_of_a_client_alone_is_enough_for_it(party: Party, tmp_path: Path) -> None:
    copy = tmp_path / "carried"
    shutil.copytree(party.folder / "clients/west", copy, ignore=shutil.ignore_patterns("state", "flower"))
    found = ClientFolder.find(copy, None)
    assert (found.name, found.server) == ("west", f"127.0.0.1:{party.port}")
    with pytest.raises(fedkin.FedkinError, match="belongs to west"):
        ClientFolder.find(copy, "north")
    assert sorted(p.name for p in copy.iterdir() if "log" not in p.name and p.name != "secret") == [
        "ca.crt", "client.toml", "node.key", "node.pub",
    ]  # fmt: skip
