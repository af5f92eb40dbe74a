"""Many runs at a time: a Ray cluster and a pool of processes, also when some of them are killed."""

import os
import signal
import sys
import threading
import time

import pytest
import torch
from tiny_runs import Silent

from stec.errors import UserError
from stec.experiments import cluster
from stec.experiments.book import Book
from stec.experiments.cluster import Cluster, do, unpack
from stec.experiments.engine import ATTEMPTS, Local, _Worker, create_engine
from stec.experiments.experiment import load_experiment
from stec.experiments.jobs import make_job, missing

GRID = """
about: two methods, six seeds
overrides: >-
  epochs=1 batch_size=32 optimizer.warmup_epochs=0 data.train_images=64 data.test_images=20 data.size=8 views.size=8
  baselines=false identity.hidden=16 manipulation.hidden=16
seeds: 6
metrics: [linear]
cells:
  - {row: simclr, recipe: default, overrides: method=simclr}
  - {row: stec, recipe: default}
"""


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "grid.yaml").write_text(GRID)
    return load_experiment(str(tmp_path / "grid.yaml"))


def jobs_of(grid, path, number):
    return [make_job(cell, seed, [], {}, path / "runs") for cell, seed in missing(grid, Book(path / "none"), 6)][
        :number
    ]


@pytest.fixture
def ray_cluster(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster as TestCluster

    soon = {"health_check_period_ms": 200, "health_check_failure_threshold": 3, "health_check_initial_delay_ms": 0}
    found = TestCluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": soon})
    try:
        found.workers = [found.add_node(num_cpus=1) for _ in range(2)]
        monkeypatch.setenv("RAY_ADDRESS", found.address)
        yield found
    finally:
        found.shutdown()


@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_worker_makes_every_run_once(stec, grid, tmp_path, ray_cluster):
    # Long enough for both workers to get some, even if one takes many seconds to start on a busy machine.
    (tmp_path / "grid.yaml").write_text(GRID.replace("epochs=1 ", "epochs=60 "))
    grid = load_experiment(str(tmp_path / "grid.yaml"))
    killed_at = []

    def kill_one():
        deadline = time.monotonic() + 200
        while not killed_at and time.monotonic() < deadline:
            runs = list((tmp_path / "runs").glob("default-*"))
            finished = {run for run in runs if (run / "summary.json").exists()}
            begun = {run for run in runs if (run / "config.yaml").exists()} - finished
            if len(finished) >= 2 and len(begun) == 2:  # both workers are at work
                ray_cluster.remove_node(ray_cluster.workers[0], allow_graceful=False)
                killed_at.append(len(finished))
            time.sleep(0.01)

    killer = threading.Thread(target=kill_one)
    killer.start()
    code, out, err = stec("experiment", "grid.yaml", "--engine", "ray", "--book", "book.jsonl")
    killer.join()
    assert code == 0, err
    assert "12 runs on a Ray cluster of 3 node(s), 2 CPU(s), 0 GPU(s)" in out
    assert killed_at
    assert killed_at[0] < 11, "it was killed in the middle"
    lines = (tmp_path / "book.jsonl").read_text().splitlines()
    book = Book(tmp_path / "book.jsonl")
    assert len(lines) == len(book.runs) == 12
    assert missing(grid, book, 6) == []
    assert all(f"{number} of 12: " in out for number in range(1, 13))
    assert "failed: " not in out
    assert not list((tmp_path / "runs").glob(".shared-*"))

    code, out, err = stec("experiment", "grid.yaml", "--engine", "ray", "--book", "book.jsonl")
    assert code == 0, err
    assert (tmp_path / "book.jsonl").read_text().splitlines() == lines, "nothing is repeated"


def test_without_a_shared_disk_the_run_folder_is_brought_back(grid, tmp_path, monkeypatch):
    (job,) = jobs_of(grid, tmp_path.relative_to(tmp_path), 1)
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "there")
    error, packed = do(job, tmp_path / "nowhere", ".shared-mark")
    assert error is None
    (tmp_path / "here" / "runs").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    unpack(packed, job.path)
    copies = [
        {file.name: file.read_bytes() for file in (tmp_path / name / job.path).iterdir()} for name in ("there", "here")
    ]
    assert copies[0] == copies[1]
    assert "summary.json" in copies[1]

    (tmp_path / "here" / "runs" / ".shared-mark").touch()
    assert do(job, tmp_path / "here", ".shared-mark") == (None, None), "it lies where it should"


