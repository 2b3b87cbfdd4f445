"""The documentation is true: it builds without a network, its links lead somewhere, its commands and its code run."""

from __future__ import annotations

import filecmp
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch
from pages import ROOT, blocks, play

import fedkin
from fedkin.methods import registry
from fedkin.report import algebra, algebra_page

DOCS = ROOT / "docs"


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert play("docs/tutorial.md", monkeypatch, capsys)[0] >= 8
    for made in ("split.png", "clients.png", "client3.safetensors", "runs/tour/report.html"):
        assert Path(made).stat().st_size > 5000, made


@pytest.mark.slow
def test_the_page_on_own_data_runs_and_its_errors_say_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert play("docs/own-data.md", monkeypatch, capsys)[0] >= 9


@pytest.mark.slow
def test_the_first_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text in blocks("docs/index.md"):
        assert language == "python"
        Path("block.py").write_text(text)
        runpy.run_path("block.py")


@pytest.fixture
def shrink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The method of the page on own methods, in a file, just as it stands there."""
    monkeypatch.chdir(tmp_path)
    (text,) = [text for language, text in blocks("docs/own-method.md") if language == "python"]
    Path("shrink.py").write_text(text)
    return "shrink.py:Shrink"


SMALL = {"clients": 8, "epochs": 2, "lr": 0.05, "partition": "dirichlet:0.3"}


@pytest.mark.slow
def test_the_method_of_the_page_runs_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert play("docs/own-method.md", monkeypatch, capsys)[0] == 2
    assert "shrink" not in registry(), "the page says that it is not in the collection"


@pytest.mark.slow
def test_the_method_of_the_page_learns(shrink: str) -> None:
    result = fedkin.run(shrink, rounds=12, engine="inline", evaluate_every=12, **SMALL)
    begun = fedkin.run("fedavg", rounds=1, engine="inline", **SMALL)
    assert result.accuracy > 0.75
    assert result.accuracy > begun.accuracy + 0.1


def test_the_method_of_the_page_gives_the_equation_and_the_matrix_that_it_prints(shrink: str) -> None:
    """A round by hand: what is served is a v + (1 - a) w, and row i of M times what was trained gives it."""
    result = fedkin.run(shrink, rounds=1, engine="inline", dtype="float64", enough=40.0, **SMALL)
    trained = fedkin.run("local-only", rounds=1, engine="inline", dtype="float64", **SMALL)
    v = torch.stack([trained.models[i] for i in range(8)])
    sizes = torch.tensor([len(rows) for rows in fedkin.api.prepare(shrink, **SMALL).federation.split.train])
    w = (sizes[:, None] * v).sum(0) / sizes.sum()
    models = torch.stack([result.models[i] for i in range(8)])
    for i, n in enumerate(sizes.tolist()):
        a = n / (n + 40.0)
        torch.testing.assert_close(models[i], a * v[i] + (1 - a) * w)
    matrix = result.mixing(1)["all"]
    torch.testing.assert_close(matrix @ v, models)
    torch.testing.assert_close(matrix.sum(1), torch.ones(8, dtype=torch.float64))


@pytest.mark.slow
def test_the_method_of_the_page_resumes_exactly_and_has_the_same_bits_on_two_engines(shrink: str) -> None:
    fedkin.run(shrink, rounds=4, join=0.5, engine="inline", checkpoint_every=2, out="whole", **SMALL)

    def stop(round: fedkin.result.Round, seconds: float) -> None:
        if round.round == 3:
            raise KeyboardInterrupt

    for name, engine in (("inline", "inline"), ("processes", "processes")):
        with pytest.raises(KeyboardInterrupt):
            fedkin.run(
                shrink, rounds=4, join=0.5, engine=engine, workers=2, checkpoint_every=2, out=name, watch=stop, **SMALL
            )
        fedkin.resume(name, engine=engine)
        for file in ("models.safetensors", "metrics.jsonl"):
            assert filecmp.cmp(f"whole/{file}", f"{name}/{file}", shallow=False), (name, file)


# The algebra.


def test_matrices_are_called_what_they_are() -> None:
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    everybody, own = p.expand(4, 4), torch.eye(4)
    two = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.3, 0.7], [0, 0, 0.3, 0.7]])
    kin = (torch.arange(4)[:, None] - torch.arange(4)).abs().neg().float().softmax(1)
    for matrix, expected in (
        (everybody, "global"),
        (own, "private"),
        (0.3 * own + 0.7 * everybody, "own + global"),
        (two, "groups"),
        (0.3 * two + 0.7 * everybody, "groups + global"),
        (torch.tensor([0.3, 0.3, 0.8, 0.8])[:, None] * (two - everybody) + everybody, "groups + global"),
        (kin, "kin"),
    ):
        assert algebra.kind(matrix) == expected
        assert algebra.is_stochastic(matrix)
    assert not algebra.is_stochastic(0.9 * own)
    assert not algebra.is_stochastic(torch.tensor([[1.5, -0.5], [0.0, 1.0]]))


@pytest.mark.parametrize(
    ("name", "blocks", "step", "absent"),
    [
        ("fedavg", {"all": "global"}, algebra.MODELS, algebra.SAME),
        ("fedavgm", {"all": "global"}, algebra.MORE, algebra.SAME),
        ("spfl", {"fc1+norm": "kin", "classifier": "kin"}, algebra.UPDATES, algebra.MIXED),
        ("pfedsim", {"extractor": "kin", "classifier": "private"}, algebra.MODELS, algebra.MIXED),
    ],
)
def test_the_algebra_of_known_methods_is_what_their_papers_say(
    name: str, blocks: dict[str, str], step: str, absent: str
) -> None:
    found = algebra.algebra(name)
    assert found.phases[-1].blocks == blocks
    assert found.phases[-1].rounds[-1] == algebra.ROUNDS
    assert (found.step, found.absent) == (step, absent)


@pytest.mark.slow
def test_the_page_of_the_algebra_is_up_to_date() -> None:
    assert (DOCS / "images/mixing.svg").read_text() == algebra_page.svg(), "run: make docs"
    assert (DOCS / "algebra.md").read_text() == algebra_page.markdown(), "run: make docs"


def test_the_page_on_architecture_tells_of_every_module() -> None:
    page = (DOCS / "architecture.md").read_text()
    modules = {p.stem for p in (ROOT / "fedkin").glob("*.py")} | {p.parent.name for p in ROOT.glob("fedkin/*/*.py")}
    told = {name for line in page.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    assert not {name for name in modules if not name.startswith("__")} - told


# The site.


class Page(HTMLParser):
    """Anchors and links of a page, and what a browser would load for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values:
            self.loads.append(values["href"])
        self.loads += [values[name] for name in ("src", "data", "poster", "srcset") if name in values]
        self.loads += re.findall(r"url\(([^)]*)\)", values.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(package) is None:
            pytest.skip("the documentation needs the extra docs: pip install 'fedkin[docs]'")
    place = tmp_path_factory.mktemp("site")
    # No proxy answers here: a build that asks the network for something fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT, env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return place


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_a_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(list(DOCS.glob("*.md")))
    for path in pages:
        for source in Page(path.read_text()).loads:
            assert not re.match(r"(https?:)?//", source), f"{path.name} loads {source}"
            if not source.startswith(("data:", "#")):
                target = path.parent / unquote(source.split("?")[0].split("#")[0])
                assert path.name == "404.html" or target.exists(), f"{path.name} loads {source}"
    for style in site.rglob("*.css"):
        found = re.findall(r"(?:@import\s*|url\()\s*[\"']?((?:https?:)?//[^\"')]+)", style.read_text())
        assert not found, f"{style.name} loads {found}"


@pytest.mark.slow
def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of the server's root
            continue
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / unquote(place)).resolve() if place not in ("", ".") else path
            assert target.is_file(), f"{path.name} links to {link}"
            if anchor and target in pages and not anchor.startswith("__"):
                assert unquote(anchor) in pages[target].anchors, f"{path.name} links to {link}"
