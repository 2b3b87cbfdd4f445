"""Which matrix every method mixes which columns by: measured on a small federation, not typed.

Each method plays a few rounds in which everybody takes part, and a last one with half of the clients. What a matrix
looks like is read off the matrix; whether it is all that happens is read off what clients are sent next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.api import prepare
from fedkin.engine.inline import Inline
from fedkin.engine.worker import Done, Job
from fedkin.layout import Block, Layout
from fedkin.method import TRAIN, Mixing, trained
from fedkin.methods import registry
from fedkin.runs.mixing import MixingRecord
from fedkin.setup import Setup
from fedkin.simulate import Simulation, one_thread

ROUNDS = 8
"""Rounds in which everybody takes part; one more follows with half of the clients."""
CLIENTS = 8
SETTINGS: dict[str, dict[str, Any]] = {
    # The paper's thresholds are for long runs: these part a cluster within a few rounds.
    "cfl": {"eps1": 0.3, "eps2": 0.1},
    "fedalp": {"groups": 3},
    "fedmd": {"public": 0.1},
}
"""What a method needs to show itself in so few rounds and clients."""

GLOBAL, PRIVATE, PULLED, GROUPS, BLENDED, KIN = (
    "global", "private", "own + global", "groups", "groups + global", "kin",
)  # fmt: skip
KINDS = {
    GLOBAL: ("all rows are equal", "*M = 1 p*<sup>T</sup>"),
    PRIVATE: ("everybody keeps its own", "*M = I*"),
    PULLED: ("a share of one's own, the rest of the mean", "*M = diag(d) + 1 p*<sup>T</sup>"),
    GROUPS: ("a mean inside each group, nothing from outside", "block-diagonal once clients are sorted"),
    BLENDED: ("a share of the group's mean, the rest of everybody's", "clients of a group have equal rows"),
    KIN: ("every client has a row of its own", "any row-stochastic *M*"),
}
"""What a mixing matrix can look like, in words and as a formula, from the plainest to the most general."""

FAMILIES = (
    ("One model for everybody", {GLOBAL}),
    ("A part stays at home", {GLOBAL, PRIVATE}),
    ("Between one's own and the mean", {GLOBAL, PRIVATE, PULLED}),
    ("Groups", {GLOBAL, PRIVATE, PULLED, GROUPS, BLENDED}),
    ("Kin", set(KINDS)),
)
"""Headings, and which kinds may stand under each: a method stands under the first heading that has all of its."""

MODELS, UPDATES, MORE, AT_CLIENT = "*M W*", "*W + M D*", "*M W* and more", "*M W*, at the client"


@dataclass(frozen=True)
class Phase:
    """Rounds in which a method mixes the same blocks by the same kinds of matrices."""

    rounds: tuple[int, ...]
    blocks: dict[str, str]
    """Block of columns to the kind of its matrix, a key of `KINDS`."""
    stochastic: bool
    """Whether all rows are nonnegative and sum to one."""
    renewed: bool
    """Whether the matrices differ from round to round although the same clients take part."""

    @property
    def when(self) -> str:
        """The rounds in words."""
        first, last = self.rounds[0], self.rounds[-1]
        if len(self.rounds) == ROUNDS:
            return "always"
        if len(self.rounds) != last - first + 1 or (first > 1 and last < ROUNDS):
            return "in some rounds"
        return f"rounds 1 to {last}" if first == 1 else f"from round {first} on"


@dataclass(frozen=True)
class Algebra:
    """What a method does to the matrix of models."""

    name: str
    personal: str
    phases: tuple[Phase, ...]
    """Empty if models are not mixed at all."""
    step: str
    """What clients are sent next: `M W`, `W + M D`, or something that the matrix alone does not give."""
    absent: str
    """What the rows of clients that sat out a round look like."""

    @property
    def family(self) -> str:
        """The heading that it stands under."""
        kinds = {kind for phase in self.phases for kind in phase.blocks.values()}
        if kinds == {PRIVATE} and self.absent == MIXED:
            kinds = {KIN}
        return next(title for title, members in FAMILIES if kinds <= members)


OWN, SAME, MIXED = "its own", "the mean", "a mixture"


def kind(matrix: Tensor) -> str:
    """What a mixing matrix [N, N] looks like, a key of `KINDS`."""
    matrix = matrix.double()
    n = len(matrix)
    itself = torch.eye(n, dtype=torch.bool)
    equal = torch.isclose(matrix[:, None], matrix[None], atol=1e-9).all(-1)
    """[N, N] whose rows are the same."""
    least = torch.where(itself, torch.inf, matrix).min(0).values
    if torch.allclose(matrix, itself.double(), atol=1e-9):
        return PRIVATE
    if equal.all():
        return GLOBAL
    if torch.allclose(matrix[~itself], least.expand(n, n)[~itself], atol=1e-9):
        return PULLED
    if torch.equal(equal, matrix > 1e-9):
        return GROUPS
    return BLENDED if (equal & ~itself).any() else KIN


def is_stochastic(matrix: Tensor) -> bool:
    """Whether the rows of a matrix [N, N] are nonnegative and sum to one."""
    sums = matrix.double().sum(1)
    return bool((matrix >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-6)


class _Net(nn.Module):
    """A small network with something of everything that methods treat apart."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)
        self.classifier = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.norm(self.fc1(x.flatten(1))).relu())
        return scores


