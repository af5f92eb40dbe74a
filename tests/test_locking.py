"""A run folder is held by those who train in it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import TINY, Silent, fitting

from stec.config import load
from stec.errors import UserError
from stec.locking import locked
from stec.run import RunFolder
from stec.training import pretrain

LONG = (*TINY, "epochs=100000", "log_every=1", "checkpoint_every=2", "device=cpu")


def files(path):
    """What a second command could have touched."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name in ("config.yaml", ".lock")}


@pytest.fixture
def busy(begin, tmp_path):
    """A run that another process trains in."""
    command = begin("pretrain", *LONG, "--out", "run")
    command.reach(tmp_path / "run/metrics.jsonl", 5)
    return command


def test_whoever_comes_second_is_refused_and_the_first_goes_on(busy, stec, tmp_path):
    before = files(tmp_path / "run")
    for words in (
        ("pretrain", "--resume", "run"),
        ("pretrain", *LONG, "--out", "run", "--resume", "auto"),
        ("pretrain", *LONG, "seed=1", "--out", "run", "--force"),
        ("transfer", "segmentation", "none", "--out", "run", "--force"),
    ):
        code, _, err = stec(*words)
        assert (code, err.count("\n")) == (2, 1), err
        assert "another process is at work on this run (run/.lock is locked)" in err
        assert files(tmp_path / "run") == before
    lines = (tmp_path / "run/metrics.jsonl").read_text().count("\n")
    busy.reach(tmp_path / "run/metrics.jsonl", lines + 2)

    busy.process.terminate()
    assert busy.end()[0] == os.EX_TEMPFAIL
    with locked(tmp_path / "run/.lock", wait=False):
        pass


def test_a_new_run_is_held_from_the_start_and_a_mistake_leaves_nothing(stec, tmp_path):
    folder = RunFolder(tmp_path / "new/run", "default")
    with folder.held(), pytest.raises(UserError, match="another process"):
        pretrain(load("default", [*TINY]), RunFolder.new(folder.path, "default"), Silent())
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    for out in ("mine", "new/run"):
        assert stec("pretrain", *TINY, "batch_size=1000", "--out", out)[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not list((tmp_path / "mine").iterdir())


def at_work(folder):
    """Processes in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            found += [process.name] if (process / "cwd").readlink() == folder else []
    return found


def test_what_reads_images_for_a_killed_run_ends_with_it(begin, tmp_path):
    root, chance = tmp_path / "images", np.random.default_rng(0)
    root.mkdir()
    for number in range(40):
        Image.fromarray(chance.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(root / f"{number}.png")
    streamed = ("data.source=folder", f"data.root={root}", "data.resident=never", "data.workers=1")
    command = begin("pretrain", *fitting(*LONG, *streamed), "batch_size=8", "--out", "run")
    command.reach(tmp_path / "run/metrics.jsonl", 2)
    while len(at_work(tmp_path)) < 2:
        time.sleep(0.001)
    command.process.kill()
    until = time.monotonic() + 30
    while at_work(tmp_path) and time.monotonic() < until:
        time.sleep(0.05)
    assert not at_work(tmp_path)


def test_a_fork_does_not_hold_what_its_parent_held(tmp_path):
    code = """
import os, pathlib, signal, time
from stec.locking import locked
with locked(pathlib.Path("lock")):
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    other = os.open("forked", os.O_CREAT)  # takes the number of what was closed
    until = time.monotonic() + 30
    while not os.path.exists("leave") and time.monotonic() < until:
        time.sleep(0.01)
os.fstat(other)  # was not closed in its place
pathlib.Path("left").touch()
"""

    def wait_for(name):
        until = time.monotonic() + 30
        while not (tmp_path / name).exists():
            assert time.monotonic() < until, name
            time.sleep(0.01)

    parent = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert parent.returncode == -signal.SIGKILL
    wait_for("forked")
    with locked(tmp_path / "lock", wait=False):
        (tmp_path / "leave").touch()
    wait_for("left")


def test_where_files_cannot_be_locked_the_run_goes_on(train, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    folder, _ = train("run", "epochs=1", "optimizer.warmup_epochs=0")
    assert folder.summary() is not None


def test_a_classification_is_held_as_a_whole(train, stec):
    folder, _ = train("run", "epochs=1", "optimizer.warmup_epochs=0")
    there = folder.path / "transfer/shapes"
    there.mkdir(parents=True)
    with locked(there / ".lock"):
        code, _, err = stec("transfer", "classification", str(folder.path), "--linear-only")
    assert code == 2
    assert "another process is at work" in err
    assert [file.name for file in there.iterdir()] == [".lock"]
