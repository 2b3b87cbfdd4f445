"""Mistakes a user can make, each told in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedkinError(Exception):
    """A user's mistake. The message says what was given and what was expected.

    The command line prints it without a traceback and exits with code 2.
    """


class Stopped(Exception):
    """A run was stopped by hand. The message says how to go on with it."""


def unknown(kind: str, given: str, known: Iterable[str]) -> FedkinError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return FedkinError(f"unknown {kind} {given!r}: {hint}known are {', '.join(names)}")
