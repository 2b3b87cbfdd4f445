"""The settings of a run: one list that the commands, TOML files, the Python API and run folders share."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin.errors import FedkinError, unknown

WHERE = ("engine", "workers", "ray_address", "device", "tensorboard")
"""Settings that say where a run happens. They may change when it is resumed: the result does not."""

SHARED = ("rounds", "join", "epochs", "minibatches", "batch", "schedule", "late")
"""Settings that a comparison keeps the same for all methods, whatever their papers use."""

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Nonnegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Training:
    """How a client takes its local gradient steps, unless the method says otherwise."""

    epochs: int
    batch: int
    lr: float
    momentum: float
    weight_decay: float
    minibatches: int = 0
    statistics: str = "shared"
    order: str = "shuffled"
    last_batch: str = "kept"
    augment: str = "none"

    def used(self, n: int) -> int:
        """How many of a client's n samples a local epoch goes through."""
        return n - n % self.batch if self.last_batch == "dropped" and n > self.batch else n

    def steps(self, n: int) -> int:
        """Gradient steps a round of plain training on n samples."""
        return self.minibatches or self.epochs * math.ceil(self.used(n) / self.batch)


class Config(BaseModel):
    """Everything that a run depends on. The text under each setting is its help on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    method: str = "fedavg"
    """A method (see `fedkin methods`) or file.py:Class."""
    set: dict[str, Any] = {}
    """Hyper-parameters of the method."""

    data: str = "digits"
    """A dataset (see `fedkin datasets`), or a folder with one sub-folder per client."""
    partition: str = "dirichlet:0.1"
    """How samples are split among clients: iid, classes:K, dirichlet:ALPHA, shards:C, one-class or natural;
    options follow after commas, as in dirichlet:0.1,form=client (see `fedkin partitions`)."""
    clients: Annotated[int, Field(ge=0)] = 20
    """How many clients; 0 takes every natural one (writer, subject, domain)."""
    test_ratio: Share | None = None
    """Share of each client's samples kept for testing; otherwise the partition's own."""
    pool: Literal["all", "train"] | None = None
    """All samples, or those of the publisher's train files; otherwise the partition's own."""
    pixels: Literal["standardised", "centred", "raw"] = "standardised"
    """What networks see of images: pixels less the dataset's mean over its deviation, 0..255 as -1..1 (centred), or
    0..255 as it is (raw)."""

    public: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of everybody's training samples that is made public, for methods that distil on public data."""

    join: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that take part in a round."""
    rounds: Count = 50
    """Rounds of communication: how often the server acts on what it was sent."""
    schedule: str = "sync"
    """When replies arrive: sync, stragglers:COUNT (the SPFL paper's, late by 1, 2, ... rounds), or latency:OPTIONS
    on a virtual clock, as in latency:first=10,dropout=0.1 (all options in docs/async.md)."""
    late: Literal["stale", "drop", "wait", "leap"] = "stale"
    """What to do with a late reply: stale takes it as it is, drop does not use it, wait waits for it, leap takes
    LGA's prediction of it."""
    epochs: Count = 5
    """Local epochs a round."""
    minibatches: Annotated[int, Field(ge=0)] = 0
    """Mini-batches a round in place of local epochs; the next round goes on with the next samples. 0: epochs."""
    batch: Count = 32
    """Batch size of local SGD."""
    order: Literal["shuffled", "fixed", "by-class"] = "shuffled"
    """A client's samples are shuffled before every local epoch, cut into the same batches in all rounds (fixed), or
    that with one class after another (by-class), as a data loader has them that does not shuffle."""
    last_batch: Literal["kept", "dropped"] = "kept"
    """The last batch of a local epoch where it is shorter than the others: kept or, unless it is the only one,
    dropped."""
    augment: Literal["none", "flip", "crop-flip"] = "none"
    """Images to learn from are shown as they are, mirrored at random (flip), or that and moved at random by up to an
    eighth of their size (crop-flip)."""
    lr: Positive = 0.01
    """Learning rate of local SGD."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of local SGD, new every round."""
    weight_decay: Nonnegative = 0.0
    """Weight decay of local SGD."""
    statistics: Literal["shared", "local"] = "shared"
    """Running statistics of batch norm: part of the model that is sent and mixed, or kept by each client."""
    model: str | None = None
    """A network (see `fedkin models`) or file.py:Class; otherwise one that fits the data."""
    weights: str | None = None
    """A .safetensors file with weights to start from, here or in the folder weights beside the datasets."""
    classifier: str | None = None
    """The layer that decides between classes; otherwise the last linear layer."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Same seed, same result."""
    dtype: Literal["float32", "float64"] = "float32"
    """Numbers to compute with."""

    finetune_steps: Annotated[int, Field(ge=0)] = 0
    """After the last round, judge every model once more after this many steps of fine-tuning (at most one pass)."""
    finetune_lr: Positive | None = None
    """Learning rate of fine-tuning; otherwise that of training."""

    finetune_batch: Count | None = None
    """Batch size of fine-tuning; otherwise that of training."""

    judge_local: bool = False
    """Judge also every client's own model as it left its last training."""
    judge_union: bool = False
    """Judge every client's model also on the union of all clients' test sets."""
    evaluate_every: Count = 1
    """Rounds between evaluations; the last round is always evaluated."""
    checkpoint_every: Count = 10
    """Rounds between checkpoints."""

    tensorboard: bool = False
    """Also write a TensorBoard log into the run folder."""

    engine: Literal["auto", "inline", "processes", "ray"] = "auto"
    """Where local work runs: inline, processes, ray, or auto, which takes processes where they pay."""
    workers: Count | None = None
    """Worker processes; otherwise one a core (on Ray, as many as this machine has cores)."""
    ray_address: str | None = None
    """A Ray cluster to join, as in ray://head:10001 or auto; otherwise one is started on this machine."""
    device: str = "auto"
    """cpu, cuda, mps, or auto: cuda where there is one."""
    vectorize: Literal["auto", "on", "off"] = "auto"
    """Train all clients of a round at once; auto does it where that is faster."""

    @property
    def data_name(self) -> str:
        """The data in a word: the dataset's name, or the last part of a folder's path."""
        return Path(self.data).name if Path(self.data).is_absolute() else self.data

    @property
    def matters(self) -> dict[str, Any]:
        """What the result depends on: all settings but those of `WHERE`, as JSON has them (a tuple is a list)."""
        matters: dict[str, Any] = json.loads(self.model_dump_json(exclude=set(WHERE)))
        return matters

    @property
    def training(self) -> Training:
        """How clients take their local steps."""
        return Training(**{f.name: getattr(self, f.name) for f in fields(Training)})

    @staticmethod
    def of(values: Mapping[str, Any]) -> Config:
        """A checked configuration from plain values."""
        for name in values:
            if name not in Config.model_fields:
                raise unknown("setting", name, Config.model_fields)
        try:
            return Config(**values)
        except ValidationError as error:
            raise FedkinError(one_sentence(error)) from None


def settings_from_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, with the method's hyper-parameters in a table `[set]`."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise FedkinError(f"{path} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedkinError(f"{path} is not valid TOML: {error}") from None
    Config.of(values)
    return values


def one_sentence(error: ValidationError, what: str = "") -> str:
    """The first of pydantic's complaints, as: what, what was expected, what was given."""
    first = error.errors()[0]
    expected = first["msg"].replace("Input should be", "should be")
    return f"{what or first['loc'][0]} {expected}, but {first['input']!r} was given"
