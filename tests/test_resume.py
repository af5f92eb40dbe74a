"""Signals, damaged files, full disks, vanished data: a run ends in one clear line, or goes on, and loses nothing."""

import json
import multiprocessing
import os
import pty
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from lives import WORDS
from PIL import Image
from tiny_runs import Silent, Trap, fitting

import stec.engine
from stec import UserError, checkpoint
from stec.config import load
from stec.errors import Stopped
from stec.run import RunFolder
from stec.training import Pretraining, pretrain

# 12 steps, 3 in an epoch; lines of metrics after steps 2, 3, 5, 6, 8, 9, 11 and 12
SMALL = (*WORDS, "epochs=4", "log_every=2", "checkpoint_every=1", "checkpoint_minutes=10")


def start(path, *words, reporter=None):
    folder = RunFolder.new(path, "default")
    return folder, pretrain(load("default", fitting(*SMALL, *words)), folder, reporter or Silent())


def resume(folder):
    reporter = Silent()
    pretrain(folder.config(), folder, reporter, resume=True)
    return reporter.notes


def weights(folder):
    return torch.load(folder.checkpoint, weights_only=True)["model"]


def same(folder, other):
    """Weights bit for bit, and every line of metrics, without how long it took."""
    torch.testing.assert_close(weights(folder), weights(other), rtol=0, atol=0)
    one, two = (
        [{k: v for k, v in record.items() if k not in ("seconds", "views_per_second")} for record in run.metrics()]
        for run in (folder, other)
    )
    assert one == two


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to. Not to be changed."""
    return start(tmp_path_factory.mktemp("whole") / "run")[0]


@pytest.fixture
def copy(whole, tmp_path):
    """The same, to be changed."""
    return RunFolder.open(shutil.copytree(whole.path, tmp_path / "copy"))


class SignalAt(Silent):
    """Sends signals to this process when a step has been measured."""

    def __init__(self, step, *signals):
        super().__init__()
        self.step, self.signals = step, signals

    def progress(self, progress):
        if progress.step >= self.step:
            for number in self.signals:
                os.kill(os.getpid(), number)


# --- signals ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_step_saves_and_stops(whole, tmp_path, number):
    with pytest.raises(
        Stopped, match=rf"stopped by {number.name} after step 5 of 12, all is saved; 'stec pretrain --resume"
    ):
        start(tmp_path / "run", reporter=SignalAt(4, number))  # in the middle of the second epoch
    folder = RunFolder.open(tmp_path / "run")
    assert torch.load(folder.checkpoint, weights_only=True)["step"] == 5
    assert any("resumed at epoch 1 of 4, step 5 of 12" in note for note in resume(folder))
    same(folder, whole)


def test_a_signal_between_two_lines_of_metrics_changes_none_of_them(whole, tmp_path, monkeypatch):
    train = stec.engine.Loop.train

    def signalled(loop, batch):
        train(loop, batch)
        if loop.step == 5 and not loop.folder.previous.exists():
            loop.since -= 1000  # as if these steps had taken so many seconds
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(stec.engine.Loop, "train", signalled)
    with pytest.raises(Stopped, match="after step 5"):
        start(tmp_path / "run", "checkpoint_every=4", "log_every=50")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.metrics() == []
    monkeypatch.undo()
    assert not any("warning" in note for note in resume(folder)), "nothing is lost"
    (record,) = folder.metrics()
    assert record["step"] == 12
    assert 1000 < record["seconds"] < 1100
    unbroken = [r["loss"] * n for r, n in zip(whole.metrics(), (2, 1) * 4, strict=True)]
    assert record["loss"] == pytest.approx(sum(unbroken) / 12, rel=1e-5), "the mean over all twelve steps"
    torch.testing.assert_close(weights(folder), weights(whole), rtol=0, atol=0)


def test_a_resumed_run_may_tell_more_often(tmp_path, monkeypatch):
    train = stec.engine.Loop.train

    def signalled(loop, batch):
        train(loop, batch)
        if loop.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(stec.engine.Loop, "train", signalled)
    with pytest.raises(Stopped, match="after step 4"):
        start(tmp_path / "run", "checkpoint_every=4", "log_every=50")
    monkeypatch.undo()
    folder = RunFolder.open(tmp_path / "run")
    pretrain(load("default", [*SMALL, "checkpoint_every=4", "log_every=2"]), folder, Silent(), resume=True)
    assert [record["step"] for record in folder.metrics()] == [5, 7, 9, 11, 12]


def test_a_signal_while_the_last_checkpoint_is_written_is_not_forgotten(whole, tmp_path, monkeypatch):
    """A scheduler will kill the evaluation that follows: it has to be told that there is more to do."""
    write = stec.checkpoint.write

    def signalled(state, folder):
        if state["step"] == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        write(state, folder)

    monkeypatch.setattr(stec.checkpoint, "write", signalled)
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 12 of 12, all is saved"):
        start(tmp_path / "run")
    monkeypatch.undo()
    folder = RunFolder.open(tmp_path / "run")
    assert folder.summary() is None
    before = torch.load(folder.checkpoint, weights_only=True)["peak_memory_bytes"]
    resume(folder)
    same(folder, whole)
    summary = folder.summary()
    speeds = sorted(record["views_per_second"] for record in folder.metrics())
    assert speeds[0] < summary["views_per_second"] < speeds[-1], "that of the run, though nothing was left to train"
    assert summary["peak_memory_bytes"] >= before > 0


def test_a_second_interrupt_stops_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "run", reporter=SignalAt(4, signal.SIGINT, signal.SIGINT))
    assert torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)["step"] == 3


def test_ctrl_c_is_answered_at_once(tmp_path, capfd):
    with pytest.raises(Stopped, match="after step 2"):
        start(tmp_path / "run", reporter=SignalAt(2, signal.SIGINT))
    assert "ending this step, then all is saved; Ctrl-C again stops at once" in capfd.readouterr().err


@pytest.mark.parametrize("hears", ["words", "all"])
def test_ctrl_c_that_also_ends_who_reads_saves_all_the_same(tmp_path, hears):
    """As with `stec pretrain | tee log`, where the terminal sends it to both."""
    code = "import stec.progress; stec.progress.PLAIN_SECONDS = 0; from stec.cli import main; main()"
    words = ["pretrain", *SMALL, "epochs=2000", "log_every=1", "checkpoint_every=2000", "--out", str(tmp_path / "run")]
    errors = subprocess.STDOUT if hears == "all" else subprocess.PIPE
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        next(line for line in process.stdout if line.startswith("epoch"))
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        told = process.stderr.read() if hears == "words" else None
    assert process.returncode == 75
    assert torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)["step"] > 0
    assert told is None or ("all is saved" in told.splitlines()[-1] and "Traceback" not in told)


@pytest.mark.parametrize("disowned", [False, True])
def test_a_terminal_that_is_closed_stops_a_run_which_saves_and_a_disowned_one_goes_on(tmp_path, disowned):
    ours, terminal = pty.openpty()
    code = (
        f"import os, signal; os.close(os.open({os.ttyname(terminal)!r}, os.O_RDWR))\n"  # now it is that of this session
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if disowned else 'SIG_DFL'})\n"  # whatever runs the tests
        "from stec.cli import main; main()"
    )
    epochs = 100 if disowned else 20000
    words = ["pretrain", *SMALL, f"epochs={epochs}", "log_every=1", f"checkpoint_every={epochs}"]
    command = [sys.executable, "-c", code, *words, "--out", str(tmp_path / "run")]
    standard = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    with subprocess.Popen(command, **standard, start_new_session=True) as process:
        os.close(terminal)
        told = b""
        while b"epoch 2" not in told:
            told += os.read(ours, 1000)
        os.close(ours)
    assert process.returncode == (0 if disowned else 75)
    assert torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)["step"] > 0
    assert (tmp_path / "run/summary.json").exists() == disowned


def test_a_cpu_tells_of_every_slow_step_and_the_metrics_stay_the_same(tmp_path, monkeypatch, whole):
    monkeypatch.setattr(stec.engine, "TELL", 0.0)
    reporter = Silent()
    folder, _ = start(tmp_path / "run", reporter=reporter)
    assert [record.step for record in reporter.records] == list(range(1, 13))
    assert [record.epoch for record in reporter.records] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert all(record.metrics["loss"] > 0 and record.seconds > 0 for record in reporter.records)
    same(folder, whole)


def test_a_cpu_tells_the_speed_of_all_steps_that_are_no_line_of_metrics_yet(tmp_path, monkeypatch):
    monkeypatch.setattr(stec.engine, "TELL", 0.0)
    reporter = Silent()
    start(tmp_path / "run", "checkpoint_every=4", "log_every=50", reporter=reporter)
    views = [record.metrics["views_per_second"] * record.seconds for record in reporter.records]
    assert views == pytest.approx([2 * 8 * step for step in range(1, 13)])


def test_exit_codes_and_resume_auto(stec, tmp_path, monkeypatch, whole):
    """As a scheduler calls it: the same command until it returns 0."""
    command = ("pretrain", *SMALL, "--out", "run", "--resume", "auto")
    watch = Pretraining.watch
    monkeypatch.setattr(Pretraining, "watch", lambda *_: os.kill(os.getpid(), signal.SIGTERM) or watch(*_))
    code, _, err = stec(*command)
    assert code == os.EX_TEMPFAIL == 75
    assert err.startswith(
        "stec: stopped by SIGTERM after step 2 of 12, all is saved; 'stec pretrain --resume run' goes on"
    )
    monkeypatch.setattr(Pretraining, "watch", watch)
    code, out, _ = stec(*command)
    assert code == 0
    assert "resumed at epoch 0 of 4, step 2 of 12" in out
    same(RunFolder.open(tmp_path / "run"), whole)
    code, out, _ = stec(*command, "data.workers=2")  # which changes no result
    assert code == 0
    assert "resumed at epoch 4 of 4" in out
    code, _, err = stec(*command, "optimizer.rate=2")
    assert code == 2
    assert "run was begun with other settings than optimizer.rate=2.0" in err
    assert stec(*command, "--force")[0] == 2


# --- what damages files ---


def test_every_flipped_byte_and_every_length_is_noticed(tmp_path):
    state = {"model": {"w": torch.arange(300.0)}, "random": [{"python": random.getstate()}], "pending": None}
    folder = RunFolder(tmp_path, "")
    checkpoint.write(state, folder)
    content = folder.checkpoint.read_bytes()
    found = checkpoint.read(folder.checkpoint)
    torch.testing.assert_close(found["model"], state["model"])
    assert found["random"] == state["random"]
    body = len(content) - len("\nsha256 ") - 64
    chance = random.Random(0)
    for position in chance.sample(range(body), 200):
        folder.checkpoint.write_bytes(content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :])
        with pytest.raises(checkpoint.DamagedError, match="checksum"):
            checkpoint.read(folder.checkpoint)
    for length in [0, 1, *chance.sample(range(body), 50)]:
        folder.checkpoint.write_bytes(content[:length])
        with pytest.raises(checkpoint.DamagedError):
            checkpoint.read(folder.checkpoint)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:5000] + b"!" + b[5001:], lambda b: b""])
def test_a_damaged_checkpoint_is_replaced_by_the_one_before(copy, whole, damage):
    copy.checkpoint.write_bytes(damage(copy.checkpoint.read_bytes()))
    notes = resume(copy)
    assert any("warning: checkpoint.pt is damaged" in note and "checkpoint-previous.pt" in note for note in notes)
    assert any("step 9 of 12" in note for note in notes)
    same(copy, whole)


def test_the_checkpoint_that_is_gone_back_to_takes_the_damaged_ones_place(copy):
    """Before the next one is written, which would be the only whole one while it is moved there."""

    class Leaves(Silent):
        def note(self, text):
            if text.startswith("resumed"):
                raise KeyboardInterrupt

    copy.checkpoint.write_bytes(b"half a file")
    with pytest.raises(KeyboardInterrupt):
        pretrain(copy.config(), copy, Leaves(), resume=True)
    assert checkpoint.read(copy.checkpoint)["step"] == 9
    assert not copy.previous.exists()


def test_two_damaged_checkpoints_are_one_line_and_nothing_is_touched(copy):
    for path in (copy.checkpoint, copy.previous):
        path.write_bytes(b"half a file")
    before = {path.name: path.read_bytes() for path in copy.path.iterdir()}
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged .*, and checkpoint-previous\.pt is damaged"):
        resume(copy)
    assert {path.name: path.read_bytes() for path in copy.path.iterdir()} == before


def test_a_checkpoint_from_a_stranger_runs_no_code(copy, tmp_path):
    for path in (copy.checkpoint, copy.previous):
        torch.save({"model": Trap(tmp_path / "sprung")}, path)
    with pytest.raises(UserError, match="damaged"):
        resume(copy)
    assert not (tmp_path / "sprung").exists()


def test_a_checkpoint_of_another_model_is_one_line(copy):
    state = torch.load(copy.checkpoint, weights_only=True)
    state["model"].popitem()
    checkpoint.write(state, copy)
    with pytest.raises(UserError, match=r"checkpoint\.pt is no checkpoint of this run: RuntimeError: .*Missing key"):
        resume(copy)


def test_a_missing_metrics_file_is_told_and_the_run_goes_on(copy, whole):
    copy.previous.replace(copy.checkpoint)  # of step 9
    (copy.path / "metrics.jsonl").unlink()
    assert "warning: metrics.jsonl lacks what was measured after step 0" in resume(copy)
    torch.testing.assert_close(weights(copy), weights(whole), rtol=0, atol=0)
    assert [record["step"] for record in copy.metrics()] == [11, 12]


def test_half_a_line_of_metrics_is_not_read(copy, whole):
    with (copy.path / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\n[1]\n{"step": "two"}\n{"step": 13, "lo')
    assert copy.metrics() == whole.metrics()


# --- disks ---


def test_a_full_disk_is_one_line_and_the_last_checkpoint_is_kept(disk, whole):
    """Two checkpoints fit, a third beside them does not."""
    with pytest.raises(
        UserError, match=r"No space left on device \(make room on that disk\); the checkpoint of step \d+"
    ):
        start(disk / "run")
    folder = RunFolder.open(disk / "run")
    assert not list(folder.path.glob(".*.part"))
    reached = checkpoint.read(folder.checkpoint)["step"]
    assert 0 < reached < 12
    subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
    assert any(f"step {reached} of 12" in note for note in resume(folder))
    same(folder, whole)


def test_a_folder_that_is_read_only_is_one_line(stec, disk, copy):
    subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
    shutil.copytree(copy.path, disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    for words in (("--resume", str(disk / "run")), (*SMALL, "--out", str(disk / "new"))):
        code, _, err = stec("pretrain", *words)
        assert code == 2
        assert err.startswith(f"stec: {disk}")
        assert "Read-only file system" in err
        assert len(err.splitlines()) == 1


def test_a_folder_that_vanishes_is_not_said_to_keep_a_checkpoint(tmp_path):
    class Removing(Silent):
        def progress(self, progress):
            if progress.step == 8:
                (tmp_path / "run").rename(tmp_path / "away")

    with pytest.raises(UserError, match=r"No such file or directory; .*/run has lost the checkpoint of step"):
        start(tmp_path / "run", reporter=Removing())


def test_a_limit_on_file_sizes_is_one_line_and_the_last_checkpoint_is_kept(copy, monkeypatch):
    before = copy.checkpoint.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            checkpoint.write(torch.load(copy.checkpoint, weights_only=True), copy)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert copy.checkpoint.read_bytes() == before
    assert not list(copy.path.glob(".*.part"))


def test_a_run_killed_while_its_folder_was_made_can_be_begun_again(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.config.yaml.part").write_text("meth")
    folder = RunFolder.new(tmp_path / "run", "default")
    folder.begin(load("default"))
    assert [path.name for path in folder.path.iterdir()] == ["config.yaml"]


# --- data and memory ---


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """120 images, without labels."""
    root = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(0)
    for number in range(120):
        pixels = chance.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"{number:03d}.png")
    return root


class DeletesAt(Silent):
    def __init__(self, step, *paths):
        super().__init__()
        self.step, self.paths = step, paths

    def progress(self, progress):
        if progress.step >= self.step:
            for path in self.paths:
                path.unlink(missing_ok=True)


STREAMED = ("method=simclr", "data.source=folder", "data.resident=never", "batch_size=20", "log_every=1", "epochs=2")


def test_image_files_that_vanish_during_a_run(pictures, tmp_path, caplog):
    """One is replaced and named; more than one in a hundred end the run, which goes on when they are back."""
    words = (*STREAMED, "data.workers=1")
    whole, _ = start(tmp_path / "whole", *words, f"data.root={pictures}")
    root = shutil.copytree(pictures, tmp_path / "copy")
    start(tmp_path / "one", *words, f"data.root={root}", reporter=DeletesAt(6, root / "007.png"))
    assert "007.png" in caplog.text
    assert "replaced by another image" in caplog.text
    shutil.copy(pictures / "007.png", root)
    with pytest.raises(UserError, match="more than 1 % of 120 images cannot be read"):
        start(tmp_path / "many", *words, f"data.root={root}", reporter=DeletesAt(6, *root.glob("?[1-9]*.png")))
    folder = RunFolder.open(tmp_path / "many")
    assert torch.load(folder.checkpoint, weights_only=True)["step"] == 6
    with pytest.raises(UserError, match="the data changed"):
        resume(folder)
    shutil.copytree(pictures, root, dirs_exist_ok=True)
    resume(folder)
    same(folder, whole)


def test_a_run_on_streamed_images_continues_in_the_middle_of_an_epoch(pictures, tmp_path, capfd):
    """Without reading again what it has seen; its loader's process survives the signal, which all of a job get."""
    words = (*STREAMED, "data.workers=1", f"data.root={pictures}")
    whole, _ = start(tmp_path / "whole", *words)

    class SignalsAll(Silent):
        def progress(self, progress):
            if progress.step == 3:
                readers = multiprocessing.active_children()
                assert readers
                for name in ("HUP", "INT", "TERM"):  # from outside: a reader obeys its own parent
                    subprocess.run(["kill", "-s", name, *(str(reader.pid) for reader in readers)], check=True)
                time.sleep(0.5)  # in which the end of a reader would be noticed
                assert all(reader.is_alive() for reader in readers)
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="after step 3 of 12"):
        start(tmp_path / "run", *words, reporter=SignalsAll())
    assert "Ctrl-C" not in capfd.readouterr().err, "the run answers to it, not its readers"
    folder = RunFolder.open(tmp_path / "run")
    resume(folder)
    same(folder, whole)


