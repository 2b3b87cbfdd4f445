"""FedGen: FedAvg whose clients also train on features that a generator has learnt from everybody's classifiers.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning. ICML 2021.

    J(w)       = E_{y ~ p(y), eps ~ N(0, I)} CE(sum_k a_ky g_k(G_w(y, eps)), y)               on the server     (4)
    J(theta_k) = CE on client k's samples + alpha E_{y ~ p(y), eps} CE(g(G_w(y, eps)), y)     on participant k  (5)
    theta     <- sum_k n_k / n * theta_k

g_k is participant k's classifier, G_w maps a class and noise to a feature vector: one hidden layer with ReLU, linear
output, trained by Adam. p(y) are the label counts that clients have told so far. The teachers' weights are a_ky =
n_ky / sum_j n_jy, so that each class is taught by those who know it; `teachers=alike` is 1 / K as (4) is printed,
which for linear classifiers is just their mean model. `diversity` adds exp(-mean_ij |eps_i - eps_j| |G_i - G_j|),
against a generator that forgets its noise. With `labels=own` a client has features generated of its own classes
only, in place of everybody's: then nothing tells it about the classes that it lacks. `beta` adds KL(g(G_w(y, eps)) ||
model(x)) for a client's own samples (x, y). alpha and beta shrink by `decay` every round; in round 1 there is no
trained generator and clients train as in FedAvg. pFedSim's settings (its A.5) are the defaults with `beta=10`.
Batch-norm statistics are averaged with the rest of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, one_hot

from fedkin import randomness
from fedkin.client import Client, Objective
from fedkin.config import Count, Fraction, Nonnegative, Positive
from fedkin.layout import Bound, Layout
from fedkin.method import Judged, Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import same_for_all, weighted_mean
from fedkin.similarity import boundaries


@dataclass(frozen=True)
class FedGen(Method):
    """`alpha` is the weight of generated features in a client's loss."""

    name: ClassVar[str] = "fedgen"
    paper: ClassVar[str] = "Zhu et al., Data-Free Knowledge Distillation for Heterogeneous FL, ICML 2021"
    personal: ClassVar[str] = "nothing"
    judged: ClassVar[Judged] = Judged(model="global")

    alpha: Nonnegative = 10.0
    beta: Nonnegative = 0.0
    decay: Fraction = 0.98
    labels: Literal["all", "own"] = "all"
    """Whose labels p(y) in (5) is about: everybody's, or the client's own."""
    teachers: Literal["labels", "alike"] = "labels"
    diversity: Nonnegative = 1.0
    hidden: Count = 32
    noise: Count = 32
    generated: Count = 32
    """Features generated for a step, on the server and on clients."""
    generator_steps: Count = 5
    generator_lr: Positive = 3e-4

    def start(self, fed: Overview) -> State:
        """The initial model, an untrained generator with its optimiser's moments, and no label counts yet."""
        with randomness.seeded_globally(fed.seed, "init/generator"):
            w = self.generator(fed.layout, fed.classes, like=fed.initial).w
        moments = {"generator/m": torch.zeros_like(w), "generator/v": torch.zeros_like(w)}
        labels = fed.initial.new_zeros(fed.clients, fed.classes)
        return State(fed, {"w": fed.initial.clone(), "generator": w, **moments, "labels": labels})

    def generator(self, layout: Layout, classes: int, like: Tensor) -> Bound:
        """The generator's network, for features of the model's classifier."""
        width = boundaries(like.new_zeros(1, layout.size), layout).shape[-1]
        layers = [nn.Linear(classes + self.noise, self.hidden), nn.ReLU(), nn.Linear(self.hidden, width)]
        return Bound(nn.Sequential(*layers).to(like))

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The model and, once it has been trained, the generator with the labels' distribution."""
        message = self.serve(state, client)
        if state.round > 1:
            message |= {"generator": state["generator"], "p": distribution(state["labels"])}
        return message

    def local(self, client: Client, message: Message) -> Message:
        """Local epochs of SGD on (5)."""
        objective = self.regularised(client, message) if "generator" in message else None
        w = client.sgd(message["w"], objective=objective)
        return {"w": w, "n": client.n, "labels": client.label_counts}

    def regularised(self, client: Client, message: Message) -> Objective:
        """The loss of (5) on a batch."""
        with torch.random.fork_rng():
            bound = self.generator(client.layout, client.classes, like=client.bound.w)
        generate = bound.eval(message["generator"])
        p = message["p"] if self.labels == "all" else distribution(client.label_counts[None])
        model, draws, shrunk = client.bound.module, client.generator("generated"), self.decay ** (client.round - 1)
        classify = model.get_submodule(client.layout.classifier_name or "")

        def objective(x: Tensor, y: Tensor) -> Tensor:
            scores, drawn = model(x), labels_from(p, self.generated, draws)
            with torch.no_grad():
                z = generate(self.inputs(drawn, p, draws))
            value = cross_entropy(scores, y) + self.alpha * shrunk * cross_entropy(classify(z), drawn)
            if self.beta:
                with torch.no_grad():
                    target = classify(generate(self.inputs(y, p, draws))).softmax(1)
                value = value + self.beta * shrunk * kl_div(scores.log_softmax(1), target, reduction="batchmean")
            return value

        return objective

    def inputs(self, y: Tensor, p: Tensor, draws: torch.Generator) -> Tensor:
        """What the generator is given for classes y [B]: them one-hot, and noise; [B, C + noise]."""
        noise = torch.randn(len(y), self.noise, generator=draws, dtype=torch.float64)
        return torch.cat([one_hot(y, len(p)).to(p), noise.to(p)], dim=1)

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The sample-weighted mean, and some steps of the generator on (4) with the participants as teachers."""
        state["w"] = weighted_mean(replies)
        state["labels"][replies.clients] = replies["labels"]
        self.train(state, replies)
        return same_for_all(replies, state.fed.clients)

    def train(self, state: State, replies: Replies) -> None:
        """Steps of Adam on the generator."""
        fed, p = state.fed, distribution(state["labels"])
        with torch.random.fork_rng():
            bound = self.generator(fed.layout, fed.classes, like=state["w"])
        bound.load(state["generator"])
        draws = randomness.generator(fed.seed, "generator", state.round)
        before = (state.round - 1) * self.generator_steps
        for k in range(self.generator_steps):
            y = labels_from(p, self.generated, draws)
            inputs = self.inputs(y, p, draws)
            bound.g.zero_()
            z = bound.module(inputs)
            loss = cross_entropy(self.taught(z, y, replies, fed.layout), y)
            loss = loss + self.diversity * sameness(inputs[:, len(p) :], z)
            loss.backward()
            adam(bound.p, bound.g, state["generator/m"], state["generator/v"], before + k + 1, self.generator_lr)
        state["generator"] = bound.w

    def taught(self, z: Tensor, y: Tensor, replies: Replies, layout: Layout) -> Tensor:
        """The teachers' class scores [B, C] for features z [B, d] of classes y [B], in their weighted mean."""
        weights, counts = boundaries(replies["w"], layout), replies["labels"][:, y]
        scores = torch.einsum("bd,ckd->kbc", z, weights)
        bias = f"{layout.classifier_name}.bias".removeprefix(".")
        if bias in layout.columns:
            scores = scores + layout.block([bias]).of(replies["w"])[:, None]
        if self.teachers == "alike":
            return scores.mean(0)
        # A class that none of them has is taught by all alike.
        knows = torch.where(counts.sum(0) > 0, counts, 1.0)
        return torch.einsum("kb,kbc->bc", knows / knows.sum(0), scores)


def distribution(labels: Tensor) -> Tensor:
    """p(y) [C] from clients' label counts [N, C]."""
    counts = labels.sum(0)
    return counts / counts.sum()


def labels_from(p: Tensor, count: int, draws: torch.Generator) -> Tensor:
    """Classes [count] drawn from p [C], where p lives."""
    u = torch.rand(count, generator=draws, dtype=torch.float64).to(p)
    return torch.searchsorted(p.cumsum(0), u, right=True).clamp(max=len(p) - 1)


def sameness(noise: Tensor, z: Tensor) -> Tensor:
    """exp(-mean_ij |noise_i - noise_j| |z_i - z_j|) []: 1 if z [B, d] is blind to the noise [B, e], else less."""
    apart = (noise[:, None] - noise).square().mean(2).sqrt()
    return torch.exp(-(apart * (z[:, None] - z).abs().mean(2)).mean())


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int, lr: float) -> None:
    """One step of Adam on parameters p [P], in place, as are its moments m [P] and v [P]."""
    m.lerp_(g, 0.1)
    v.lerp_(g.square(), 0.001)
    p.addcdiv_(m / (1 - 0.9**step), (v / (1 - 0.999**step)).sqrt_().add_(1e-8), value=-lr)
