"""The two halves of a real federation, with letters carried by hand in this process."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import three_folders

import fedkin
from fedkin import methods

pytest.importorskip("flwr", reason="real federations need the extra flower")
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from starlette.testclient import TestClient

from fedkin.deploy.at_client import MODEL, Home, answer
from fedkin.deploy.at_server import serve
from fedkin.deploy.folder import certify, make, public_keys
from fedkin.deploy.gate import Gate
from fedkin.deploy.letter import pack, unpack
from fedkin.deploy.post import Came
from fedkin.deploy.terms import FILE, Terms
from fedkin.export import Personal
from fedkin.layout import Layout
from fedkin.runs.folder import EVENTS

NAMES = ("north", "south", "west")
SETTINGS: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 16, "lr": 0.05, "model": "mlp", "seed": 3}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clients with handwritten digits, each with classes of its own and some that are shared."""
    folder = three_folders(tmp_path_factory.mktemp("digits"), NAMES, 120)
    with np.load(folder / NAMES[0] / "samples.npz") as arrays:
        np.savez(folder.parent / f"{folder.name}-public.npz", x=arrays["x"][-20:], y=arrays["y"][-20:])
    return folder


@dataclass
class ByHand:
    """Hands letters to clients in this process, with faults as a test likes."""

    data: Path
    homes: Path
    public: Path | None = None
    base: Path | None = None
    tamper: Callable[[str, bytes], bytes] = lambda name, letter: letter
    """What becomes of an answer on its way."""
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds that a client takes to train."""
    waiting: dict[str, tuple[float, Came]] = field(default_factory=dict)
    seen: list[tuple[str, bytes, bytes]] = field(default_factory=list)

    def online(self) -> dict[bytes, int]:
        return {name.encode(): k for k, name in enumerate(NAMES)}

    def send(self, letter: bytes, node: int, kind: str, ttl: float) -> str:
        name = NAMES[node]
        reply = answer(letter, Home(self.data / name, self.homes / name, self.base, self.public))
        self.seen.append((name, letter, reply))
        id = f"m{len(self.seen)}"
        there = time.monotonic() + (self.slow.get(name, 0.0) if kind == "train" else 0.0)
        self.waiting[id] = (there, Came(id, node, self.tamper(name, reply)))
        return id

    def refused(self) -> list[tuple[bytes, str]]:
        return []

    def answers(self, ids: Iterable[str]) -> list[Came]:
        there = [k for k in ids if k in self.waiting and self.waiting[k][0] <= time.monotonic()]
        return [self.waiting.pop(k)[1] for k in there]


KEYS = {name.encode(): name for name in NAMES}


def terms_for(digits: Path, folder: Path, patience: float = 60.0, public: Path | None = None, **run: Any) -> Terms:
    simulated = fedkin.Federation.from_folder(digits, seed=run.get("seed", SETTINGS["seed"]))
    data = simulated.data
    samples = {"shape": data.x.shape[1:], "pixels": True, "classes": data.classes, "mean": data.mean, "std": data.std}
    values = {"clients": NAMES, "run": SETTINGS | run, "samples": samples, "server": {"patience": patience}}
    terms = Terms.of(values, "test")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(terms.to_toml())
    if public:
        shutil.copy(public, folder / "public.npz")
    return terms


def asked(by_hand: ByHand) -> tuple[str, int]:
    """What the last letter asked for, and in which round."""
    about = unpack(by_hand.seen[-1][1])[1]
    return about["function"], about["round"]


def models_of(homes: Path) -> list[torch.Tensor]:
    models = []
    for name in NAMES:
        network = Personal.from_file(homes / name / MODEL).networks[""]
        models.append(Layout(network).flatten(network))
    return models


@pytest.mark.parametrize("method", sorted(methods.registry().keys() - {"fedmd"}))
def test_a_federation_ends_with_the_models_of_the_simulation(method: str, digits: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"schedule": "stragglers:1" if method in ("plga", "lga") else "sync"}
    terms_for(digits, tmp_path / "fed", method=method, **settings)
    homes = tmp_path / "homes"
    result = serve(ByHand(digits, homes), KEYS, tmp_path / "fed", tmp_path / "fed/runs/one")
    simulated = fedkin.run(method, data=str(digits), engine="inline", vectorize="off", **settings)
    for i, own in enumerate(models_of(homes)):
        torch.testing.assert_close(own, simulated.models[i], rtol=0, atol=0)
    assert result.score.correct == simulated.score.correct
    assert not (tmp_path / "fed/runs/one" / EVENTS).exists()


def test_fedmd_distils_on_public_samples_that_everybody_has(digits: Path, tmp_path: Path) -> None:
    public = digits.parent / f"{digits.name}-public.npz"
    terms_for(digits, tmp_path / "fed", method="fedmd", public=public)
    result = serve(ByHand(digits, tmp_path, public), KEYS, tmp_path / "fed", tmp_path / "run")
    assert len(result.history) == 2
    assert all(total > 0 for total in result.score.total)


def test_a_server_that_stops_goes_on_from_its_checkpoint_and_clients_with_the_private_state_of_then(
    digits: Path, tmp_path: Path
) -> None:
    terms_for(digits, tmp_path / "fed", method="fedsimsup", rounds=4, join=1.0)

    class Stop(Exception):
        pass

    def stopping(name: str, reply: bytes) -> bytes:
        # In the middle of the third round: north's private state is ahead of what the server knows.
        if (name, *asked(by_hand)) == ("south", "local", 3):
            raise Stop
        return reply

    by_hand = ByHand(digits, tmp_path / "homes", tamper=stopping)
    with pytest.raises(Stop):
        serve(by_hand, KEYS, tmp_path / "fed", tmp_path / "run")
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2
    serve(ByHand(digits, tmp_path / "homes"), KEYS, tmp_path / "fed", tmp_path / "run")
    serve(ByHand(digits, tmp_path / "others"), KEYS, tmp_path / "fed", tmp_path / "straight")
    for own, reference in zip(models_of(tmp_path / "homes"), models_of(tmp_path / "others"), strict=True):
        torch.testing.assert_close(own, reference, rtol=0, atol=0)


def events(run: Path) -> list[dict[str, str]]:
    path = run / EVENTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_client_that_lost_its_disk_begins_anew_and_that_is_recorded(digits: Path, tmp_path: Path) -> None:
    terms_for(digits, tmp_path / "fed", method="scaffold", rounds=3, evaluate_every=3)

    def forgetting(name: str, reply: bytes) -> bytes:
        if (name, *asked(by_hand)) == ("south", "local", 1):
            shutil.rmtree(tmp_path / "homes/south")
        return reply

    by_hand = ByHand(digits, tmp_path / "homes", tamper=forgetting)
    result = serve(by_hand, KEYS, tmp_path / "fed", tmp_path / "run")
    assert [(e["client"], e["event"]) for e in events(tmp_path / "run")] == [("south", "begins anew")]
    assert all(len(r.participants) == 3 for r in result.history)


def changed(reply: bytes, about: dict[str, Any] | None = None, **values: Any) -> bytes:
    message, head = unpack(reply)
    if "steps" not in head:
        return reply
    return pack({**message, **{k: f(message[k]) for k, f in values.items()}}, head | (about or {}))


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "NaN": (lambda r: changed(r, w=lambda w: w * torch.nan), "NaN"),
    "a wrong shape": (lambda r: changed(r, w=lambda w: w[:-1]), "expected"),
    "a wrong type": (lambda r: changed(r, w=lambda w: w.double()), "expected"),
    "a huge array": (lambda r: changed(r, w=lambda w: torch.zeros(100_000_000 // 4)), "bytes"),
    "another's id": (lambda r: changed(r, {"client": 0}), "another client"),
    "another letter's number": (lambda r: changed(r, {"nonce": "0"}), "another letter"),
    "a huge weight": (lambda r: changed(r, n=lambda n: 1e30), "samples"),
    "no version": (lambda r: changed(r, {"version": 7}), "what it did"),
    "noise": (lambda r: b"\x80\x04" + bytes(range(256)), "not a letter"),
    "nothing": (lambda r: b"", "not a letter"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_client_that_sends_rubbish_is_left_out_and_the_run_goes_on(fault: str, digits: Path, tmp_path: Path) -> None:
    terms_for(digits, tmp_path / "fed", method="fedavg", evaluate_every=2)
    spoil, why = BAD[fault]
    by_hand = ByHand(digits, tmp_path, tamper=lambda name, reply: spoil(reply) if name == "south" else reply)
    result = serve(by_hand, KEYS, tmp_path / "fed", tmp_path / "run")
    assert [r.participants for r in result.history] == [[0, 2], [0, 2]]
    assert {e["client"] for e in events(tmp_path / "run")} == {"south"}
    assert any("refused" in e["why"] and why in e["why"] for e in events(tmp_path / "run"))
    simulated = fedkin.run("fedavg", data=str(digits), **SETTINGS)
    assert torch.isfinite(models_of(tmp_path)[0]).all()
    assert not torch.equal(models_of(tmp_path)[0], simulated.models[0])


def test_when_nobody_replies_the_run_stops_and_can_be_gone_on_with(digits: Path, tmp_path: Path) -> None:
    terms_for(digits, tmp_path / "fed", method="fedavg")
    with pytest.raises(fedkin.FedkinError, match="none of the clients"):
        serve(ByHand(digits, tmp_path, tamper=lambda *_: b""), KEYS, tmp_path / "fed", tmp_path / "run")
    result = serve(ByHand(digits, tmp_path), KEYS, tmp_path / "fed", tmp_path / "run")
    assert len(result.history) == 2


@pytest.mark.parametrize(("method", "late", "fate"), [("plga", "stale", "leapt"), ("fedavg", "drop", "dropped")])
def test_the_server_acts_on_the_first_replies_and_late_ones_come_in_as_stragglers(
    method: str, late: str, fate: str, digits: Path, tmp_path: Path
) -> None:
    terms_for(
        digits, tmp_path / "fed", method=method, late=late, rounds=6, schedule="latency:first=2", evaluate_every=6
    )
    result = serve(ByHand(digits, tmp_path, slow={"west": 0.5, "north": 0.1}), KEYS, tmp_path / "fed", tmp_path / "run")
    tasks = [task for r in result.history for task in r.tasks]
    assert {task.fate for task in tasks if task.client == 2} >= {fate}
    assert all(r.time is not None for r in result.history)
    assert [len(r.participants) for r in result.history] == [2] * 6
    assert all(torch.isfinite(w).all() for w in models_of(tmp_path))


# SCAFFOLD sends how its c_i changed, so the server knows the sum, and L2GD collects whole models.
KEEPING = ("fedsimsup", "fedper", "fedrep", "lg-fedavg", "ditto", "apfl", "fedbn")


@pytest.mark.parametrize("method", ["spfl", "pfedsim", "plga", "fedalp", *KEEPING])
def test_no_letter_to_the_server_holds_samples_labels_or_private_state(
    method: str, digits: Path, tmp_path: Path
) -> None:
    model = "lenet5-bn" if method == "fedbn" else SETTINGS["model"]
    data, run = digits, SETTINGS
    if method == "fedbn":
        data = tmp_path / "large"
        for name in NAMES:
            with np.load(digits / name / "samples.npz") as arrays:
                large = np.pad(arrays["x"], ((0, 0), (0, 0), (12, 12), (12, 12)))
                (data / name).mkdir(parents=True)
                np.savez(data / name / "samples.npz", x=large[:40], y=arrays["y"][:40])
    terms_for(data, tmp_path / "fed", **(run | {"method": method, "model": model}))
    by_hand = ByHand(data, tmp_path / "homes")
    serve(by_hand, KEYS, tmp_path / "fed", tmp_path / "run")
    private = []
    for path in (tmp_path / "homes").rglob("private/*/*.safetensors"):
        values, _ = unpack(path.read_bytes())
        private += [v for v in values.values() if isinstance(v, torch.Tensor) and v.numel() > 4 and v.any()]
    assert bool(private) == (method in KEEPING)
    for name, _, reply in by_hand.seen:
        values, about = unpack(reply)
        assert about.keys() <= {"nonce", "client", "version", "loss", "steps", "scored"}
        with np.load(data / name / "samples.npz") as arrays:
            for array in (arrays["x"], arrays["y"], arrays["x"].astype(np.float32), arrays["y"].astype(np.float32)):
                assert array[:8].tobytes() not in reply
        for tensor in private:
            assert tensor.numpy().tobytes() not in reply
        # Counts of labels are nowhere but in FedSimSup's own exchange, where they are its equation 7.
        assert method == "fedsimsup" or not any("label" in key for key in values)


def test_a_client_answers_nothing_but_what_clients_do(digits: Path, tmp_path: Path) -> None:
    terms = terms_for(digits, tmp_path / "fed", method="fedavg").model_dump_json()
    home = Home(digits / "north", tmp_path / "home")
    about = {"terms": terms, "run": "r", "function": "local", "client": 0, "round": 1, "exchange": "train"}
    about |= {"version": "", "extra": [], "nonce": "n"}

    def ask(**change: Any) -> dict[str, Any]:
        return unpack(answer(pack({"w": torch.zeros(8970)}, about | change), home))[1]

    assert ask()["steps"] > 0
    for change in ({"function": "keep"}, {"function": "__init__"}, {"client": 3}, {"client": -1}, {"terms": "{}"}):
        assert "failed" in ask(**change)
    for change in ({"run": "../../etc"}, {"version": "../1-train"}, {"run": ""}):
        assert ask(**change)["failed"] == "FedkinError"
    assert unpack(answer(b"rubbish", home))[1]["failed"] == "FedkinError"
    assert ask(version="000009-train")["failed"] == "lost"
    assert not list(tmp_path.rglob("etc"))


def test_a_client_whose_data_do_not_fit_is_left_out_and_only_its_own_log_says_why(
    digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(digits, data)
    with np.load(data / "west/samples.npz") as arrays:
        np.savez(data / "west/samples.npz", x=arrays["x"], y=np.array(["secret"] * len(arrays["y"])))
    terms_for(digits, tmp_path / "fed", method="fedavg", evaluate_every=2)
    result = serve(ByHand(data, tmp_path), KEYS, tmp_path / "fed", tmp_path / "run")
    assert [r.participants for r in result.history] == [[0, 1], [0, 1]]
    assert result.score.total[2] == 0
    assert np.isnan(result.score.clients[2])
    assert "secret" not in (tmp_path / "run" / EVENTS).read_text()
    assert "secret" in capfd.readouterr().err


OWN_METHOD = """
from fedkin.methods.fedavg import FedAvg

