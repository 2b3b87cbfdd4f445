"""Simulations on a Ray cluster: the same bits, also when a node is lost in the middle of a round."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import pictures as make_pictures
from stopping import same

import fedkin
from fedkin import FedkinError
from fedkin.engine.on_ray import OnRay

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "model": "lenet5-bn", "rounds": 3, "epochs": 1, "batch": 8, "lr": 0.05, "join": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, with a core each; bounded, and gone at the end."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    made.wait_for_nodes(60)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.mark.parametrize("name", ["spfl", "pfedsim", "fedsimsup", "scaffold", "plga"])
def test_a_cluster_gives_the_same_bits(name: str, cluster: Any) -> None:
    data = make_pictures()
    schedule = "stragglers:2" if name == "plga" else "sync"
    settings = SETTINGS | {"data": data, "schedule": schedule, "minibatches": 0}
    inline = fedkin.run(name, engine="inline", **settings)
    assert same(inline, fedkin.run(name, engine="ray", workers=2, **settings))


def test_a_dense_model_trains_in_the_same_cohorts(cluster: Any) -> None:
    settings = SETTINGS | {"data": make_pictures(), "model": "mlp", "vectorize": "on"}
    inline = fedkin.run("fedavg", engine="inline", **settings)
    assert same(inline, fedkin.run("fedavg", engine="ray", workers=2, **settings))


def test_a_tensor_that_calls_share_is_stored_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[int] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: stored.append(1) or put(value))
    settings = SETTINGS | {
        "data": make_pictures(),
        "rounds": 1,
        "evaluate_every": 1,
        "model": "mlp",
        "vectorize": "off",
    }
    fedkin.run("fedavg", engine="ray", workers=2, **settings)
    # Samples and the rest of the site; the global model for training, and the new one for judging it.
    assert len(stored) == 4


def test_a_mistake_in_a_worker_is_told_as_without_a_cluster(cluster: Any) -> None:
    with pytest.raises(FedkinError, match="training diverges"):
        fedkin.run("fedavg", engine="ray", workers=2, data=make_pictures(), **SETTINGS | {"lr": 1e9})


def test_a_node_that_is_lost_in_the_middle_of_a_round_changes_nothing(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last, because the cluster is short of a node afterwards."""
    settings = SETTINGS | {"data": make_pictures(), "epochs": 120, "lr": 0.001}
    inline = fedkin.run("pfedsim", engine="inline", **settings)
    left: list[int] = []
    close = OnRay.close

    def closed(self: OnRay, at_once: bool = False) -> None:
        left.append(len(self.workers))
        close(self, at_once)

    monkeypatch.setattr(OnRay, "close", closed)

    def watch(happened: Any, _seconds: float) -> None:
        if happened.round == 1:
            killer = threading.Timer(0.3, lambda: cluster.remove_node(cluster.second, allow_graceful=False))
            killer.start()

    on_ray = fedkin.run("pfedsim", engine="ray", workers=2, watch=watch, **settings)
    assert left == [1], "one of the two workers was lost"
    assert same(inline, on_ray)


def test_without_a_cluster_one_is_started_and_ended_by_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedkin", "run", "fedavg", "--clients", "4", "--rounds", "2", "--engine", "ray"]
    said = subprocess.run(
        [*command, "--workers", "2", "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=180
    )
    assert said.returncode == 0, said.stderr
    assert "Traceback" not in said.stderr
    said = subprocess.run(
        [*command, "--ray-address", "127.0.0.1:1", "--out", str(tmp_path / "other")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert said.returncode == 2
    assert "the Ray cluster at 127.0.0.1:1 cannot be reached" in said.stderr
