"""The configuration of a transfer: which encoder, which scenes, which network, how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stec import config
from stec.checking import Checks
from stec.config import Config
from stec.errors import UserError
from stec.limits import LOGGERS
from stec.run import CONFIG, task_of

FOLDER = "transfer"  # of these recipes, among all
TASKS = ("detection", "segmentation")
NONE, TORCHVISION = "none", "torchvision:"  # starts that do not say themselves which encoder they are


@dataclass(frozen=True)
class ScenesConfig:
    """Which images, with boxes or masks."""

    source: str = "shapes"  # shapes, voc
    root: str | None = None  # voc: the folder that holds VOC2012, or VOCdevkit; `shapes` needs none
    train: tuple[str, ...] = ()  # voc: image sets, such as VOC2012/train, or SBD/train in torchvision's layout
    test: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()  # voc: names, without background; none: VOC's twenty
    size: int = 64  # side of the canvas that an image is kept on; a larger image is shrunk to it. A multiple of 32
    resident: str = "auto"  # auto: keep all images on the training device if they fit; always; never (main memory)
    workers: int = 8  # threads that decode
    train_images: int = 1000  # shapes only, as the two below
    test_images: int = 200
    objects: int = 3


@dataclass(frozen=True)
class DetectionConfig:
    """Faster R-CNN."""

    anchors: tuple[int, ...] = (32, 64, 128, 256, 512)  # sides in pixels of the scaled canvas
    sides: tuple[int, ...] = ()  # to which canvases are scaled, one for every batch at random; none: data.size
    test_side: int = 0  # 0: data.size
    rpn_weight: float = 0.2  # of the proposals' two losses
    anchors_per_image: int = 256  # sampled for the loss
    proposals: int = 2000  # in training
    test_proposals: int = 1000
    regions_per_image: int = 512  # sampled for the loss
    region_side: int = 14  # of the map that is cut out for a region


@dataclass(frozen=True)
class SegmentationConfig:
    """FCN-16s."""

    side: int = 513  # of the squares that are cut out in training
    scale: tuple[float, float] = (0.5, 2.0)  # of the image before that
    width: int = 256  # channels of the two convolutions behind the encoder
    dilation: int = 6  # of these


@dataclass(frozen=True)
class SgdConfig:
    """SGD with momentum, a linear warm-up, and steps down."""

    rate: float = 0.02  # as it is, whatever the batch
    pretrained: float = 1.0  # rate of weights that were pretrained, relative to that
    momentum: float = 0.9
    weight_decay: float = 0.0
    warmup_epochs: float = 0.0
    drops: tuple[float, ...] = ()  # parts of the run after which the rate is a tenth of what it was


@dataclass(frozen=True)
class TransferConfig:
    """A whole transfer."""

    task: str = "detection"
    start: str = "none"  # a run folder, an encoder's file, torchvision:NAME, torchvision:PATH, none
    encoder: str = "resnet50"  # for starts that do not know it: torchvision's and none
    epochs: int = 20
    batch_size: int = 16  # images per step over all devices
    seed: int = 0
    data: ScenesConfig = field(default_factory=ScenesConfig)
    detection: DetectionConfig = field(default_factory=DetectionConfig)
    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)
    optimizer: SgdConfig = field(default_factory=SgdConfig)
    device: str = "auto"  # auto, cpu, cuda
    devices: int = 1  # how many
    strategy: str = "ddp"  # of several processes: each has all weights (ddp), or a part of them (fsdp)
    precision: str = "auto"  # auto: bf16 on a GPU that has it, else 32; or bf16, 32
    compile: str = "auto"  # auto: on a GPU; always; never; tuned (segmentation alone: its steps are all alike)
    log_every: int = 50  # steps between two lines of metrics.jsonl
    checkpoint_every: int = 10  # epochs between two checkpoints; the last epoch always has one
    checkpoint_minutes: float = 10  # minutes between two checkpoints, if the epochs are longer; 0: after every step
    logger: str = "none"  # where metrics go besides metrics.jsonl: none, tensorboard, wandb


def load_transfer(recipe: str, words: Sequence[str] = ()) -> TransferConfig:
    """A recipe for a transfer (its name, or the path of a YAML file) with `key=value` words laid over it."""
    loaded: TransferConfig = config.load_as(TransferConfig, recipe, words, FOLDER)
    _check(loaded)
    return loaded


def recipe_and_config(task: str, start: str, words: Sequence[str]) -> tuple[str, TransferConfig]:
    """A recipe's name and its config, from words of which one may name it; without one, the built-in scenes."""
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise UserError(f"more than one recipe: {', '.join(names)}; everything else is key=value")
    for word in words:
        if word.startswith("start=") or (word.startswith("encoder=") and knows_its_encoder(start)):
            raise UserError(f"{word}: the start, {start}, says so itself; leave it out")
    recipe = names[0] if names else f"shapes-{task}"
    loaded = load_transfer(recipe, [word for word in words if "=" in word])
    if loaded.task != task:
        raise UserError(f"recipe '{recipe}' is for {loaded.task}, not for {task}")
    return recipe, dataclasses.replace(loaded, start=start)


