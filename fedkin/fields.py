"""Frozen dataclasses whose fields are settings: filled from plain values or from text, as on a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedkin.config import one_sentence
from fedkin.errors import FedkinError, unknown

T = TypeVar("T")


def filled(cls: type[T], settings: Mapping[str, Any], what: str, owner: str, kind: str) -> T:
    """An object with these settings; text is read by its field's type.

    A mistake is told of as, for example, one in a hyper-parameter (`kind`) of the method (`what`) fedprox (`owner`).
    """
    hints = get_type_hints(cls, include_extras=True)
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            if not known:
                raise FedkinError(f"{what} {owner!r} has no {kind}s, but {key!r} was given")
            raise unknown(f"{kind} of {owner}", key, known)
        try:
            values[key] = _read(TypeAdapter(hints[key]), value)
        except ValidationError as error:
            raise FedkinError(one_sentence(error, f"{owner}'s {key}")) from None
    return cls(**values)


def _read(kind: TypeAdapter[Any], value: Any) -> Any:
    """A value of the field's kind; text may also be JSON, for lists."""
    if isinstance(value, str) and value.startswith("["):
        return kind.validate_json(value)
    return kind.validate_python(value)
