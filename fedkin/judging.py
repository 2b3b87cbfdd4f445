"""What else is judged beside the headline: local models, the union of test sets, models after fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedkin.engine import Engine
from fedkin.engine.worker import Job, Scored
from fedkin.errors import FedkinError
from fedkin.evaluate import Evaluator
from fedkin.method import Message, trained
from fedkin.scores import OWN, UNION, Score
from fedkin.setup import Setup

Private = Mapping[int, dict[str, Any]]


def everywhere(engine: Engine, jobs: Sequence[Job], as_sent: bool = False) -> list[Scored]:
    """Clients' own models, or those they were sent, on the test samples of all clients."""
    results = engine.map("score_everywhere", [([job], as_sent) for job in jobs])
    return [scored for batch in results for scored in batch]


def on_union(setup: Setup, engine: Engine, jobs: Sequence[Job]) -> Score:
    """The headline models on everybody's test samples."""
    return Score.of(setup.method.judged.model, setup.method.judged.moment, UNION, everywhere(engine, jobs))


def finetuned(setup: Setup, engine: Engine, jobs: Sequence[Job]) -> Score:
    """Every client's model after some further steps on its own data."""
    config = setup.config
    how = (config.finetune_steps, config.finetune_lr or config.lr, config.finetune_batch or config.batch)
    calls = [([job], *how) for job in jobs]
    scored = [s for batch in engine.map("score_finetuned", calls) for s in batch]
    return Score.of("personalised after fine-tuning", "after the last round", OWN, scored)


@dataclass
class LocalModels:
    """Every client's model as it left its last training: judged when it is new, and then forgotten.

    A client has its model as soon as it is trained, also while the reply is on its way, and goes on with what a method
    moves it to (`Method.moved`); work that is dropped does not count.
    """

    setup: Setup
    initial: Tensor
    """[D] what a client has that has not trained."""
    new: dict[int, Tensor] = field(default_factory=dict)
    scores: dict[int, list[Scored]] = field(default_factory=dict)
    """On its own test set and, if asked for, on the union of all."""

    def note(self, client: int, sent: Message, reply: Message) -> None:
        """A client has trained."""
        w = trained(sent, reply)
        if w is None or len(w) != len(self.initial):
            raise FedkinError(f"judge_local needs models that {self.setup.method.name}'s clients do not send whole")
        self.new[client] = w

    def judge(self, evaluate: Evaluator, private: Private) -> list[Score]:
        """All of them, by now."""
        everyone, union = range(len(evaluate.test_sizes)), self.setup.config.judge_union
        changed = {i: self.initial for i in everyone if i not in self.scores} | self.new
        self.new.clear()
        own = evaluate.each(changed)
        jobs = [Job(i, {"w": w}, private.get(i, {})) for i, w in changed.items()] if union else []
        of_all = {scored.client: scored for scored in everywhere(evaluate.engine, jobs, as_sent=True)}
        for i in changed:
            self.scores[i] = [own[i], *([of_all[i]] if union else [])]
        return [
            Score.of("local", "after local training", data, [self.scores[i][k] for i in everyone])
            for k, data in enumerate((OWN, UNION) if union else (OWN,))
        ]

    def save(self) -> dict[str, Any]:
        """Plain values and tensors."""
        scores = [[vars(scored) for scored in own] for own in self.scores.values()]
        return {"scores": scores, **{f"local/{i}": w for i, w in self.new.items()}}

    def restore(self, values: Mapping[str, Any]) -> None:
        """The inverse of `save`."""
        self.scores = {own[0]["client"]: [Scored(**each) for each in own] for own in values["scores"]}
        self.new = {int(k.removeprefix("local/")): w for k, w in values.items() if k.startswith("local/")}
