"""How well a method learns digits where each of twelve clients has but few classes."""

from __future__ import annotations

from functools import cache
from typing import Any

import fedkin

DIGITS: dict[str, Any] = {
    "data": "digits", "partition": "dirichlet:0.1", "clients": 12, "engine": "inline", "evaluate_every": 1000,
}  # fmt: skip


@cache
def on_digits(method: str, **settings: Any) -> float:
    """Accuracy after the last round; each run is done once."""
    return fedkin.run(method, **DIGITS, **settings).accuracy