def test_memory_that_is_full_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(Pretraining, "watch", lambda *_: torch.empty(1 << 55))
    with pytest.raises(UserError, match=r"the memory is full: lower batch_size.*has no checkpoint yet"):
        start(tmp_path / "cpu")

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(Pretraining, "watch", full)
    with pytest.raises(UserError, match="the GPU's memory is full: lower batch_size"):
        start(tmp_path / "gpu")


def test_a_bug_is_not_explained_away(tmp_path, monkeypatch):
    def bug(*_):
        raise RuntimeError("the size of tensor a must match")

    monkeypatch.setattr(Pretraining, "watch", bug)
    with pytest.raises(RuntimeError, match="size of tensor"):
        start(tmp_path / "run")


# --- the rest of the state ---


def test_nan_in_the_weights_is_not_saved(tmp_path, monkeypatch, whole):
    """The loss of the step before was finite. The checkpoint of step 3 is still being written then."""
    rate, write = stec.engine.Loop._rate, checkpoint.write
    monkeypatch.setattr(stec.engine.Loop, "_rate", lambda loop: float("nan") if loop.step == 5 else rate(loop))
    monkeypatch.setattr(checkpoint, "write", lambda *words: write(*words) or time.sleep(0.5))
    (record,) = (record for record in whole.metrics() if record["step"] == 5)
    found = rf"weights became NaN or infinite at step 6 \(learning rate {record['rate']:.4g}; the checkpoint of step 3"
    with pytest.raises(UserError, match=found):
        start(tmp_path / "run")
    assert all(value.isfinite().all() for value in weights(RunFolder.open(tmp_path / "run")).values())