def kill_first_attempts(job, reporter):
    """In place of `attempt`: dies where the job says so, as often as it says."""
    mark, _, times = job.partition(":")
    attempts = len(os.listdir(mark))
    open(f"{mark}/{attempts}", "w").close()
    if attempts < int(times):
        if attempts % 2:
            raise MemoryError("somebody else's")
        os.kill(os.getpid(), signal.SIGKILL)
    return f"done by {os.getpid()}"


@pytest.mark.slow
def test_a_killed_process_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("stec.experiments.engine.attempt", kill_first_attempts)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), *sys.path]))
    worker = _Worker(None, 1)
    outcomes = {}
    for times in (ATTEMPTS - 1, ATTEMPTS, 0):
        (tmp_path / str(times)).mkdir()
        outcomes[times] = worker.do(f"{tmp_path / str(times)}:{times}")
        assert len(os.listdir(tmp_path / str(times))) == min(times + 1, ATTEMPTS)
    worker.pool.shutdown()
    assert outcomes[ATTEMPTS - 1].startswith("done by")
    lost = "its process was killed (given up after 3 attempts; the same command tries again)"
    assert outcomes[ATTEMPTS].error == lost
    assert outcomes[0].startswith("done by"), "the next job is not harmed"


def test_without_a_gpu_every_process_takes_its_share_of_the_cores(monkeypatch):
    """Two with all cores each took twice as long."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    threads = []
    for count in (1, 2):
        worker = _Worker(None, count)
        threads.append(worker.pool.submit(torch.get_num_threads).result())
        worker.pool.shutdown()
    assert threads[1] == max(1, threads[0] // 2)


def test_every_process_sees_one_gpu(monkeypatch):
    seen = []

    class Watched:
        pool = type("Pool", (), {"shutdown": lambda self: None})()

        def __init__(self, gpu, count):
            seen.append(gpu)

        def do(self, job):
            return job

    monkeypatch.setattr("stec.experiments.engine._Worker", Watched)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    assert sorted(Local().run(range(9), Silent())) == list(range(9))
    assert sorted(Local(5).run(range(9), Silent())) == list(range(9))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    list(Local(2).run(range(9), Silent()))
    assert seen == ["2", "5", "7", "2", "5", "7", "2", "5", None, None]


def test_it_is_told_how_far_runs_are_that_other_processes_make(tmp_path, grid, monkeypatch):
    enough = threading.Event()

    class Slow(_Worker):
        pool = type("Pool", (), {"shutdown": lambda self: None})()

        def __init__(self, gpu, count):
            pass

        def do(self, job):
            job.path.mkdir(parents=True)
            (job.path / "metrics.jsonl").write_text('{"step": 9, "epoch": 1.75}\n{"step": 10, "epo')
            assert enough.wait(60)
            return job

    class Watching(Silent):
        def note(self, text):
            told.append(text)
            if "epoch" in text:
                enough.set()

    told = []
    monkeypatch.setattr("stec.experiments.engine._Worker", Slow)
    monkeypatch.setattr("stec.experiments.engine.TELL", 0.2)
    jobs = jobs_of(grid, tmp_path, 2)
    assert sorted(job.path for job in Local(1).run(jobs, Watching())) == sorted(job.path for job in jobs)
    assert told[:2] == [
        "2 runs on 1 process(es)",
        f"{jobs[0].path.name}: epoch 1 of {jobs[0].config.epochs}",
    ], "and nothing of what has not begun"


def test_what_is_asked_of_engines(monkeypatch):
    assert isinstance(create_engine("ray"), Cluster)
    assert create_engine(None, 3).processes == create_engine("local", 3).processes == 3
    with pytest.raises(UserError, match="--jobs: Ray does as many"):
        create_engine("ray", 2)
    assert list(Cluster().run([], Silent())) == []
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'stec\[ray\]'"):
        cluster._connect()


def test_a_cluster_that_is_not_there(monkeypatch):
    import ray

    def init(**_):
        raise ConnectionError("Could not find any\nrunning Ray instance")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError, match=r"no Ray cluster can be reached \(ConnectionError: Could not find any running"):
        cluster._connect()
