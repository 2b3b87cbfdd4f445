"""pFedHN: a network on the server that writes every client's model, from a vector that stands for the client.

Shamsian, Navon, Fetaya, Chechik: Personalized Federated Learning using Hypernetworks. ICML 2021.

    theta_i = h(v_i; phi)                                         the model that client i is sent
    delta_i = theta~_i - theta_i                                  what its local training changes, sent back
    phi <- phi + alpha / K sum_i (d theta_i / d phi)' delta_i     one vector-Jacobian product for all participants,
    v_i <- v_i + alpha / K (d theta_i / d v_i)' delta_i           with momentum

The paper asks one client a round, with 50 local batches; here K take part and the step is their mean, that of the
paper's objective. Local work is the run's local epochs. The hypernetwork has `layers` hidden layers and one linear
head; a head for each tensor of the model, as in the paper, is the same head cut into pieces. Embeddings have
floor(1 + N / 4) entries. The head's bias starts as the run's common initial model and its weights as zero, so all
first models are that model; clients differ from the first step on, since their hidden layers do. Running statistics
of batch norm are no output of h: everybody has their mean over the last participants. The hypernetwork never leaves
the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedkin import randomness
from fedkin.client import Client
from fedkin.config import Count, Fraction, Positive
from fedkin.layout import Layout
from fedkin.method import Message, Method, Overview, Replies, State


@dataclass(frozen=True)
class PFedHN(Method):
    """Personalised federated hypernetworks."""

    name: ClassVar[str] = "pfedhn"
    paper: ClassVar[str] = "Shamsian et al., Personalized Federated Learning using Hypernetworks, ICML 2021"
    personal: ClassVar[str] = "the whole model, written by a hypernetwork for the client's embedding"
    vectorizes: ClassVar[tuple[str, ...]] = ("train",)

    hidden: Count = 100
    layers: Count = 3
    server_lr: Positive = 0.1
    """alpha; the paper's 0.01 is for 5000 rounds."""
    server_momentum: Fraction = 0.9

    def start(self, fed: Overview) -> State:
        """A hypernetwork that writes the initial model for everybody."""
        layout = fed.layout
        with randomness.seeded_globally(fed.seed, "init/hypernetwork"):
            network = self.hypernetwork(fed).to(fed.initial.dtype)
        nn.init.zeros_(network.head.weight)
        network.head.bias.data.copy_(layout.parameters.of(fed.initial))
        phi = Layout(network).flatten(network)
        buffers = layout.buffers.of(fed.initial).clone()
        return State(fed, {"phi": phi, "velocity": torch.zeros_like(phi), "buffers": buffers})

    def hypernetwork(self, fed: Overview) -> Hypernetwork:
        """The network h, with its embeddings."""
        return Hypernetwork(fed.clients, 1 + fed.clients // 4, self.hidden, self.layers, fed.layout.parameter_count)

    def models(self, fed: Overview, phi: Tensor, clients: list[int]) -> Tensor:
        """h(v_i; phi) for some clients, [K, P], from the hypernetwork's numbers phi."""
        with torch.device("meta"):
            network = self.hypernetwork(fed)
        written: Tensor = functional_call(network, Layout(network).tensors(phi), torch.tensor(clients))
        return written

    def serve(self, state: State, client: int) -> Message:
        """The client's model."""
        return {"w": torch.cat([self.models(state.fed, state["phi"], [client])[0], state["buffers"]])}

    def local(self, client: Client, message: Message) -> Message:
        """What local epochs of SGD change."""
        return {"delta": client.sgd(message["w"]) - message["w"]}

    def aggregate(self, state: State, replies: Replies) -> None:
        """A step of the hypernetwork and the embeddings towards what the participants have trained."""
        layout, delta = state.fed.layout, replies["delta"]
        phi = state["phi"].clone().requires_grad_()
        written = self.models(state.fed, phi, replies.clients)
        (step,) = torch.autograd.grad(written, phi, layout.parameters.of(delta) / len(replies))
        state["velocity"] = self.server_momentum * state["velocity"] + step
        state["phi"] = state["phi"] + self.server_lr * state["velocity"]
        state["buffers"] = state["buffers"] + layout.buffers.of(delta).mean(0)


class Hypernetwork(nn.Module):
    """From clients' numbers [K] to the parameters of their models [K, P]."""

    def __init__(self, clients: int, embedding: int, hidden: int, layers: int, size: int) -> None:
        super().__init__()
        widths = [embedding, *[hidden] * layers]
        self.embedding = nn.Embedding(clients, embedding)
        self.body = nn.Sequential()
        for before, after in pairwise(widths):
            self.body.extend([nn.Linear(before, after), nn.ReLU()])
        self.head = nn.Linear(hidden, size)

    def forward(self, clients: Tensor) -> Tensor:
        """The parameters [K, P]."""
        written: Tensor = self.head(self.body(self.embedding(clients)))
        return written
