"""Who learnt from whom: the mixing matrices of a run, kept in its folder or in memory."""

from __future__ import annotations

from pathlib import Path

import safetensors.numpy
import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.method import Mixing
from fedkin.runs.files import make_folder, resumable, write_whole

MANY = 200
"""With more clients than this only the newest matrices are kept, and written with checkpoints: they grow with the
square."""


class MixingRecord:
    """Matrices by round; a round that mixed as the one before it takes no room, nor do rows that are all the same."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder / "mixing" if folder else None
        self._memory: dict[int, Mixing] = {}
        self._newest: Mixing = {}
        self._unwritten: int | None = None

    def add(self, round: int, mixing: Mixing) -> None:
        """Keep what was mixed in a round."""
        if not mixing:
            return
        many = len(next(iter(mixing.values()))) > MANY
        if not many and _same(self._newest, mixing):
            return
        self._newest = {name: _compact(matrix) for name, matrix in mixing.items()}
        if self.folder is None:
            self._memory = {round: self._newest} if many else self._memory | {round: self._newest}
            return
        self._unwritten = round
        if not many:
            self.write()

    def write(self) -> None:
        """Bring the folder up to date."""
        if self.folder is None or self._unwritten is None:
            return
        arrays = {name: (m[:1] if _is_one_row(m) else m).contiguous().numpy() for name, m in self._newest.items()}
        with resumable(self.folder.parent):
            make_folder(self.folder)
            if len(next(iter(self._newest.values()))) > MANY:
                self._drop_after(0)
            path = self.folder / f"round-{self._unwritten:06d}.safetensors"
            write_whole(path, safetensors.numpy.save(arrays))
        self._unwritten = None

    def at(self, round: int) -> Mixing:
        """The matrices [N, N] that were in force after a round, by block."""
        kept = [r for r in self.rounds() if r <= round]
        if not kept:
            raise FedkinError(f"no mixing was kept for round {round}: there is some for rounds {self.rounds()}")
        if self.folder is None:
            return self._memory[kept[-1]]
        content = (self.folder / f"round-{kept[-1]:06d}.safetensors").read_bytes()
        arrays = safetensors.numpy.load(content)
        return {name: torch.from_numpy(m).expand(m.shape[1], -1) for name, m in arrays.items()}

    def rounds(self) -> list[int]:
        """The rounds in which the mixing changed."""
        if self.folder is None:
            return sorted(self._memory)
        return sorted(int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.safetensors"))

    def forget_after(self, round: int) -> None:
        """Drop what came after a round, when a run goes back to it."""
        self._drop_after(round)
        self._newest = self.at(round) if any(kept <= round for kept in self.rounds()) else {}
        self._unwritten = None

    def _drop_after(self, round: int) -> None:
        for kept in self.rounds():
            if kept > round and self.folder is not None:
                (self.folder / f"round-{kept:06d}.safetensors").unlink()


def _is_one_row(matrix: Tensor) -> bool:
    """Whether all rows are the same one in memory, as in a matrix made by `expand`."""
    return matrix.stride(0) == 0


def _compact(matrix: Tensor) -> Tensor:
    """A copy [N, N] that takes no more room than the matrix itself."""
    return matrix[:1].clone().expand_as(matrix) if _is_one_row(matrix) else matrix.clone()


def _same(a: Mixing, b: Mixing) -> bool:
    def equal(x: Tensor, y: Tensor) -> bool:
        rows = slice(1) if _is_one_row(x) and _is_one_row(y) else slice(None)
        return torch.equal(x[rows], y[rows])

    return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
