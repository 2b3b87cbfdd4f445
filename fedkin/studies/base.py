"""What a study is, and what comes out of one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure

from fedkin.runs.files import make_folder, write_whole
from fedkin.simulate import Show


@dataclass(frozen=True)
class Found:
    """What a study has found: a table, a picture, and a few sentences."""

    table: list[dict[str, Any]]
    """One dictionary a row, all with the same keys."""
    figure: Figure
    says: list[str] = field(default_factory=list)
    """What can be seen, each in a sentence with its numbers."""

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write the picture (.png and .pdf) and the numbers (.json) to a folder; the files."""
        make_folder(folder)
        paths = [folder / f"{name}.{kind}" for kind in ("png", "pdf", "json")]
        for path in paths[:2]:
            self.figure.savefig(path, dpi=150)
        content = {"study": name, "table": self.table, "says": self.says}
        write_whole(paths[2], (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
        return paths


@dataclass(frozen=True)
class Study:
    """A figure or table of a paper, made from fresh runs. A subclass is a frozen dataclass of its settings."""

    name: ClassVar[str]
    paper: ClassVar[str]
    """The figure or table, as in `pFedSim, Figure 1`."""
    about: ClassVar[str]
    """In a sentence, what it shows."""

    seed: int = 0
    workers: int | None = None

    def run(self, show: Show | None = None) -> Found:
        """Make it."""
        raise NotImplementedError
