"""Whether the values in a tree of dataclasses make sense."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stec.errors import UserError, nearest

FEW = 4  # choices that are all named
MANY = 2**32

_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}


def wanted(kind: type, key: str) -> str:
    """What a dotted key of a tree of dataclasses takes."""
    name, _, rest = key.partition(".")
    field = next(field for field in dataclasses.fields(kind) if field.name == name)
    if rest and isinstance(field.default_factory, type):
        return wanted(field.default_factory, rest)
    first, *others = str(field.type).split(" | ")
    listed = "words in brackets, such as [a,b]" if "str" in first else "numbers in brackets, such as [1,2]"
    if first == "tuple[float, float]":
        listed = "two numbers in brackets, such as [0.2,1.0]"
    return _WORDS.get(first, listed) + (" or null" if others else "")


def require_folder(path: Path, key: str = "") -> None:
    """UserError unless there is such a folder; `key` is how it was given, such as `data.root=`."""
    if not path.is_dir():
        raise UserError(f"{key}{path}: {'a file, not a folder' if path.exists() else 'no such folder'}")


class Checks:
    """Looks at the values of a config; the first that makes no sense is a UserError."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def value_of(self, key: str) -> Any:
        """The value of a dotted key."""
        value = self.config
        for name in key.split("."):
            value = getattr(value, name)
        return value

    def require(self, holds: bool, key: str, wanted: str) -> None:
        """Refuses the value of the key unless the condition holds."""
        if not holds:
            raise UserError(f"{key}={self.value_of(key)}: {wanted}")

    def require_choices(self, allowed: Mapping[str, Sequence[str]]) -> None:
        """Every key has one of its values."""
        for key, choices in allowed.items():
            value = str(self.value_of(key))
            few = len(choices) <= FEW
            self.require(value in choices, key, f"choose from {', '.join(choices)}" if few else nearest(value, choices))

    def require_at_least(self, bounds: Mapping[str, float]) -> None:
        """Every key has that value or a larger one, or none."""
        for key, least in bounds.items():
            value = self.value_of(key)
            self.require(value is None or value >= least, key, f"must be at least {least}")

    def require_usable(self) -> None:
        """Numbers that all libraries take."""
        for key, value in _leaves(dataclasses.asdict(self.config)):
            for number in value if isinstance(value, tuple | list) else [value]:
                if isinstance(number, int):
                    self.require(number < MANY, key, f"must be below {MANY}")
                if isinstance(number, float):
                    self.require(math.isfinite(number), key, "must be finite")

    def require_schedule(self) -> None:
        """Of the optimizer."""
        self.require(self.value_of("optimizer.momentum") < 1, "optimizer.momentum", "must be below 1")
        warmup = "optimizer.warmup_epochs"
        longer = f"is longer than the run of {self.config.epochs:,} epoch(s): add {warmup}=1, or 0 for none"
        self.require(self.value_of(warmup) <= self.config.epochs, warmup, longer)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
