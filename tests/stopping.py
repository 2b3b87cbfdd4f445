"""Two runs compared to the bit, and a run that is stopped."""

from __future__ import annotations

from typing import Any

import torch

import fedkin


def same(a: fedkin.Result, b: fedkin.Result) -> bool:
    return torch.equal(a.models.rows, b.models.rows) and a.history == b.history and a.models.row_of == b.models.row_of


class Stop(Exception):
    pass


def stop_after(round: int) -> Any:
    def watch(happened: Any, _seconds: float) -> None:
        if happened.round == round:
            raise Stop

    return watch
