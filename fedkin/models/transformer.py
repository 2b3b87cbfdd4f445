"""A small vision transformer."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedkin.models.layers import Shape, with_head

_PATCH = 4
_WIDTH = 64
_HEADS = 4


def small_transformer(shape: Shape, classes: int) -> nn.Sequential:
    """Patches of 4x4 pixels, width 64, 2 blocks of 4 heads. [n, c, h, w] -> [n, classes].

    FedSimSup's transformer supervisor, of which the paper prints only that it has the most parameters
    of its three. Pixels beyond the last whole patch are left out.
    """
    return with_head(
        {
            "patches": Patches(shape),
            "block1": Block(),
            "block2": Block(),
            "norm": nn.LayerNorm(_WIDTH),
            "mean": TokenMean(),
        },
        shape,
        classes,
    )


class Patches(nn.Module):
    """An image as a row of tokens, one for each patch, with a learnt position added to each.

    [n, c, h, w] -> [n, tokens, width].
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = shape
        self.embed = nn.Conv2d(channels, _WIDTH, _PATCH, _PATCH)
        self.position = nn.Embedding((height // _PATCH) * (width // _PATCH), _WIDTH)
        nn.init.normal_(self.position.weight, std=0.02)  # the default, 1, would drown the patches

    def forward(self, x: Tensor) -> Tensor:
        """The tokens, left to right and top to bottom."""
        tokens: Tensor = self.embed(x).flatten(2).transpose(1, 2)
        return tokens + self.position.weight


class Block(nn.Module):
    """Self-attention and a two-layer network, each normed first and added to its input.

    [n, tokens, width] -> [n, tokens, width].
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(_WIDTH)
        self.attention_in = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.attention_out = nn.Linear(_WIDTH, _WIDTH)
        self.norm2 = nn.LayerNorm(_WIDTH)
        self.fc1 = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.fc2 = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Every token, having looked at all others."""
        x = x + self._attend(self.norm1(x))
        y: Tensor = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + y

    def _attend(self, x: Tensor) -> Tensor:
        heads = self.attention_in(x).unflatten(-1, (3, _HEADS, _WIDTH // _HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each [n, heads, tokens, width / heads]
        seen = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.attention_out(seen.transpose(1, 2).flatten(2))
        return out


class TokenMean(nn.Module):
    """[n, tokens, width] -> [n, width]."""

    def forward(self, x: Tensor) -> Tensor:
        """The mean over the tokens."""
        return x.mean(1)
