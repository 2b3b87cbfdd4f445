"""The settings of a run as options of a command, made from `Config` so that each is explained once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from fedkin.config import Config
from fedkin.errors import FedkinError

PANELS = {
    "Federation": ("data", "partition", "clients", "test_ratio", "pool", "pixels", "public"),
    "Training": (
        *(
            "join",
            "rounds",
            "schedule",
            "late",
            "epochs",
            "minibatches",
            "batch",
            "order",
            "last_batch",
            "augment",
            "lr",
            "momentum",
            "weight_decay",
            "statistics",
        ),
        *("model", "weights", "classifier", "seed", "dtype", "finetune_steps", "finetune_lr", "finetune_batch"),
    ),
    "Where it runs": ("engine", "workers", "ray_address", "device", "vectorize"),
    "Output": ("judge_local", "judge_union", "evaluate_every", "checkpoint_every", "tensorboard"),
    "Judging": ("test_ratio", "evaluate_every"),
    "Split": ("partition", "clients", "test_ratio", "pool", "seed"),
}
Json = Annotated[
    bool,
    typer.Option("--json", help="End with one line of JSON on standard output.", rich_help_panel="Output"),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder to write to; it must be empty or new. Default: a new one under runs/.",
        rich_help_panel="Output",
    ),
]


def takes(*panels: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command with `**settings` the options of these panels; it receives those that were used."""

    def give(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "settings"
        ]
        added = [_option(name, panel) for panel in panels for name in PANELS[panel]]

        def with_options(**values: Any) -> None:
            mine = {p.name: values.pop(p.name) for p in own}
            command(**mine, **{name: value for name, value in values.items() if value is not None})

        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
        return with_options

    return give


def _option(name: str, panel: str) -> inspect.Parameter:
    field = Config.model_fields[name]
    text = " ".join((field.description or "").split())
    default = f" Default: {field.default}." if field.default is not None else ""
    option = typer.Option(help=text + default, rich_help_panel=panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[_kind(field) | None, option]
    )


def _kind(field: FieldInfo) -> type:
    """The plain type of a setting: what a person types."""
    kind: Any = field.annotation
    while not isinstance(kind, type):
        if get_origin(kind) is Literal:
            return str
        kind = get_args(kind)[0]
    return kind


def pairs(settings: Iterable[str]) -> dict[str, str]:
    """`["mu=0.1"]` as `{"mu": "0.1"}`."""
    read = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise FedkinError(f"--set takes key=value, but {text!r} was given")
        read[key] = value
    return read


def free_folder(name: str, under: Path = Path("runs")) -> Path:
    """A folder under runs/, or another one, that does not exist yet."""
    base = under / "".join(c if c.isalnum() or c in "-._" else "-" for c in name)
    k, path = 1, base
    while path.exists():
        k += 1
        path = base.with_name(f"{base.name}-{k}")
    return path
