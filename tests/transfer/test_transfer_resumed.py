"""Transfers that are stopped, killed, and begun again by the same command."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from stec.transfer.config import load_transfer

# 3 steps per epoch, a line after every step, and a checkpoint
WORDS = (
    "data.train_images=24", "data.test_images=8", "epochs=16", "batch_size=8", "data.size=32", "device=cpu",
    "optimizer.warmup_epochs=0", "log_every=1", "checkpoint_minutes=0", "detection.anchors=[8,16]",
    "detection.regions_per_image=8", "detection.anchors_per_image=16", "detection.proposals=16", "segmentation.side=32",
)  # fmt: skip
SCORES = {"detection": "ap50", "segmentation": "miou"}


def lines(path):
    """Of the metrics, without how long they took."""
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if "second" not in key} for record in records]


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_the_same_command_until_it_is_done(begin, tmp_path, task):
    """Killed, then stopped by SIGTERM: it ends as the run that nobody touched."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    command = ("transfer", task, "none", *WORDS, "--resume", "auto", "--out")

    killed = begin(*command, "again")
    killed.reach(again / "metrics.jsonl", 5)
    killed.process.kill()
    assert killed.end()[0] == -signal.SIGKILL

    stopped = begin(*command, "again")
    stopped.reach(again / "metrics.jsonl", 15)
    stopped.process.terminate()
    code, told = stopped.end()
    assert code == os.EX_TEMPFAIL, told
    assert f"all is saved; 'stec transfer {task} --resume again' goes on" in told
    assert not (again / "summary.json").exists()

    code, told = begin(*command, "again").end()
    assert code == 0, told
    assert "resumed at epoch" in told
    assert begin(*command, "whole").end()[0] == 0
    states = [torch.load(path / "checkpoint.pt", weights_only=True)["model"] for path in (whole, again)]
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0, equal_nan=True)
    assert lines(again) == lines(whole)
    scores = [json.loads((path / "summary.json").read_text())[SCORES[task]] for path in (whole, again)]
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_two_processes_that_sample_boxes_each_for_itself_go_on_as_they_were(tmp_path):
    def start(*words):
        command = [sys.executable, "-m", "stec", "transfer", "detection", *words]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    words = ("none", *WORDS, "devices=2", "epochs=8")
    assert start(*words, "--out", "whole").wait(200) == 0
    stopped = start(*words, "--out", "again")
    metrics = tmp_path / "again" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 8):
        assert stopped.poll() is None
        time.sleep(0.02)
    stopped.terminate()
    assert stopped.wait(60) == os.EX_TEMPFAIL
    assert metrics.read_text().count("\n") < 24
    assert start("--resume", "again").wait(200) == 0
    assert lines(tmp_path / "again") == lines(tmp_path / "whole")


def test_auto_goes_on_with_the_same_words_alone(stec, train, tmp_path):
    folder, _ = train("first", "epochs=1", "optimizer.warmup_epochs=0")
    words = ("transfer", "segmentation", "first", *WORDS, "epochs=1", "--resume", "auto")
    code, out, _ = stec(*words)
    assert code == 0
    assert "resumed" not in out
    path = tmp_path / "runs/shapes-segmentation-first-seed0"
    score = f"{json.loads((path / 'summary.json').read_text())['miou']:.1f} %"
    before = (path / "checkpoint.pt").read_bytes()

    code, out, _ = stec("transfer", "segmentation", str(folder.path), *words[3:], "data.workers=1")
    assert code == 0, "the same start by another name, and a key that changes no result"
    assert "resumed at epoch 1 of 1" in out
    assert score in out, "of a run that was done, its result"

    for changed in ("epochs=2", "seed=1", "optimizer.rate=0.5", "segmentation.side=64"):
        code, _, err = stec(*words, changed, "--out", str(path))
        assert (code, err.count("\n")) == (2, 1)
        assert f"was begun with other settings than {changed}" in err
    code, _, err = stec("transfer", "segmentation", "none", *words[3:], "--out", str(path))
    assert code == 2
    assert "other settings than start=none" in err
    for other in (("transfer", "detection", "first"), ("pretrain",)):
        code, _, err = stec(*other, "--resume", "auto", "--out", str(path))
        assert code == 2
        assert f"is a run of another command: 'stec transfer segmentation --resume {path}' continues it" in err
    assert stec(*words, "--force")[0] == 2
    assert (path / "checkpoint.pt").read_bytes() == before


def test_a_run_is_resumed_elsewhere(stec, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("stec.transfer.running.transfer", lambda config, *_: seen.append(config) or {})
    (tmp_path / "run").mkdir()
    code, printed, _ = stec("transfer", "detection", "none", "seed=7", "--print-config")
    (tmp_path / "run/config.yaml").write_text(f"# recipe: shapes-detection\n{printed}")
    assert stec("transfer", "detection", "--resume", "run", "devices=2", "device=cpu")[0] == 0
    assert seen == [load_transfer("shapes-detection", ["seed=7", "devices=2", "device=cpu"])]
    assert stec("transfer", "detection", "--resume", "run", "--print-config")[1] == printed
    for word in ("first", "epochs=3"):
        code, _, err = stec("transfer", "detection", word, "--resume", "run")
        assert code == 2
        assert "leave out the other words" in err
    code, _, err = stec("pretrain", "--resume", "run")
    assert code == 2
    assert "'stec transfer detection --resume run' continues it" in err


def test_an_error_in_one_process_ends_both_with_one_message(tmp_path):
    """The first cannot write, which the second would never hear of."""
    code = """
import stec.cli, stec.run
def refuse(*_): raise OSError(28, "No space left on device", "run")
stec.run.RunFolder.begin = refuse
stec.cli.main()
"""
    (tmp_path / "full.py").write_text(code)
    words = ["transfer", "segmentation", "none", *WORDS, "devices=2", "--out", "run"]
    command = [sys.executable, "full.py", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("stec:") == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
