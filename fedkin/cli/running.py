"""`fedkin run` and `fedkin compare`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedkin.cli.options import Json, Out, free_folder, pairs, takes
from fedkin.cli.progress import clock, shown
from fedkin.config import WHERE, settings_from_toml
from fedkin.errors import FedkinError, Stopped

if TYPE_CHECKING:
    from fedkin.result import Result
    from fedkin.setup import Setup

Preset = Annotated[
    str | None, typer.Option(help="A paper's settings (see [b]fedkin presets[/b]); what else is given comes first.")
]
RUN = ("Federation", "Training", "Where it runs", "Output")


@takes(*RUN)
def run(
    method: Annotated[
        str | None,
        typer.Argument(help="A method (see [b]fedkin methods[/b]), file.py:Class, or a TOML file."),
    ] = None,
    set: Annotated[
        list[str], typer.Option(help="A hyper-parameter of the method, as key=value; may be repeated.")
    ] = [],  # noqa: B006 (typer reads it)
    preset: Preset = None,
    out: Out = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder.", rich_help_panel="Output"),
    ] = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Run one method on a federation.

    [dim]fedkin run fedavg --data digits --partition dirichlet:0.1 --clients 20 --rounds 30[/dim]
    """
    from fedkin import api

    if resume is not None and preset is not None:
        raise FedkinError("--resume takes everything from the run folder, so --preset cannot be given with it")
    if set:
        settings["set"] = pairs(set)
    if resume is not None:
        result = _resume(resume, method, out, settings)
    elif method is None:
        raise FedkinError("which method? Name one (fedkin methods lists them), a TOML file, or --resume FOLDER")
    else:
        if method.endswith(".toml"):
            file = settings_from_toml(Path(method))
            settings = file | settings | {"set": file.get("set", {}) | settings.get("set", {})}
            method = settings.pop("method", "fedavg")
        setup = api.prepare(method, preset=preset, **settings)
        name = f"{Path(method).stem}-{setup.config.data_name}-s{setup.config.seed}"
        result = _simulate(setup, out or free_folder(name), method)
    tell(result)
    if as_json:
        print(json.dumps(result.summary()))


def _simulate(setup: Setup, path: Path, label: str) -> Result:
    from fedkin import api
    from fedkin.runs.folder import RunFolder
    from fedkin.simulate import simulate

    folder = RunFolder.create(path, setup.config, api.describe(setup))
    for note in setup.notes:
        print(f"{label}: {note}", file=sys.stderr)
    with _stoppable(path), shown(label, setup.config.rounds) as watch:
        return simulate(setup, folder, watch)


def _resume(path: Path, method: str | None, out: Path | None, settings: dict[str, Any]) -> Result:
    from fedkin import api
    from fedkin.runs.folder import RunFolder

    fixed = [name for name in settings if name not in WHERE]
    if method or out or fixed:
        what = "a method" if method else "--out" if out else "--" + fixed[0].replace("_", "-")
        raise FedkinError(f"--resume takes everything from the run folder, so {what} cannot be given with it")
    config = RunFolder.open(path).config
    with _stoppable(path), shown(config.method, config.rounds) as watch:
        return api.resume(path, watch=watch, **settings)


@contextmanager
def _stoppable(path: Path) -> Iterator[None]:
    """Ctrl-C ends the run in a folder, or in a folder below it, with a word on how to go on with it."""
    from fedkin.runs.folder import CONFIG, RESULT

    try:
        yield
    except KeyboardInterrupt:
        below = [file.parent for file in (path / CONFIG, *path.glob(f"*/{CONFIG}")) if file.exists()]
        open_runs = [folder for folder in below if not (folder / RESULT).exists()]
        hint = "".join(f"; go on with: fedkin run --resume {shlex.quote(str(f))}" for f in open_runs[:1])
        raise Stopped(f"stopped{hint}") from None


