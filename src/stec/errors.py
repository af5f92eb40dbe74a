"""The one exception for mistakes that the person at the keyboard can correct."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something in the call, the config or the data is wrong; the message says what would be right.

    The command line prints the message as one line and exits with code 2. Library users can catch it.
    """


def nearest(word: str, choices: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest choice, otherwise the whole list, to end an error message with."""
    names = sorted(choices)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"choose from {', '.join(names)}"
