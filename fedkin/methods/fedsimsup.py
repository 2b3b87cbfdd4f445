"""FedSimSup: a private supervisor beside the personalised model, and kin by label proportions.

Personalized Federated Learning with Similarity Information Supervisor (under double-blind review), Algorithm 1.

    prediction          q_theta_i(x) + q_s_i(x), the sum of the class scores of model and supervisor            (3)
    participants        tau_s epochs on s_i with theta_i fixed (10), then tau_theta on theta_i with s_i fixed (11)
    who sat out         theta_i <- alpha_i theta_i + (1 - alpha_i) sum_j s_ij theta_j / sum_j s_ij              (8)
                        alpha_i = K m_i / (sum_j m_j + K m_i),  j over the K participants                       (9)

s_ij is the cosine of the clients' label proportions, m_i their number of samples. The supervisor never leaves its
client; each client may have its own architecture (`supervisor=lenet5-sixth,small-cnn,small-transformer` gives a third
each). Label proportions are private: `epsilon` adds Laplace noise to the counts behind them, for epsilon-differential
privacy. The paper's future work, a similarity that changes during training, is `similarity=classifier` or `updates`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedkin import models
from fedkin.client import Client
from fedkin.config import Count, Nonnegative
from fedkin.method import Exchange, Message, Method, Mixing, Overview, Replies, State
from fedkin.similarity import boundary_cosine, cosine, label_cosine


@dataclass(frozen=True)
class FedSimSup(Method):
    """Federated learning with a similarity information supervisor."""

    name: ClassVar[str] = "fedsimsup"
    paper: ClassVar[str] = "Personalized Federated Learning with Similarity Information Supervisor"
    personal: ClassVar[str] = "the whole model, and a supervisor that never leaves its client"
    defaults: ClassVar[Mapping[str, Any]] = {"rounds": 1000, "join": 0.1, "epochs": 5, "batch": 32, "lr": 0.1}

    supervisor: str = "auto"
    """Network of the supervisor, about a sixth of the model; several, separated by commas, take turns."""
    supervisor_epochs: Count = 2
    """tau_s; the rest of the local epochs, at least one, go to the personalised model."""
    similarity: Literal["labels", "classifier", "updates", "none"] = "labels"
    """Of labels; of classifiers or updates, which changes during training; or none: all count the same."""
    epsilon: Nonnegative = 0.0
    """Strength of the noise on label counts: smaller is more private; 0 is none."""

    def start(self, fed: Overview) -> State:
        """One model per client, all the same."""
        values = {"theta": fed.initial.repeat(fed.clients, 1)}
        if self.similarity == "updates":
            values["updates"] = torch.zeros_like(values["theta"])
        return State(fed, values)

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """Before the first round everybody says how many samples it has, and of which classes."""
        return (Exchange("labels", everyone=True), Exchange()) if state.round == 1 else (Exchange(),)

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The client's personalised model."""
        return {} if exchange == "labels" else self.serve(state, client)

    def serve(self, state: State, client: int) -> Message:
        """The client's personalised model."""
        return {"w": state["theta"][client]}

    def local(self, client: Client, message: Message) -> Message:
        """The supervisor under the model, then the model under the supervisor."""
        if client.exchange == "labels":
            return {"n": client.n, **({"labels": self.labels(client)} if self.similarity == "labels" else {})}
        theta, (name, s) = message["w"], self.beside(client)
        supervisor, fixed = client.network(name), client.model(theta)
        s = client.sgd(s, on=supervisor, beside=fixed, epochs=self.supervisor_epochs, purpose="supervisor")
        client.private["supervisor"] = s
        left = max(1, client.training.epochs - self.supervisor_epochs)
        return {"w": client.sgd(theta, beside=supervisor.eval(s), epochs=left)}

    def labels(self, client: Client) -> Tensor:
        """Label proportions [C], with noise if asked for."""
        counts = client.label_counts
        if self.epsilon > 0:
            # Laplace noise by the inverse of its distribution function; one sample changes one count by one.
            u = torch.rand(len(counts), generator=client.generator("privacy"), dtype=torch.float64) - 0.5
            noise = -torch.sign(u) * torch.log1p(-2 * u.abs()) / self.epsilon
            counts = (counts + noise.to(counts)).clamp(min=0)
        return counts / counts.sum().clamp(min=1)

    def beside(self, client: Client) -> tuple[str, Tensor]:
        """This client's supervisor: its network and its numbers."""
        chosen = self.supervisor.split(",")
        name = chosen[client.id % len(chosen)].strip()
        if name == "auto":
            name = models.supervisor_for(client.shape, norm=bool(client.layout.norm_statistics.ranges))
        s = client.private.get("supervisor")
        return name, client.drawn(name) if s is None else s

    def aggregate(self, state: State, replies: Replies) -> Mixing | None:
        """Take over what participants trained; all others move towards those like them (8)."""
        if replies.exchange == "labels":
            state["m"] = replies["n"].to(state["theta"].dtype)
            if self.similarity == "labels":
                state["s"] = label_cosine(replies["labels"])
            return None
        theta, who = state["theta"], replies.clients
        if self.similarity == "updates":
            state["updates"][who] = replies["w"] - theta[who]
        theta[who] = replies["w"]
        matrix = sat_out(self.alike(state), state["m"], who)
        out = sorted(set(range(len(theta))) - set(who))
        theta[out] = matrix.diagonal()[out, None] * theta[out] + matrix[out][:, who] @ theta[who]
        return {"all": matrix}

    def alike(self, state: State) -> Tensor:
        """How alike clients are now, [N, N] in 0..1."""
        if self.similarity == "labels":
            s: Tensor = state["s"]
            return s
        if self.similarity == "none":
            return torch.ones(len(state["m"]), len(state["m"]), dtype=state["m"].dtype)
        if self.similarity == "classifier":
            return boundary_cosine(state["theta"], state.fed.layout).mean(0).clamp(0, 1)
        return cosine(state["updates"]).clamp(0, 1)


def sat_out(s: Tensor, m: Tensor, who: list[int]) -> Tensor:
    """The mixing matrix [N, N] of (8) and (9): participants `who` keep theirs, the others move towards them."""
    matrix = torch.eye(len(s), dtype=s.dtype)
    k = len(who)
    alpha = k * m / (m[who].sum() + k * m)
    total = s[:, who].sum(1)
    for_others = total > 0
    for_others[who] = False
    matrix[for_others] *= alpha[for_others, None]
    rows = for_others.nonzero().squeeze(1)
    pull = (1 - alpha[rows, None]) * s[rows][:, who] / total[rows, None]
    matrix[rows[:, None], torch.tensor(who)] = pull
    return matrix
