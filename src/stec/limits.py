"""What the keys of a config can be: one of some words, or at least a number."""

from __future__ import annotations

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
_ADAM = "sound is always trained with Adam, which has rate and weight_decay"
_TOLD_APART = "actions on sound are always told apart as one of manipulation.k uniform bins of every component"
NOT_OF_SOUND = {
    **dict.fromkeys(("optimizer.name", "optimizer.momentum", "optimizer.trust", "optimizer.decayed"), _ADAM),
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
    "manipulation.k": 2, "manipulation.hidden": 1, "optimizer.rate": 0, "optimizer.momentum": 0,
    "optimizer.weight_decay": 0, "optimizer.trust": 0, "optimizer.warmup_epochs": 0,
    "audio.window": 465, "audio.steps": 1, "audio.pool": 1, "audio.lambda_identity": 0, "audio.speakers": 1,
    "audio.utterances": 1,
}  # fmt: skip
PROBABILITIES = ("mirror", "jitter_probability", "grey", "blur", "solarize")
