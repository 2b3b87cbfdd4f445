"""The README is true: its commands and its code run, in order, and the targets it names exist."""

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


def runs(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A command of fedkin ends well."""
    program, *arguments = shlex.split(line)
    assert program == "fedkin"
    monkeypatch.setattr(sys, "argv", ["fedkin", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None), f"{line}: {capsys.readouterr().err}"


@pytest.mark.slow
def test_every_command_of_the_page_on_federations_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="real federations need the extra flower")
    monkeypatch.chdir(tmp_path)
    lines = [line for _, text in blocks("docs/federation.md") for line in text.strip().splitlines()]
    for line in lines:
        runs(line, monkeypatch, capsys)
    assert len(lines) >= 3
    assert (tmp_path / "heart/clients/client-02/node.key").exists()


@pytest.mark.slow
def test_every_command_and_every_piece_of_code_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = 0
    for language, text in blocks("README.md"):
        file = re.match(r"# file: (\S+)\n", text)
        if file:
            Path(file[1]).write_text(text)
        elif language == "python":
            Path("block.py").write_text(text)
            runpy.run_path("block.py")
        else:
            assert language == "bash", f"a {language} block without a file name"
            for line in text.strip().splitlines():
                runs(line, monkeypatch, capsys)
                commands += 1
    assert commands >= 12
    assert (tmp_path / "accuracy.png").stat().st_size > 5000
    assert (tmp_path / "split.png").stat().st_size > 5000
    assert "healthy" not in capsys.readouterr().err


def test_what_the_readme_points_to_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
