"""Runs of twelve steps, for tests."""

from __future__ import annotations

from pathlib import Path

from stec.config import Config, load
from stec.reporter import Progress
from stec.run import RunFolder
from stec.training import pretrain

TINY = (
    "epochs=4",
    "batch_size=32",
    "optimizer.warmup_epochs=1",
    "data.train_images=96",
    "data.test_images=40",
    "log_every=2",
    "checkpoint_every=2",
    "baselines=false",
    "identity.hidden=32",
    "manipulation.hidden=32",
    "turn.hidden=32",
)  # 12 steps


def fitting(*words: str) -> list[str]:
    """Without the numbers of images to draw, if the words name others."""
    files = any(word.startswith("data.source=") for word in words)
    return [word for word in words if not (files and word.startswith(("data.train_images=", "data.test_images=")))]


class Silent:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.records: list[Progress] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, progress: Progress) -> None:
        self.records.append(progress)


class Runner:
    """Trains tiny runs below a temporary folder."""

    def __init__(self, path) -> None:
        self.path = path

    def config(self, *words: str) -> Config:
        return load("default", fitting(*TINY, *words))

    def __call__(self, name: str, *words: str, reporter=None) -> tuple[RunFolder, dict]:
        config = self.config(*words)
        folder = RunFolder.new(self.path / name, "default")
        return folder, pretrain(config, folder, reporter or Silent())

    def resume(self, folder: RunFolder) -> dict:
        return pretrain(folder.config(), folder, Silent(), resume=True)


class Trap:
    """Runs code, which makes a file, in whoever unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)
