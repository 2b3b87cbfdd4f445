"""Judge every client's model, asking only for those that changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from fedkin.engine import Engine
from fedkin.engine.worker import Job, Scored
from fedkin.method import Message, Method, State
from fedkin.scores import OWN, UNION, Score

T = TypeVar("T")
CALL_ROWS = 2048
CALL_MODELS = 2
"""How much goes into one call to a worker: test samples, and models. Fixed numbers, so that what is
computed together never depends on how many workers there are."""


@dataclass
class Evaluator:
    """Keeps the scores of the last evaluation and computes only what is new."""

    method: Method
    engine: Engine
    test_sizes: Sequence[int]
    private_statistics: bool = False
    """Whether clients keep the running statistics of batch norm, so that no model is whole without its client."""
    known: dict[tuple[int, str], Scored] = field(default_factory=dict)
    """(client, fingerprint of a model) to its score."""

    def __call__(self, state: State, private: Mapping[int, dict[str, Any]], trained: Mapping[int, int]) -> list[Score]:
        """The personalised models and, where the method has one, the global model.

        `trained` counts how often each client has trained, which is when its private state changes.
        """
        clients = range(len(self.test_sizes))
        fingerprint = Fingerprints()
        messages = [self.method.serve(state, i) for i in clients]
        if serves_models(self.method) and not self.private_statistics:
            own = {(i, fingerprint(messages[i])): messages[i]["w"] for i in clients}
            jobs = {}
        else:
            own = {}
            jobs = {
                (i, f"{fingerprint(messages[i])}/{trained.get(i, 0)}"): Job(i, messages[i], private.get(i, {}))
                for i in clients
            }
        w = self.method.global_model(state)
        shared: dict[tuple[int, str], Tensor] = {}
        with_own: dict[tuple[int, str], Job] = {}
        if w is not None and self.private_statistics:
            print_of_w = fingerprint({"w": w})
            with_own = {
                (i, f"global {print_of_w}/{trained.get(i, 0)}"): Job(i, {"w": w}, private.get(i, {})) for i in clients
            }
        elif w is not None:
            shared = {(i, fingerprint({"w": w})): w for i in clients}

        # A client that could not be reached has judged no sample: it is asked again.
        asked = own | jobs | shared | with_own
        self.known = {key: self.known[key] for key in asked if key in self.known and self.known[key].total}
        self.known |= self._score_models({key: w for key, w in (own | shared).items() if key not in self.known})
        for wanted, function in ((jobs, "score"), (with_own, "score_sent")):
            new = {key: job for key, job in wanted.items() if key not in self.known}
            self.known |= self._score_jobs(new, function)
        judged = self.method.judged
        scores = [self._score(judged.model, judged.moment, OWN, [*own, *jobs])]
        if shared or with_own:
            scores.append(self._score("global", "after aggregation", UNION, [*shared, *with_own]))
        return scores

    def each(self, models: Mapping[int, Tensor]) -> dict[int, Scored]:
        """A model [D] for each of some clients, judged on its own test samples."""
        fingerprint = Fingerprints()
        scored = self._score_models({(i, fingerprint({"w": w})): w for i, w in models.items()})
        return {i: s for (i, _), s in scored.items()}

    def _score_models(self, wanted: Mapping[tuple[int, str], Tensor]) -> dict[tuple[int, str], Scored]:
        """Vectors, each tested at one go on all clients that share it."""
        sharing: dict[str, list[int]] = {}
        for i, fingerprint in wanted:
            sharing.setdefault(fingerprint, []).append(i)
        pairs = [
            (fingerprint, group)
            for fingerprint, clients in sharing.items()
            for group in _grouped(clients, [self.test_sizes[i] for i in clients], len(clients))
        ]
        sizes = [sum(self.test_sizes[i] for i in group) for _, group in pairs]
        calls = _grouped(pairs, sizes, CALL_MODELS)
        sent = [([(wanted[group[0], fingerprint], group) for fingerprint, group in call],) for call in calls]
        return {
            (s.client, fingerprint): s
            for call, results in zip(calls, self.engine.map("score_models", sent), strict=True)
            for (fingerprint, _), scored in zip(call, results, strict=True)
            for s in scored
        }

    def _score_jobs(self, wanted: Mapping[tuple[int, str], Job], function: str) -> dict[tuple[int, str], Scored]:
        """Models that only their client can put together."""
        calls = _grouped(list(wanted), [self.test_sizes[i] for i, _ in wanted], CALL_MODELS)
        results = self.engine.map(function, [([wanted[key] for key in call],) for call in calls])
        return {
            key: s for call, scored in zip(calls, results, strict=True) for key, s in zip(call, scored, strict=True)
        }

    def _score(self, model: str, moment: str, data: str, keys: Sequence[tuple[int, str]]) -> Score:
        return Score.of(model, moment, data, [self.known[key] for key in keys])


def serves_models(method: Method) -> bool:
    """Whether a client's model is just the vector `w` that the server serves, with nothing private in it."""
    cls = type(method)
    return all(getattr(cls, half) is getattr(Method, half) for half in ("personalise", "predictor", "beside"))


class Fingerprints:
    """Fingerprints of messages; a tensor that is in several of them is read only once."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Tensor, str]] = {}

    def __call__(self, message: Message) -> str:
        """Differs when anything in the message differs."""
        return "&".join(
            f"{name}={self._tensor(value) if isinstance(value, Tensor) else repr(value)}"
            for name, value in sorted(message.items())
        )

    def _tensor(self, tensor: Tensor) -> str:
        # The tensor is kept beside its fingerprint, so that its id cannot be given to another one.
        if id(tensor) not in self._seen:
            self._seen[id(tensor)] = (tensor, hashlib.sha256(tensor.contiguous().numpy().data).hexdigest())
        return self._seen[id(tensor)][1]


def _grouped(items: Sequence[T], sizes: Sequence[int], most: int) -> list[list[T]]:
    """Items in order, in groups of at most `most` that are full at `CALL_ROWS` samples."""
    groups: list[list[T]] = []
    rows = CALL_ROWS
    for item, size in zip(items, sizes, strict=True):
        if rows >= CALL_ROWS or len(groups[-1]) == most:
            groups.append([])
            rows = 0
        groups[-1].append(item)
        rows += size
    return groups
