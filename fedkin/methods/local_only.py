"""Local-only: every client learns from its own data and from nobody else.

The yardstick of personalised federated learning: a method that does not beat it gives its
clients no reason to take part. Nothing is sent; the mixing matrix is the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedkin.client import Client
from fedkin.method import Judged, Message, Method, Overview, Replies, State


@dataclass(frozen=True)
class LocalOnly(Method):
    """Each client trains a model of its own when its turn comes."""

    name: ClassVar[str] = "local-only"
    personal: ClassVar[str] = "the whole model"
    judged: ClassVar[Judged] = Judged(moment="after local training")

    def start(self, fed: Overview) -> State:
        """Nothing to remember: the server only says who trains when."""
        return State(fed)

    def serve(self, state: State, client: int) -> Message:
        """Nothing: a client has its own model."""
        return {}

    def local(self, client: Client, message: Message) -> Message:
        """Go on from where this client stopped."""
        client.private["w"] = client.sgd(self.personalise(client, message))
        return {}

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The model this client has trained so far."""
        w: Tensor = client.private.get("w", client.initial)
        return w

    def aggregate(self, state: State, replies: Replies) -> None:
        """Nothing came, nothing changes."""
