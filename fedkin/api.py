"""The Python interface: run a method, resume a run, compare methods."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from fedkin import methods, models, presets, randomness
from fedkin.augment import check_images
from fedkin.config import SHARED, WHERE, Config
from fedkin.data.federation import Federation, is_folder
from fedkin.engine import shared_workers
from fedkin.errors import FedkinError, unknown
from fedkin.layout import Layout
from fedkin.method import Method
from fedkin.models import weights
from fedkin.result import Models, Result
from fedkin.runs.folder import RunFolder, refuse_full
from fedkin.runs.mixing import MixingRecord
from fedkin.schedule import from_anywhere, schedule
from fedkin.setup import Setup
from fedkin.simulate import Show, Watch, simulate, watched

Model = str | type[nn.Module] | nn.Module


def run(
    method: str | Method,
    *,
    data: str | Federation | None = None,
    model: Model | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
    **settings: Any,
) -> Result:
    """Run a federated method and return its history and models.

    `method` is a name (`fedkin methods` lists them), `path/to/file.py:Class`, or a `Method` object.
    `data` is a name (digits if nothing is given), a folder with one sub-folder per client, or a
    `Federation`. `preset` takes a paper's settings (`fedkin presets`). `settings` are
    those of `Config` (partition, clients, join, rounds, epochs, batch, lr, seed, ...) and the
    method's own hyper-parameters. With `out` everything is written to that folder and the run can
    be resumed.
    """
    setup = prepare(method, data=data, model=model, preset=preset, **settings)
    folder = RunFolder.create(Path(out), setup.config, describe(setup)) if out is not None else None
    return simulate(setup, folder, watch)


def resume(
    folder: str | Path,
    *,
    data: Federation | None = None,
    model: Model | None = None,
    method: Method | None = None,
    watch: Watch | None = None,
    **where: Any,
) -> Result:
    """Go on with a run from its newest checkpoint; it ends as if it had never been stopped.

    Data, a model or a method that were given as Python objects must be given again. `where` may
    change the engine, workers and device.
    """
    run_folder = RunFolder.open(Path(folder))
    for name in where:
        if name not in WHERE:
            raise FedkinError(f"{name} cannot change when a run is resumed: only {', '.join(WHERE)} can")
    if run_folder.is_real:
        raise FedkinError(f"{folder} is a run of a real federation: go on with it by fedkin start DIR --resume RUN")
    config = run_folder.config
    settings = config.model_dump() | {name: value for name, value in where.items() if value is not None}
    hyper = settings.pop("set")
    given = {"method": method, "data": data, "model": model}
    for name, value in given.items():
        if value is not None:
            settings[name] = value
        elif str(settings[name]).startswith(OBJECT):
            raise FedkinError(f"the run in {folder} was given a {name} as a Python object: pass it to resume()")
    setup = prepare(**settings, **({} if method else hyper))
    now, then = describe(setup), run_folder.about
    if now["data_fingerprint"] != then["data_fingerprint"]:
        raise FedkinError(f"the data are not those that the run in {folder} was started with")
    if now["weights_fingerprint"] != then.get("weights_fingerprint"):
        raise FedkinError(f"{setup.config.weights} has changed since the run in {folder} was started with it")
    return simulate(setup, run_folder, watch)


def load(folder: str | Path, finished: bool = True) -> Result:
    """What came out of a run, read from its folder; one that need not be `finished` comes without its models."""
    run_folder = RunFolder.open(Path(folder))
    config, about = run_folder.config, run_folder.about
    return Result(
        config=config,
        method=config.method,
        history=run_folder.history(),
        models=run_folder.models() if finished else Models.none(),
        client_names=tuple(about["clients"]),
        seconds=run_folder.seconds(),
        folder=run_folder.path,
        record=MixingRecord(run_folder.path),
        label_counts=about.get("label_counts"),
    )


def prepare(
    method: str | Method,
    *,
    data: str | Federation | None = None,
    model: Model | None = None,
    preset: str | None = None,
    **settings: Any,
) -> Setup:
    """All parts of a run: checked settings, method, federation and initial model."""
    cls = methods.method_class(method) if isinstance(method, str) else type(method)
    own, hyper = _sort(cls, settings)
    if preset is not None:
        chosen = presets.preset(preset)
        own = chosen.settings | own
        hyper = chosen.set.get(cls.name, {}) | hyper
    given_data, given_model = own.pop("data", "digits"), own.pop("model", None)
    data, model = data if data is not None else given_data, model if model is not None else given_model
    if isinstance(method, str):
        made = methods.make(method, hyper)
        name = _whole_path(method)
    elif hyper:
        raise FedkinError(f"{', '.join(hyper)}: hyper-parameters go into the {cls.__name__} object that was given")
    else:
        made, name = method, _name(method)
    # What the user says comes first, then the settings of the method's paper, then our own.
    values: dict[str, Any] = {**cls.defaults, **own, "method": name, "set": asdict(made)}
    if isinstance(data, Federation):
        values |= {"data": _name(data), "clients": len(data)}
    else:
        values["data"] = data
        if is_folder(data):
            values |= _folder_settings(Path(data), own)
    values["model"] = _whole_path(model) if isinstance(model, str) else None if model is None else _name(model)
    if values.get("weights"):
        values["weights"] = weights.whole_path(values["weights"])
    config = Config.of(values)
    federation = data if isinstance(data, Federation) else Federation.of(config)
    if not isinstance(data, Federation) and is_folder(data) and own.get("clients", 0) not in (0, len(federation)):
        raise FedkinError(f"{data} holds {len(federation)} clients, but {own['clients']} were asked for")
    config = config.model_copy(update={"clients": len(federation), "schedule": from_anywhere(config.schedule)})
    schedule(config.schedule, len(federation), config.seed)
    if config.public:
        federation = federation.publishing(config.public, config.seed)
    if config.pixels != "standardised":
        federation = federation.with_pixels(config.pixels)
    check_images(config.augment, federation.shape)
    module, network = _module(config, federation, model)
    if config.model is None:
        config = config.model_copy(update={"model": network})
    check_device(config.device)
    notes = []
    if config.weights:
        notes.append(weights.start_from(module, config.weights))
    elif config.model == "mobilenetv2":
        notes.append("mobilenetv2 starts from scratch; pFedSim's starts from ImageNet weights, as --weights can")
    if "batch" in cls.defaults and "batch" not in own:
        batch = fitting_batch(config.batch, federation)
        if batch != config.batch:
            notes.append(f"batch {batch} in place of the paper's {config.batch}, which is too large for these clients")
            config = config.model_copy(update={"batch": batch})
    setup = Setup(config, made, federation, module, tuple(notes))
    # What would fail later fails here, before anything is written.
    Layout(module, config.classifier)
    _ = setup.vectorized
    return setup


def _whole_path(reference: str) -> str:
    """`file.py:Class` with the file's whole path, so that a run can be resumed from anywhere."""
    file, colon, name = reference.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{name}" if colon and file.endswith(".py") else reference


