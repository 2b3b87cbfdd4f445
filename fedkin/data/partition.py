"""Sharing a dataset out among clients, by a rule given as text: `dirichlet:0.1`, `classes:6,form=iid`.

A rule is a function in `fedkin.data.partitions`. What its text may set are the function's parameters
after the first two: the one without a default stands behind the colon, the others are options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_type_hints

import numpy as np

from fedkin.data.dataset import Dataset, Indices, Split
from fedkin.data.partitions import classes, dirichlet, iid, natural, one_class, pfedsim, shards, spfl
from fedkin.data.partitions.task import Assignment, Flags, Task, hold_out, need
from fedkin.errors import FedkinError, unknown
from fedkin.randomness import numpy_generator
from fedkin.rules import options


@dataclass(frozen=True)
class Rule:
    """One way to share data out, with the defaults its paper uses."""

    name: str
    assign: Callable[..., Assignment]
    test_ratio: float | None
    """Part of each client's samples it tests on; none means that the rule decides on that itself."""
    pool: str
    """`all`, the publisher's training and test files together, or `train`, the training files only."""
    paper: str
    form: str = ""
    """Which of several rules with this name; the first one in `rules()` is the default."""

    @property
    def description(self) -> str:
        """One line on what the rule does."""
        return (inspect.getdoc(self.assign) or "").partition("\n")[0]

    @property
    def value(self) -> str:
        """Name of the number behind the colon, or nothing."""
        return next((p.name for p in self._parameters() if p.default is p.empty), "")

    @property
    def options(self) -> list[str]:
        """Names of what `option=value` can set, `form` aside."""
        return [p.name for p in self._parameters() if p.default is not p.empty]

    @property
    def syntax(self) -> str:
        """How the rule is written, options in brackets."""
        value = f":{self.value}" if self.value else ""
        form = f",form={self.form}" if self.form else ""
        if form and self is next(rule for rule in RULES if rule.name == self.name):
            form = f"[{form}]"
        return self.name + value + form + "".join(f"[,{option}=...]" for option in self.options)

    def number(self, parameter: str, text: str) -> float:
        """The value of a parameter, read as the function's annotation says."""
        kind = float if get_type_hints(self.assign)[parameter] is float else int
        try:
            return kind(text)
        except ValueError:
            noun = "a number" if kind is float else "a whole number"
            raise FedkinError(f"{parameter} of partition {self.name!r} is {noun}, not {text!r}") from None

    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.assign).parameters.values())[2:]


SPFL = "SPFL (Appendix B)"
PFEDSIM = "pFedSim (5.1, A.3)"
FEDSIMSUP = "FedSimSup (A.1)"

RULES = (
    Rule("iid", iid.iid, 0.2, "all", "FedALP (3.1), its IID case"),
    Rule("classes", classes.non_iid, 0.2, "train", SPFL, "non-iid"),
    Rule("classes", classes.iid, 0.2, "train", SPFL, "iid"),
    Rule("classes", spfl.non_iid, 0.2, "train", f"{SPFL}, its own split", "spfl"),
    Rule("classes", spfl.iid, 0.2, "train", f"{SPFL}, its own split", "spfl-iid"),
    Rule("dirichlet", dirichlet.by_class, 0.5, "all", PFEDSIM, "class"),
    Rule("dirichlet", pfedsim.pfedsim, 0.5, "all", f"{PFEDSIM}, its own split", "pfedsim"),
    Rule("dirichlet", dirichlet.balanced, 0.2, "all", FEDSIMSUP, "balanced"),
    Rule("dirichlet", dirichlet.by_client, 0.2, "all", f"{FEDSIMSUP}, equation 12", "client"),
    Rule("shards", shards.shards, 0.2, "all", FEDSIMSUP, "classes"),
    Rule("shards", shards.by_lot, 0.2, "all", "McMahan et al. (2017)", "by-lot"),
    Rule("one-class", one_class.one_class, None, "all", "FedALP (3.1)"),
    Rule("natural", natural.natural, 0.2, "all", "pFedSim (B.3), FedSimSup (FEMNIST)"),
)


def rules() -> list[Rule]:
    """All rules, for help texts and documentation."""
    return list(RULES)


