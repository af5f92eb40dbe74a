"""A run is a folder: config.yaml, metrics.jsonl, checkpoint.pt, encoder.safetensors, summary.json."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from stec.config import Config, load, to_yaml
from stec.errors import UserError

CONFIG, METRICS, CHECKPOINT, ENCODER, SUMMARY = (
    "config.yaml",
    "metrics.jsonl",
    "checkpoint.pt",
    "encoder.safetensors",
    "summary.json",
)


@dataclass(frozen=True)
class RunFolder:
    """The files of one run. What is replaced is replaced whole: a reader never sees half a file."""

    path: Path
    recipe: str  # the name of the recipe that the run was started with

    @classmethod
    def new(cls, path: Path, recipe: str, force: bool = False) -> RunFolder:
        """A folder for a new run. One that exists is refused, unless it is a run and `force` is given.

        Nothing is written or deleted before `begin`.
        """
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; name another folder with --out")
        if path.is_dir() and any(path.iterdir()):
            if not force:
                raise UserError(
                    f"{path} exists: continue it with --resume {path}, replace it with --force, or name another --out"
                )
            if not (path / CONFIG).is_file():
                raise UserError(f"{path} is not a run folder; --force replaces only runs")
        return cls(path, recipe)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that exists."""
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is not a run folder: it has no {CONFIG}")
        first = (path / CONFIG).read_text().partition("\n")[0]
        return cls(path, first.removeprefix("# recipe: ").strip())

    def begin(self, config: Any) -> None:
        """Makes the folder, empty but for the config: everything is in order, training is about to start."""
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.mkdir(parents=True)
        (self.path / CONFIG).write_text(f"# recipe: {self.recipe}\n{to_yaml(config)}")

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's path."""
        return self.path / CHECKPOINT

    def config(self) -> Config:
        """The resolved config that was saved with a pretraining."""
        if is_transfer(self.path):
            raise UserError(f"{self.path} is a transfer, which has no encoder of its own: name the run it started from")
        return load(str(self.path / CONFIG))

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl."""
        path = self.path / METRICS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def forget_metrics_after(self, step: int) -> None:
        """Drops what an interrupted run had logged beyond its last checkpoint."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        with replacing(self.path / METRICS) as path:
            path.write_text("".join(json.dumps(record) + "\n" for record in kept))

    def save_encoder(self, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
        """Writes the encoder's weights."""
        save_weights(self.path / ENCODER, state, metadata)

    def summary(self) -> dict[str, Any] | None:
        """What summary.json holds; None before the run has finished."""
        path = self.path / SUMMARY
        return json.loads(path.read_text()) if path.is_file() else None

    def save_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json."""
        with replacing(self.path / SUMMARY) as path:
            path.write_text(json.dumps(summary, indent=2) + "\n")


def is_transfer(path: Path) -> bool:
    """Whether the run in a folder is a transfer, to detection or segmentation."""
    config = path / CONFIG
    return config.is_file() and any(line.startswith("task:") for line in config.read_text().splitlines())


def save_weights(path: Path, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes tensors and words about them as a safetensors file."""
    with replacing(path) as part:
        part.write_bytes(save({k: v.detach().cpu().contiguous() for k, v in state.items()}, metadata))


def make_room(path: Path) -> None:
    """Makes the folder that a file is to be written to; UserError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"{path} cannot be written: name a file in a folder that is yours")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path to write to, which takes the place of `path` only if all went well."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        publish(part, path)
    finally:
        part.unlink(missing_ok=True)


def publish(part: Path, path: Path) -> None:
    """Puts a finished file in its place, in one move that a crash cannot cut in half."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
