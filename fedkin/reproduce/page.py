"""docs/RESULTS.md: the papers' numbers beside ours, made from the kept results."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev

import matplotlib
from matplotlib.figure import Figure

from fedkin.report import figures
from fedkin.reproduce.cells import TIME, Cell, Table, choices, slug, tables
from fedkin.reproduce.running import Finished, kept
from fedkin.runs.files import make_folder, write_whole

CLEAR = 1.0
"""Points between two printed numbers from which on their order is expected to hold."""
FAR = 3.0
"""Points of difference from which on a cause is looked for."""
ENOUGH = 3
"""Numbers from which on a picture says more than their table."""


@dataclass(frozen=True)
class Compared:
    """A cell beside what was measured for it."""

    cell: Cell
    ours: list[float]
    """A number a seed."""
    curve: list[list[float]] = field(default_factory=list)
    """Of the first seed: round, mean over clients, mean over samples."""

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.ours)

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.cell.mean is None else self.mean - self.cell.mean

    @property
    def by_sample(self) -> bool:
        """Whether samples count the same, not clients."""
        return self.cell.measure == "by sample"

    @property
    def line(self) -> tuple[list[float], list[float]]:
        """Rounds, and the accuracy after each as the cell's measure takes its mean."""
        which = 2 if self.by_sample else 1
        return [point[0] for point in self.curve], [point[which] for point in self.curve]

    @property
    def text(self) -> str:
        """`84.22` or, with several seeds, `84.22 ± 0.31 (3)`."""
        spread = f" ± {stdev(self.ours):.2f} ({len(self.ours)})" if len(self.ours) > 1 else ""
        return f"{shown(self.mean)}{spread}"


def shown(number: float) -> str:
    """Two digits after the point, or two that count for what is very small."""
    return f"{number:.2f}" if number == 0 or abs(number) >= 0.1 else f"{number:.2g}"


def compared(table: Table, results: Path) -> list[Compared]:
    """All cells of a table for which there is a result."""
    found = []
    for cell in table.cells:
        paths = kept(cell, results)
        if paths and not cell.reason:
            finished = [Finished.read(path) for path in paths]
            numbers = [each.measured(cell.measure) for each in finished]
            found.append(Compared(cell, numbers, finished[0].values.get("curve", [])))
    return found


def order_kept(group: list[Compared]) -> tuple[int, int]:
    """How many pairs, a point or more apart in print, are in the same order here; and of how many."""
    pairs = [
        (a, b)
        for a, b in combinations([c for c in group if c.cell.mean is not None], 2)
        if abs((a.cell.mean or 0) - (b.cell.mean or 0)) >= CLEAR
    ]
    same = sum(((a.cell.mean or 0) > (b.cell.mean or 0)) == (a.mean > b.mean) for a, b in pairs)
    return same, len(pairs)


def write(results: Path, to: Path) -> None:
    """The page, and its pictures in the folder `images` beside it."""
    make_folder(to.parent)
    write_whole(to, markdown(results).encode())
    # Without the date and names drawn at random the same results give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "fedkin"}):
        for name, figure in pictures(results).items():
            make_folder(to.parent / "images")
            picture = io.BytesIO()
            figure.savefig(picture, format="svg", metadata={"Date": None})
            write_whole(to.parent / "images" / name, picture.getvalue())


