"""Which method for these data? Short trials, the better half of which goes on, and a recommendation with its evidence.

Successive halving (Jamieson, Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization,
AISTATS 2016): all candidates train for a quarter of the rounds, the better half for half of them, the better half of
those for all. Three things keep the choice honest:

- It is made on validation samples: a quarter of every client's *training* samples, another quarter for every seed.
  The test samples are seen once, by the method that was chosen and by FedAvg and local training, which then train
  on all training samples.
- A trial is a run over all rounds that is stopped early and gone on with from its checkpoint, so that a method keeps
  its own schedule. One that is still warming up (pFedSim and FedALP begin as FedAvg) is not judged before it is done
  with that; FedAvg and local training are there to the end, for comparison.
- All have the same data, rounds, local work and learning rate. Without one, FedAvg and local training first try a
  few, and the rate that suits both best on the mean is taken.

What halving cannot see is a method that starts slowly and ends well: with more rounds there is less of that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedkin import api
from fedkin.advise.evidence import GLOBAL, LOCAL, MARGIN, REFERENCES, Advice, Gap, Row, gap_between, simplest
from fedkin.advise.telling import late_gain, listed, sentences
from fedkin.advise.trials import Trials, go_on, rungs, validation
from fedkin.config import SHARED, Config
from fedkin.data.federation import Federation
from fedkin.engine import shared_workers
from fedkin.errors import FedkinError
from fedkin.runs.files import write_whole
from fedkin.runs.folder import refuse_full
from fedkin.simulate import Show

__all__ = ["REFERENCES", "Advice", "Gap", "Row", "advise", "gap_between", "go_on", "rungs", "simplest", "validation"]


def advise(
    out: str | Path,
    *,
    data: str | Federation | None = None,
    model: api.Model | None = None,
    methods: Sequence[str] | None = None,
    seeds: int = 2,
    budget: float | None = None,
    show: Show | None = None,
    **settings: Any,
) -> Advice:
    """Try methods on a federation and recommend one.

    `data`, `model` and `settings` are those of `fedkin.run`; the federation is the same for all seeds. `methods` are
    the candidates; FedAvg and local training are always among them. `budget` is how many minutes of training
    there should be at most: fewer methods go on where it does not suffice. Everything is kept in the folder `out`;
    called again with the same one after it was stopped, it goes on. `show(label, rounds)` makes a watcher for each run.
    """
    folder = Path(out)
    if not (folder / "trials").is_dir():
        refuse_full(folder)
    if seeds < 1 or (budget is not None and not budget > 0):
        raise FedkinError(f"advice takes at least one seed and a budget above 0, but {seeds} and {budget} were given")
    settings = {name: Config.model_fields[name].default for name in SHARED} | settings
    trials = Trials(folder, data, model, settings, seeds, show)
    chosen, left_out = trials.candidates(methods)
    with shared_workers(settings.get("workers")):
        if settings.get("lr") is None:
            trials.find_rate()
        alive = chosen
        for k, until in enumerate(trials.rungs):
            for method in alive:
                trials.train(method, until, f"rung {k + 1} of {len(trials.rungs)}: {method}")
            if until < trials.rounds:
                alive = trials.survivors(alive, until, budget)
        table = sorted((trials.row(m) for m in chosen), key=lambda r: (-r.rounds, -r.accuracy))
        finalists = [row for row in table if row.rounds == trials.rounds]
        gaps = {row.method: gap_between(finalists[0], row, trials.samples, trials.first) for row in finalists}
        winner = simplest(gaps)
        results = {m: trials.test(m) for m in dict.fromkeys((winner, GLOBAL, LOCAL))}
    curves = {m: trials.curve(m) for m in chosen}
    rising = [m for m in results if late_gain(curves[m]) > 2 * MARGIN]
    if rising:
        trials.notes.append(f"still getting better at the end: {listed(rising)}; more rounds may change the order")
    advice = Advice(
        method=winner,
        recommendation=sentences(winner, finalists, gaps, {m: r.accuracy for m, r in results.items()}, len(table)),
        table=table,
        gaps=gaps,
        curves=curves,
        results=results,
        left_out=left_out,
        notes=trials.notes,
        folder=folder,
    )
    write_whole(folder / "advice.json", (json.dumps(advice.summary(), indent=1, ensure_ascii=False) + "\n").encode())
    return advice