class Half(FedAvg):
    name = "half"
    def local(self, client, message):
        reply = super().local(client, message)
        return reply | {"w": (reply["w"] + message["w"]) / 2}
"""


def test_a_method_of_the_users_own_travels_with_the_federation(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(OWN_METHOD)
    terms = terms_for(digits, tmp_path / "any", method="half.py:Half").complete(tmp_path)
    make(tmp_path / "fed", terms, tmp_path / "half.py")
    assert Terms.read(tmp_path / "fed").run == {k: v for k, v in terms.run.items() if v != {}}
    assert set(public_keys(tmp_path / "fed").values()) == set(NAMES)
    carried = tmp_path / "carried"  # what Flower brings to a client
    carried.mkdir()
    shutil.copy(tmp_path / "fed/half.py", carried)
    homes = tmp_path / "homes"
    serve(ByHand(digits, homes, base=carried), KEYS, tmp_path / "fed", tmp_path / "run")
    simulated = fedkin.run(
        str(tmp_path / "half.py:Half"), data=str(digits), engine="inline", vectorize="off", **SETTINGS
    )
    for i, own in enumerate(models_of(homes)):
        torch.testing.assert_close(own, simulated.models[i], rtol=0, atol=0)
    with pytest.raises(fedkin.FedkinError, match="not empty"):
        make(tmp_path / "fed", terms)


def test_an_answer_that_is_too_long_is_told_once_however_many_parts_it_comes_in(tmp_path: Path) -> None:
    """What is told once more would be held against the client's next answer."""
    refusals, authority = tmp_path / "refusals", tmp_path / "ca.crt"
    authority.write_bytes(certify(tmp_path, ["127.0.0.1"]))
    gate = Gate("https://127.0.0.1:1", authority, [b"key"], 100, refusals)
    known = {FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(b"key").decode()}
    with TestClient(gate.app(), headers=known) as node:
        for answer in (1, 2):
            node.post("/v1/fleet/push-messages", content=PushMessagesRequest().SerializeToString())
            parts = [node.post("/v1/fleet/push-object", content=bytes(size)) for size in (101, 101, 70, 70)]
            assert [part.status_code for part in parts] == [413, 413, 503, 413]
            assert len(refusals.read_text().splitlines()) == answer


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"clients": ["one"]}, "at least two clients"),
        ({"clients": ["a", "a"]}, "at least two clients"),
        ({"clients": ["a", "../b"]}, "letters, digits"),
        ({"run": {"method": "nonsense"}}, "unknown method"),
        ({"run": {"judge_union": True}}, "for simulations"),
        ({"run": {"schedule": "latency:trace=x.csv"}}, "no file|own delays|x.csv"),
        ({"server": {"port": 0}}, "greater than or equal to 1"),
        ({"samples": {}}, "shape|required"),
        ({"colour": "blue"}, "not permitted|Extra"),
    ],
)
def test_terms_that_cannot_be_are_refused_in_a_sentence(
    change: dict[str, Any], told: str, digits: Path, tmp_path: Path
) -> None:
    values = json.loads(terms_for(digits, tmp_path).model_dump_json()) | change
    with pytest.raises(fedkin.FedkinError, match=told):
        Terms.of(values, "settings.toml").setup()
