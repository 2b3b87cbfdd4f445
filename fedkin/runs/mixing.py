"""Who learnt from whom: the mixing matrices of a run, kept in its folder or in memory."""

from __future__ import annotations

from pathlib import Path

import safetensors.numpy
import torch

from fedkin.errors import FedkinError
from fedkin.method import Mixing
from fedkin.runs.files import make_folder, resumable, write_whole

MANY = 200
"""With more clients than this only the newest matrices are kept: they grow with the square."""


class MixingRecord:
    """Matrices by round; a round that mixed as the one before it takes no room."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder / "mixing" if folder else None
        self._memory: dict[int, Mixing] = {}
        self._newest: Mixing = {}

    def add(self, round: int, mixing: Mixing) -> None:
        """Keep what was mixed in a round."""
        same = self._newest.keys() == mixing.keys() and all(torch.equal(self._newest[k], mixing[k]) for k in mixing)
        if same or not mixing:
            return
        clients = len(next(iter(mixing.values())))
        self._newest = {name: matrix.clone() for name, matrix in mixing.items()}
        if self.folder is None:
            self._memory = self._memory | {round: self._newest} if clients <= MANY else {round: self._newest}
            return
        arrays = {name: matrix.contiguous().numpy() for name, matrix in self._newest.items()}
        with resumable(self.folder.parent):
            make_folder(self.folder)
            if clients > MANY:
                self.forget_after(0)
            write_whole(self.folder / f"round-{round:06d}.safetensors", safetensors.numpy.save(arrays))

    def at(self, round: int) -> Mixing:
        """The matrices [N, N] that were in force after a round, by block."""
        kept = [r for r in self.rounds() if r <= round]
        if not kept:
            raise FedkinError(f"no mixing was kept for round {round}: there is some for rounds {self.rounds()}")
        if self.folder is None:
            return self._memory[kept[-1]]
        content = (self.folder / f"round-{kept[-1]:06d}.safetensors").read_bytes()
        return {name: torch.from_numpy(array) for name, array in safetensors.numpy.load(content).items()}

    def rounds(self) -> list[int]:
        """The rounds in which the mixing changed."""
        if self.folder is None:
            return sorted(self._memory)
        return sorted(int(path.stem.removeprefix("round-")) for path in self.folder.glob("round-*.safetensors"))

    def forget_after(self, round: int) -> None:
        """Drop what came after a round, when a run goes back to it."""
        for kept in self.rounds():
            if kept > round and self.folder is not None:
                (self.folder / f"round-{kept:06d}.safetensors").unlink()
        self._newest = self.at(round) if any(kept <= round for kept in self.rounds()) else {}
