"""Same seed, same bits: on every engine, with any number of workers, stopped and resumed."""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import blobs as make_blobs
from conftest import pictures as make_pictures
from stopping import Stop, same, stop_after

import fedkin
from fedkin import Federation, FedkinError
from fedkin.api import prepare
from fedkin.engine import shared_workers
from fedkin.engine.inline import Inline
from fedkin.engine.processes import Pool
from fedkin.engine.worker import Scored, Worker
from fedkin.methods import registry
from fedkin.runs.folder import EVENTS, METRICS, RunFolder
from fedkin.simulate import Simulation

SETTINGS: dict[str, Any] = {
    "rounds": 4,
    "epochs": 1,
    "batch": 8,
    "lr": 0.05,
    "join": 0.5,
    "checkpoint_every": 2,
}


@pytest.fixture(scope="module", params=[1, 2, 4])
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    with shared_workers(request.param):
        yield request.param


@cache
def inline(name: str, model: str) -> fedkin.Result:
    return fedkin.run(name, engine="inline", data=make_pictures(), model=model, **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", registry())
def test_every_engine_gives_the_same_bits(name: str, workers: int) -> None:
    # Batch norm client by client, and dense networks as cohorts.
    model = "lenet5-bn" if workers == 2 else "mlp"
    settings = SETTINGS | {"data": make_pictures(), "model": model}
    assert same(inline(name, model), fedkin.run(name, engine="processes", workers=workers, **settings))


@pytest.mark.parametrize("name", registry())
def test_a_resumed_run_ends_as_if_never_stopped(name: str, tmp_path: Path, pictures: Federation) -> None:
    settings = SETTINGS | {"data": pictures, "model": "lenet5-bn", "engine": "inline"}
    out = tmp_path / "stopped"
    whole = fedkin.run(name, out=tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        fedkin.run(name, out=out, watch=stop_after(1), **settings)
    for stop in (2, 3, 4):
        with pytest.raises(Stop):
            fedkin.resume(out, data=pictures, watch=stop_after(stop))
    assert same(whole, fedkin.resume(out, data=pictures))
    for file in (METRICS, "models.safetensors"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_writes_down_why_it_stopped_and_that_it_goes_on(tmp_path: Path, pictures: Federation) -> None:
    def stop(happened: Any, _seconds: float) -> None:
        if happened.round == 2:
            raise KeyboardInterrupt

    settings = SETTINGS | {"data": pictures, "engine": "inline"}
    with pytest.raises(KeyboardInterrupt):
        fedkin.run("fedavg", out=tmp_path / "run", watch=stop, **settings)
    fedkin.resume(tmp_path / "run", data=pictures)
    events = [json.loads(line) for line in (tmp_path / "run" / EVENTS).read_text().splitlines()]
    assert [event["event"] for event in events] == ["stopped", "resumed"]
    assert events[0]["why"] == "Ctrl-C"


@pytest.mark.slow
def test_a_run_killed_at_any_moment_resumes_bit_for_bit(tmp_path: Path) -> None:
    """SIGKILL from outside at various moments; workers end with it, and the folder is left usable."""
    command = [sys.executable, "-m", "fedkin", "run", "local-only", "--clients", "6", "--rounds", "24", "--epochs", "2"]
    command += ["--engine", "processes", "--workers", "2", "--checkpoint-every", "3", "--vectorize", "off"]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    out = tmp_path / "killed"
    kills = 0
    args = [*command, "--out", str(out)]
    while not (out / "result.json").exists() and kills < 3:
        process = subprocess.Popen(args, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for_rounds(out, (kills + 1) * 6, process)
        workers = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert not alive, "workers outlive a killed run"
        kills += 1
        args = [sys.executable, "-m", "fedkin", "run", "--resume", str(out)]
    assert kills == 3
    subprocess.run(args, check=True, capture_output=True)
    for file in (METRICS, "models.safetensors"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def wait_for_rounds(out: Path, rounds: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (out / METRICS).exists() and len((out / METRICS).read_text().splitlines()) >= rounds:
            return
        time.sleep(0.01)
    raise AssertionError(f"the run did not reach round {rounds}")


@pytest.mark.parametrize("damage", ["cut tensors", "alter tensors", "cut json", "alter json", "remove tensors"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(
    damage: str, tmp_path: Path, blobs: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"data": blobs, "engine": "inline", "checkpoint_every": 1}
    whole = fedkin.run("local-only", **settings)
    with pytest.raises(Stop):
        fedkin.run("local-only", out=tmp_path / "run", watch=stop_after(3), **settings)
    tensors = tmp_path / "run/checkpoints/round-000003.safetensors"
    about = tensors.with_suffix(".json")
    if damage == "cut tensors":
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif damage == "alter tensors":
        content = bytearray(tensors.read_bytes())
        content[-5] ^= 1
        tensors.write_bytes(bytes(content))
    elif damage == "cut json":
        about.write_text(about.read_text()[:50])
    elif damage == "alter json":
        about.write_text(about.read_text().replace('"round": 3', '"round": 4'))
    else:
        tensors.unlink()
    resumed = fedkin.resume(tmp_path / "run", data=blobs)
    assert "round-000003.json is incomplete or was altered: going back" in capsys.readouterr().err
    assert same(whole, resumed)


def test_a_run_without_any_checkpoint_starts_over(tmp_path: Path, blobs: Federation) -> None:
    settings = SETTINGS | {"data": blobs, "engine": "inline", "checkpoint_every": 100}
    with pytest.raises(Stop):
        fedkin.run("fedavg", out=tmp_path / "run", watch=stop_after(3), **settings)
    assert same(fedkin.run("fedavg", **settings), fedkin.resume(tmp_path / "run", data=blobs))


def test_other_data_are_refused_on_resume(tmp_path: Path, blobs: Federation) -> None:
    settings = SETTINGS | {"engine": "inline"}
    with pytest.raises(Stop):
        fedkin.run("fedavg", data=blobs, out=tmp_path / "run", watch=stop_after(3), **settings)
    with pytest.raises(FedkinError, match="not those that the run"):
        fedkin.resume(tmp_path / "run", data=make_blobs(seed=1))
    with pytest.raises(FedkinError, match="pass it to resume"):
        fedkin.resume(tmp_path / "run")
    with pytest.raises(FedkinError, match="lr cannot change"):
        fedkin.resume(tmp_path / "run", data=blobs, lr=0.1)


def test_a_different_seed_gives_a_different_result(blobs: Federation) -> None:
    settings = SETTINGS | {"data": blobs, "engine": "inline"}
    assert not same(fedkin.run("fedavg", seed=0, **settings), fedkin.run("fedavg", seed=1, **settings))


def test_dropout_is_keyed_too(pictures: Federation) -> None:
    settings = SETTINGS | {"data": pictures, "model": "alexnet", "rounds": 1}
    torch.manual_seed(1)
    a = fedkin.run("fedavg", engine="inline", **settings)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    b = fedkin.run("fedavg", engine="inline", **settings)
    assert same(a, b)
    assert torch.equal(before, torch.get_rng_state()), "the user's own random numbers are left alone"


@pytest.mark.slow
def test_memory_stays_flat_over_a_long_run(blobs: Federation) -> None:
    """With partial participation and private state: a thousand rounds need no more than the first hundred."""
    process = psutil.Process()
    seen = []

    def watch(happened: Any, _seconds: float) -> None:
        if happened.round in (200, 1200):
            gc.collect()
            seen.append(process.memory_info().rss)

    fedkin.run(
        "local-only",
        data=blobs,
        engine="inline",
        join=0.3,
        rounds=1200,
        epochs=1,
        batch=64,
        evaluate_every=10,
        watch=watch,
    )
    assert seen[1] - seen[0] < 8e6, f"{(seen[1] - seen[0]) / 1e6:.1f} MB more"


def test_only_models_that_changed_are_evaluated(blobs: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[list[int]] = []
    judge = Worker._judge
    monkeypatch.setattr(
        Worker, "_judge", lambda self, p, clients: judged.append(list(clients)) or judge(self, p, clients)
    )
    result = fedkin.run("local-only", data=blobs, engine="inline", **SETTINGS)
    per_round = [r.participants for r in result.history]
    assert sorted(i for c in judged for i in c) == sorted([0, 1, 2, 3] + [i for r in per_round[1:] for i in r])


def test_a_client_that_could_not_be_reached_is_asked_again_about_the_same_model(
    blobs: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = prepare("fedavg", data=blobs, **SETTINGS)
    engine = Inline(setup.site())
    simulation = Simulation(setup, engine)
    with monkeypatch.context() as silence:
        silence.setattr(engine.worker, "_judge", lambda p, clients: [Scored(i, 0, 0, 0.0) for i in clients])
        assert simulation.evaluate(simulation.state, {}, {})[0].total == [0] * 4
    assert all(simulation.evaluate(simulation.state, {}, {})[0].total)


def test_a_scores_meaning_is_written_beside_it(tmp_path: Path, blobs: Federation) -> None:
    result = fedkin.run("fedavg", data=blobs, engine="inline", out=tmp_path / "run", **SETTINGS)
    own, shared = RunFolder.open(tmp_path / "run").history()[-1].scores
    assert (own.model, own.moment, own.data) == ("global", "after aggregation", "each client's own test set")
    assert shared.data == "the union of the clients' test sets"
    assert result.accuracy == pytest.approx(sum(c / t for c, t in zip(own.correct, own.total, strict=True)) / 4)
    assert result.global_score.headline == pytest.approx(sum(own.correct) / sum(own.total))
    assert result.best[1] >= result.accuracy
    assert result.summary()["accuracy_is"] == (
        "global model after aggregation, on each client's own test set, mean over clients"
    )
    assert list(result.summary()["per_client_accuracy"]) == [f"client-0{i}" for i in range(4)]


def test_the_accuracies_are_those_of_the_final_models(pictures: Federation) -> None:
    """Recomputed from the saved models by hand, image by image."""
    result = fedkin.run("local-only", data=pictures, model="lenet5", engine="inline", **SETTINGS)
    data = pictures.data
    for i, (_, _, test) in enumerate(pictures.owned):
        module = fedkin.models.build("lenet5", pictures.shape, pictures.classes).eval()
        torch.nn.utils.vector_to_parameters(result.models[i], module.parameters())
        right = 0
        for row in test:
            x = (torch.tensor(data.x[row]) / 255 - data.mean[0]) / data.std[0]
            right += int(module(x[None]).argmax()) == data.y[row]
        assert result.score.correct[i] == right


@pytest.mark.slow
def test_processes_work_from_an_unguarded_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import fedkin, torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(64, 10)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x.flatten(1))\n"
        "r = fedkin.run('fedavg', data='digits', model=Net, rounds=2, engine='processes', workers=2)\n"
        "print('accuracy', r.accuracy)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=os.environ, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("accuracy") == 1


@pytest.mark.slow
def test_a_worker_that_dies_is_told_in_a_sentence(blobs: Federation, tmp_path: Path) -> None:
    file = tmp_path / "dying.py"
    file.write_text(
        "import os\n"
        "from dataclasses import dataclass\n"
        "from fedkin.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Dying(FedAvg):\n"
        "    name = 'dying'\n"
        "    vectorizes = ()\n"
        "    def local(self, client, message):\n"
        "        os._exit(9)\n"
    )
    with pytest.raises(FedkinError, match="a worker process died"):
        fedkin.run(f"{file}:Dying", data=blobs, engine="processes", workers=2, rounds=1)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep freed memory, or have no such switch")
def test_workers_that_are_killed_while_they_send_a_result_do_not_hold_up_the_end() -> None:
    pool = Pool(1)
    pool.executor.submit(len, "").result()
    results: Any = pool.executor._result_queue
    # The length of a message and the first byte of it, of which no more will come.
    os.write(results._writer.fileno(), struct.pack("!i", 1000) + b"x")
    ending = threading.Thread(target=pool.close, kwargs={"at_once": True}, daemon=True)
    ending.start()
    ending.join(timeout=30)
    ended = not ending.is_alive()
    results._writer.close()
    assert ended
    assert not pool.folder.exists()


def test_a_worker_reuses_the_memory_of_the_step_before() -> None:
    lines = """
        import resource, torch
        from fedkin.engine.memory import keep_freed_memory

        def new_pages() -> int:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(40):
                torch.ones(8 << 20, dtype=torch.uint8)
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        before, kept = new_pages(), keep_freed_memory()
        new_pages()
        print(before, kept, new_pages())
    """
    out = subprocess.run([sys.executable, "-c", inspect.cleandoc(lines)], capture_output=True, text=True, check=True)
    before, kept, after = out.stdout.split()
    assert kept == "True"
    assert int(after) < 0.01 * int(before)
