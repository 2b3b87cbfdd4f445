"""The page about the algebra of mixing matrices: words, a table of all methods, a picture of each kind of matrix."""

from __future__ import annotations

import torch

from fedkin.methods import registry
from fedkin.report.algebra import (
    BLENDED,
    CLIENTS,
    FAMILIES,
    GLOBAL,
    GROUPS,
    KIN,
    KINDS,
    MODELS,
    PRIVATE,
    PULLED,
    ROUNDS,
    UPDATES,
    Algebra,
    algebra,
)

INTRODUCTION = """\
# The algebra of mixing matrices

A model is a vector: all of its parameters one after the other, and after them the running statistics of its
normalisation layers. A federation of *N* clients is then a matrix **W** with a row for every client and a column
for every number in the model. A *block* is a set of columns with a meaning: a layer, the extractor, the
classifier.

In these terms every federated method does two things in turn.

1. **Clients** move their rows by gradient steps: *w<sub>i</sub>* becomes *w<sub>i</sub> + d<sub>i</sub>*. A client
   sees its own samples and what it was sent.
2. **The server** multiplies a block of columns by a small matrix with a row and a column for every client:

    *W*[:, block] ← *M*<sub>block</sub> *W*[:, block], or, with the updates *D* that came back,<br>
    *W*[:, block] ← *W*[:, block] + *M*<sub>block</sub> *D*[:, block]

Row *i* of *M* says whose models make up client *i*'s. It is row-stochastic (no share is negative, all sum to one),
so that client *i* gets a weighted mean. What sets personalised methods apart is then a short list: which blocks,
which matrix for each of them, and when. FedAvg has one block and a matrix with *N* equal rows, *n<sub>j</sub> /
n*. Keeping the classifier at home is the identity on its columns. Learning from kin is a matrix whose rows differ,
made from some likeness of clients: of their updates, their classifiers, their labels or their losses.

With equal rows and everybody at the same place both forms of the step are the same thing: *1 p*<sup>T</sup>(*W* +
*D*) = *W* + *1 p*<sup>T</sup>*D*. Once clients have different models they are not. Mixing models draws those of
kin together; mixing updates leaves them where they are and lets them walk in similar directions.

Matrices multiply. After rounds with *M*<sub>1</sub>, *M*<sub>2</sub>, ... a client has learnt from everybody whom
its row of the product reaches, and a block-diagonal *M* never lets anything pass from one group to another. In
Python, `result.mixing(round)` has the matrices of every round of a run, by block.

## What matrices look like

![Six kinds of mixing matrices, as pictures](images/mixing.svg)

| kind | in words | as a formula |
|---|---|---|
"""

TABLE = f"""
## All methods

This page is made from the code by `make docs`: every method ran {{rounds}} rounds of {CLIENTS} clients with
handwritten digits and a network of three layers, called `fc1`, `norm` and `classifier`, and the table tells what
its matrices looked like. Everybody takes part in these rounds.

- **what is mixed**: the block, the kind of its matrix, and when. A matrix may be the same in all rounds or be made
  anew in each of them.
- **sent next**: what clients are sent in the next round, compared number by number with the matrix times what came
  back. {MODELS} and {UPDATES} mean that the matrix is all that the server does to the parameters. *And more* means
  that it is not: momentum, corrections, or a share of the old model. *At the client* means that the server leaves
  the mixing to the clients, so that there is nothing to compare.
- **sat out**: what the row of a client looks like that takes no part in a round.
- **personal**: what differs from client to client, which includes what clients make of the global model by
  themselves.
"""


def markdown() -> str:
    """The page of the algebra."""
    found = [algebra(name) for name in registry()]
    text = INTRODUCTION
    text += "".join(f"| **{name}** | {words} | {formula} |\n" for name, (words, formula) in KINDS.items())
    text += TABLE.format(rounds=ROUNDS)
    odd = [row.name for row in found if not all(phase.stochastic for phase in row.phases)]
    which = f"all but those of {', '.join(odd)}" if odd else "all of them"
    text += f"\nOf the matrices that were seen, {which} are row-stochastic.\n"
    for title, _ in FAMILIES:
        rows = [row for row in found if row.phases and row.family == title]
        text += f"\n### {title}\n\n| method | what is mixed | sent next | sat out | personal |\n|---|---|---|---|---|\n"
        text += "".join(f"| {_link(r)} | {_mixed(r)} | {r.step} | {r.absent} | {r.personal} |\n" for r in rows)
    text += (
        "\n### No matrix\n\nClients of these methods learn from each other by something else than a mixture of models: "
        "class scores on public samples, prototypes of classes, a network that writes models, or not at all.\n\n"
        "| method | personal |\n|---|---|\n"
    )
    return text + "".join(f"| {_link(row)} | {row.personal} |\n" for row in found if not row.phases)


def _link(row: Algebra) -> str:
    return f"[`{row.name}`](methods.md#{row.name})"


def _mixed(row: Algebra) -> str:
    """The phases of a method, a line each."""
    lines = []
    for phase in row.phases:
        by_kind: dict[str, list[str]] = {}
        for block, one in phase.blocks.items():
            by_kind.setdefault(one, []).append(f"`{block}`")
        blocks = "; ".join(f"{', '.join(names)}: **{one}**" for one, names in by_kind.items())
        notes = [phase.when] * (phase.when != "always") + ["new every round"] * phase.renewed
        lines.append(blocks + (f" ({', '.join(notes)})" if notes else ""))
    return "<br>".join(lines)


def svg() -> str:
    """A picture of every kind of matrix, for eight clients: three, three and two are kin."""
    n, side = 8, 16
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    mean = torch.tensor([3.0, 1, 2, 2, 4, 1, 3, 2]).expand(n, n) / 18
    kin = (group[:, None] == group) * mean
    kin = kin / kin.sum(1, keepdim=True)
    near = torch.exp(-0.35 * (torch.arange(n)[:, None] - torch.arange(n)).abs()) * (0.4 + mean * 3)
    matrices = {
        GLOBAL: mean,
        PRIVATE: torch.eye(n),
        PULLED: 0.5 * torch.eye(n) + 0.5 * mean,
        GROUPS: kin,
        BLENDED: 0.6 * kin + 0.4 * mean,
        KIN: near / near.sum(1, keepdim=True),
    }
    gap = 34
    width, height = len(matrices) * (n * side + gap) - gap + 4, n * side + 32
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for k, (name, matrix) in enumerate(matrices.items()):
        x0 = 2 + k * (n * side + gap)
        parts.append(f'<text x="{x0 + n * side / 2:g}" y="16" fill="#222">{name}</text>')
        for i in range(n):
            for j in range(n):
                share = float(matrix[i, j])
                shade = f'fill="#00796b" fill-opacity="{share**0.5:.2f}"' if share > 0 else 'fill="#fff"'
                at = f'x="{x0 + j * side}" y="{26 + i * side}" width="{side}" height="{side}"'
                parts.append(f'<rect {at} {shade} stroke="#cfd8dc"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
