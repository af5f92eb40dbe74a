"""A run that is killed again and again ends as if it never had been."""

import json
import multiprocessing
import multiprocessing.forkserver
import os
import random
import signal
import sys
import time

import lives
import pytest
import torch

SECONDS = 120  # longer than any life, on a machine that does other things
# Inside of a checkpoint's writing (pieces, syncs, moves), inside of a line of metrics, and between all that.
DOOMS = [
    ("replace", 2),
    ("piece", 3),
    ("line", 1),
    ("sync", 5),
    ("replace", 7),
    ("piece", 400),
    ("step", 3),
    ("line", 2),
]
DOOMS += [("sync", 9), ("replace", 8)]
TIMED = 10  # further lives that end after a random time


@pytest.fixture(scope="module")
def born():
    """Starts a life, in a fork of a process that has loaded everything: -> the process, and when training begins."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lives"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # what it loads, it looks for there
        multiprocessing.forkserver.ensure_running()

    def start(path, doom=None):
        began = context.Event()
        process = context.Process(target=lives.live, args=(path, began, doom))
        process.start()
        return process, began

    return start


def state_of(path):
    return torch.load(path / "checkpoint.pt", weights_only=True)


def metrics_of(path):
    """All lines, without how long it took."""
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in ("seconds", "views_per_second")} for record in records]


def test_twenty_kills_do_not_change_a_bit_and_lose_or_double_no_metrics(born, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process, began = born(whole)
    assert began.wait(SECONDS)
    begin = time.monotonic()
    process.join(SECONDS)
    assert process.exitcode == 0
    step = (time.monotonic() - begin) / state_of(whole)["step"]

    chance = random.Random(0)
    ends = DOOMS + [None] * TIMED
    chance.shuffle(ends)
    reached = []
    for doom in ends:
        process, began = born(killed, doom)
        if doom is None:
            began.wait(SECONDS)
            time.sleep(chance.uniform(0, 4 * step))
            process.kill()
        process.join(SECONDS)
        assert process.exitcode == -signal.SIGKILL, f"{doom}: the run has ended before"
        if (killed / "checkpoint.pt").exists():
            reached.append(state_of(killed)["step"])
    assert len(set(reached)) >= 10, f"kills all over the run, not {reached}"

    process, _ = born(killed)
    process.join(SECONDS)
    assert process.exitcode == 0
    torch.testing.assert_close(state_of(killed)["model"], state_of(whole)["model"], rtol=0, atol=0, equal_nan=True)
    expected, found = state_of(whole)["optimizer"], state_of(killed)["optimizer"]
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)
    assert metrics_of(killed) == metrics_of(whole)
    assert [record["step"] for record in metrics_of(killed)] == [
        4,
        8,
        12,
        15,
        19,
        23,
        27,
        30,
        34,
        38,
        42,
        45,
        49,
        53,
        57,
        60,
    ]
    accuracies = [json.loads((path / "summary.json").read_text())["linear"] for path in (whole, killed)]
    assert accuracies[0] == accuracies[1]
