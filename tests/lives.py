"""The lives of one run, each in a process of its own that may end at any point."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from stec import checkpoint, cli, run
from stec.config import load
from stec.engine import Loop
from stec.errors import Stopped
from stec.reporter import Nobody
from stec.run import CONFIG, METRICS, RunFolder
from stec.training import pretrain
from stec.transfer import running  # noqa: F401 - loaded once, for all of them

# 3 steps per epoch and a line after every 4; queue, target and both models; a checkpoint after every step
WORDS = (
    "method=stec-moco", "epochs=20", "batch_size=8", "data.train_images=24", "data.test_images=10", "data.size=16",
    "views.size=16", "optimizer.warmup_epochs=1", "log_every=4", "checkpoint_every=5", "checkpoint_minutes=0",
    "baselines=false", "identity.queue=64", "identity.hidden=8", "identity.output=8", "manipulation.hidden=8",
)  # fmt: skip


def live(
    path: Path,
    began: Any,
    doom: tuple[str, int] | None = None,
    words: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> None:
    """Begins the run in this folder, or continues it, until its end or its doom: the n-th time that something happens.

    Args:
        path: the run folder.
        began: an event, set when training begins.
        doom: what happens (a function of `_DOOMS`), and the how manieth time.
        words: keys to change.
        environment: of the process, such as torchrun gives it.
    """
    os.environ.update(environment or {})
    torch.set_num_threads(1)
    if doom is not None:
        _DOOMS[doom[0]](doom[1])
    begin = Loop.run

    def run_and_tell(loop: Loop) -> None:
        began.set()
        begin(loop)

    Loop.run = run_and_tell  # type: ignore[method-assign]
    there = (path / CONFIG).is_file()
    folder = RunFolder.open(path) if there else RunFolder.new(path, "default")
    config = folder.config() if there else load("default", [*WORDS, *words])
    try:
        pretrain(config, folder, Nobody(), resume=there)
    except Stopped:
        sys.exit(os.EX_TEMPFAIL)


def command(words: tuple[str, ...], folder: Path, told: Path) -> None:
    """`stec WORDS` in a folder; all that it says goes to a file."""
    os.chdir(folder)
    with told.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(1)
    sys.argv = ["stec", *words]
    cli.main()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Countdown:
    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


def _before(owner: Any, name: str, number: int) -> None:
    last, function = _Countdown(number), getattr(owner, name)

    def doomed(*words: Any, **named: Any) -> Any:
        if last():
            _die()
        return function(*words, **named)

    setattr(owner, name, doomed)


def _in_half_a_piece(number: int) -> None:
    """While a checkpoint is being written."""
    last, write = _Countdown(number), checkpoint._Sealing.write

    def half(sealing: Any, data: bytes) -> int:
        if last():
            sealing._file.write(bytes(data)[: len(data) // 2])
            sealing._file.flush()
            _die()
        return write(sealing, data)

    checkpoint._Sealing.write = half  # type: ignore[method-assign]


def _in_half_a_line(number: int) -> None:
    """While metrics are being written."""
    last, add = _Countdown(number), RunFolder.add_metrics

    def half(folder: RunFolder, record: dict[str, Any]) -> None:
        if last():
            with (folder.path / METRICS).open("a") as file:
                file.write(f'{{"step": {record["step"]}, "los')
            _die()
        add(folder, record)

    RunFolder.add_metrics = half  # type: ignore[method-assign]


_DOOMS = {
    "step": lambda number: _before(Loop, "_attend", number),
    "replace": lambda number: _before(os, "replace", number),
    "link": lambda number: _before(os, "link", number),
    "sync": lambda number: _before(run.os, "fsync", number),
    "piece": _in_half_a_piece,
    "line": _in_half_a_line,
}