def markdown(results: Path) -> str:
    """The page."""
    by_table = {name: (table, compared(table, results)) for name, table in tables().items()}
    done = sum(len(cells) for _, cells in by_table.values())
    all_cells = sum(len(table.cells) for table in tables().values())
    lines = [
        "# Results: the papers' tables, regenerated",
        "",
        "This page is made by `fedkin reproduce page` from the files in `results/`, each of which holds the whole "
        "configuration, the seed, the versions, the accuracy of every client and the curve of a run. "
        f"{done} of {all_cells} cells have been run; `fedkin reproduce list` shows all of them, and "
        "`fedkin reproduce TABLE --row ROW --column COLUMN` runs one.",
        "",
        "Numbers are percent, from the last round, never the best one. *Difference* is ours less the paper's, in bold "
        f"from {FAR:g} points on. *Order kept* counts pairs that the paper has at least {CLEAR:g} point apart. "
        "A single seed stands without a deviation; the papers' are over the seeds they ran.",
        "",
        f"| | cells with a printed accuracy | within {FAR:g} points | order kept | best |",
        "|---|---|---|---|---|",
        *(_glance(table, group, own) for table, cells in by_table.values() for group, own in _beside(table, cells)),
        *_choices(),
    ]
    for table, cells in by_table.values():
        if cells:
            lines += _section(table, cells)
    empty = [table for table, cells in by_table.values() if not cells]
    if empty:
        lines += ["", "## Not run yet", ""]
        lines += [f"- `{table.name}`: {table.about}" for table in empty]
    lines += ["", "## Cells that cannot be run", "", "| table | cells | why |", "|---|---|---|"]
    for table in tables().values():
        reasons = Counter(cell.reason for cell in table.cells if cell.reason)
        lines += [f"| `{table.name}` | {count} | {reason} |" for reason, count in reasons.items()]
    return "\n".join(lines) + "\n"


def _choices() -> list[str]:
    return [
        "",
        "## What moves these numbers",
        "",
        "Choices that papers seldom print, and what each of them did to one number here, with all else the same and "
        "one seed. Methods can be compared only where these are equal. The notes of each table have more.",
        "",
        "| what is chosen | option | number | moved |",
        "|---|---|---|---|",
        *(f"| {c['choice']} | {c['option']} | {c['number']} | {c['moved']} |" for c in choices()),
    ]


def pictures(results: Path) -> dict[str, Figure]:
    """Tables with the printed numbers beside ours, and the papers' figures, by the names of the files."""
    drawn = {}
    for table in tables().values():
        cells = compared(table, results)
        if panels := _panels(table, cells):
            drawn[f"{table.name}.svg"] = figures.beside(panels)
        if table.curves:
            for group, own in groups(table, cells).items():
                over = "samples" if own[0].by_sample else "clients"
                lines = [(table.compared(c.cell), *c.line) for c in own]
                drawn[_picture(table, group)] = figures.lines(lines, over=over)
    return drawn


def _picture(table: Table, group: str) -> str:
    return f"{table.name}-{slug(group)}.svg"


def _panels(table: Table, cells: list[Compared]) -> dict[str, list[tuple[str, float, float | None, float]]]:
    """What to draw of a table: columns in which enough of the printed accuracies have been run to be worth a look."""
    return {
        group: [(table.compared(c.cell), c.cell.mean or 0.0, c.cell.std, c.mean) for c in own]
        for group, own in _beside(table, cells)
        if len(own) >= ENOUGH
    }


def groups(table: Table, cells: list[Compared]) -> dict[str, list[Compared]]:
    """Cells by what they are compared on, in the paper's order."""
    found: dict[str, list[Compared]] = {}
    for group in dict.fromkeys(table.where(cell) for cell in table.cells):
        if own := [c for c in cells if table.where(c.cell) == group]:
            found[group] = own
    return found


def _beside(table: Table, cells: list[Compared]) -> list[tuple[str, list[Compared]]]:
    """Groups of accuracies that the paper prints too."""
    printed = [c for c in cells if c.cell.mean is not None and c.cell.percent]
    return list(groups(table, printed).items())


def _glance(table: Table, group: str, own: list[Compared]) -> str:
    same, pairs = order_kept(own)
    near = sum(abs(c.difference or 0.0) < FAR for c in own)
    # Where no two numbers are clearly apart in print there is no order, and no best.
    order, name = (f"{same} of {pairs}", _best(table, own)) if pairs else ("–", "–")
    return f"| [{table.name}](#{table.name}), {group} | {len(own)} | {near} | {order} | {name} |"


