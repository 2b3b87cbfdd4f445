"""Who takes part in a round."""

from __future__ import annotations

import torch

from fedkin import randomness


def participants(seed: int, round: int, clients: int, join: float) -> list[int]:
    """The clients of one round, in ascending order: all, or a random share `join` of at least one."""
    count = max(1, round_half_up(join * clients))
    if count >= clients:
        return list(range(clients))
    drawn = torch.randperm(clients, generator=randomness.generator(seed, "schedule", round))
    return sorted(drawn[:count].tolist())


def round_half_up(x: float) -> int:
    """The nearest whole number; 0.5 goes up, unlike Python's own rounding."""
    return int(x + 0.5)