def test_a_run_that_fails_after_it_was_resumed_tells_the_checkpoint_that_it_was_resumed_from(copy, monkeypatch):
    copy.previous.replace(copy.checkpoint)  # of step 9
    monkeypatch.setattr(stec.engine.Loop, "_rate", lambda loop: float("nan"))
    with pytest.raises(UserError, match="the checkpoint of step 9 is kept"):
        resume(copy)


def test_a_loss_of_nan_that_no_line_tells_yet_is_not_saved(tmp_path, monkeypatch):
    train = stec.engine.Loop.train

    def poisoned(loop, batch):
        train(loop, batch)
        if loop.step == 4:
            loop.pending[-1][0] = torch.nan
        if loop.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(stec.engine.Loop, "train", poisoned)
    with pytest.raises(UserError, match=r"the loss became NaN or infinite at step 4 .*checkpoint of step 3 is kept"):
        start(tmp_path / "run", "log_every=50")


def test_a_checkpoint_comes_after_all_that_belongs_to_it(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "encoder.safetensors")

    monkeypatch.setattr(Pretraining, "publish", full)
    with pytest.raises(UserError, match=r"No space left .* has no checkpoint yet"):
        start(tmp_path / "run")
    assert not (tmp_path / "run/checkpoint.pt").exists()


