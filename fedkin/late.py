"""What the server does with replies that come late: wait for them, drop them, take them as they are, or leap.

Any method can be run so. `leap` puts, in place of what a late client sent, what it would have sent by now as LGA
predicts it (see `fedkin.leap`). The server's model in these equations is the method's global model or, where every
client has its own, what the server would send to that client.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedkin.clock import Flight
from fedkin.errors import FedkinError
from fedkin.leap import Leap
from fedkin.method import TRAIN, Message, Method, Replies, State, Trip

DROP, LEAP, WAIT = "drop", "leap", "wait"
LATE = {"stale": "late", DROP: "dropped", LEAP: "leapt", WAIT: "in time"}
"""What becomes of a late reply under each policy."""


def courses(method: Method, state: State, clients: Sequence[int]) -> list[Tensor]:
    """Copies of where the server is now, as each client would see it: [D], or the columns that travel."""
    w = method.global_model(state)
    if w is not None:
        return [w.clone()] * len(clients)
    trial = State(state.fed, state, state.round)
    method.prepare(trial, TRAIN, clients)
    return [method.dispatch(trial, i, TRAIN)["w"].clone() for i in clients]


def replies_of(method: Method, state: State, flights: Sequence[Flight], policy: str) -> Replies:
    """The replies of these flights as the method is given them; those to be dropped are not among them."""
    trips = [Trip(f.message, state.round - f.round, f.before, f.after) for f in flights]
    messages = [f.done.reply for f in flights if f.done]
    if policy == LEAP and not method.leaps:
        late = [k for k, trip in enumerate(trips) if trip.late]
        now = courses(method, state, [flights[k].client for k in late]) if late else []
        for k, w in zip(late, now, strict=True):
            messages[k] = leapt(method, state, messages[k], trips[k], w)
    return Replies(TRAIN, [f.client for f in flights], messages, trips)


def check_leap(method: Method, state: State, message: Message) -> None:
    """Refuse, before anybody has trained, to leap models that a method does not send."""
    w, sizes = message.get("w"), (state.fed.layout.size, len(method.shared(state.fed.layout)))
    if w is None or w.ndim != 1 or len(w) not in sizes:
        raise cannot_leap(method)


def cannot_leap(method: Method) -> FedkinError:
    """What to tell who asks for it."""
    return FedkinError(f"late=leap needs models that {method.name} does not send: use wait, drop or stale")


def leapt(method: Method, state: State, reply: Message, trip: Trip, now: Tensor) -> Message:
    """A late reply with the model, or the update, that LGA predicts in place of the one that came."""
    layout, name = state.fed.layout, next((name for name in ("w", "delta", "g") if name in reply), "")
    shared = method.shared(layout)
    given = (reply.get(name), trip.sent.get("w"), now, trip.before, trip.after)
    known = [v for v in given if v is not None and v.ndim == 1 and len(v) in (layout.size, len(shared))]
    if len(known) < len(given):
        raise cannot_leap(method)
    # Columns that do not travel are zero on both sides, and so have no part in any cosine.
    came, start, now, before, after = (
        v if len(v) == layout.size else shared.put(v.new_zeros(layout.size), v) for v in known
    )
    moves = {"w": came - start, "delta": came, "g": -came}[name][None]
    leap = Leap()
    s = leap.weights((after - before)[None], moves, layout)
    model = leap.model(before, now, after, moves, s)[0]
    model = layout.buffers.copy(start + moves[0], model)
    sent = {"w": model, "delta": model - now, "g": now - model}[name]
    return {**reply, name: sent if len(reply[name]) == layout.size else shared.of(sent).clone()}
