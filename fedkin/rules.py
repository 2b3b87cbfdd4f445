"""Rules given as text: `name:value,option=value,...`, as in `dirichlet:0.1,form=client` or `latency:first=10`."""

from __future__ import annotations

from collections.abc import Sequence

from fedkin.errors import FedkinError


def options(items: Sequence[str], where: str) -> dict[str, str]:
    """`option=value` texts by option; `where` is told if one of them is not of this form or stands twice."""
    given: dict[str, str] = {}
    for item in items:
        option, equals, setting = item.partition("=")
        if not equals:
            raise FedkinError(f"{item!r} in {where} is not of the form option=value")
        if option in given:
            raise FedkinError(f"{option!r} stands twice in {where}")
        given[option] = setting
    return given