def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_once(tmp_path, monkeypatch):
    """And not when the next one is due."""

    def full(*_):
        raise OSError(28, "No space left on device", "checkpoint.pt")

    train, reporter = stec.engine.Loop.train, Silent()
    monkeypatch.setattr(checkpoint, "write", full)
    monkeypatch.setattr(stec.engine.Loop, "train", lambda loop, batch: loop.writer.join() or train(loop, batch))
    with pytest.raises(UserError, match="No space left"):
        start(tmp_path / "run", "log_every=1", reporter=reporter)
    assert reporter.records[-1].step == 3 + 1


def test_seconds_and_memory_are_those_of_all_parts_of_a_run(copy):
    copy.previous.replace(copy.checkpoint)
    state = torch.load(copy.checkpoint, weights_only=True)
    checkpoint.write(state | {"seconds": 1000.0, "peak_memory_bytes": 1 << 50}, copy)
    resume(copy)
    assert 1000 < copy.metrics()[-1]["seconds"] < 1100
    assert copy.summary()["seconds"] == pytest.approx(copy.metrics()[-1]["seconds"], abs=0.06)
    assert copy.summary()["peak_memory_bytes"] == 1 << 50


@pytest.mark.parametrize(("minutes", "last"), [(0, 11), (4, 9)])
def test_checkpoints_come_by_time_too(tmp_path, monkeypatch, minutes, last):
    """For all that the loop knows, every step takes a minute and a half."""
    train = stec.engine.Loop.train

    def slow(loop, batch):
        train(loop, batch)
        loop.saved -= 90

    monkeypatch.setattr(stec.engine.Loop, "train", slow)
    folder, _ = start(tmp_path / "run", "checkpoint_every=4", f"checkpoint_minutes={minutes}")
    assert torch.load(folder.previous, weights_only=True)["step"] == last
    json.dumps(folder.metrics())
