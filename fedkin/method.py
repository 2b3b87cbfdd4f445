"""The contract between a method and whatever runs it.

A method has a server half and a client half, and only messages pass between them: that is what
lets one method file run in a simulation, on a cluster and in a real federation, and what makes
the byte counts honest. Its fields are its hyper-parameters; everything it remembers is in the
`State` (on the server) or in `client.private` (on a client, never sent).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedkin.config import Training
from fedkin.layout import Block, Layout

if TYPE_CHECKING:
    from fedkin.client import Client

Message = dict[str, Any]
"""What travels between server and client: named tensors, numbers and words, nothing else."""
Mixing = dict[str, Tensor]
"""Block of columns to a row-stochastic matrix [N, N]: row i says whose models make up client i's."""
TRAIN = "train"
Predictor = Callable[[Tensor], Tensor]
"""Inputs [B, ...] to class scores [B, K]."""


@dataclass(frozen=True)
class Overview:
    """What the server knows before the first round."""

    clients: int
    rounds: int
    seed: int
    classes: int
    layout: Layout
    initial: Tensor
    """[D] the model that everybody starts from."""
    training: Training


class State(dict[str, Any]):
    """What the server remembers: named tensors and numbers, so that it can be saved without pickle."""

    def __init__(self, fed: Overview, values: Mapping[str, Any] | None = None, round: int = 0) -> None:
        super().__init__(values or {})
        self.fed = fed
        self.round = round
        """The round under way, from 1; 0 before the first."""


@dataclass(frozen=True)
class Exchange:
    """One trip to clients and back. Most rounds are a single exchange with this round's participants.

    The one called `train` may be late under a schedule with stragglers; the server waits for all others.
    """

    name: str = TRAIN
    everyone: bool = False
    """Ask all clients, not only this round's participants."""


@dataclass(frozen=True)
class Trip:
    """The way to a client and back."""

    sent: Message = field(default_factory=dict)
    """What the client was sent."""
    late: int = 0
    """Rounds that ended while the client was at work: 0 for a reply in time."""
    before: Tensor | None = None
    after: Tensor | None = None
    """[D] w^t0 and w^t1: the server's model when the client was written to and one round later, if late."""