def split(
    data: Dataset,
    rule: str,
    clients: int,
    seed: int,
    test_ratio: float | None = None,
    pool: str | None = None,
) -> Split:
    """Share the data out among clients, each with samples to train and to test on.

    `rule` is `name[:value][,option=value...]`, see `rules()`. `test_ratio` and `pool` are the rule's own
    unless given. No sample is used twice. Within a client the test samples are a random part of each
    class (see `hold_out`); the test ratio has no influence on who owns what, but for `one-class`.
    """
    chosen, numbers = parse(rule)
    pool = chosen.pool if pool is None else pool
    if pool not in ("all", "train"):
        raise unknown("pool", pool, ("all", "train"))
    need(test_ratio is None or 0 < test_ratio < 1, f"test_ratio lies between 0 and 1, not at {test_ratio}")
    everyone = chosen.name == "natural" and clients == 0
    need(clients >= 1 or everyone, f"the number of clients is at least 1, not {clients}")
    source = data.name if pool == "all" else f"{data.name}'s training file"
    index = np.flatnonzero(~data.is_test) if pool == "train" else np.arange(len(data))
    need(
        len(index) >= 2 * max(clients, 1),
        f"{source} has {len(index)} samples, and a client needs one to train and one to test: "
        f"{clients} clients are too many, at most {len(index) // 2} are possible",
    )

    ratio = chosen.test_ratio if test_ratio is None else test_ratio
    present, y = np.unique(data.y[index], return_inverse=True)
    task = Task(
        data=source,
        clients=clients,
        y=y,
        classes=tuple(data.classes[c] for c in present),
        is_test=data.is_test[index],
        owner=None if data.owner is None else data.owner[index],
        owners=data.owners,
        test_ratio=ratio,
    )
    client, held_out, names = chosen.assign(task, numpy_generator(seed, "partition"), **numbers)
    names = names or _numbered(clients)
    _check_sizes(client, names, f"with {rule} on {source}")
    if held_out is None:
        assert ratio is not None, "a rule without a test ratio holds samples out itself"
        held_out = hold_out(client, y, ratio, numpy_generator(seed, "partition/test"))
    return _collect(index, client, held_out, names)


def split_owned(data: Dataset, test_ratio: float | None, seed: int) -> Split:
    """One client per owner with all of its samples; without a ratio `is_test` says what it tests on."""
    owner = data.owner
    assert owner is not None, "only data that have owners come here"
    held_out = data.is_test
    if test_ratio is not None:
        need(0 < test_ratio < 1, f"test_ratio lies between 0 and 1, not at {test_ratio}")
        _check_sizes(owner, data.owners, f"in {data.name}")
        held_out = np.zeros(len(data), dtype=np.bool_)
        sizes = np.bincount(owner, minlength=len(data.owners))
        for i, rows in enumerate(np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])):
            held_out[rows] = own_test(data.y[rows], test_ratio, seed, i)
    return _collect(np.arange(len(data)), owner, held_out, data.owners)


def own_test(y: Indices, test_ratio: float, seed: int, client: int) -> Flags:
    """[n] which of a client's samples with labels y [n] it tests on, whether or not those of others are at hand."""
    return hold_out(np.zeros_like(y), y, test_ratio, numpy_generator(seed, "partition/test", 0, client))


def parse(text: str) -> tuple[Rule, dict[str, float]]:
    """The rule a text names, and the numbers it sets."""
    head, *items = text.split(",")
    name, colon, value = head.partition(":")
    forms = {rule.form: rule for rule in RULES if rule.name == name}
    if not forms:
        raise unknown("partition", name, {rule.name for rule in RULES})

    given = options(items, f"partition {text!r}")
    form = given.pop("form", next(iter(forms))) if len(forms) > 1 else ""
    if form not in forms:
        raise unknown(f"form of partition {name!r}", form, forms)
    rule = forms[form]

    if not rule.value:
        need(not colon, f"partition {name!r} takes no value, and {head!r} gives one")
    else:
        need(bool(value), f"partition {name!r} needs a value: {rule.syntax}")
    for option in given:
        need(bool(rule.options), f"{rule.syntax!r} has no options, and {option!r} is given")
        if option not in rule.options:
            raise unknown(f"option of partition {name!r}", option, rule.options)
    if rule.value:
        given[rule.value] = value
    return rule, {parameter: rule.number(parameter, setting) for parameter, setting in given.items()}


def _numbered(clients: int) -> tuple[str, ...]:
    width = max(2, len(str(clients - 1)))
    return tuple(f"client-{i:0{width}d}" for i in range(clients))


def _check_sizes(client: Indices, names: tuple[str, ...], where: str) -> None:
    sizes = np.bincount(client[client >= 0], minlength=len(names))
    few = int(sizes.argmin())
    need(
        bool(sizes[few] >= 2),
        f"{names[few]} has {('no samples', 'one sample')[min(sizes[few], 1)]} {where}: "
        "a client needs at least two, one to train and one to test",
    )


def _collect(index: Indices, client: Indices, held_out: Flags, names: tuple[str, ...]) -> Split:
    """The index arrays of all clients, each in ascending order."""
    used = client >= 0
    key = 2 * client[used] + held_out[used]
    ends = np.cumsum(np.bincount(key, minlength=2 * len(names)))
    pieces = np.split(index[used][np.argsort(key, kind="stable")], ends[:-1])
    return Split(train=tuple(pieces[0::2]), test=tuple(pieces[1::2]), names=names)