def knows_its_encoder(start: str) -> bool:
    """Whether a start says itself which encoder it is, as a run and a file do."""
    return start != NONE and not start.startswith(TORCHVISION)


def recipe_names() -> list[str]:
    """The recipes for transfers."""
    return config.recipe_names(FOLDER)


def load_run(run: Path, words: Sequence[str] = ()) -> Config | TransferConfig:
    """The config of a run folder, whatever it trained, with `key=value` words laid over it."""
    path = str(run / CONFIG)
    return load_transfer(path, words) if task_of(run) else config.load(path, words)


_CHOICES = {
    "task": TASKS,
    "data.source": ("shapes", "voc"),
    "data.resident": ("auto", "always", "never"),
    "device": ("auto", "cpu", "cuda"),
    "strategy": ("ddp", "fsdp"),
    "precision": ("auto", "bf16", "32"),
    "compile": ("auto", "always", "never", "tuned"),
    "logger": LOGGERS,
}
_AT_LEAST = {
    "epochs": 1, "batch_size": 2, "seed": 0, "devices": 1, "log_every": 1, "checkpoint_every": 1,
    "checkpoint_minutes": 0, "data.size": 32,
    "data.workers": 0, "data.train_images": 2, "data.test_images": 1, "data.objects": 1, "detection.rpn_weight": 0,
    "detection.anchors_per_image": 1, "detection.proposals": 1, "detection.test_proposals": 1,
    "detection.regions_per_image": 1, "detection.region_side": 1, "segmentation.side": 32, "segmentation.width": 1,
    "segmentation.dilation": 1, "optimizer.rate": 0, "optimizer.pretrained": 0, "optimizer.momentum": 0,
    "optimizer.weight_decay": 0, "optimizer.warmup_epochs": 0,
}  # fmt: skip


def _check(given: TransferConfig) -> None:
    """Refuses values that make no sense."""
    checks = Checks(given)
    value_of, require = checks.value_of, checks.require
    checks.require_choices(_CHOICES)
    checks.require_at_least(_AT_LEAST)
    checks.require_usable()
    require(given.data.size % 32 == 0, "data.size", "must be a multiple of 32")
    sides, anchors = given.detection.sides, given.detection.anchors
    require(all(side % 32 == 0 and side > 0 for side in sides), "detection.sides", "must be multiples of 32")
    test_side = given.detection.test_side
    require(test_side % 32 == 0 and test_side >= 0, "detection.test_side", "must be a multiple of 32")
    wanted = "needs at least one side, and each above 0"
    require(bool(anchors) and min(anchors) > 0, "detection.anchors", wanted)
    scale = given.segmentation.scale
    require(len(scale) == 2 and 0 < scale[0] <= scale[1], "segmentation.scale", "needs 0 < low <= high, as [0.5,2.0]")
    require(all(0 < part < 1 for part in given.optimizer.drops), "optimizer.drops", "are parts of the run, 0 to 1")
    checks.require_schedule()
    if given.data.source == "voc":
        require(given.data.root is not None, "data.root", "say where the images lie: data.root=PATH")
        named = given.data.classes
        require("background" not in named, "data.classes", "leave the background out, which is class 0")
        require(len(set(named)) == len(named), "data.classes", "a name is there twice")
        for key in ("data.train", "data.test"):
            require(bool(value_of(key)), key, "needs an image set, such as [VOC2012/train]")
