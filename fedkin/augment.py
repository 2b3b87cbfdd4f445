"""Training images that are not twice the same: moved and mirrored at random before every gradient step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedkin.errors import FedkinError

PART = 8
"""Images are moved by at most this part of their size: 4 of 32 pixels."""


def check_images(augment: str, shape: tuple[int, ...]) -> None:
    """Refuse to move and mirror samples [*shape] that are no images."""
    if augment != "none" and len(shape) != 3:
        raise FedkinError(
            f"augment={augment} needs images of channels, rows and columns, but samples have the shape {shape}"
        )


def varied(x: Tensor, augment: str, draws: torch.Generator) -> Tensor:
    """Images [B, C, H, W], each with even chances mirrored and, for crop-flip, moved; what comes in is 0."""
    count, _, height, width = x.shape
    down, right = (height // PART, width // PART) if augment == "crop-flip" else (0, 0)
    rows = torch.arange(height) + torch.randint(2 * down + 1, (count, 1), generator=draws)
    columns = torch.arange(width) + torch.randint(2 * right + 1, (count, 1), generator=draws)
    mirrored = torch.rand(count, 1, generator=draws) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    image, rows, columns = (
        index.to(x.device) for index in (torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :])
    )
    return pad(x, (right, right, down, down))[image, :, rows, columns].movedim(3, 1)
