"""Trials of methods in a folder: full-length runs that are stopped early and gone on with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedkin import api
from fedkin.advise.evidence import CANDIDATES, GLOBAL, LOCAL, REFERENCES, Numbers, Row
from fedkin.data.dataset import Split
from fedkin.data.federation import Federation
from fedkin.data.partitions.task import hold_out
from fedkin.errors import FedkinError
from fedkin.layout import Layout
from fedkin.method import Method
from fedkin.randomness import numpy_generator
from fedkin.result import Result, Round
from fedkin.runs.folder import CONFIG, RESULT, RunFolder
from fedkin.schedule.participation import at_once
from fedkin.setup import Setup
from fedkin.simulate import Show, Simulation, Watch, one_thread, play, running, simulate, watched

Trial = tuple[list[Round], float]
"""Rounds so far, and the seconds they took."""
RATES = (0.01, 0.03, 0.1)
HELD_OUT = 0.25
"""Share of a client's training samples that its trials are judged on."""


def validation(federation: Federation, seed: int) -> Federation:
    """The federation in which a stratified part of every client's training samples takes the place of its test samples.

    The test samples are in nobody's hands. Clients with a single training sample are left out.
    """
    train, held = [], []
    everyone = enumerate(federation.owned)
    usable = [(i, name, rows) for i, (name, rows, _) in everyone if len(rows) > 1]
    for i, _, rows in usable:
        y = federation.data.y[rows]
        out = hold_out(np.zeros_like(y), y, HELD_OUT, numpy_generator(seed, "advise/validation", 0, i))
        train.append(rows[~out])
        held.append(rows[out])
    names = tuple(name for _, name, _ in usable)
    return Federation(federation.data, Split(tuple(train), tuple(held), names, federation.split.public))


def go_on(setup: Setup, path: Path, until: int, watch: Watch | None = None) -> Trial:
    """Take the run in a folder up to a round, from where it stands; its rounds so far, and their seconds.

    The setup has all rounds, of which some are left for later.
    """
    folder = _opened(setup, path)
    if len(folder.history()) < until:
        with one_thread(), running(setup) as engine:
            play(Simulation(setup, engine, path), folder, watch, until)
    history = folder.history()
    return history[:until], folder.seconds() * until / len(history)


def _opened(setup: Setup, path: Path) -> RunFolder:
    """A new run folder, or the one that is there if it holds the same run."""
    about = api.describe(setup)
    if not (path / CONFIG).exists():
        return RunFolder.create(path, setup.config, about)
    folder = RunFolder.open(path)
    same = folder.about["data_fingerprint"] == about["data_fingerprint"]
    if not same or folder.config.matters != setup.config.matters:
        what = "settings" if same else "data"
        raise FedkinError(f"{path} holds a trial with other {what}: give the same ones to go on, or another folder")
    return folder


