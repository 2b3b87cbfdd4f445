"""What the parties of a federation agree on: who they are, what their samples look like, and how they train."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedkin import api, methods
from fedkin.config import Config, Count, Positive, one_sentence
from fedkin.data.dataset import Dataset, Indices, Split
from fedkin.data.federation import Federation, is_folder
from fedkin.data.folder import read_own
from fedkin.engine.worker import Site
from fedkin.errors import FedkinError
from fedkin.schedule import Latency, schedule
from fedkin.setup import Setup

FILE, PUBLIC = "settings.toml", "public.npz"
Public = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Samples [n, *shape] and labels [n]."""
SPELLED = ("rounds", "join", "schedule", "late", "epochs", "batch", "lr", "seed", "evaluate_every")
"""Settings that a settings file shows even where they are the default."""
SIMULATED = ("judge_union", "judge_local", "public", "partition", "data", "clients", "pool", "weights", "pixels")
"""Settings that only a simulation can follow: what they name is on one machine, or said elsewhere in the file."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(
            "should be letters, digits, dots, dashes and underscores only: it becomes the name of a folder"
        )
    return text


class Plain(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Samples(Plain):
    """What a sample looks like on every client."""

    shape: tuple[Count, ...]
    """Channels, height and width; channels and time; or features."""
    pixels: bool
    """Whether samples are images of 8 bits."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[Positive, ...]
    """Per channel, or one for all; on the 0-1 scale for images."""

    @property
    def dtype(self) -> type:
        """Of the samples in memory."""
        return np.uint8 if self.pixels else np.float32


class Server(Plain):
    """How clients reach the server, and how long it waits for them."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 9092
    patience: Positive = 600.0
    """Seconds after which a client that was written to and has not replied is left out of a round."""


class Terms(Plain):
    """All of them, as in settings.toml."""

    clients: tuple[Annotated[str, AfterValidator(_name)], ...]
    run: dict[str, Any]
    """The method and the settings of `fedkin run`."""
    samples: Samples
    server: Server = Server()

    @staticmethod
    def of(values: Any, source: str) -> Terms:
        """Checked terms from plain values."""
        try:
            terms = Terms.model_validate(values)
        except ValidationError as error:
            raise FedkinError(one_sentence(error, source)) from None
        if len(set(terms.clients)) < len(terms.clients) or len(terms.clients) < 2:
            raise FedkinError(f"{source}: a federation needs at least two clients, each with a name of its own")
        return terms

    @staticmethod
    def read(folder: Path) -> Terms:
        """From a federation's folder."""
        path = folder / FILE
        try:
            return Terms.of(tomllib.loads(path.read_text("utf-8")), str(path))
        except FileNotFoundError:
            raise FedkinError(
                f"{folder} is not the folder of a federation: it has no {FILE} (fedkin federation init makes one)"
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FedkinError(f"{path} is not valid TOML: {error}") from None

    def to_toml(self) -> str:
        """As the settings file."""
        run = dict(self.run)
        method = run.pop("set", {})
        tables = {"": {"clients": self.clients}, "run": run, "run.set": method}
        tables |= {"samples": self.samples.model_dump(), "server": self.server.model_dump()}
        lines = ["# The terms of a federation: the server reads them when a run starts, and tells every client.\n"]
        for name, table in tables.items():
            if table:
                lines.append(f"\n[{name}]\n" if name else "")
                lines += [f"{key} = {json.dumps(value)}\n" for key, value in table.items() if value is not None]
        return "".join(lines)

    def complete(self, base: Path | None = None) -> Terms:
        """The same terms with every setting that matters spelled out, as the method and its paper have it."""
        method = str(self.run.get("method", "fedavg"))
        cls = methods.method_class(str(base / Path(method).name) if base and ":" in method else method)
        defaults = {name: Config.model_fields[name].default for name in SPELLED} | dict(cls.defaults)
        # Papers sample a hundred simulated clients; of a few real ones everybody takes part.
        defaults["join"] = 1.0
        shown = {k: v for k, v in defaults.items() if v is not None and k not in SIMULATED}
        run = {"method": method, **shown, **self.run}
        whole = self.model_copy(update={"run": run})
        config = whole.setup(base).config
        return whole.model_copy(update={"run": run | {"model": config.model, "set": config.set}})

    def setup(self, base: Path | None = None, public: Public | None = None) -> Setup:
        """All parts of a run, but for the clients' samples; a method's own file is looked for in `base`."""
        settings = {"checkpoint_every": 1, "vectorize": "off", "public": 0.0, **self.run}
        method = str(settings.pop("method", "fedavg"))
        if base and ":" in method:
            method = str(base / Path(method).name)
        for name in SIMULATED:
            if settings.get(name):
                raise FedkinError(f"run.{name} is for simulations: no party of a real federation could do it")
        setup = api.prepare(method, data=Elsewhere.named(self, public), **settings)
        planned = schedule(setup.config.schedule, len(self.clients), setup.config.seed)
        if isinstance(planned, Latency) and planned.trace:
            raise FedkinError("run.schedule: a real federation has its own delays, so it takes first or window only")
        return replace(setup, config=setup.config.model_copy(update={"data": "federation"}))


def samples_like(data: str) -> dict[str, Any]:
    """What samples look like in a dataset or a folder of clients."""
    found = (
        Federation.from_folder(data) if is_folder(data) else Federation.of(Config(data=data, partition="iid"))
    ).data
    described = {"shape": found.x.shape[1:], "pixels": found.x.dtype == np.uint8, "classes": found.classes}
    return described | {"mean": found.mean, "std": found.std}


def site_of(setup: Setup, client: int, x: npt.NDArray[Any], y: Indices, train: Indices, test: Indices) -> Site:
    """A site with one client's samples x [n, *shape] and labels y [n], and the public ones after them."""
    public, split = setup.federation.data, setup.federation.split
    own = {"train": list(split.train), "test": list(split.test)}
    own["train"][client], own["test"][client] = train, test
    return replace(
        setup.site(),
        x=np.concatenate([x, public.x]),
        y=np.concatenate([y, public.y]),
        train=tuple(own["train"]),
        test=tuple(own["test"]),
        public=len(x) + split.public,
    )


class Elsewhere(Federation):
    """A federation whose samples are on its clients' machines: in here are the public ones, if there are any."""

    def __post_init__(self) -> None:
        pass

    @property
    def label_counts(self) -> None:
        """Nobody knows them but the clients."""

    @staticmethod
    def named(terms: Terms, public: Public | None = None) -> Elsewhere:
        """As many clients as the terms name, and what is known of their samples."""
        samples, nothing = terms.samples, np.zeros(0, dtype=np.int64)
        x, y = public or (np.zeros((0, *samples.shape), dtype=samples.dtype), nothing)
        data = Dataset(
            name="federation",
            x=x,
            y=y,
            classes=samples.classes,
            mean=samples.mean,
            std=samples.std,
            is_test=np.zeros(len(y), dtype=np.bool_),
        )
        each = (nothing,) * len(terms.clients)
        return Elsewhere(data, Split(each, each, terms.clients, np.arange(len(y))))


def read_public(path: Path | None, samples: Samples) -> Public | None:
    """Samples that everybody has, from an .npz file with x and y."""
    if path is None:
        return None
    x, y, _ = read_own("public", path, samples.classes, samples.shape)
    return x, y
