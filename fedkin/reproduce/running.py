"""Run a cell and keep what came out in a small JSON file."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from fedkin import api, models
from fedkin.config import Config
from fedkin.costs import cost
from fedkin.data import catalogue
from fedkin.engine import default_workers
from fedkin.engine.memory import keep_freed_memory
from fedkin.errors import FedkinError
from fedkin.reproduce import subsets
from fedkin.reproduce.cells import TIME, Cell
from fedkin.result import Result
from fedkin.runs.checkpoint import stem
from fedkin.runs.files import make_folder, write_whole
from fedkin.runs.folder import CONFIG, EVENTS, MODELS, RESULT, RunFolder, refuse_full
from fedkin.scores import OWN, UNION
from fedkin.setup import Setup
from fedkin.simulate import Show, one_thread, simulate, watched

PASSES = 20
"""pFedSim's "20 iterations"."""
LONG_ENOUGH = 0.2
"""Seconds to time gradient steps for, the fastest of which counts."""
AFTERWARDS = {"finetune_steps", "finetune_lr", "finetune_batch"}
"""Settings that come in after the last round: runs that differ in nothing else have the same rounds."""
SOME = 100_000
"""Samples of a dataset that has no fixed number of them."""


@dataclass(frozen=True)
class Finished:
    """What a run came to, read from its JSON file."""

    values: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> Finished:
        """From a file."""
        try:
            return Finished(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise FedkinError(f"{path} is not the result of a reproduction: {error}") from None

    def measured(self, measure: str) -> float:
        """One of the run's numbers, in percent.

        `own`: each client's headline model on its own test set, plain mean; `by sample`: the same, sample-weighted;
        `fine-tuned`; `MODEL on union` and `MODEL on own` for one of the other models that were judged;
        `clients K of M`: every M-th client, sample-weighted; `time per sample` of local training in 1e-4 s.
        """
        if "numbers" in self.values:
            row, _, column = measure.partition(" of ")
            return float(self.values["numbers"][row][column])
        scores = self.values["scores"]
        if measure == TIME:
            return 1e4 * float(self.values["seconds_per_sample"])
        if measure in ("own", "by sample"):
            return 100 * float(scores[0]["mean" if measure == "own" else "weighted"])
        if measure.startswith("clients "):
            _, k, _, m = measure.split()
            accuracies, samples = (scores[0][name][int(k) :: int(m)] for name in ("clients", "samples"))
            right = math.fsum(a * n for a, n in zip(accuracies, samples, strict=True))
            return 100 * right / int(sum(samples))
        if measure == "fine-tuned":
            return 100 * next(float(s["mean"]) for s in scores if s["moment"] == "after the last round")
        model, _, data = measure.partition(" on ")
        wanted = (model, {"own": OWN, "union": UNION}[data])
        found = [s for s in scores if (s["model"], s["data"]) == wanted]
        if not found:
            raise FedkinError(f"the run has no number for {measure!r}")
        return 100 * float(found[0]["weighted" if data == "union" else "mean"])


def path_of(cell: Cell, seed: int, results: Path) -> Path:
    """Where the result of a cell's run is kept."""
    return results / cell.table / f"{cell.run}--s{seed}.json"


def kept(cell: Cell, results: Path) -> list[Path]:
    """The results of a cell's run that there are, a file a seed."""
    return sorted((results / cell.table).glob(f"{cell.run}--s*.json"))


def prepared(cell: Cell, seed: int, workers: int | None = None) -> Setup:
    """All parts of a cell's run."""
    if cell.missing:
        raise FedkinError(f"{cell.table}, {cell.row}, {cell.column} cannot be run: {cell.missing}")
    return api.prepare(cell.method, set=dict(cell.set), seed=seed, workers=workers, **cell.settings)


def reproduce(
    cell: Cell, seed: int, results: Path, work: Path, workers: int | None = None, show: Show | None = None
) -> Finished:
    """The result of a cell's run: kept from before, for whichever table, or from a run that is gone on with, or new."""
    path = path_of(cell, seed, results)
    if path.exists():
        return Finished.read(path)
    if cell.study:
        return _keep(path, _study(cell, seed, workers, show))
    folder = work / cell.table / path.stem
    setup = prepared(cell, seed, workers)
    if cell.measure != TIME and (twin := _twin(setup, results)):
        return _keep(path, {**twin, "table": cell.table, "run": cell.run})
    if (folder / "config.json").exists():
        run_folder = RunFolder.open(folder)
        if run_folder.config.matters != setup.config.matters:
            raise FedkinError(f"{folder} holds a run with other settings: remove it, or give another --work folder")
    else:
        run_folder = _begin(folder, setup, work)
    label = f"{cell.row}, {cell.column}, seed {seed}"
    with watched(show, label, setup.config.rounds) as watch:
        result = simulate(setup, run_folder, watch)
    return _keep(path, summarised(cell, result, run_folder))


def _twin(setup: Setup, results: Path) -> Mapping[str, Any] | None:
    """The kept result of the same run, which stands in another table too."""
    for path in sorted(results.glob("*/*.json")):
        values = Finished.read(path).values
        same_data = values.get("data_fingerprint") == setup.federation.fingerprint
        # Settings that are newer than a result have their defaults.
        if same_data and Config.of(values["config"]).matters == setup.config.matters:
            return values
    return None


def _begin(path: Path, setup: Setup, work: Path) -> RunFolder:
    """A new run; if it is for what comes after the rounds, and another has the same rounds, just before its last."""
    refuse_full(path)
    part = path.with_name(f"{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    wanted = _training(RunFolder.create(part, setup.config, api.describe(setup)))
    for finished in sorted(work.glob(f"*/*/{RESULT}")) if setup.config.finetune_steps else ():
        if _training(RunFolder.open(finished.parent)) == wanted:
            leave = shutil.ignore_patterns(CONFIG, RESULT, MODELS, EVENTS, f"{stem(setup.config.rounds)}.*")
            shutil.copytree(finished.parent, part, ignore=leave, dirs_exist_ok=True)
            break
    part.rename(path)
    return RunFolder.open(path)


def _training(run: RunFolder) -> dict[str, Any]:
    """All that the rounds of a run depend on, and nothing else."""
    return run.about | {"config": {k: v for k, v in run.config.matters.items() if k not in AFTERWARDS}}


def _keep(path: Path, values: dict[str, Any]) -> Finished:
    make_folder(path.parent)
    write_whole(path, (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode())
    return Finished(values)


def _study(cell: Cell, seed: int, workers: int | None, show: Show | None) -> dict[str, Any]:
    """The numbers of pFedSim's Table 2, which are no accuracies."""
    begin = time.perf_counter()
    with watched(show, f"{cell.table}, seed {seed}", PASSES) as watch:
        numbers = subsets.compare(seed, PASSES, workers, watch)
    seconds = round(time.perf_counter() - begin, 1)
    return {"table": cell.table, "run": cell.run, "seed": seed, "numbers": numbers, "seconds": seconds}


def summarised(cell: Cell, result: Result, folder: RunFolder) -> dict[str, Any]:
    """A run in a few plain values."""
    last = result.evaluated[-1]
    return {
        "table": cell.table,
        "run": cell.run,
        "seed": result.config.seed,
        "config": result.config.matters,
        "versions": folder.about["versions"] | {"machine": platform.machine(), "cores": os.cpu_count()},
        "data_fingerprint": folder.about["data_fingerprint"],
        "scores": [
            {
                "model": s.model, "moment": s.moment, "data": s.data, "mean": round(s.mean, 6),
                "weighted": round(s.weighted, 6), "clients": [round(a, 4) for a in s.clients],
                "samples": s.total,
            }
            for s in last.scores
        ],
        "curve": [[r.round, round(r.scores[0].mean, 4), round(r.scores[0].weighted, 4)] for r in result.evaluated],
        "best": list(result.best),
        "bytes": sum(r.bytes_up + r.bytes_down for r in result.history),
        "steps": sum(r.steps for r in result.history),
        "seconds": round(result.seconds, 1),
        "seconds_per_sample": folder.seconds_per_sample(),
    }  # fmt: skip


def estimate(cell: Cell) -> float:
    """Seconds that a cell would take on this machine: its gradient steps, timed, on all cores."""
    if cell.study:
        return PASSES * 60_000 / 32 * step_seconds("lenet5-bn", (3, 32, 32), 32) / default_workers()
    settings = cell.settings
    entry = catalogue.entry(settings["data"])
    clients = settings["clients"] or 100
    a_round = Config.of(settings).training.steps(round(cell.share * (entry.samples or SOME) / clients))
    steps = settings["rounds"] * max(1.0, settings["join"] * clients) * a_round * max(1.0, cost(cell.method).steps)
    a_step = step_seconds(settings["model"], tuple(entry.shape), settings["batch"])
    return float(steps * a_step / default_workers())


@cache
def step_seconds(model: str, shape: tuple[int, ...], batch: int) -> float:
    """Seconds of one gradient step on one core, which hardly depend on how many classes there are."""
    keep_freed_memory()
    with one_thread():
        network = models.build(model, shape, 10)
        x, y = torch.rand(batch, *shape), torch.zeros(batch, dtype=torch.int64)
        x = x.to(memory_format=models.best_format(network, shape))
        step = torch.optim.SGD(network.parameters(), lr=0.01).step
        times: list[float] = []
        while len(times) < 3 or sum(times) < LONG_ENOUGH:
            begin = time.perf_counter()
            cross_entropy(network(x), y).backward()
            step()
            times.append(time.perf_counter() - begin)
        return min(times)
