"""The recommendation in words, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from fedkin.advise.evidence import GLOBAL, LOCAL, MARGIN, Advice, Gap, Row, simplicity


def late_gain(curve: Sequence[tuple[int, float]]) -> float:
    """What the last quarter of the rounds has brought."""
    rounds, last = curve[-1]
    return last - next((a for r, a in reversed(curve) if r <= 0.75 * rounds), last)


def percent(share: float) -> str:
    """`91.2 %`."""
    return f"{100 * share:.1f} %"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def sentences(
    winner: str, finalists: Sequence[Row], gaps: Mapping[str, Gap], tested: Mapping[str, float], tried: int
) -> str:
    """The recommendation."""
    rows = {row.method: row for row in finalists}
    own, best = rows[winner], finalists[0]
    others = [m for m in (GLOBAL, LOCAL) if m != winner]
    against = listed([f"{percent(rows[m].accuracy)} with {m}" for m in others])
    said = [
        f"Take {winner}: of {tried} methods tried it gives {percent(own.accuracy)} on validation samples, "
        f"mean over {len(own.clients)} clients, against {against}."
    ]
    behind = [m for m in gaps if m not in (winner, best.method)]
    equals = [row.method for row in finalists if row is not own and row.accuracy == own.accuracy]
    if own.accuracy == best.accuracy and equals:
        said.append(f"{listed(equals)} {'gives' if len(equals) == 1 else 'give'} the same, but {winner} is simpler.")
    elif own is not best:
        gap = gaps[winner]
        why = "may be chance" if gap.low <= 0 else "is too small to matter"
        sends = f"sends {own.bytes / 1e3:.1f} kB per client and round against {best.bytes / 1e3:.1f}"
        said.append(f"{best.method} is ahead by {gap}, which {why}; {winner} is simpler and {sends}.")
    elif behind:
        simpler = [m for m in behind if simplicity(m) < simplicity(winner)]
        kind = "The nearest simpler method" if simpler else "The next method"
        near = (simpler or behind)[0]
        work = own.steps / max(1.0, rows[near].steps)
        more = f", though {winner} takes {work:.1f} times its gradient steps" if work >= 1.5 else ""
        said.append(f"{kind}, {near}, is behind by {gaps[near]}{more}.")
    on_test = ", ".join(f"{m} {percent(accuracy)}" for m, accuracy in tested.items())
    said.append(f"On the test samples, after training on all training samples: {on_test}.")
    ahead = [m for m in others if tested[m] > tested[winner] + MARGIN]
    if ahead:
        said.append(f"There {listed(ahead)} did better, so take this with care: more seeds or rounds may tell.")
    level = [m for m in others if m not in ahead and tested[m] >= tested[winner] - MARGIN]
    level = [m for m in level if simplicity(m) < simplicity(winner)]
    if level:
        said.append(f"There {listed(level)} did as well and is simpler.")
    return " ".join(said)


def figure_of(advice: Advice) -> Figure:
    """The halving (left) and what each client gets (right)."""
    from matplotlib.ticker import MaxNLocator

    rows = advice.table
    full = rows[0].rounds
    figure = Figure(figsize=(11, 1.8 + 0.3 * max(8, len(rows))), layout="constrained")
    halving, clients = figure.subplots(1, 2)
    palette = [f"C{k}" for k in (0, 1, 2, 4, 5, 6, 8, 9)]
    finalists = [row.method for row in rows if row.rounds == full]
    colours = {m: palette[k % len(palette)] for k, m in enumerate(finalists)} | {advice.method: "C3"}
    for row in reversed(rows):
        at, accuracy = zip(*advice.curves[row.method], strict=True)
        chosen, colour = row.method == advice.method, colours.get(row.method, "0.7")
        label = row.method if row.rounds == full else None
        halving.plot(at, 100 * np.array(accuracy), color=colour, linewidth=2.5 if chosen else 1.2, label=label,
                     zorder=3 if chosen else 2)  # fmt: skip
        halving.plot(at[-1], 100 * accuracy[-1], "o" if row.rounds == full else "x", color=colour, markersize=5)
    halving.set(
        xlabel="round", ylabel="validation accuracy (%), mean over clients", title="Who goes on (×: no further)"
    )
    halving.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = halving.get_legend_handles_labels()
    halving.legend(handles[::-1], labels[::-1], frameon=False, fontsize=8)
    rng = np.random.default_rng(0)
    for k, row in enumerate(rows):
        colour = colours.get(row.method, "0.7")
        clients.plot(100 * np.array(row.clients), k + rng.uniform(-0.22, 0.22, len(row.clients)), ".", color=colour,
                     alpha=0.55, markersize=5)  # fmt: skip
        clients.plot([100 * row.accuracy] * 2, [k - 0.36, k + 0.36], color="black", linewidth=1.8)
    names = [row.method + (f" (round {row.rounds})" if row.rounds < full else "") for row in rows]
    clients.set_yticks(range(len(rows)), names, fontsize=9)
    for tick, row in zip(clients.get_yticklabels(), rows, strict=True):
        tick.set_fontweight("bold" if row.method == advice.method else "normal")
    clients.invert_yaxis()
    clients.set(xlabel="validation accuracy (%)", title="Each client (dots), and the mean over clients (bars)")
    for axes in (halving, clients):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
