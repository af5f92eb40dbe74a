"""Metrics for TensorBoard or Weights & Biases, beside metrics.jsonl, for those who watch many runs there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol

import yaml

from stec.config import read_text
from stec.errors import UserError
from stec.run import CONFIG, RunFolder

PROJECT = "stec"  # of Weights & Biases, unless $WANDB_PROJECT names another


class Logger(Protocol):
    """Where metrics go."""

    place: str  # for a person

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """What was measured up to a step."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """What summary.json holds: the run is done."""


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs` shows all runs by their names.

    Args:
        folder: of the run.
        step: the last that is done; of a resumed run, what had been logged after it is dropped.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.place = f"tensorboard --logdir {folder.path.parent}"
        self.writer = SummaryWriter(str(folder.path), purge_step=step + 1)
        self.step = step

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Scalars, each by its name; on the disk at once, as the run may be stopped at any time."""
        self.step = step
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, summary: Mapping[str, Any]) -> None:
        """The numbers in it, at the last step."""
        for name, value in _numbers(summary).items():
            self.writer.add_scalar(f"final/{name}", value, self.step)
        self.writer.close()


class WeightsAndBiases:
    """A run there, named as the folder, with its config; with `$WANDB_MODE=offline` it stays in the folder.

    Args:
        folder: of the run. One that is resumed goes on as the same run.
    """

    def __init__(self, folder: RunFolder) -> None:
        import wandb

        earlier = folder.path / "wandb" / "latest-run"  # a link to run-DATE-ID
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=folder.path.name,
                id=earlier.resolve().name.rpartition("-")[2] if earlier.exists() else None,
                resume="allow",
                dir=str(folder.path),
                config=yaml.safe_load(read_text(folder.path / CONFIG)),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise UserError(f"logger=wandb: {reason} ($WANDB_MODE=offline needs no account)") from None
        self.place = f"wandb sync {self.run.settings.sync_dir}" if self.run.offline else str(self.run.url)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """A line of its history."""
        self.run.log(dict(values), step=step)

    def end(self, summary: Mapping[str, Any]) -> None:
        """The numbers in it, as the run's summary."""
        self.run.summary.update(_numbers(summary))
        self.run.finish()


def check_logger(name: str) -> None:
    """Refuses a logger that is not installed, before any work."""
    if name != "none" and find_spec(name) is None:
        raise UserError(f"logger={name} needs {name}: pip install 'stec[{name}]'")


def open_logger(name: str, folder: RunFolder, step: int) -> Logger | None:
    """The logger of that name, if it is one, for a run that has begun, and of which so many steps are done."""
    if name == "tensorboard":
        return TensorBoard(folder, step)
    return WeightsAndBiases(folder) if name == "wandb" else None


def _numbers(summary: Mapping[str, Any]) -> dict[str, float]:
    return {k: v for k, v in summary.items() if isinstance(v, int | float) and not isinstance(v, bool)}
