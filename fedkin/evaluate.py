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
        seen, self.known = self.known, {}

        def judge(messages: Sequence[Message], as_sent: bool) -> list[Scored]:
            """Models that clients make of what they are sent, or what they are sent as it is."""
            whole = as_sent and not self.private_statistics
            keys = [
                (i, fingerprint(message) + ("" if whole else f"/{trained.get(i, 0)}/{as_sent}"))
                for i, message in enumerate(messages)
            ]
            # A client that could not be reached has judged no sample: it is asked again.
            self.known |= {key: seen[key] for key in keys if key in seen and seen[key].total}
            new = {key: messages[key[0]] for key in keys if key not in self.known}
            if whole:
                self.known |= self._score_models({key: message["w"] for key, message in new.items()})
            else:
                jobs = {key: Job(key[0], message, private.get(key[0], {})) for key, message in new.items()}
                self.known |= self._score_jobs(jobs, "score_sent" if as_sent else "score")
            return [self.known[key] for key in keys]

        served, as_sent = [self.method.serve(state, i) for i in clients], serves_models(self.method)
        if as_sent:
            served = [{"w": message["w"]} for message in served]
        judged = self.method.judged
        scores = [Score.of(judged.model, judged.moment, OWN, judge(served, as_sent))]
        w = self.method.global_model(state)
        if w is not None:
            scores.append(Score.of("global", "after aggregation", UNION, judge([{"w": w} for _ in clients], True)))
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
