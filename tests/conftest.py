"""What several test files share."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import time

import lives
import pytest
import torch
from tiny_runs import Runner

from stec import cli

# Small tensors are faster so, and tests do not depend on the number of cores. The second is for processes they start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """Names that are no UTF-8, which a command told: pytest's processes cannot hand them to each other."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


@pytest.fixture
def train(tmp_path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def stec(monkeypatch, capsys, tmp_path):
    """Runs `stec WORDS` in an empty folder -> exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["stec", *words])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="session")
def nursery():
    """Processes that it starts are forks of one that has loaded everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lives"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # what it loads, it looks for there
        multiprocessing.forkserver.ensure_running()
    return context


class Command:
    """`stec WORDS` in a process of its own."""

    def __init__(self, context, words, folder, told) -> None:
        self.told = told
        self.process = context.Process(target=lives.command, args=(words, folder, told))
        self.process.start()

    def reach(self, metrics, lines):
        """Waits for that many lines of metrics."""
        while not (metrics.exists() and metrics.read_text().count("\n") >= lines):
            assert self.process.is_alive(), self.told.read_text()
            time.sleep(0.002)

    def end(self):
        """Waits for it -> exit code, and what it said."""
        self.process.join(120)
        return self.process.exitcode, self.told.read_text()


@pytest.fixture
def begin(nursery, tmp_path):
    """Begins `stec WORDS` in an empty folder, beside the tests."""
    begun = []

    def start(*words):
        begun.append(Command(nursery, words, tmp_path, tmp_path / f".told-{len(begun)}"))
        return begun[-1]

    yield start
    for command in begun:
        command.process.kill()
        command.process.join()


@pytest.fixture
def disk(tmp_path):
    """A disk of a few megabytes, which takes the rights of root."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", path], capture_output=True).returncode:
        pytest.skip("may not mount a small disk here, which takes the rights of root")
    yield path
    subprocess.run(["umount", "-l", path], check=True)
