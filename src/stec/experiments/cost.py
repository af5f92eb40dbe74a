"""What missing runs would cost, from speeds that were measured; nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from stec.config import SOUND, Config
from stec.experiments.book import Book
from stec.experiments.experiment import Cell
from stec.identity import IDENTITIES
from stec.identity.interface import TargetIdentity
from stec.method import METHODS
from stec.transfer.config import TransferConfig

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
    turn: bool  # the encoder sees small views too
    precision: str


class Speed(NamedTuple):
    """Views per second of some hardware."""

    device: str
    rate: float


def measured_speeds(book: Book) -> dict[Kind, list[Speed]]:
    """Of all runs in the book, and of the benchmarks beside it (`speed/*.json`)."""
    speeds: dict[Kind, list[Speed]] = {}
    for run in book.runs.values():
        s, rate = run.settings, run.metric("views_per_second")
        if rate and "views.size" in s:  # neither a transfer nor sound
            kind = _kind(
                s["method"], s["encoder"], s["views.size"], s["batch_size"], bool(s.get("lambda_turn")), s["precision"]
            )
            speeds.setdefault(kind, []).append(Speed(run.summary["device"], rate))
    for bench in _benchmarks(book.path.parent / "speed"):
        if bench["method"] in SOUND:
            continue
        turn = METHODS[bench["method"]].turn > 0
        for row in bench["rows"]:
            kind = _kind(bench["method"], bench["encoder"], bench["size"], row["batch_size"], turn, "auto")
            speeds.setdefault(kind, []).append(Speed(bench["device"], row["end_to_end"]))
    return speeds


def minutes(cell: Cell, speeds: dict[Kind, list[Speed]]) -> tuple[float, str] | None:
    """Of training for one run, and on what; None where nothing comparable was measured. A GPU goes before a CPU."""
    config = cell.config
    if isinstance(config, TransferConfig) or config.method in SOUND:
        return None  # how long a transfer takes was not measured; how long recordings are shows when they are read
    images = config.data.train_images if cell.data == "shapes" else TRAINING_IMAGES.get(cell.data)
    found = speeds.get(kind_of(config))
    if not images or not found:
        return None
    device = min((speed.device for speed in found), key=lambda name: ("CPU" in name, name))
    rate = median(speed.rate for speed in found if speed.device == device)
    views = 2 * config.epochs * (images // config.batch_size) * config.batch_size
    return views / rate / 60, device


def kind_of(config: Config) -> Kind:
    """Of a run."""
    turn = METHODS[config.method].turn if config.lambda_turn is None else config.lambda_turn
    return _kind(config.method, config.encoder, config.views.size, config.batch_size, bool(turn), config.precision)


def _kind(method: str, encoder: str, size: int, batch_size: int, turn: bool, precision: str) -> Kind:
    target = issubclass(IDENTITIES[METHODS[method].identity], TargetIdentity)
    return Kind(encoder, size, batch_size, target, turn, precision)


def _benchmarks(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and content.get("rows") and "end_to_end" in content["rows"][0]:
            yield content
