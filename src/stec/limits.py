"""What the keys of a config can be: one of some words, or at least a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stec.checking import Checks
from stec.errors import nearest

if TYPE_CHECKING:
    from stec.config import Config

# Methods that learn from sound; all others learn from images.
SOUND = ("cpc", "stec-cpc", "stec-cpc-actions")
STORED = ("arrays", "folder", "shards")  # sources that hold any images
LOGGERS = ("none", "tensorboard", "wandb")
CHOICES = {
    "data.source": ("shapes", "arrays", "folder", "cifar10", "cifar100", "stl10", "imagenet", "shards", "utterances"),
    "data.resident": ("auto", "always", "never"),
    "identity.predictor_rate": ("falling", "constant"),
    "manipulation.readout": ("classification", "regression"),
    "manipulation.bins": ("uniform", "quantile"),
    "manipulation.components": ("all", "informative"),
    "optimizer.name": ("lars", "larc", "adamw"),
    "optimizer.decayed": ("weights", "all"),
    "audio.negatives": ("same", "other", "both"),
    "audio.pieces": ("windows", "frames"),
    "device": ("auto", "cpu", "cuda"),
    "strategy": ("ddp", "fsdp"),
    "precision": ("auto", "bf16", "32"),
    "compile": ("auto", "always", "never", "tuned"),
    "logger": LOGGERS,
}
ACTIONS = ("egocentric", "paper", "official", "allocentric", "colour")
SOUND_ACTIONS = ("shift", "speed", "band", "noise", "gain")
# What Adam does not have, with which sound is always trained.
SGD = tuple(f"optimizer.{key}" for key in ("name", "momentum", "trust", "decayed", "probe_rate", "probe_decay"))
_ADAM = "sound is always trained with Adam, which has rate and weight_decay"
_TOLD_APART = "actions on sound are always told apart as one of manipulation.k uniform bins of every component"
NOT_OF_SOUND = {
    **dict.fromkeys(SGD, _ADAM),
    **dict.fromkeys(("manipulation.readout", "manipulation.bins", "manipulation.components"), _TOLD_APART),
    "lambda_turn": "sound is not turned",
    "data.limit": "is for images",
}
PATHS = ("data.root", "data.cache", "data.test_root", "audio.alignment")
DRAWN = ("data.train_images", "data.test_images")
AT_LEAST = {
    "epochs": 1, "batch_size": 2, "seed": 0, "devices": 1, "log_every": 1, "checkpoint_every": 1,
    "checkpoint_minutes": 0, "lambda_manip": 0, "lambda_turn": 0, "turn.hidden": 1,
    "data.size": 4, "data.workers": 0, "data.limit": 2, "data.train_images": 2, "data.test_images": 1, "views.size": 4,
    "data.cache_gb": 0, "data.buffer": 1, "views.small": 0, "views.small_size": 4,
    "identity.hidden": 1, "identity.output": 1, "identity.alpha": 0, "identity.queue": 1,
    "identity.invariance": 0, "identity.variance": 0, "identity.covariance": 0, "identity.redundancy": 0,
    "identity.prototypes": 2, "identity.assigned_queue": 0,
    "manipulation.k": 2, "manipulation.hidden": 1, "optimizer.rate": 0, "optimizer.momentum": 0,
    "optimizer.weight_decay": 0, "optimizer.trust": 0, "optimizer.probe_rate": 0, "optimizer.probe_decay": 0,
    "optimizer.warmup_epochs": 0,
    "audio.window": 465, "audio.steps": 1, "audio.pool": 1, "audio.lambda_identity": 0, "audio.speakers": 1,
    "audio.utterances": 1,
}  # fmt: skip
PROBABILITIES = ("mirror", "jitter_probability", "grey", "blur", "solarize")


def check_values(config: Config) -> None:
    """Refuses values that make no sense, whoever made the config."""
    checks = Checks(config)
    value_of, require = checks.value_of, checks.require
    checks.require_choices(CHOICES)
    checks.require_at_least(AT_LEAST)
    checks.require_usable()
    actions = config.manipulation.action.split("+")
    known = SOUND_ACTIONS if config.method == "stec-cpc-actions" else ACTIONS
    for action in actions:
        require(action in known or config.method in SOUND[:2], "manipulation.action", nearest(action, known))
    require(len(set(actions)) == len(actions), "manipulation.action", "names an action twice")
    for name in PROBABILITIES:
        require(0 <= value_of(f"views.{name}") <= 1, f"views.{name}", "is a probability, from 0 to 1")
    for name in ("area", "aspect", "jitter", "small_area"):
        pair = value_of(f"views.{name}")
        two = isinstance(pair, Sequence) and len(pair) == 2
        require(two, f"views.{name}", "needs two numbers, as in [0.2,1.0]")
    for name in ("area", "aspect", "small_area"):
        low, high = value_of(f"views.{name}")
        require(0 < low <= high, f"views.{name}", "needs 0 < low <= high")
    for name in ("area", "small_area"):
        require(value_of(f"views.{name}")[1] <= 1, f"views.{name}", "a crop is at most the whole image (1.0)")
    require(config.views.turns in (4, 2, 1), "views.turns", "choose from 4, 2, 1")
    u, v = config.views.jitter
    require(0 <= u <= 1 and 0 <= v <= 0.5, "views.jitter", "needs u from 0 to 1 and v from 0 to 0.5")
    require(0 < config.views.test_crop <= 1, "views.test_crop", "must be above 0 and at most 1")
    for name in ("temperature", "target_temperature"):
        require(value_of(f"identity.{name}") > 0, f"identity.{name}", "must be above 0")
    for name in ("frozen", "warmup"):
        share = "is a share of training, from 0 to below 1"
        require(0 <= value_of(f"identity.{name}") < 1, f"identity.{name}", share)
    average = "must be above 0 (the target would be the encoder itself) and below 1 (it would never follow)"
    require(0 < config.identity.ema < 1, "identity.ema", average)
    leak = (
        "must be at least 2: normalised with their queries, keys are told from the queue by their batch norm statistics"
    )
    require(config.identity.groups >= 2, "identity.groups", leak)
    require(0 < config.audio.test_speakers < 1, "audio.test_speakers", "must be above 0 and below 1")
    checks.require_schedule()
    optimizer = config.optimizer
    if optimizer.probe_rate is not None:
        require(optimizer.name != "adamw", "optimizer.probe_rate", "with adamw it has to be null, the encoder's own")
        require(optimizer.rate > 0, "optimizer.probe_rate", "needs an optimizer.rate above 0, whose schedule it shares")
