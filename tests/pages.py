"""Pages of documentation, played: their commands and their code run in order."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from fedkin.cli import main

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of the blocks of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def play(page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run everything in a page, in order; the number of commands, and all that was written to standard error."""
    commands, told = 0, ""

    def says(line: str) -> tuple[int, str]:
        """The exit code of a command of fedkin and what it writes to standard error."""
        nonlocal commands, told
        program, *arguments = shlex.split(line)
        assert program == "fedkin"
        monkeypatch.setattr(sys, "argv", ["fedkin", *arguments])
        told += capsys.readouterr().err
        with pytest.raises(SystemExit) as ended:
            main()
        error = capsys.readouterr().err
        code = ended.value.code
        commands, told = commands + 1, told + error
        return code if isinstance(code, int) else 0 if code is None else 1, error

    for language, text in blocks(page):
        file = re.match(r"# file: (\S+)\n", text)
        if file:
            Path(file[1]).write_text(text)
        elif language == "python":
            Path("block.py").write_text(text)
            runpy.run_path("block.py")
        elif language == "console":
            for line, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                code, error = says(line)
                assert code == 2, line
                assert error.replace(f"{Path.cwd()}/", "").split() == expected.split(), line
        else:
            assert language == "bash", f"a {language} block without a file name in {page}"
            for line in text.strip().splitlines():
                code, error = says(line)
                assert code == 0, f"{line}: {error}"
    return commands, told + capsys.readouterr().err
