"""`fedkin federation init`, `fedkin server`, `fedkin client` and `fedkin start`: real federations on Flower."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkin.cli.options import Json, free_folder, pairs, takes
from fedkin.cli.progress import shown
from fedkin.errors import FedkinError, Stopped

federation = typer.Typer(
    no_args_is_help=True, help="Make the folder of a real federation, whose clients keep their data."
)
Folder = Annotated[Path, typer.Argument(help="Folder of the federation.")]


def _with_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise FedkinError("real federations need Flower: pip install 'fedkin[flower]'") from None


@federation.callback()
def _about() -> None:
    """Make the folder of a real federation, whose clients keep their data."""


@takes("Training", "Judging")
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to; it must be empty or new.")],
    clients: Annotated[str, typer.Option(help="Names of the clients, with commas between them.")],
    method: Annotated[str, typer.Option(help="A method (see [b]fedkin methods[/b]) or file.py:Class.")] = "pfedsim",
    set: Annotated[
        list[str], typer.Option(help="A hyper-parameter of the method, as key=value; may be repeated.")
    ] = [],  # noqa: B006 (typer reads it)
    like: Annotated[
        str | None,
        typer.Option(
            help="A dataset or a folder of clients with samples as everybody has them: shape, classes, mean and "
            "deviation are read off it. Nothing else of it is used.",
            rich_help_panel="Samples",
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Shape of a sample, as in 1x28x28, if nothing is alike.", rich_help_panel="Samples"),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="Names of the classes, with commas between them.", rich_help_panel="Samples")
    ] = None,
    pixels: Annotated[
        bool, typer.Option(help="Samples are images of 8 bits, or else numbers.", rich_help_panel="Samples")
    ] = True,
    public: Annotated[
        Path | None,
        typer.Option(help="An .npz file with x and y that everybody gets, for fedmd.", rich_help_panel="Samples"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Name or address at which clients reach the server.", rich_help_panel="Server")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the server.", rich_help_panel="Server")] = 9092,
    patience: Annotated[
        float, typer.Option(help="Seconds that the server waits for a client.", rich_help_panel="Server")
    ] = 600.0,
    **settings: Any,
) -> None:
    """Write settings, a Flower app, certificates and keys for a federation.

    [dim]fedkin federation init heart --clients hospital-a,hospital-b,hospital-c --like digits --method pfedsim[/dim]
    """
    _with_flower()
    from fedkin.deploy.folder import make
    from fedkin.deploy.terms import Terms, samples_like

    names = [name.strip() for name in clients.split(",") if name.strip()]
    if like:
        samples = samples_like(like)
    elif shape and classes:
        numbers = [int(part) if part.isdecimal() else 0 for part in shape.split("x")]
        parts = [name.strip() for name in classes.split(",")]
        samples = {"shape": numbers, "pixels": pixels, "classes": parts, "mean": [0.5], "std": [0.25]}
    else:
        raise FedkinError("what do samples look like? Give --like, or --shape and --classes")
    file, colon, name = method.rpartition(":")
    method_file = Path(file) if colon else None
    if method_file and not method_file.is_file():
        raise FedkinError(f"there is no file {method_file}")
    run = {"method": f"{method_file.name}:{name}" if method_file else method, **settings}
    if set:
        run["set"] = pairs(set)
    values = {"clients": sorted(names), "run": run, "samples": samples}
    values["server"] = {"host": host, "port": port, "patience": patience}
    terms = Terms.of(values, "the settings").complete(method_file.parent if method_file else None)
    make(folder, terms, method_file, public)
    print(f"{folder}: a federation of {len(names)} clients. Look at {folder / 'settings.toml'}, then:")
    print(f"  on the server     fedkin server {folder}")
    print(f"  on each client    fedkin client {folder} --name {names[0]} --data FOLDER")
    print(f"                    (its machine needs nothing but {folder / 'clients' / names[0]})")
    print(f"  on the server     fedkin start {folder}")


federation.command()(init)


def server(
    folder: Folder,
    listen: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one that this machine has.")
    ] = "127.0.0.1",
) -> None:
    """Serve a federation: clients join here, and runs are started here. Ctrl-C ends it."""
    _with_flower()
    from fedkin.deploy.server import run

    with _until_stopped():
        run(folder, listen, _say)


def client(
    folder: Annotated[Path, typer.Argument(help="Folder of the federation, or of this client.")],
    data: Annotated[
        Path, typer.Option(help="This client's samples: class folders of images, .npz or .csv files. They stay here.")
    ],
    name: Annotated[str | None, typer.Option(help="Which client of the federation this is.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or mps.")] = "cpu",
    threads: Annotated[
        int, typer.Option(help="Threads to compute with; one gives the same numbers as a simulation.", min=1)
    ] = 1,
) -> None:
    """Take part in a federation with this machine's own data. Ctrl-C ends it."""
    _with_flower()
    from fedkin.api import check_device
    from fedkin.deploy.folder import ClientFolder
    from fedkin.deploy.node import run

    check_device(device)
    with _until_stopped():
        run(ClientFolder.find(folder, name), data, device, threads, _say)


