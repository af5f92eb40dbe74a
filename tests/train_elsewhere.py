"""Started by torchrun: whole runs, copies of which are kept as if they had been killed, and the rest of such copies.

Every process has all weights ("two"), or a part of them ("parts"). A copy is named after who begins and who ends it.

torchrun --nproc-per-node 2 train_elsewhere.py FOLDER WORDS...
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import torch

from stec.config import load
from stec.leaving import leave_others
from stec.reporter import Progress
from stec.run import RunFolder
from stec.training import pretrain


class Keeps:
    """Keeps copies of the run in the middle of the third epoch of four."""

    def __init__(self, folder: RunFolder, *copies: str) -> None:
        self.folder, self.copies = folder, copies

    def note(self, text: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        if progress.step == 8:
            for copy in self.copies:
                shutil.copytree(self.folder.path, self.folder.path.with_name(copy))


def train_and_keep(folder: RunFolder, words: list[str], *copies: str) -> RunFolder:
    pretrain(load("default", words), folder, Keeps(folder, *copies))
    return folder


def finish(path: Path, strategy: str) -> RunFolder:
    folder = RunFolder.open(path)
    pretrain(dataclasses.replace(folder.config(), strategy=strategy), folder, Keeps(folder), resume=True)
    return folder


if __name__ == "__main__":
    torch.set_num_threads(1)
    runs, words = Path(sys.argv[1]), sys.argv[2:]
    two, parts = (RunFolder.new(runs / name, "default") for name in ("two", "parts"))  # before a process makes them
    train_and_keep(two, words, "two-one", "two-parts")
    train_and_keep(parts, [*words, "strategy=fsdp"], "parts-one", "parts-two")
    finish(runs / "one-two", "ddp")
    finish(runs / "parts-two", "ddp")
    finish(runs / "two-parts", "fsdp")
    finish(runs / "one-parts", "fsdp")
    leave_others()