def _best(table: Table, own: list[Compared], printed: bool = False) -> str:
    """What has the highest number, here or in print; of equals the paper's own method."""
    numbers = ((c.cell.mean or 0.0 if printed else c.mean, table.compared(c.cell)) for c in own)
    return max((number, name == table.ours, name) for number, name in numbers)[2]


def _section(table: Table, cells: list[Compared]) -> list[str]:
    seeds = f" The paper has {table.seeds} seeds." if table.seeds > 1 else ""
    lines = ["", f"## {table.name}", "", f"{table.about}.{seeds}", ""]
    if _panels(table, cells):
        lines += [f"![The paper's numbers with their deviations, and ours](images/{table.name}.svg)", ""]
    for group, own in groups(table, cells).items():
        lines += [f"**{group}**", "", *_numbers(table, own)]
        verdict = _verdict(table, own)
        lines += ["", *([verdict, ""] if verdict else [])]
        if table.curves:
            lines += [f"![{group}: accuracy over rounds](images/{_picture(table, group)})", ""]
    if table.notes:
        lines += ["Found out about differences:", "", *(f"- {note}" for note in table.notes), ""]
    if table.open:
        lines += ["Left open by the paper:", "", *(f"- {what}" for what in table.open), ""]
    return lines[:-1]


def comparison(table: Table, own: list[Compared]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a line a cell: the paper's number, ours, and how far they are from each other.

    Where the paper prints none of the numbers, ours alone.
    """
    if all(c.cell.mean is None for c in own):
        return ["ours"], [[c.text] for c in own]
    base = own[0]
    if base.cell.measure != TIME:
        return ["paper", "ours", "difference"], [[_paper(c.cell), c.text, _signed(c.difference)] for c in own]
    # Times of two machines have no difference worth a look, but their ratios to the first row's can be compared.
    name = table.compared(base.cell)
    ratios = [((c.cell.mean or 0) / (base.cell.mean or 1), c.mean / base.mean) for c in own]
    headings = ["paper", "ours", f"paper, × {name}", f"ours, × {name}"]
    return headings, [
        [_paper(c.cell), c.text, f"{paper:.2f}", f"{ours:.2f}"] for c, (paper, ours) in zip(own, ratios, strict=True)
    ]


def _numbers(table: Table, own: list[Compared]) -> list[str]:
    headings, lines = comparison(table, own)
    for c, line in zip(own, lines, strict=True):
        if c.cell.percent and abs(c.difference or 0.0) >= FAR:
            line[-1] = f"**{line[-1]}**"
    return [
        f"| | {' | '.join(headings)} |",
        f"|{'---|' * (1 + len(headings))}",
        *(f"| {table.compared(c.cell)} | {' | '.join(line)} |" for c, line in zip(own, lines, strict=True)),
    ]


def _paper(cell: Cell) -> str:
    spread = f" ± {cell.std:.2f}" if cell.std is not None else ""
    return "–" if cell.mean is None else f"{shown(cell.mean)}{spread}"


def _signed(difference: float | None) -> str:
    # Nothing has no sign: -0.001 is +0.00.
    return "–" if difference is None else f"{round(difference, 2) + 0.0:+.2f}"


def _verdict(table: Table, own: list[Compared]) -> str:
    """In words; of accuracies only, because a point is nothing to other numbers."""
    if not own[0].cell.percent:
        return ""
    same, pairs = order_kept(own)
    words = [f"Order kept in {same} of {pairs} pairs." if pairs else ""]
    names = [table.compared(c.cell) for c in own]
    printed = any(c.cell.mean is not None for c in own)
    if printed and len(own) > 1 and table.ours in names:
        name, theirs = _best(table, own), _best(table, own, printed=True)
        too, other = f"{name} is the best here too.", f"The best here is {name}, in print {theirs}."
        words.append(too if name == theirs else other)
    far = [table.compared(c.cell) for c in own if c.difference is not None and abs(c.difference) >= FAR]
    if far:
        words.append(f"Three points or more apart: {', '.join(far)}.")
    return " ".join(word for word in words if word)
