"""Commands of the program, run in this process, and what they say."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from fedkin.cli import main

TINY = ["--clients", "4", "--rounds", "2", "--epochs", "1", "--lr", "0.1", "--engine", "inline"]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line on standard output."""
        return json.loads(self.out.splitlines()[-1])


def command(*words: object, **environment: str) -> Said:
    """Run a command in this process, just as the program would."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["fedkin", *map(str, words)])
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        for name, value in ({"COLUMNS": "200"} | environment).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            main()
    assert isinstance(end.value.code, int), end.value.code
    return Said(end.value.code, out.getvalue(), err.getvalue())


def done(*words: object, **environment: str) -> Said:
    """A command that must succeed."""
    said = command(*words, **environment)
    assert said.code == 0, said.err
    return said


def refused(said: Said, sentence: str) -> None:
    """One sentence, and nothing that only a programmer could want."""
    assert said.code == 2, said
    assert said.err.startswith("error: "), said.err
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    assert sentence in said.err
    assert "Traceback" not in said.out + said.err
