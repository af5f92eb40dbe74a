"""A run that is killed again and again ends as if it never had been."""

import json
import random
import signal
import socket
import time

import lives
import pytest
import torch

SECONDS = 120  # longer than any life, on a machine that does other things
# Inside of a checkpoint's writing (pieces, syncs, moves), inside of a line of metrics, and between all that.
DOOMS = [
    ("replace", 2), ("piece", 3), ("line", 1), ("sync", 5), ("link", 2),
    ("piece", 400), ("step", 3), ("line", 2), ("sync", 9), ("replace", 5),
]  # fmt: skip
TIMED = 10  # further lives that end after a random time


@pytest.fixture
def born(nursery):
    """Starts a life: -> the process, and when training begins."""

    def start(path, *words):
        began = nursery.Event()
        process = nursery.Process(target=lives.live, args=(path, began, *words))
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


def test_two_processes_stop_together_and_go_on_where_they_were(born, tmp_path):
    """One of them gets the signal, in the middle of an epoch."""
    words = ("method=stec", "epochs=15", "log_every=1", "checkpoint_every=100", "checkpoint_minutes=10")
    words += ("device=cpu", "devices=2")

    def begin(path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        shared |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
        return [born(path, None, words, shared | {"RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")]

    def ends(born):
        for process, _ in born:
            process.join(SECONDS)
        return [process.exitcode for process, _ in born]

    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    both, lines = begin(stopped), stopped / "metrics.jsonl"
    while not (lines.exists() and lines.read_text().count("\n") > 3) and all(process.is_alive() for process, _ in both):
        time.sleep(0.01)
    both[1][0].terminate()
    assert ends(both) == [75, 75]
    state = state_of(stopped)
    assert 3 < state["step"] == metrics_of(stopped)[-1]["step"] < 45
    assert ends(begin(stopped)) == [0, 0]
    assert ends(begin(whole)) == [0, 0]
    torch.testing.assert_close(state_of(stopped)["model"], state_of(whole)["model"], rtol=0, atol=0)
    assert metrics_of(stopped) == metrics_of(whole)
