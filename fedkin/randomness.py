"""Every random draw has a key: (seed, purpose, round, client).

No draw depends on what was drawn before it, so a result does not depend on which worker ran a
client, in which order, or on whether the run was stopped and resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def key(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit number that depends on all four parts of the key and on nothing else."""
    text = f"{seed}/{purpose}/{round}/{client}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """A CPU torch generator for one key."""
    return torch.Generator().manual_seed(key(seed, purpose, round, client))


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A numpy generator for one key."""
    return np.random.default_rng(key(seed, purpose, round, client))


@contextmanager
def seeded_globally(seed: int, purpose: str, round: int = 0, client: int = 0) -> Iterator[None]:
    """Seed torch's global generators inside the block and put them back afterwards.

    For code that takes no generator: weight initialisation and dropout.
    """
    with torch.random.fork_rng():
        torch.manual_seed(key(seed, purpose, round, client))
        yield
