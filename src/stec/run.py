"""A run is a folder: config.yaml, metrics.jsonl, two checkpoints, encoder.safetensors, summary.json."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from stec.config import Config, load, read_text, to_yaml
from stec.errors import UserError
from stec.locking import locked

CONFIG, METRICS, CHECKPOINT, PREVIOUS, ENCODER, SUMMARY = (
    "config.yaml",
    "metrics.jsonl",
    "checkpoint.pt",
    "checkpoint-previous.pt",
    "encoder.safetensors",
    "summary.json",
)
HEAD = "# recipe: "  # how the config of a run begins
LOCK = ".lock"  # held while a process trains
FINE_TUNING = "classification"  # in place of a recipe, for runs that a classification makes


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
        # A run that was killed while its config was being written has left nothing but a part of it.
        if path.is_dir() and any(not file.name.startswith(".") for file in path.iterdir()):
            if not _is_run(path):
                raise UserError(f"{path} is not a run folder, and not empty: name another --out")
            if not force:
                there = cls.open(path).command
                raise UserError(f"{path} exists: {there} continues it, --force replaces it, or name another --out")
        return cls(path, recipe)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that exists."""
        if not (path / CONFIG).is_file():
            raise UserError(f"{path} is not a run folder: it has no {CONFIG}")
        first = read_text(path / CONFIG).partition("\n")[0]
        return cls(path, first.removeprefix(HEAD).strip())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within, no other process trains in the folder, which is made; if nothing begins there, it goes again."""
        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / LOCK, wait=False):
            try:
                yield
            finally:
                if not (self.path / CONFIG).is_file():
                    (self.path / LOCK).unlink(missing_ok=True)
                    with suppress(OSError):  # somebody else has put something there
                        for path in made:
                            path.rmdir()

    def begin(self, config: Any) -> None:
        """Makes the folder, empty but for the config: everything is in order, training is about to start.

        The config of a run that is replaced goes last, so that the folder is one of a run at any time. What is hidden,
        such as a .git, stays: no run has made it, but for its lock.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        for old in self.path.iterdir():
            if old.name == CONFIG or (old.name.startswith(".") and not old.name.endswith(".part")):
                continue
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            else:
                old.unlink()
        with replacing(self.path / CONFIG) as path:
            path.write_text(f"{HEAD}{self.recipe}\n{to_yaml(config)}", encoding="utf-8")

    def abandon(self) -> None:
        """Takes `begin` back: nothing has been trained."""
        (self.path / CONFIG).unlink()

    @property
    def command(self) -> str:
        """What continues the run, in words."""
        if self.recipe == FINE_TUNING:
            return "the same 'stec transfer classification'"
        task = task_of(self.path)
        return f"'stec {f'transfer {task}' if task else 'pretrain'} --resume {shlex.quote(str(self.path))}'"

    @property
    def checkpoint(self) -> Path:
        """The path of the last checkpoint."""
        return self.path / CHECKPOINT

    @property
    def previous(self) -> Path:
        """The path of the checkpoint before the last."""
        return self.path / PREVIOUS

    def config(self, words: Sequence[str] = ()) -> Config:
        """The resolved config that was saved with a pretraining, with `key=value` words laid over it."""
        if task_of(self.path):
            raise UserError(f"{self.path} is a transfer, which has no encoder of its own: name the run it started from")
        return load(str(self.path / CONFIG), words)

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        with (self.path / METRICS).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl that are whole: a run that is killed may leave half a line behind."""
        path = self.path / METRICS
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        return [record for record in map(_parse, lines) if record is not None]

    def forget_metrics_after(self, step: int) -> int:
        """Drops what an interrupted run had logged beyond its last checkpoint. -> the last step that is left, or 0"""
        kept = [record for record in self.metrics() if record["step"] <= step]
        with replacing(self.path / METRICS) as path:
            path.write_text("".join(json.dumps(record) + "\n" for record in kept))
        return kept[-1]["step"] if kept else 0

    def sync_metrics(self) -> None:
        """Makes sure that all lines are on the disk."""
        if (self.path / METRICS).is_file():
            _sync(self.path / METRICS)

    def save_encoder(self, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
        """Writes the encoder's weights."""
        save_weights(self.path / ENCODER, state, metadata)

    def summary(self) -> dict[str, Any] | None:
        """What summary.json holds; None before the run has finished."""
        path = self.path / SUMMARY
        if not path.is_file():
            return None
        try:
            summary = json.loads(read_text(path))
        except ValueError:
            summary = None
        if not isinstance(summary, dict):
            raise UserError(f"{path} is damaged; {self.command} makes it anew")
        return summary

    def save_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json."""
        with replacing(self.path / SUMMARY) as path:
            path.write_text(json.dumps(summary, indent=2) + "\n")


def _is_run(path: Path) -> bool:
    """Whether `begin` has made the folder: others have a config.yaml, too, and work that must not be replaced."""
    return (path / CONFIG).is_file() and (path / CONFIG).read_bytes().startswith(HEAD.encode())


def task_of(path: Path) -> str | None:
    """What the run in a folder is, if it is a transfer: detection or segmentation."""
    lines = read_text(path / CONFIG).splitlines() if (path / CONFIG).is_file() else []
    return next((line.removeprefix("task:").strip() for line in lines if line.startswith("task:")), None)


def encoder_digest(path: Path) -> str | None:
    """Of the encoder in a run folder as it is now; None where there is none."""
    file = path / ENCODER
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else None


def save_weights(path: Path, state: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes tensors and words about them as a safetensors file."""
    with replacing(path) as part:
        part.write_bytes(save({k: v.detach().cpu().contiguous() for k, v in state.items()}, metadata))


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and words of a safetensors file. No code in it is run."""
    if not path.is_file():
        raise UserError(f"{path}: no such run folder or file")
    try:
        with safe_open(path, "pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
            return weights, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no whole safetensors file, which encoders are kept in: {error}") from None


def make_room(path: Path) -> None:
    """Makes the folder that a file is to be written to; UserError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{path} cannot be written: there is a file where its folder should be") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"{path} cannot be written: name a file in a folder that is yours")


@contextmanager
def replacing(path: Path, mark: str = "") -> Iterator[Path]:
    """Gives a temporary path to write to, with that mark in its name, which replaces `path` only if all went well."""
    part = path.with_name(f".{path.name}{mark}.part")
    try:
        yield part
        publish(part, path)
    finally:
        part.unlink(missing_ok=True)


def publish(part: Path, path: Path) -> None:
    """Puts a finished file in its place, in one move that a crash cannot cut in half."""
    _sync(part)
    os.replace(part, path)
    with suppress(OSError):  # not every file system can
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
