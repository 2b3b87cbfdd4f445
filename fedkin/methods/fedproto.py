"""FedProto: no model is shared, only what each class looks like: the mean of its features.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI 2022.

    C_i^j  = mean of f_i(x) over client i's samples of class j          f: what the classifier is given
    C^j   <- sum_i n_i^j C_i^j / sum_i n_i^j                            over participants i that have class j
    loss   = cross-entropy + lambda * sum_j ||C_i^j - C^j||_2           C_i^j of the batch, j in the batch
    label  = argmin_j ||f_i(x) - C^j||_2                                not by the classifier

The paper divides C^j by the number of clients as well, which would shrink it towards zero: taken here as a weighted
mean. A class that no participant has keeps the prototype that it had; one that nobody ever had has none, is never
predicted, and puts no term into the loss. Models stay on their clients; what is sent are the prototypes in evaluation
mode and how many samples stand behind each. The classifier is trained with the rest, for its gradients. A client's
model as it is kept has the prototypes in place of its classifier where that is a linear layer with a bias: f C^j -
|C^j|^2 / 2 is largest where the distance is least. The paper takes lambda = 1, or 0.1 for CIFAR-10.

Public code often draws every sample's features to its class's prototype, by the mean square over samples and features
(`pull=samples`, which pulls far less), and labels by the classifier after all (`label=classifier`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedkin.client import Client, Objective
from fedkin.config import Nonnegative
from fedkin.method import Judged, Message, Method, Overview, Predictor, Replies, State

NEVER = -1e9
"""The score of a class without a prototype, in place of minus infinity."""


@dataclass(frozen=True)
class FedProto(Method):
    """`strength` is lambda: how strongly features are drawn to the prototypes."""

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    personal: ClassVar[str] = "the whole model; only prototypes of classes are shared"
    judged: ClassVar[Judged] = Judged(moment="after local training")

    strength: Nonnegative = 1.0
    pull: Literal["means", "samples"] = "means"
    """What is drawn to the prototypes: the means of a batch's classes, or all of its samples."""
    label: Literal["prototype", "classifier"] = "prototype"
    """What says which class a sample has: the nearest prototype, or the client's own classifier."""

    def start(self, fed: Overview) -> State:
        """No prototypes yet, and no model: clients have their own."""
        return State(fed)

    def serve(self, state: State, client: int) -> Message:
        """The prototypes [C, F] and which classes have one [C], as soon as there are any."""
        return {"prototypes": state["prototypes"], "known": state["known"]} if "prototypes" in state else {}

    def local(self, client: Client, message: Message) -> Message:
        """Train beside the prototypes; what the classes look like afterwards [C, F], and their sample counts [C]."""
        w = client.private["w"] = client.sgd(self.own(client), objective=self.objective(client, message))
        return {"prototypes": self.prototypes(client, w), "counts": client.label_counts}

    def own(self, client: Client) -> Tensor:
        """The model [D] that this client has trained so far."""
        w: Tensor = client.private.get("w", client.initial)
        return w

    def objective(self, client: Client, message: Message) -> Objective | None:
        """The loss with its second term; without prototypes there is none."""
        if "prototypes" not in message:
            return None

        def loss(x: Tensor, y: Tensor) -> Tensor:
            z, scores = client.bound.features(x)
            return cross_entropy(scores, y) + self.strength * self.apart(z.flatten(1), y, message)

        return loss

    def apart(self, z: Tensor, y: Tensor, message: Message) -> Tensor:
        """How far features [B, F] of labels [B] are from the prototypes, []."""
        prototypes: Tensor = message["prototypes"]
        known: Tensor = message["known"]
        if self.pull == "samples":
            return ((z - prototypes[y]).square() * known[y, None]).mean()
        means, counts = class_means(z, y, len(prototypes))
        distances: Tensor = torch.linalg.vector_norm(means - prototypes, dim=1)
        return (distances * (counts > 0) * known).sum()

    @torch.no_grad()
    def prototypes(self, client: Client, w: Tensor) -> Tensor:
        """Class means [C, F] of features over all training samples; zero for classes that are not there."""
        client.model(w)
        batches = [(client.bound.features(x)[0].flatten(1), y) for x, y in client.samples.test_batches(client.train)]
        z, y = (torch.cat(part) for part in zip(*batches, strict=True))
        return class_means(z, y, client.classes)[0]

    def aggregate(self, state: State, replies: Replies) -> None:
        """Sample-weighted means of the prototypes, class by class."""
        counts = replies["counts"]
        total = counts.sum(0)
        new = torch.einsum("kc,kcf->cf", counts / total.clamp(min=1), replies["prototypes"])
        here = total > 0
        state["prototypes"] = torch.where(here[:, None], new, state.get("prototypes", torch.zeros_like(new)))
        state["known"] = (here | (state["known"] > 0) if "known" in state else here).to(new.dtype)

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The client's model, with the prototypes as its classifier where they label and it is linear."""
        w, name, columns = self.own(client), client.layout.classifier_name, client.layout.columns
        weight, bias = (f"{name}.{kind}".removeprefix(".") for kind in ("weight", "bias"))
        if not self.labels(message) or bias not in columns:
            return w
        prototypes, known = message["prototypes"], message["known"]
        if columns[weight][1] != prototypes.shape:
            return w
        offset = torch.where(known > 0, -prototypes.square().sum(1) / 2, NEVER)
        w = client.layout.block([weight]).put(w.clone(), prototypes.reshape(-1))
        return client.layout.block([bias]).put(w, offset)

    def predictor(self, client: Client, message: Message) -> Predictor:
        """By the nearest prototype, or the classifier."""
        return self.by_label(client, self.own(client), message)

    def finetune(self, client: Client, message: Message, steps: int, lr: float) -> Predictor:
        """The same after some more steps on the same loss."""
        objective = self.objective(client, message)
        tuned = client.sgd(self.own(client), epochs=1, most=steps, lr=lr, objective=objective)
        return self.by_label(client, tuned, message)

    def labels(self, message: Message) -> bool:
        """Whether it is the prototypes that label; before there are any the classifier does."""
        return self.label == "prototype" and "prototypes" in message

    def by_label(self, client: Client, w: Tensor, message: Message) -> Predictor:
        """Class scores [B, C]: -||f(x) - C^j||^2 / 2, or the classifier's."""
        model = client.model(w)
        if not self.labels(message):
            return model

        def scores(x: Tensor) -> Tensor:
            z = client.bound.features(x)[0].flatten(1)
            near = -torch.cdist(z, message["prototypes"], compute_mode="donot_use_mm_for_euclid_dist").square() / 2
            return torch.where(message["known"] > 0, near, NEVER)

        return scores


def class_means(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Means [C, F] of features [B, F] by label [B], zero for classes that are not there, and counts [C]."""
    belongs = (y == torch.arange(classes, device=y.device)[:, None]).to(z.dtype)
    counts = belongs.sum(1)
    return belongs @ z / counts.clamp(min=1)[:, None], counts