class _Trips(Inline):
    """Notes what every client was sent for training, and what it made of it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.site())
        self.trips: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}

    def map(self, function: str, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        results = super().map(function, calls)
        if function == "local":
            for (jobs, _), batch in zip(calls, results, strict=True):
                for job, done in zip(jobs, batch, strict=True):
                    self._note(job, done)
        return results

    def _note(self, job: Job, done: Done) -> None:
        sent, after = job.message.get("w"), trained(job.message, done.reply)
        if job.exchange == TRAIN and after is not None and sent is not None and sent.shape == after.shape:
            # A message may be a row of the server's own matrix, which moves on.
            self.trips.setdefault(job.round, {})[job.client] = (sent.clone(), after.clone())

    def rows(self, round: int) -> tuple[Tensor, Tensor] | None:
        """What all clients were sent in a round and what they had trained at its end, both [N, S]."""
        pairs = self.trips.get(round, {})
        if len(pairs) < CLIENTS:
            return None
        sent, after = zip(*(pairs[i] for i in range(CLIENTS)), strict=True)
        return torch.stack(sent), torch.stack(after)


class _Rounds(MixingRecord):
    """Keeps the matrices of every round, also of those without any."""

    def __init__(self) -> None:
        super().__init__(None)
        self.by_round: dict[int, Mixing] = {}

    def add(self, round: int, mixing: Mixing) -> None:
        self.by_round[round] = {name: matrix.double() for name, matrix in mixing.items()}


def algebra(name: str) -> Algebra:
    """What a method does, seen over `ROUNDS` + 1 rounds with `CLIENTS` clients."""
    with one_thread(), torch.random.fork_rng():
        torch.manual_seed(0)
        setup = prepare(
            name, data="digits", model=_Net(), partition="dirichlet:0.3", clients=CLIENTS, rounds=ROUNDS + 1, join=1.0,
            epochs=1, batch=32, lr=0.05, momentum=0.0, weight_decay=0.0, minibatches=0, schedule="sync",
            dtype="float64", evaluate_every=ROUNDS + 2, vectorize="off", **SETTINGS.get(name, {}),
        )  # fmt: skip
        engine, record = _Trips(setup), _Rounds()
        simulation = Simulation(setup, engine)
        simulation.mixing = record
        for _ in range(ROUNDS):
            simulation.round()
        simulation.clock.capacity = CLIENTS // 2
        took_part = simulation.round()[0].participants
    matrices = {round: mixing for round, mixing in record.by_round.items() if mixing}
    last = matrices.get(ROUNDS + 1, {})
    full = {round: mixing for round, mixing in matrices.items() if round <= ROUNDS}
    return Algebra(
        name=name,
        personal=registry()[name].personal,
        phases=_phases(full),
        step=_step(engine, full, setup, simulation.fed.layout),
        absent=_absent(last, took_part),
    )


def _phases(matrices: dict[int, Mixing]) -> tuple[Phase, ...]:
    """Rounds with matrices of the same kinds, taken together."""
    seen = {round: {block: kind(matrix) for block, matrix in mixing.items()} for round, mixing in matrices.items()}
    general = {
        block: {kinds[block] for kinds in seen.values() if block in kinds} & {GROUPS, KIN}
        for block in {block for kinds in seen.values() for block in kinds}
    }
    for kinds in seen.values():
        for block, one in kinds.items():
            # Everybody alone is what kin look like in a round in which nobody could help.
            if one == PRIVATE and general[block]:
                kinds[block] = min(general[block])
    phases = []
    for blocks in {tuple(kinds.items()): None for kinds in seen.values()}:
        rounds = [round for round, kinds in seen.items() if tuple(kinds.items()) == blocks]
        mixed = [matrices[round] for round in rounds]
        first = mixed[0]
        phases.append(
            Phase(
                rounds=tuple(rounds),
                blocks=dict(blocks),
                stochastic=all(is_stochastic(matrix) for mixing in mixed for matrix in mixing.values()),
                renewed=not all(torch.equal(first[block], mixing[block]) for mixing in mixed for block in first),
            )
        )
    return tuple(phases)


def _step(engine: _Trips, matrices: dict[int, Mixing], setup: Setup, layout: Layout) -> str:
    """What clients are sent in the next round, compared with the matrix times what came back in this one."""
    shared = setup.method.shared(layout)

    def wide(rows: Tensor) -> Tensor:
        """All columns of the parameters, zero where they are not sent; statistics may stay at home."""
        return layout.parameters.of(shared.put(rows.new_zeros(CLIENTS, layout.size), rows))

    found = []
    for round, mixing in matrices.items():
        now, then = engine.rows(round), engine.rows(round + 1)
        if now is None or then is None:
            continue
        sent, after, following = wide(now[0]), wide(now[1]), wide(then[0])
        models, updates = sent.clone(), sent.clone()
        for block, matrix in mixing.items():
            for columns in _columns(block, setup, layout) & layout.parameters:
                models[:, columns] = matrix @ after[:, columns]
                updates[:, columns] += matrix @ (after - sent)[:, columns]
        found.append((torch.allclose(models, following, atol=1e-7), torch.allclose(updates, following, atol=1e-7)))
    if not found:
        return AT_CLIENT
    return MODELS if all(m for m, _ in found) else UPDATES if all(u for _, u in found) else MORE


def _columns(block: str, setup: Setup, layout: Layout) -> Block:
    """The columns that a name in a method's record stands for."""
    named = {
        "all": layout.all,
        "shared": setup.method.shared(layout),
        "private": layout.all - setup.method.shared(layout),
        "extractor": layout.extractor,
        "classifier": layout.classifier,
    }
    return named[block] if block in named else layout.stages(getattr(setup.method, "stages", "3"))[block]


def _absent(mixing: Mixing, took_part: Sequence[int]) -> str:
    """What the rows of clients look like that took no part in a round."""
    sat_out = [i for i in range(CLIENTS) if i not in took_part]
    if not mixing:
        return OWN
    found = set()
    for matrix in mixing.values():
        own = torch.eye(CLIENTS, dtype=matrix.dtype)[sat_out]
        if torch.allclose(matrix[sat_out], own):
            found.add(OWN)
        else:
            found.add(SAME if kind(matrix) == GLOBAL else MIXED)
    return MIXED if MIXED in found else " / ".join(sorted(found))
