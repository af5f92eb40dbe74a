"""Started by torchrun: a whole run, a copy of which is kept as if it had been killed, and the rest of another such run.

torchrun --nproc-per-node 2 train_elsewhere.py FOLDER WORDS...
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from stec.config import load
from stec.reporter import Progress
from stec.run import RunFolder
from stec.training import pretrain


class Keeps:
    """Keeps a copy of the run in the middle of the third epoch of four."""

    def __init__(self, folder: RunFolder, copy: Path) -> None:
        self.folder, self.copy = folder, copy

    def note(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        if progress.step == 8:
            shutil.copytree(self.folder.path, self.copy)


def train_and_keep(path: Path, words: list[str]) -> RunFolder:
    folder = RunFolder.new(path, "default")
    pretrain(load("default", words), folder, Keeps(folder, path.with_name(f"{path.name}-killed")))
    return folder


def finish(path: Path) -> RunFolder:
    folder = RunFolder.open(path)
    pretrain(folder.config(), folder, Keeps(folder, path.with_name(f"{path.name}-again")), resume=True)
    return folder


if __name__ == "__main__":
    torch.set_num_threads(1)
    runs, *words = sys.argv[1:]
    train_and_keep(Path(runs) / "two", words)
    finish(Path(runs) / "one-killed")