def _folder_settings(path: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run on a user's folder, which says itself who owns what."""
    for name in ("partition", "pool"):
        if own.get(name, "natural") != "natural":
            raise FedkinError(f"the folders in {path} are the clients, so {name} cannot be given")
    return {"data": str(path.resolve()), "partition": "natural"}


def fitting_batch(batch: int, federation: Federation) -> int:
    """A paper's batch size, or a smaller power of two that gives a middling client four batches an epoch."""
    samples = median(len(rows) for rows in federation.split.train)
    return min(batch, 1 << int(math.log2(max(4.0, samples / 4))))


OBJECT = "object:"


def _name(thing: object) -> str:
    cls = thing if inspect.isclass(thing) else type(thing)
    return f"{OBJECT}{cls.__qualname__}"


def _sort(cls: type[Method], settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the run, and the hyper-parameters of the method."""
    hyper_names = {field.name for field in fields(cls)}
    own, hyper = {}, dict(settings.get("set") or {})
    for name, value in settings.items():
        if name in hyper_names:
            hyper[name] = value
        elif name not in Config.model_fields:
            raise unknown("setting", name, [*Config.model_fields, *hyper_names])
        elif name != "set" and value is not None:
            own[name] = value
    return own, hyper


def _module(config: Config, federation: Federation, model: Model | None) -> tuple[nn.Module, str]:
    chosen = models.default_for(federation.shape) if model is None else model
    with randomness.seeded_globally(config.seed, "init"):
        module = models.build(chosen, federation.shape, federation.classes)
    return module.to(getattr(torch, config.dtype)), chosen if isinstance(chosen, str) else _name(chosen)


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    kind, colon, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (colon and not number.isdecimal()):
        raise unknown("device", device, ("auto", "cpu", "cuda", "mps"))
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(kind, True):
        raise FedkinError(f"device {device} was asked for, but PyTorch finds none here: use --device cpu")


def describe(setup: Setup) -> dict[str, Any]:
    """What a run folder says of its data, so that its models can be used without them."""
    data = setup.federation.data
    return {
        "data_fingerprint": setup.federation.fingerprint,
        "shape": list(setup.federation.shape),
        "pixels": data.x.dtype.name == "uint8",
        "mean": list(data.mean),
        "std": list(data.std),
        "classes": list(data.classes),
        "clients": list(setup.federation.split.names),
        "label_counts": setup.federation.label_counts,
        "train_samples": [len(rows) for rows in setup.federation.split.train],
        "test_samples": [len(rows) for rows in setup.federation.split.test],
        "weights_fingerprint": weights.fingerprint(setup.config.weights) if setup.config.weights else None,
    }


def policy_of(name: str) -> tuple[str, str | None]:
    """`fedavg@drop` as a method and what it does with late replies."""
    method, _, late = name.partition("@")
    return method, late or None


def compare(
    names: Sequence[str],
    *,
    seeds: int = 1,
    set: Mapping[str, Mapping[str, Any]] | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    show: Show | None = None,
    **settings: Any,
) -> dict[str, list[Result]]:
    """Run several methods with the same settings, each with seeds counting up; results by method.

    Rounds, join, local work and schedule are the same for all; what else is not given comes from each method's paper.
    A name may say what is done with late replies, as in `fedavg@drop`. `set` holds hyper-parameters by name.
    `show(label, rounds)` makes a watcher for each run.
    """
    first = settings.pop("seed", 0)
    given = presets.preset(preset).settings if preset is not None else {}
    settings = {name: Config.model_fields[name].default for name in SHARED if name not in given} | settings
    if out is not None:
        refuse_full(Path(out))

    def with_policy(name: str) -> dict[str, Any]:
        method, late = policy_of(name)
        return settings | {"method": method} | ({"late": late} if late else {})

    # Everything is checked before the first long run.
    setups = [
        (name, seed, prepare(**with_policy(name), seed=seed, set=(set or {}).get(name, {}), preset=preset))
        for name in dict.fromkeys(names)
        for seed in range(first, first + seeds)
    ]
    results: dict[str, list[Result]] = {}
    with shared_workers(settings.get("workers")):
        for name, seed, setup in setups:
            label = Path(name).name.replace(".py:", "-").replace("@", "-")
            path = Path(out) / f"{label}-s{seed}" if out is not None else None
            folder = RunFolder.create(path, setup.config, describe(setup)) if path else None
            with watched(show, f"{name} seed {seed}", setup.config.rounds) as watch:
                results.setdefault(name, []).append(simulate(setup, folder, watch))
    return results
