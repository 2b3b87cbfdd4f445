"""Federated learning written slowly and obviously: dictionaries of tensors, deep copies, torch.optim, float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedkin
from fedkin import Federation, models, randomness
from fedkin.config import Config
from fedkin.layout import Layout
from fedkin.method import Method, Overview, Replies, State
from fedkin.schedule import participants

SETTINGS: dict[str, Any] = {
    "rounds": 2, "epochs": 2, "batch": 8, "lr": 0.1, "join": 0.75, "seed": 3, "momentum": 0.0, "weight_decay": 0.0,
    "dtype": "float64", "engine": "inline", "vectorize": "off",
}  # fmt: skip

Weights = dict[str, Tensor]

# The parameters of the network `mlp`, in order.
BODY = [f"fc{k}.{kind}" for k in (1, 2) for kind in ("weight", "bias")]
HEAD = ["classifier.weight", "classifier.bias"]
MLP = [*BODY, *HEAD]


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def vector(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def double(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def numbers(*values: float) -> Tensor:
    return double(values)


def flat(w: Weights, names: Sequence[str] | None = None) -> Tensor:
    """All of them as one vector, or those of these names, in their order."""
    return torch.cat([w[name].reshape(-1) for name in names or w])


def weights(model: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def combine(parts: Sequence[tuple[float, Weights]], names: Sequence[str] | None = None) -> Weights:
    """A weighted sum, tensor by tensor."""
    names = list(parts[0][1]) if names is None else names
    return {name: sum((c * w[name] for c, w in parts), torch.zeros(())) for name in names}


class Reference:
    def __init__(self, federation: Federation, settings: Mapping[str, Any] = SETTINGS) -> None:
        data = federation.data
        x, mean, std = (torch.tensor(v, dtype=torch.float64) for v in (data.x, data.mean, data.std))
        self.x, self.y = (x - mean) / std, torch.tensor(data.y)
        self.train = [torch.tensor(rows) for rows in federation.split.train]
        self.n = [len(rows) for rows in self.train]
        self.settings = dict(settings)
        self.clients = len(federation)

    def who(self, round: int) -> list[int]:
        return participants(self.settings["seed"], round, self.clients, self.settings["join"])

    def initial(self, name: str = "mlp", purpose: str = "init", client: int = 0) -> nn.Module:
        with randomness.seeded_globally(self.settings["seed"], purpose, 0, client):
            return models.build(name, tuple(self.x.shape[1:]), 3).double()

    def loaded(self, w: Weights) -> nn.Module:
        model = self.initial()
        model.load_state_dict(w)
        return model

    def sgd(
        self,
        model: nn.Module,
        client: int,
        round: int,
        *,
        key: str = "train/batches",
        epochs: int | None = None,
        repeats: int = 1,
        penalty: Callable[[nn.Module], Tensor] | None = None,
        beside: nn.Module | None = None,
    ) -> nn.Module:
        settings, model = self.settings, copy.deepcopy(model)
        optimizer = torch.optim.SGD(
            model.parameters(), settings["lr"], momentum=settings["momentum"], weight_decay=settings["weight_decay"]
        )
        order = randomness.generator(settings["seed"], key, round, client)
        rows = self.train[client]
        for _ in range(settings["epochs"] if epochs is None else epochs):
            shuffled = rows[torch.randperm(len(rows), generator=order)]
            for k in range(0, len(rows), settings["batch"]):
                batch = shuffled[k : k + settings["batch"]]
                for _ in range(repeats):
                    scores = model(self.x[batch])
                    if beside is not None:
                        scores = scores + beside(self.x[batch]).detach()
                    loss = cross_entropy(scores, self.y[batch])
                    if penalty is not None:
                        loss = loss + penalty(model)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        return model

    def loss(self, model: nn.Module, rows: Tensor) -> float:
        with torch.no_grad():
            return float(cross_entropy(model(self.x[rows]), self.y[rows]))

    def mean(self, trained: Mapping[int, nn.Module]) -> nn.Module:
        total = sum(self.n[i] for i in trained)
        return self.loaded(combine([(self.n[i] / total, weights(m)) for i, m in trained.items()]))

    def fedavg(self, rounds: int) -> nn.Module:
        model = self.initial()
        for t in range(1, rounds + 1):
            model = self.mean({i: self.sgd(model, i, t) for i in self.who(t)})
        return model


def run(method: str, federation: Federation, **settings: Any) -> fedkin.Result:
    return fedkin.run(method, data=federation, **SETTINGS | settings)


def server(method: Method, clients: int) -> State:
    """A server in round 1 of 10 whose model is one linear layer of two inputs without bias, all zero."""
    layout = Layout(nn.Linear(2, 1, bias=False))
    state = method.start(Overview(clients, 10, 0, 2, layout, double([0, 0]), Config().training))
    state.round = 1
    return state


def replied(clients: list[int], exchange: str = "train", **stacked: Tensor) -> Replies:
    """What clients sent, from one row [K, ...] a client."""
    messages = [{name: rows[k] for name, rows in stacked.items()} for k in range(len(clients))]
    return Replies(exchange, clients, messages)
