"""FedPAC: features pulled to global class centroids, and classifiers combined as feature statistics advise.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration. ICLR 2023.

    phi_i   <- SGD on the classifier, extractor theta fixed                                 first, on each participant
    theta_i <- SGD on the extractor, phi_i fixed, of loss + lambda / d * ||f(x) - c_y||^2   then
    theta   <- sum_i n_i / n * theta_i,   c_y <- mean of the participants' features of class y
    phi_i   <- sum_j alpha_ij phi_j,      alpha_i = argmin ||h_i - sum_j alpha_j h_j||^2 + sum_j alpha_j^2 v_j
                                          over alpha >= 0 with sum 1

h_i holds a row P_i(y) E_i[f(x) | y] for each class y, under the extractor that everybody received; n_i v_i =
E_i ||f||^2 - ||h_i||^2 is the variance of one sample's contribution to it. The first term is the bias of using
others' data, the second the variance of using little data; with sum 1 they are the paper's quadratic form, solved
exactly on the server. c_y is taken with the trained extractors; a class that nobody has shown yet pulls nowhere, so
round 1 has no alignment, and one that no participant has keeps its last centroid. The head's epochs come on top of
the run's, which go to the extractor. Combination is among a round's participants; the others keep their classifier
and take the new extractor. Batch-norm statistics are part of the extractor. The papers here set lambda to 1 too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import nnls
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedkin.client import Client
from fedkin.config import Count, Nonnegative, Positive
from fedkin.method import Message, Method, Mixing, Overview, Replies, State
from fedkin.mixing import mix, same_for_all, weighted_mean

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FedPAC(Method):
    """`alignment` is lambda, the pull of features towards their class's global centroid."""

    name: ClassVar[str] = "fedpac"
    paper: ClassVar[str] = "Xu et al., Personalized FL with Feature Alignment and Classifier Collaboration, ICLR 2023"
    personal: ClassVar[str] = "the classifier, combined from clients with similar feature statistics"

    alignment: Nonnegative = 1.0
    head_epochs: Count = 1
    head_lr: Positive | None = None
    """Learning rate of the classifier; otherwise the run's."""

    def start(self, fed: Overview) -> State:
        """One model per client, all the same; there are no centroids yet."""
        return State(fed, {"W": fed.initial.repeat(fed.clients, 1)})

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """The client's model and the global centroids [C, d], once there are any."""
        return self.serve(state, client) | ({"c": state["c"]} if "c" in state else {})

    def serve(self, state: State, client: int) -> Message:
        """The shared extractor with the client's own classifier."""
        return {"w": state["W"][client]}

    def local(self, client: Client, message: Message) -> Message:
        """Statistics under the shared extractor, then the head, then the extractor, then new class sums."""
        w, layout = message["w"], client.layout
        sums, squares, _ = statistics(client, w)
        h = sums / client.n
        v = (squares / client.n - h.square().sum()) / client.n
        w = client.sgd(w, only=layout.classifier, epochs=self.head_epochs, lr=self.head_lr, purpose="head")

        def aligned(x: Tensor, y: Tensor) -> Tensor:
            f, scores = client.bound.features(x)
            centroids = message["c"][y]
            gap = torch.where(centroids.isnan(), 0, f.flatten(1) - centroids)
            return cross_entropy(scores, y) + self.alignment * gap.square().mean()

        w = client.sgd(w, only=layout.extractor, objective=aligned if "c" in message else None)
        sums, _, counts = statistics(client, w)
        return {"w": w, "n": client.n, "h": h, "v": v, "sums": sums, "counts": counts}

    def aggregate(self, state: State, replies: Replies) -> Mixing:
        """The mean extractor, new centroids, and everybody's combination of classifiers."""
        who, layout, clients = replies.clients, state.fed.layout, state.fed.clients
        layout.extractor.copy(weighted_mean(replies), state["W"])
        alpha = combination(replies["h"].flatten(1), replies["v"])
        state["W"][who] = mix(alpha, replies["w"], layout.classifier, out=state["W"][who])
        seen = replies["counts"].sum(0)[:, None]
        fresh = replies["sums"].sum(0) / seen
        state["c"] = torch.where(seen > 0, fresh, state["c"]) if "c" in state else fresh
        matrix = torch.eye(clients, dtype=alpha.dtype)
        matrix[torch.tensor(who)[:, None], who] = alpha
        return {"extractor": same_for_all(replies, clients)["all"], "classifier": matrix}


@torch.no_grad()
def statistics(client: Client, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Over a client's training samples: sums of features by class [C, d], of their squares [], and counts [C]."""
    client.bound.eval(w)
    parts = []
    for x, y in client.samples.test_batches(client.train):
        f = client.bound.features(x)[0].flatten(1)
        member = one_hot(y, client.classes).to(f.dtype)
        parts.append((member.T @ f, f.square().sum(), member.sum(0)))
    sums, squares, counts = (torch.stack(values).sum(0) for values in zip(*parts, strict=True))
    return sums, squares, counts


def combination(h: Tensor, v: Tensor) -> Tensor:
    """The weights alpha [K, K], row by row, from feature statistics h [K, C d] and their variances v [K]."""
    points, variance = h.double().numpy(), np.diag(v.double().clamp(min=0).numpy())
    # With sum 1, h_i - sum_j alpha_j h_j is a combination of the differences from h_i.
    apart = (points - own for own in points)
    return torch.tensor(np.array([least_on_simplex(d @ d.T + variance) for d in apart]), dtype=h.dtype)


def least_on_simplex(q: Matrix) -> Matrix:
    """The a [K] >= 0 with sum 1 that minimises a' q a, for positive semi-definite q [K, K].

    Scaled to a' q a = 1 instead of sum 1 it minimises b' q b / 2 - sum(b) over b >= 0, which for q = r' r is the
    nonnegative least-squares problem ||r b - r'^-1 1||: an active-set method ends at its exact solution.
    """
    count = len(q)
    scale = np.trace(q) / count
    if not scale > 0:
        return np.full(count, 1 / count)
    # A trace of the identity keeps the factor regular where a client's features do not vary at all.
    r = np.linalg.cholesky(q / scale + 1e-12 * np.eye(count)).T
    b, _ = nnls(r, np.linalg.solve(r.T, np.ones(count)))
    return np.asarray(b / b.sum())
