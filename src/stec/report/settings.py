"""Which settings mean something to a run: a config has those of all methods and sources."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from stec.audio.method import METHODS as SOUNDS
from stec.config import Config, foreign_groups
from stec.identity import IDENTITIES
from stec.limits import DRAWN, SGD, SOUND
from stec.method import pairing_of, turn_weight


def used(config: Config) -> dict[str, Any]:
    """All settings but those that the method or the source of its data does not read, by their keys."""
    unread = tuple(_unread(config))
    return {key: value for key, value in _flat(config) if not key.startswith(unread)}


def _unread(config: Config) -> Iterator[str]:
    """Keys, and beginnings of keys."""
    yield from (f"{group}." for group in foreign_groups(config))
    yield from () if config.data.source == "shapes" else DRAWN
    if config.method in SOUND:
        pairing = SOUNDS[config.method]
        identity: tuple[str, ...] = ("temperature", "hidden", "output") if pairing.identity else ()
        manipulation = pairing.manipulation
        yield from ("data.size", "lambda_turn")
        yield from SGD
        yield from ("manipulation.readout", "manipulation.bins", "manipulation.components")
        yield from () if pairing.identity else ("audio.lambda_identity", "audio.pieces")
    else:
        identity = IDENTITIES[pairing_of(config.method).identity].settings
        manipulation = pairing_of(config.method).manipulation
        yield from () if turn_weight(config.method, config.lambda_turn) > 0 else ("turn.", "views.turns")
        yield from () if config.views.small else ("views.small_",)
    yield from (f"identity.{key}" for key in vars(config.identity) if key not in identity)
    yield from () if manipulation else ("manipulation.", "lambda_manip")


def _flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from _flat(value, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, value