def rungs(rounds: int) -> tuple[int, list[int]]:
    """Rounds between evaluations, and the rounds after which methods are left behind: multiples of it, and the last."""
    beat = max(1, rounds // 16)
    early = {max(beat, beat * round(share * rounds / beat)) for share in (0.25, 0.5)}
    return beat, sorted({*early, rounds})


def warm_up(method: Method) -> float:
    """The share of all rounds in which a method is not itself yet."""
    return float(getattr(method, "rho" if method.name == "pfedsim" else "warm_up", 0.0))


class Trials:
    """Trials of methods in a folder: they are run as far as is asked for, and read."""

    def __init__(
        self, out: Path, data: str | Federation | None, model: api.Model | None, settings: Mapping[str, Any],
        seeds: int, show: Show | None,
    ) -> None:  # fmt: skip
        self.out, self.show = out, show
        self.first = int(settings.get("seed") or 0)
        self.seeds = range(self.first, self.first + seeds)
        plain = api.prepare(GLOBAL, data=data, model=model, **{**settings, "public": 0.0})
        self.rounds = plain.config.rounds
        beat, self.rungs = rungs(self.rounds)
        self.given = {"data": data, "model": model, **settings, "evaluate_every": beat}
        self.federation = plain.federation
        if len(self.federation) < 2:
            raise FedkinError("the data have one client, who has nobody to learn with: advice takes at least two")
        self.folds = {seed: validation(self.federation, seed) for seed in self.seeds}
        self.samples = [len(rows) for rows in self.folds[self.first].split.test]
        self.notes: list[str] = []
        self.runs: dict[str, list[Trial]] = {}
        self.search = 0.0  # seconds
        tiny = len(self.federation) - len(self.folds[self.first])
        if tiny:
            self.notes.append(f"{tiny} clients have a single training sample and take no part in the trials")
        if len(self.folds[self.first]) < 2:
            raise FedkinError(f"{tiny} of {len(self.federation)} clients have a single training sample: "
                              "at least two clients must have two, one of them to choose by")  # fmt: skip

    def setup(self, method: str, seed: int, **changes: Any) -> Setup:
        """A method's run for all rounds on the training samples that are left."""
        return api.prepare(method, **{**self.given, "data": self.folds[seed], "seed": seed, **changes})

    def candidates(self, named: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
        """Methods to try, and those that are left out with the reason. What is named is tried, or refused."""
        left_out: dict[str, str] = {}
        for method in named or CANDIDATES:
            try:
                setup = self.setup(method, self.first)
                reason = "" if named else _pointless(setup)
            except FedkinError as error:
                if named or method in REFERENCES:
                    raise
                reason = str(error)
            if reason:
                left_out[method] = reason
        return [m for m in dict.fromkeys((*REFERENCES, *(named or CANDIDATES))) if m not in left_out], left_out

    def run(self, method: str, seed: int, until: int, label: str, **changes: Any) -> Trial:
        """A trial up to a round: at once if it has got there before."""
        setup = self.setup(method, seed, **changes)
        path = self.out / "trials" / f"{_label(method)}-lr{setup.config.lr:g}-s{seed}"
        with watched(self.show, label, until) as watch:
            return go_on(setup, path, until, watch)

    def train(self, method: str, until: int, label: str) -> None:
        """A method's trials up to a round, for all seeds."""
        self.runs[method] = [self.run(method, seed, until, f"{label}, seed {seed}") for seed in self.seeds]

    def find_rate(self) -> None:
        """Take the learning rate that suits FedAvg and local training best on the mean, after the first rung."""
        until = self.rungs[0]
        found = {}
        for rate in RATES:
            label = f"learning rate {rate:g}"
            runs = [self.run(m, self.first, until, f"{label}: {m}", lr=rate) for m in REFERENCES]
            found[rate] = float(np.mean([_accuracies(history[-1]) for history, _ in runs]))
            self.search += math.fsum(seconds for _, seconds in runs)
        best = max(found, key=lambda rate: found[rate])
        self.given["lr"] = best
        tried = ", ".join(f"{rate:g}: {100 * accuracy:.1f} %" for rate, accuracy in found.items())
        edge = "; it is the largest that was tried" if best == max(RATES) else ""
        self.notes.append(
            f"learning rate {best:g} for all, the best for fedavg and local-only on the mean after {until} rounds "
            f"({tried}){edge}"
        )

    def clients(self, method: str, at: int) -> Numbers:
        """[N] validation accuracy of each client after a round, mean over seeds."""
        mean: Numbers = np.mean([_accuracies(history[at - 1]) for history, _ in self.runs[method]], axis=0)
        return mean

    def survivors(self, alive: Sequence[str], until: int, budget: float | None) -> list[str]:
        """Who goes on after a rung, in the order of the candidates."""
        warming = [m for m in alive if warm_up(self.setup(m, self.first).method) * self.rounds >= until]
        judged = {m: float(self.clients(m, until).mean()) for m in alive if m not in warming}
        ranked = sorted(judged, key=lambda m: -judged[m])
        last = judged[ranked[math.ceil(len(ranked) / 2) - 1]]
        # Whoever has the same accuracy as the last that goes on goes on as well.
        best = [m for m in ranked if judged[m] >= last]
        wanted = list(dict.fromkeys((*REFERENCES, best[0], *warming, *best)))
        if budget is not None:
            wanted = self.affordable(wanted, until, len({*REFERENCES, best[0]}), 60 * budget)
        return [m for m in alive if m in wanted]

    def affordable(self, wanted: list[str], until: int, least: int, seconds: float) -> list[str]:
        """As many methods, in this order but at least the first few, as can be trained to the end in the time left."""
        spent = self.search + math.fsum(took for runs in self.runs.values() for _, took in runs)
        pace = {m: math.fsum(took for _, took in self.runs[m]) / until / len(self.seeds) for m in wanted}
        # At the end the best and the references train once more, on all training samples.
        left = seconds - spent - self.rounds * math.fsum(pace[m] for m in wanted[:least])
        prices = np.cumsum([pace[m] * (self.rounds - until) * len(self.seeds) for m in wanted])
        kept = [m for k, (m, price) in enumerate(zip(wanted, prices, strict=True)) if k < least or price <= left]
        if len(kept) < len(wanted):
            given_up = ", ".join(m for m in wanted if m not in kept)
            self.notes.append(f"the budget of {seconds / 60:g} minutes ends the trials of {given_up} at round {until}")
        return kept

    def row(self, method: str) -> Row:
        """The evidence on a method after its last round."""
        at = len(self.runs[method][0][0])
        clients, alone = self.clients(method, at), self.clients(LOCAL, at)
        rounds = [r for history, _ in self.runs[method] for r in history]
        taken_part = max(1, sum(len(r.participants) for r in rounds))
        return Row(
            method=method,
            accuracy=float(clients.mean()),
            spread=float(clients.std()),
            worst=float(clients.min()),
            better=float((clients > alone).mean()),
            worse=float((clients < alone).mean()),
            rounds=at,
            bytes=sum(r.bytes_up + r.bytes_down for r in rounds) / taken_part,
            steps=sum(r.steps for r in rounds) / taken_part,
            seconds=math.fsum(seconds for _, seconds in self.runs[method]),
            clients=clients.tolist(),
        )

    def curve(self, method: str) -> list[tuple[int, float]]:
        """Accuracy after each evaluated round, mean over clients and seeds."""
        runs = [[r for r in history if r.scores] for history, _ in self.runs[method]]
        return [(r[0].round, float(np.mean([each.scores[0].mean for each in r]))) for r in zip(*runs, strict=True)]

    def test(self, method: str) -> Result:
        """A run on all training samples, judged on the test samples."""
        setup = api.prepare(method, **{**self.given, "seed": self.first})
        path = self.out / "final" / _label(method)
        folder = _opened(setup, path)
        if (path / RESULT).exists():
            return api.load(path)
        with watched(self.show, f"test: {method}", self.rounds) as watch:
            return simulate(setup, folder, watch)


def _pointless(setup: Setup) -> str:
    """Why a candidate is nothing of its own on this model or federation; empty if it is."""
    layout, name, config = Layout(setup.module, setup.config.classifier), setup.method.name, setup.config
    if name == "fedbn" and not layout.norm.ranges:
        return "the model has no normalisation layers, without which it is fedavg"
    if name in ("fedper", "fedrep", "pfedsim", "spfl") and len(layout.layers) < 2:
        return "the model is a single layer, of which no part can be treated unlike the rest"
    if name in ("fedper", "fedrep", "pfedsim"):
        _ = layout.classifier  # refused with the reason where there is none
    everyone = at_once(config.clients, config.join) == config.clients and config.schedule == "sync"
    if name == "fedsimsup" and everyone:
        return "it mixes the models of clients who sit out, but everybody takes part in every round (join)"
    return ""


def _accuracies(round: Round) -> Numbers:
    """[N] what each client's headline model scored."""
    return np.array(round.scores[0].clients)


def _label(method: str) -> str:
    """A method as the name of a folder."""
    return Path(method).name.replace(".py:", "-")