def tell(result: Result) -> None:
    """What came out, in a few lines."""
    console = Console(soft_wrap=True, highlight=False)
    score, (best_round, best) = result.score, result.best
    console.print(
        f"[bold]{escape(result.method)}[/bold] on {escape(result.config.data_name)}: "
        f"[bold]{100 * result.accuracy:.2f} %[/bold]"
    )
    console.print(f"  is the accuracy of the {score.describe()}, round {result.evaluated[-1].round}")
    console.print(f"  by sample {100 * score.weighted:.2f} %, worst client {100 * min(score.clients):.2f} %")
    if result.global_score is not None and score.model != "global":
        shared = result.global_score
        console.print(f"  {shared.describe()}: {100 * shared.headline:.2f} %")
    console.print(f"  best round {best_round} had {100 * best:.2f} % (chosen on the test sets, not a fair headline)")
    sent = sum(r.bytes_up + r.bytes_down for r in result.history) / 1e6
    console.print(f"  {len(result.history)} rounds in {clock(result.seconds)}, {sent:.1f} MB sent")
    console.print(f"  run folder: {result.folder}", markup=False)


@takes(*RUN)
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(help="Methods to compare (see [b]fedkin methods[/b]); fedavg@drop has its own [b]--late[/b]."),
    ],
    seeds: Annotated[int, typer.Option(help="Runs of each method, with seeds counting up from --seed.", min=1)] = 1,
    set: Annotated[
        list[str],
        typer.Option(help="A hyper-parameter, as key=value for all methods that have it or METHOD.key=value for one."),
    ] = [],  # noqa: B006 (typer reads it)
    preset: Preset = None,
    out: Out = None,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Compare methods on the same federation: a table, and a report to open in a browser.

    [dim]fedkin compare local-only fedavg fedprox --data digits --seeds 3[/dim]
    """
    from fedkin import api

    folder = out or free_folder(f"compare-{Path(settings.get('data', 'digits')).name}")
    hyper = _for_each(methods, pairs(set))
    with _stoppable(folder):
        results = api.compare(methods, seeds=seeds, set=hyper, preset=preset, out=folder, show=shown, **settings)
    _report(results, folder)
    if as_json:
        print(json.dumps({name: [result.summary() for result in runs] for name, runs in results.items()}))


DEMO = ("local-only", "fedavg", "spfl", "pfedsim", "fedalp", "fedsimsup")


def demo(out: Out = None) -> None:
    """Compare methods on 20 clients with handwritten digits: no download, under two minutes."""
    from fedkin import api

    folder = out or free_folder("demo")
    print("20 clients share 1797 handwritten digits, each with its own mix of classes (dirichlet:0.1).")
    settings: dict[str, Any] = {
        "data": "digits",
        "partition": "dirichlet:0.1",
        "clients": 20,
        "rounds": 40,
        "join": 0.5,
        "lr": 0.05,
    }
    with _stoppable(folder):
        results = api.compare(DEMO, seeds=2, out=folder, show=shown, **settings)
    _report(results, folder)


def _report(results: Mapping[str, Sequence[Result]], folder: Path) -> None:
    from fedkin.report import html
    from fedkin.report.summary import table

    Console().print(table(results))
    html.write(results, folder / "report.html")
    print(f"report: {folder / 'report.html'}")


def _for_each(methods: list[str], given: dict[str, str]) -> dict[str, dict[str, str]]:
    """Hyper-parameters by method."""
    from fedkin.api import policy_of
    from fedkin.methods import method_class

    hyper: dict[str, dict[str, str]] = {name: {} for name in methods}
    for key, value in given.items():
        owner, dot, own = key.rpartition(".")
        takers = [
            name
            for name in methods
            if (
                owner in (name, policy_of(name)[0])
                if dot
                else key in {f.name for f in fields(method_class(policy_of(name)[0]))}
            )
        ]
        if not takers:
            raise FedkinError(f"--set {key}={value}: none of {', '.join(methods)} has such a hyper-parameter")
        for name in takers:
            hyper[name][own] = value
    return hyper
