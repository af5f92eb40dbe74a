"""A run in two processes is the run in one, and goes on in another number of processes than it began in."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny_runs import TINY, fitting
from train_elsewhere import finish, train_and_keep

from stec import processes as processes_module
from stec.processes import known_shares, launched, mean, own_rows, processes_here, rows_of_all, rows_to_draw
from stec.run import RunFolder
from stec.views import Views

# Steps so small that rounding stays rounding; batches that do not divide by two; all that is random.
WORDS = [*TINY, "device=cpu", "batch_size=31", "optimizer.rate=0.02", "method=stec-moco", "identity.queue=100"]
WORDS += ["views.solarize=0.2", "views.blur=0.5", "views.small=1", "views.small_size=12", "lambda_turn=0.5"]
ELSEWHERE = ("two", "parts", "one-two", "one-parts", "two-one", "two-parts", "parts-one", "parts-two")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "300"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of 12 steps in one process, in two, and in two with parts of the weights; each finished by the others."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("runs")
    found = {"one": train_and_keep(RunFolder.new(path / "one", "default"), WORDS, "one-two", "one-parts")}
    script = str(Path(__file__).with_name("train_elsewhere.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, str(path), *WORDS]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found["two-one"], found["parts-one"] = finish(path / "two-one", "ddp"), finish(path / "parts-one", "fsdp")
    return found | {name: RunFolder.open(path / name) for name in ELSEWHERE if name not in found}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_it_is_the_same_run_in_any_number_of_processes(name, runs):
    wanted, measured = runs["one"].metrics(), runs[name].metrics()
    assert [record["step"] for record in measured] == [2, 4, 6, 8, 10, 12]
    for ours, theirs in zip(measured, wanted, strict=True):
        for key in ("loss", "identity", "manipulation", "turn", "probe_loss", "alignment", "effective_rank"):
            assert ours[key] == pytest.approx(theirs[key], rel=2e-4), (ours["step"], key)
    state, expected = (torch.load(run.checkpoint) for run in (runs[name], runs["one"]))
    for key, value in expected["model"].items():
        torch.testing.assert_close(state["model"][key], value, rtol=1e-3, atol=1e-3, msg=key)
    for number, of in expected["optimizer"]["state"].items():
        momentum = state["optimizer"]["state"][number]["momentum_buffer"]
        largest = float(of["momentum_buffer"].abs().max())
        torch.testing.assert_close(momentum, of["momentum_buffer"], rtol=0, atol=1e-2 * largest, msg=str(number))
        if not name.endswith("parts"):  # laid out as the weights are, without which steps are slow or refused
            assert momentum.stride() == of["momentum_buffer"].stride()
    encoder = load_file(runs["one"].path / "encoder.safetensors")
    assert load_file(runs[name].path / "encoder.safetensors").keys() == encoder.keys()


def test_the_summary_says_how_many_processes(runs):
    for name, run in runs.items():
        assert run.summary()["processes"] == (1 if name.endswith("one") else 2), name


@pytest.mark.parametrize("turns", [4, 2, 1])
def test_views_of_an_image_do_not_depend_on_the_processes(turns):
    images = torch.randint(0, 256, (7, 3, 20, 20), dtype=torch.uint8)
    settings = {"size": 8, "small": 2, "small_size": 4, "turn": True, "turns": turns}
    whole, shares, start = Views(**settings), (3, 2, 2), 0
    torch.manual_seed(5)
    wanted = whole(images)
    places = [i for quarters in range(4) for i in range(7) if (i - quarters) % (4 // turns) == 0]
    for rank, rows in enumerate(shares):
        views = Views(**settings)
        views.draw_for_all(shares, rank)
        torch.manual_seed(5)
        own = slice(start, start + rows)
        batch = views(images[own])
        assert torch.equal(batch.first, wanted.first[own])
        assert torch.equal(batch.second, wanted.second[own])
        assert torch.equal(batch.copy.second.crop, wanted.copy.second.crop[own])
        theirs = [row for row, place in enumerate(places) if start <= place < start + rows]
        assert torch.equal(batch.turned.images, wanted.turned.images[theirs])
        assert torch.equal(batch.turned.turns, wanted.turned.turns[theirs])
        assert torch.equal(batch.small.images.unflatten(0, (2, -1)), wanted.small.images.unflatten(0, (2, -1))[:, own])
        start += rows


def test_rows_of_all_processes_follow_from_the_shares_that_are_known(monkeypatch):
    monkeypatch.setattr(processes_module, "processes", lambda: (1, 3))
    with known_shares((3, 2, 2)):
        assert rows_of_all(2) == [3, 2, 2]
        assert rows_to_draw(2) == (7, slice(3, 5))
        with known_shares((5, 5, 4)):
            assert rows_of_all(10) == [10, 10, 8], "two views of each image"
            assert own_rows(10) == slice(10, 20)
        assert rows_of_all(2) == [3, 2, 2]


@pytest.mark.parametrize("world", [1, 2])
def test_a_mean_over_rows_of_which_none_counts_is_zero(monkeypatch, world):
    values, mask = torch.tensor([[3.0, 4.0], [5.0, 8.0]]), torch.tensor([[True, False], [True, False]])
    monkeypatch.setattr(processes_module, "processes", lambda: (0, world))
    monkeypatch.setattr(processes_module, "total", lambda sums: world * sums)  # all have the same rows
    assert mean(values, mask).tolist() == [4, 0]
    assert mean(values).tolist() == [4, 6]


def test_who_has_started_the_processes(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_NAME"):
        monkeypatch.delenv(name, raising=False)
    assert launched() is None
    monkeypatch.setattr(processes_module, "processes", lambda: (1, 3))  # that devices=3 has started
    assert processes_here() == 3
    monkeypatch.setenv("SLURM_NTASKS", "1")  # a job script that starts the command without srun
    assert launched() is None
    monkeypatch.setenv("SLURM_NTASKS", "16")
    monkeypatch.setenv("SLURM_NNODES", "2")
    assert launched() == (8, 2)
    assert processes_here() == 8
    for shell in ("bash", "interactive"):  # a session of `srun --pty bash`, or of salloc: the command starts once
        monkeypatch.setenv("SLURM_JOB_NAME", shell)
        assert launched() is None
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "12"}.items():
        monkeypatch.setenv(name, value)
    assert launched() == (4, 3)


@pytest.mark.slow
def test_slurm_and_torchrun_on_two_machines_make_the_same_run(tmp_path):
    """Both on this machine alone: as srun would start two processes, and as two machines would start one each."""
    train = ["-m", "stec", "pretrain", *TINY, "device=cpu"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    agent = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "5"]
    job = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "1", "SLURM_NODELIST": "localhost"}
    job |= {"SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "4711", "SLURM_NODEID": "0"}
    mains = []
    for rank in ("0", "1"):
        started = {"torchrun": (agent, {}), "slurm": ([], job | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank})}
        for name, (words, variables) in started.items():
            command = [sys.executable, *words, *train, "--out", str(tmp_path / name)]
            mains.append(subprocess.Popen(command, env=ENVIRONMENT | variables, stderr=subprocess.PIPE, text=True))
    told = [main.communicate(timeout=240)[1] for main in mains]
    assert [main.returncode for main in mains] == [0] * 4, told
    runs = [RunFolder.open(tmp_path / name) for name in ("torchrun", "slurm")]
    assert [run.summary()["processes"] for run in runs] == [2, 2]
    one, other = (torch.load(run.checkpoint, weights_only=True)["model"] for run in runs)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_an_error_in_one_process_ends_all_with_one_message(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(32):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(root / f"{number}.png")
    damaged = root / "20.png"  # one of them, which one of the processes will read
    damaged.write_bytes(damaged.read_bytes()[:100])
    words = ["data.source=folder", f"data.root={root}", "data.resident=never", "data.workers=0", "batch_size=16"]
    command = [sys.executable, "-m", "stec", "pretrain", *fitting(*TINY, *words), "device=cpu", "devices=2"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2
    assert done.stderr.count("stec:") == 1
    assert "more than 1 % of 32 images cannot be read" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.slow
def test_two_processes_hold_their_run_and_if_one_is_killed_both_end(tmp_path):
    words = [*TINY, "epochs=1000", "log_every=1", "device=cpu", "devices=2", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "stec", "pretrain", *words]
    main = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics, until = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 240
    while not metrics.exists() and time.monotonic() < until:
        time.sleep(0.1)
    second = [*command[:4], "--resume", str(tmp_path / "run"), "device=cpu", "devices=2"]
    refused = subprocess.run(second, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert refused.stderr.count("stec:") == 1, "the first of two processes asks for the folder"
    assert "another process is at work on this run" in refused.stderr
    children = Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()
    main.send_signal(signal.SIGSTOP)  # so that what watches over the processes and the one that waits notice at once
    os.kill(int(children[0]), signal.SIGKILL)
    time.sleep(6)
    main.send_signal(signal.SIGCONT)
    _, told = main.communicate(timeout=120)
    assert main.returncode == 2
    assert told.count("stec:") == 1
    assert "a process of this run has been lost" in told
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes as Linux shows them")
def test_a_process_whose_starter_is_killed_before_they_meet_ends(tmp_path):
    command = [sys.executable, "-m", "stec", "pretrain", "devices=2", "device=cpu", "encoder=resnet-small"]
    starter = subprocess.Popen([*command, "--out", str(tmp_path / "run")], start_new_session=True)
    children, until = Path(f"/proc/{starter.pid}/task/{starter.pid}/children"), time.monotonic() + 60
    while not (started := children.read_text().split()):
        assert time.monotonic() < until
        time.sleep(0.05)
    starter.kill()
    starter.wait()
    while any(Path(f"/proc/{number}").exists() for number in started):
        assert time.monotonic() < until, "it waits for one that does not come"
        time.sleep(0.1)


@pytest.mark.slow
def test_torchrun_begins_again_where_a_killed_process_left_off(runs, tmp_path):
    """It starts both processes anew, and they end as those that nobody has killed."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [*launcher, "--standalone", "-m", "stec", "pretrain", *WORDS, "checkpoint_minutes=0"]
    command += ["--out", str(tmp_path / "run"), "--resume", "auto"]
    main = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    kept, until = tmp_path / "run" / "checkpoint-previous.pt", time.monotonic() + 240
    while not kept.exists() and time.monotonic() < until:
        time.sleep(0.02)
    children = Path(f"/proc/{main.pid}/task/{main.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, told = main.communicate(timeout=240)
    assert main.returncode == 0, told
    assert "failed (exitcode" in told, "torchrun has noticed nothing"
    assert "Traceback" not in told
    run, whole = RunFolder.open(tmp_path / "run"), runs["two"]
    assert [record["step"] for record in run.metrics()] == [record["step"] for record in whole.metrics()]
    found, wanted = (torch.load(folder.checkpoint, weights_only=True)["model"] for folder in (run, whole))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
