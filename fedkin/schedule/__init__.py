"""When clients' replies arrive, and when the server acts on them.

A schedule is given as text: `sync`, `stragglers:5` or `latency:compute=lognormal/0.05/0.5,first=10`. Each kind is a
frozen dataclass whose fields are what its text may set: the one without a default stands behind the colon, the others
are options. Time is simulated: it passes only as the schedule says, and no clock is ever read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedkin.config import one_sentence
from fedkin.errors import FedkinError, unknown
from fedkin.rules import options
from fedkin.schedule.base import Plan, Schedule, Task
from fedkin.schedule.latency import Latency
from fedkin.schedule.participation import at_once, in_turn, participants
from fedkin.schedule.stragglers import Stragglers
from fedkin.schedule.sync import Sync

__all__ = [
    "Latency",
    "Plan",
    "Schedule",
    "Stragglers",
    "Sync",
    "Task",
    "at_once",
    "from_anywhere",
    "in_turn",
    "participants",
    "schedule",
]

KINDS: Mapping[str, type[Schedule]] = {"sync": Sync, "stragglers": Stragglers, "latency": Latency}


def schedule(text: str, clients: int, seed: int) -> Schedule:
    """The schedule that a text stands for, for so many clients."""
    name, _, rest = text.partition(":")
    if name not in KINDS:
        raise unknown("schedule", name, KINDS)
    kind = KINDS[name]
    known = {field.name: field for field in fields(kind) if field.name not in ("clients", "seed")}
    first = next((key for key, field in known.items() if field.default is MISSING), None)
    hints = get_type_hints(kind, include_extras=True)
    items = rest.split(",") if rest else []
    if first and items and "=" not in items[0]:
        items[0] = f"{first}={items[0]}"
    values: dict[str, Any] = {}
    for key, value in options(items, f"schedule {text!r}").items():
        if key not in known:
            raise unknown(f"option of schedule {name!r}", key, known)
        try:
            values[key] = TypeAdapter(hints[key]).validate_python(value)
        except ValidationError as error:
            raise FedkinError(one_sentence(error, f"{key} of schedule {name!r}")) from None
    if first and first not in values:
        raise FedkinError(f"schedule {name!r} needs its {first}, as in {kind.example}")
    return kind(clients=clients, seed=seed, **values)


def from_anywhere(text: str) -> str:
    """The same schedule, with the whole path of its trace file: a run may be resumed from another folder."""
    parts = text.split(",")
    for k, part in enumerate(parts):
        before, mark, path = part.partition("trace=")
        if mark:
            parts[k] = f"{before}{mark}{Path(path).expanduser().resolve()}"
    return ",".join(parts)
