"""What missing runs would cost, from speeds that were measured: of the same kind of run, or else of a like one.

The fastest of them counts: a run that shared its device with others was slower than it would be alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stec.config import Config
from stec.experiments.book import Book
from stec.experiments.experiment import Cell
from stec.identity import IDENTITIES
from stec.identity.interface import TargetIdentity
from stec.limits import SOUND
from stec.method import METHODS, turn_weight
from stec.transfer.config import TransferConfig
from stec.turn import TURNS

# Images to train on. `shapes` draws as many as it is told.
TRAINING_IMAGES = {
    "cifar10": 50_000, "cifar100": 50_000, "stl10": 105_000, "imagenette": 9_469, "imagenet": 1_281_167,
}  # fmt: skip


class Kind(NamedTuple):
    """Runs of one kind are about equally fast: the manipulation model adds a few percent."""

    encoder: str
    size: int
    batch_size: int
    target: bool  # a second encoder sees every view
    turned: float  # it sees turned views, too, that together have so many times the pixels of a view,
    small: float  # and so small ones
    precision: str

    @property
    def work(self) -> float:
        """For every image, in forward passes of a view; a backward pass counts as two, and a target has none."""
        return 3 * (2 + self.turned + self.small) + 2 * self.target


class Speed(NamedTuple):
    """Views per second of some hardware."""

    device: str
    rate: float


class Cost(NamedTuple):
    """Of training for one run."""

    minutes: float
    device: str
    exact: bool  # measured on runs of the same kind; else reckoned from those of a like one, by their work


def measured_speeds(book: Book) -> dict[Kind, list[Speed]]:
    """Of all runs in the book, and of the benchmarks beside it (`speed/*.json`)."""
    speeds: dict[Kind, list[Speed]] = {}
    for run in book.runs.values():
        s, rate = run.settings, run.metric("views_per_second")
        if rate and "views.size" in s:  # neither a transfer nor sound
            small = s["views.small"] * (s["views.small_size"] / s["views.size"]) ** 2 if s.get("views.small") else 0.0
            kind = Kind(
                s["encoder"], s["views.size"], s["batch_size"], _has_target(s["method"]),
                _turned(s.get("lambda_turn"), s.get("views.turns", TURNS)), small, s["precision"],
            )  # fmt: skip
            speeds.setdefault(kind, []).append(Speed(run.summary["device"], rate))
    for bench in _benchmarks(book.path.parent / "speed"):
        if bench["method"] in SOUND:
            continue
        turned = _turned(METHODS[bench["method"]].turn, TURNS)
        for row in bench["rows"]:
            kind = Kind(
                bench["encoder"], bench["size"], row["batch_size"], _has_target(bench["method"]), turned, 0.0, "auto"
            )
            speeds.setdefault(kind, []).append(Speed(bench["device"], row["end_to_end"]))
    return speeds


def cost_of(cell: Cell, speeds: dict[Kind, list[Speed]]) -> Cost | None:
    """None where nothing comparable was measured. A GPU goes before a CPU, the same kind of run before a like one."""
    config = cell.config
    if isinstance(config, TransferConfig) or config.method in SOUND:
        return None  # not counted in views: see `cost_of_repetition`
    images = config.data.train_images if cell.data == "shapes" else TRAINING_IMAGES.get(cell.data)
    images = min(images, config.data.limit) if images and config.data.limit else images
    wanted = kind_of(config)
    found = [(kind, speed) for kind in speeds if _alike(kind, wanted) for speed in speeds[kind]]
    if not images or not found:
        return None

    def distance(kind: Kind) -> tuple[float, float]:
        return abs(kind.work - wanted.work), abs(math.log(kind.batch_size / wanted.batch_size))

    device = min((speed.device for _, speed in found), key=_gpu_first)
    nearest = min((kind for kind, speed in found if speed.device == device), key=distance)
    rate = max(speed.rate for speed in speeds[nearest] if speed.device == device) * nearest.work / wanted.work
    views = 2 * config.epochs * (images // config.batch_size) * config.batch_size
    return Cost(views / rate / 60, device, nearest == wanted)


def cost_of_repetition(cell: Cell, book: Book) -> Cost | None:
    """Of a transfer or sound: as long as the same took with other seeds, or else others of its recipe and epochs."""
    if not (isinstance(cell.config, TransferConfig) or cell.config.method in SOUND):
        return None
    like = [
        run
        for run in book.runs.values()
        if (run.recipe, run.data, run.settings["epochs"]) == (cell.recipe, cell.data, cell.config.epochs)
        and run.metric("seconds")
    ]
    same = [run for run in like if run.hash == cell.at(run.seed).hash]
    found = same or like
    if not found:
        return None
    device = min((run.summary["device"] for run in found), key=_gpu_first)
    seconds = [run.metric("seconds") or 0.0 for run in found if run.summary["device"] == device]
    return Cost(min(seconds) / 60, device, bool(same))


def kind_of(config: Config) -> Kind:
    """Of a run."""
    views = config.views
    turned = _turned(turn_weight(config.method, config.lambda_turn), views.turns)
    small = views.small * (views.small_size / views.size) ** 2
    return Kind(
        config.encoder, views.size, config.batch_size, _has_target(config.method), turned, small, config.precision
    )


def _turned(weight: float | None, turns: int) -> float:
    """Views of half the side have a quarter of the pixels."""
    return turns / 4 if weight else 0.0


def _alike(one: Kind, other: Kind) -> bool:
    """What is left, work and the size of batches, can be reckoned with."""
    return (one.encoder, one.size, one.precision) == (other.encoder, other.size, other.precision)


def _gpu_first(device: str) -> tuple[bool, str]:
    return "CPU" in device, device


def _has_target(method: str) -> bool:
    return issubclass(IDENTITIES[METHODS[method].identity], TargetIdentity)


def _benchmarks(folder: Path) -> Iterator[dict[str, Any]]:
    """What `stec bench` has written; other files there are somebody else's."""
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
        except ValueError:  # half a file, or no text
            continue
        if isinstance(content, dict) and content.get("method") in {*METHODS, *SOUND} and content.get("rows"):
            yield content