class Replies:
    """What came back from clients in one exchange, stacked: `replies["w"]` is [K, D]."""

    def __init__(
        self, exchange: str, clients: Sequence[int], messages: Sequence[Message], trips: Sequence[Trip] = ()
    ) -> None:
        self.exchange = exchange
        self.clients = list(clients)
        """[K] who replied, in the order of the rows."""
        self.messages = list(messages)
        self.trips = list(trips) or [Trip() for _ in self.clients]
        """[K] what each of them was sent, and how late its reply is."""
        self._stacked: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def late(self) -> Tensor:
        """[K] how many rounds late each reply is."""
        return torch.tensor([trip.late for trip in self.trips], dtype=self.dtype)

    def sent(self, name: str) -> Tensor:
        """What the clients were sent by a name, stacked as their replies are."""
        return torch.stack([trip.sent[name] for trip in self.trips])

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._stacked:
            values = [message[name] for message in self.messages]
            tensors = isinstance(values[0], Tensor)
            self._stacked[name] = torch.stack(values) if tensors else torch.tensor(values, dtype=self.dtype)
        return self._stacked[name]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensors that came; numbers take it too, so that both can be multiplied."""
        floats = (v.dtype for v in self.messages[0].values() if isinstance(v, Tensor) and v.is_floating_point())
        return next(floats, torch.get_default_dtype())


@dataclass(frozen=True)
class Judged:
    """Which model a method is judged by, and when it is taken."""

    model: str = "personalised"
    """`personalised`, `global`, or `personalised after fine-tuning`."""
    moment: str = "after aggregation"
    """`after aggregation` (before any further local step) or `after local training`."""


@dataclass(frozen=True)
class Method:
    """A federated method. A subclass is a frozen dataclass whose fields are its hyper-parameters."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """Authors, title and year, for people."""
    personal: ClassVar[str] = ""
    """In a few words, what differs from client to client."""
    judged: ClassVar[Judged] = Judged()
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Run settings of the paper that differ from fedkin's own: rounds, join, epochs, batch, lr, ..."""
    vectorizes: ClassVar[tuple[str, ...]] = ()
    """Exchanges in which `local` also works on a cohort at once, with rows [K, D] where a client has [D]."""
    leaps: ClassVar[bool] = False
    """Whether `aggregate` wants to know where the server was when a late client was written to."""

    # The server half.

    def start(self, fed: Overview) -> State:
        """The server's state before round 1."""
        return State(fed, {"w": fed.initial.clone()})

    def exchanges(self, state: State) -> Sequence[Exchange]:
        """The trips to clients that round `state.round` is made of."""
        return (Exchange(),)

    def prepare(self, state: State, exchange: str, clients: Sequence[int]) -> None:
        """What the server computes for all clients of an exchange at once, before it writes to them."""

    def dispatch(self, state: State, client: int, exchange: str) -> Message:
        """What the server sends to a client that takes part."""
        return self.serve(state, client)

    def aggregate(self, state: State, replies: Replies) -> Mixing | None:
        """Bring the state up to date with what came back; returns who was mixed with whom, for the record."""
        raise NotImplementedError

    def moved(self, state: State, replies: Replies) -> Tensor | None:
        """[K, D] the models that enter the mean where late ones are moved first, and late clients go on with them."""
        return None

    def serve(self, state: State, client: int) -> Message:
        """What the server sends to a client that only wants its current model."""
        return {"w": state["w"]}

    def shared(self, layout: Layout) -> Block:
        """The columns of a model that travel between server and clients."""
        return layout.all

    def global_model(self, state: State) -> Tensor | None:
        """The one model [D] for everybody, where the method has one: by default what is kept as `w`."""
        return state.get("w")

    # The client half.

    def local(self, client: Client, message: Message) -> Message:
        """What a client does with a message, and what it sends back."""
        raise NotImplementedError

    def personalise(self, client: Client, message: Message) -> Tensor:
        """The client's own model [D], from what `serve` sent and what it keeps in private."""
        w: Tensor = message["w"]
        return w

    def beside(self, client: Client) -> tuple[str, Tensor] | None:
        """A private network, by name and numbers, whose class scores are added to the model's."""
        return None

    def predictor(self, client: Client, message: Message) -> Predictor:
        """How the client classifies, from what `serve` sent and what it keeps in private."""
        return client.together(self.personalise(client, message), self.beside(client))

    def finetune(self, client: Client, message: Message, steps: int, lr: float) -> Predictor:
        """How the client classifies after fine-tuning its model, by at most one pass over its samples."""
        second = self.beside(client)
        fixed = client.network(second[0]).eval(second[1]) if second else None
        tuned = client.sgd(self.personalise(client, message), epochs=1, most=steps, lr=lr, beside=fixed)
        return client.together(tuned, second)


def trained(sent: Message, reply: Message) -> Tensor | None:
    """The columns that a client trained, from what it was sent and what it replied; None if that does not tell.

    A reply has them as they are (`w`), or what changed (`delta`), or what changed with the other sign (`g`).
    """
    start = sent.get("w")
    for name, sign in (("w", 0), ("delta", 1), ("g", -1)):
        came = reply.get(name)
        if isinstance(came, Tensor) and came.ndim == 1 and (not sign or start is not None):
            return came if start is None or not sign else start + sign * came
    return None


def byte_count(message: Message) -> int:
    """The size of a message on the wire: its tensors as they are, eight bytes a number, text as UTF-8."""

    def size(value: Tensor | float | str) -> int:
        if isinstance(value, Tensor):
            return value.numel() * value.element_size()
        return len(value.encode()) if isinstance(value, str) else 8

    return sum(map(size, message.values()))
