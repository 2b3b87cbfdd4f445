"""IFCA: a few models for everybody, of which each client takes the one that fits its data best.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020.

    c_i     = argmin_j F_i(theta_j)                          on each participant i, F_i: mean loss on its samples
    w_i     <- SGD(theta_{c_i}; D_i)
    theta_j <- sum_{i: c_i = j} n_i w_i / sum_{i: c_i = j} n_i      (model averaging; unchanged where nobody chose j)

All k models go to every participant, so a round costs k downloads. The paper's clients have equally many samples;
weighing by samples makes this FedAvg for k = 1. The paper starts from k random models: the first is the one that all
methods start from, each other has the numbers of every tensor in another random order, which for independently drawn
weights is as good as a new draw. A client is judged by the model with the least loss on its training samples, also if
it has never taken part. Running statistics of batch norm are averaged like the rest of a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedkin import randomness
from fedkin.client import Client
from fedkin.config import Count
from fedkin.method import Message, Method, Mixing, Overview, Replies, State


@dataclass(frozen=True)
class IFCA(Method):
    """`clusters` is k; the paper takes 2 to 4."""

    name: ClassVar[str] = "ifca"
    paper: ClassVar[str] = "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020"
    personal: ClassVar[str] = "which of a few models the client takes"

    clusters: Count = 4

    def start(self, fed: Overview) -> State:
        """k different models [k, D]; nobody has chosen one."""
        models = [fed.initial, *(reordered(fed, j) for j in range(1, self.clusters))]
        return State(fed, {"models": torch.stack(models), "member": torch.full((fed.clients,), -1)})

    def serve(self, state: State, client: int) -> Message:
        """All models [k, D], stacked."""
        return {"w": state["models"]}

    def global_model(self, state: State) -> Tensor | None:
        """There is one for k = 1 only."""
        return state["models"][0] if self.clusters == 1 else None

    def choice(self, client: Client, message: Message) -> tuple[Tensor, Tensor]:
        """The number [1] and the numbers [D] of the model with the least loss here; the first of equals."""
        models = message["w"].view(-1, client.layout.size)
        best = client.losses(models).argmin().view(1)
        return best, models.index_select(0, best)[0]

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The model with the least loss."""
        return self.choice(client, message)[1]

    def local(self, client: Client, message: Message) -> Message:
        """Choose a model and train it."""
        chosen, w = self.choice(client, message)
        return {"w": client.sgd(w), "chosen": chosen, "n": client.n}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean of those that chose the same model."""
        who, chosen = replies.clients, replies["chosen"].squeeze(1)
        inside = (chosen == torch.arange(self.clusters)[:, None]) * replies["n"]
        total = inside.sum(1, keepdim=True)
        share = inside / total.clamp(min=1)
        state["models"] = torch.where(total > 0, share @ replies["w"], state["models"])
        state["member"][who] = chosen
        # Whose models make up the one that each client chose last; its own where nobody's do.
        member, rows = state["member"], replies["n"].new_zeros(state.fed.clients, state.fed.clients)
        rows[:, who] = torch.where(member[:, None] >= 0, share[member], 0)
        return {"all": torch.where(rows.sum(1, keepdim=True) > 0, rows, torch.eye(len(rows), dtype=rows.dtype))}


def reordered(fed: Overview, model: int) -> Tensor:
    """The initial model [D] with the numbers of every tensor in a random order."""
    draw = randomness.generator(fed.seed, f"init/cluster-{model}")
    parts = [t.reshape(-1) for t in fed.layout.tensors(fed.initial).values()]
    return torch.cat([part[torch.randperm(len(part), generator=draw)] for part in parts])
