"""The README is true: its commands and its code run, in order, and the targets it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, play


@pytest.mark.slow
def test_every_command_of_the_page_on_federations_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", reason="real federations need the extra flower")
    monkeypatch.chdir(tmp_path)
    assert play("docs/federation.md", monkeypatch, capsys)[0] >= 3
    assert (tmp_path / "heart/clients/client-02/node.key").exists()


@pytest.mark.slow
def test_every_command_and_every_piece_of_code_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands, told = play("README.md", monkeypatch, capsys)
    assert commands >= 12
    assert (tmp_path / "accuracy.png").stat().st_size > 5000
    assert (tmp_path / "split.png").stat().st_size > 5000
    assert "healthy" not in told


def test_what_the_readme_points_to_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
