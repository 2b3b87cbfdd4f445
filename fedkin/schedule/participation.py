"""Who takes part in a round."""

from __future__ import annotations

import torch

from fedkin import randomness


def participants(seed: int, round: int, clients: int, join: float) -> list[int]:
    """The clients of one round, in ascending order: all, or a random share `join` of at least one."""
    count = at_once(clients, join)
    return sorted(in_turn(seed, round, clients)[:count]) if count < clients else list(range(clients))


def at_once(clients: int, join: float) -> int:
    """How many clients work at the same time."""
    return max(1, round_half_up(join * clients))


def in_turn(seed: int, round: int, clients: int) -> list[int]:
    """All clients in the random order in which they are asked in a round."""
    order: list[int] = torch.randperm(clients, generator=randomness.generator(seed, "schedule", round)).tolist()
    return order


def round_half_up(x: float) -> int:
    """The nearest whole number; 0.5 goes up, unlike Python's own rounding."""
    return int(x + 0.5)
