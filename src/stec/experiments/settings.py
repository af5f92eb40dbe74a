"""What decides a run's result, and what does not: two runs with the same settings are repetitions of each other."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from stec.config import Config
from stec.limits import SGD, SOUND
from stec.method import METHODS, Pairing, fix_settings, pairing_of
from stec.transfer.config import TASKS, TransferConfig

Settings = dict[str, Any]  # dotted key -> value

# Where the data lie, what trains, and how often it tells. Which images they are is kept as `data`; the seed beside it.
NEUTRAL = frozenset(
    {
        "seed", "data.source", "data.root", "data.download", "data.resident", "data.workers", "data.cache",
        "data.cache_gb", "data.test_root", "audio.alignment",
        "device", "devices", "strategy", "compile", "log_every", "checkpoint_every", "checkpoint_minutes", "logger",
        "baselines",
    }
)  # fmt: skip


def settings_of(config: Config | TransferConfig, data: str, start: str = "") -> Settings:
    """Every key that changes the result, without those of models that the run does not have.

    Args:
        config: of the run.
        data: name of the images, such as "cifar10", however they are stored.
        start: of a transfer: what it starts from, wherever that lies; for a run, the hash of its settings and its seed.
    """
    if isinstance(config, TransferConfig):
        return _transfer_settings(config, data, start)
    if config.method in SOUND:
        return {"data": data, **_settings_of_sound(config, data)}
    pairing = pairing_of(config.method)
    turn = pairing.turn if config.lambda_turn is None else config.lambda_turn
    config = dataclasses.replace(
        config,
        method=next(name for name, other in METHODS.items() if _same(other, pairing)),
        lambda_turn=turn,
        manipulation=fix_settings(config.method, config.manipulation),
    )
    unused = ["audio."]
    if data != "shapes":
        unused += ["data.train_images", "data.test_images"]
    if not pairing.manipulation:
        unused += ["lambda_manip", "manipulation."]
    if not turn:
        unused += ["lambda_turn", "turn.", "views.turns"]
    return {"data": data, **_without(config, unused)}


def _settings_of_sound(config: Config, data: str) -> Settings:
    from stec.audio.method import METHODS

    unused = ["data.", "views.", "turn.", "lambda_turn", *SGD]
    used = ["identity.temperature", "identity.hidden", "identity.output"]
    used += ["manipulation.action", "manipulation.k", "manipulation.hidden"]
    pairing = METHODS[config.method]
    if not pairing.identity:
        unused += ["audio.lambda_identity", "audio.pieces"]
        used = [key for key in used if not key.startswith("identity.")]
    if not pairing.manipulation:
        unused.append("lambda_manip")
        used = [key for key in used if not key.startswith("manipulation.")]
    if config.audio.negatives == "same":
        unused.append("audio.pool")
    if data != "utterances":
        unused += ["audio.speakers", "audio.utterances"]
    kept = _without(config, unused)
    return {k: v for k, v in kept.items() if not k.startswith(("identity.", "manipulation.")) or k in used}


def _without(config: Config, unused: list[str]) -> Settings:
    flat = _flatten(dataclasses.asdict(config))
    return {k: v for k, v in flat.items() if k not in NEUTRAL and not k.startswith(tuple(unused))}


def _transfer_settings(config: TransferConfig, data: str, start: str) -> Settings:
    """Which encoder that starts a transfer says itself, where it is a run's."""
    unused = [f"{task}." for task in TASKS if task != config.task]
    unused += ["data.train_images", "data.test_images", "data.objects"] if data != "shapes" else []
    flat = _flatten(dataclasses.asdict(config)) | {"start": start}
    return {"data": data} | {k: v for k, v in flat.items() if k not in NEUTRAL and not k.startswith(tuple(unused))}


def hash_of(settings: Settings) -> str:
    """A short name for the settings. A new key leaves it unchanged as long as its default is what was before."""
    defaults = _TRANSFER_DEFAULTS if "task" in settings else _DEFAULTS
    changed = {key: value for key, value in settings.items() if key not in defaults or value != defaults[key]}
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]


def differences(settings: Settings, other: Settings) -> list[str]:
    """The `key=value` words that lead from `other` to `settings`.

    The keys of a model that `other` does not have are compared with their defaults.
    """
    before = (_TRANSFER_DEFAULTS if "task" in settings else _DEFAULTS) | other
    changed = {key: value for key, value in settings.items() if key != "data" and before.get(key, value) != value}
    words = [f"{key}={'null' if value is None else value}" for key, value in changed.items()]
    return words + ["lambda_turn=0"] * ("lambda_turn" in other and "lambda_turn" not in settings)


def _same(one: Pairing, other: Pairing) -> bool:
    """But for what is counted by itself: the weight of the turn, and what a name fixes in the manipulation model."""
    return (one.identity, one.manipulation) == (other.identity, other.manipulation)


def _flatten(tree: dict[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


_DEFAULTS = _flatten(dataclasses.asdict(Config()))
_TRANSFER_DEFAULTS = {k: v for k, v in _flatten(dataclasses.asdict(TransferConfig())).items() if k != "task"}
