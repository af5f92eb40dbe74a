"""The one exception for mistakes that the person at the keyboard can correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 12  # choices that an error message lists


class UserError(Exception):
    """Something in the call, the config or the data is wrong; the message says what would be right.

    The command line prints the message as one line and exits with code 2. Library users can catch it.
    """


class Stopped(Exception):
    """A signal ended a run, and what it had done is saved: the command line exits with code 75, "try again"."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest choice, otherwise the choices, to end an error message with."""
    names = sorted(choices)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    more = ", ..." if len(names) > SHOWN else ""
    return f"choose from {', '.join(names[:SHOWN])}{more}"
