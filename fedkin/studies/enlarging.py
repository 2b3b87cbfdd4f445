"""Images that are large enough for a model: lets the small built-in digits run on the papers' networks."""

from __future__ import annotations

from dataclasses import replace

from fedkin import models
from fedkin.data.federation import Federation


def fitted(federation: Federation, model: str) -> Federation:
    """The federation itself or, where its images are too small for a model by name, with every pixel repeated."""
    shape = federation.shape
    card = models.describe(model) if model in models.names() else None
    if card is None or card.takes != "image" or len(shape) != 3 or min(shape[1:]) >= card.smallest:
        return federation
    times = -(-card.smallest // min(shape[1:]))
    x = federation.data.x.repeat(times, axis=2).repeat(times, axis=3)
    name = f"{federation.data.name} enlarged to {x.shape[2]}x{x.shape[3]}"
    return Federation(replace(federation.data, name=name, x=x), federation.split)
