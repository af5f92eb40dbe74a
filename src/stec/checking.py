"""Whether the values in a tree of dataclasses make sense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stec.errors import UserError, nearest


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
            self.require(self.value_of(key) in choices, key, nearest(str(self.value_of(key)), choices))

    def require_at_least(self, bounds: Mapping[str, float]) -> None:
        """Every key has that value or a larger one, or none."""
        for key, least in bounds.items():
            value = self.value_of(key)
            self.require(value is None or value >= least, key, f"must be at least {least}")
