"""What travels: a message and what goes with it, as the bytes of one safetensors file. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.method import Message

KEY = "fedkin"


def pack(message: Message, about: Mapping[str, Any]) -> bytes:
    """Named tensors, numbers and words, and plain values beside them."""
    arrays = {name: v.detach().contiguous().numpy() for name, v in message.items() if isinstance(v, Tensor)}
    plain = {name: v for name, v in message.items() if not isinstance(v, Tensor)}
    return safetensors.numpy.save(arrays, metadata={KEY: json.dumps({"values": plain, "about": dict(about)})})


def unpack(content: bytes) -> tuple[Message, dict[str, Any]]:
    """The inverse of `pack`; refused if it is anything else."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        plain = json.loads(header["__metadata__"][KEY])
        arrays = safetensors.numpy.load(content)
        values, about = plain["values"], plain["about"]
        if not isinstance(values, dict) or not isinstance(about, dict):
            raise TypeError
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError):
        raise FedkinError("it is not a letter of fedkin") from None
    return values | {name: torch.from_numpy(array) for name, array in arrays.items()}, about