def start(
    folder: Folder,
    resume: Annotated[str | None, typer.Option(help="Go on with the run of this name.")] = None,
    as_json: Json = False,
) -> None:
    """Start a run of a federation whose server is running, and follow it."""
    _with_flower()
    from fedkin import api
    from fedkin.cli.running import tell
    from fedkin.deploy.control import submit
    from fedkin.deploy.terms import Terms
    from fedkin.runs.folder import CONFIG

    terms = Terms.read(folder)
    config = terms.setup(folder).config
    runs = folder / "runs"
    out = runs / resume if resume else free_folder(Path(config.method).stem, runs)
    name = out.name
    if resume and not (out / CONFIG).exists():
        raise FedkinError(f"there is no run {resume} in {folder / 'runs'}")
    with _until_stopped(f"; the run goes on, and fedkin plot {out} shows how far it is"):
        number = submit(folder, name)
        with shown(f"{name} ({len(terms.clients)} clients)", config.rounds) as watch:
            _follow(folder, number, out, watch)
    result = api.load(out)
    tell(result)
    print("  each client's model is on its own disk, as state/model.safetensors in its folder")
    if as_json:
        print(json.dumps(result.summary()))


def _follow(folder: Path, number: int, out: Path, watch: Any) -> None:
    """Show rounds as they end, until the run has."""
    from fedkin.deploy.control import Control, inner_port
    from fedkin.runs.folder import METRICS, RESULT, RunFolder

    control, seen, events, size = Control(folder, inner_port(folder)), 0, 0, 0
    asked = 0.0
    while True:
        finished, metrics = (out / RESULT).exists(), out / METRICS
        if metrics.exists() and metrics.stat().st_size != size:
            size = metrics.stat().st_size
            run = RunFolder.open(out)
            history = run.history()
            for happened in history[seen:]:
                watch(happened, run.seconds())
            seen = len(history)
        events = _events(out, events)
        if finished:
            return
        if time.monotonic() - asked > 3:
            asked = time.monotonic()
            status, why = control.status(number)
            if status == "finished" and not (out / RESULT).exists():
                raise FedkinError(f"the run has ended before its last round: {why}; see {folder / 'server/server.log'}")
        time.sleep(0.3)


def _events(out: Path, seen: int) -> int:
    from fedkin.runs.folder import EVENTS

    path = out / EVENTS
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    for line in lines[seen:]:
        event = json.loads(line)
        print(f"{event['client']}: {event['event']}: {event['why']}", file=sys.stderr, flush=True)
    return len(lines)


def _say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def _until_stopped(hint: str = "") -> Iterator[None]:
    """Ctrl-C and a polite kill both end what runs inside in good order."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"stopped{hint}") from None
    finally:
        signal.signal(signal.SIGTERM, before)
