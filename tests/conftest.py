"""What several test files share."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from tiny_runs import Runner

from stec import cli

# Small tensors are faster so, and tests do not depend on the number of cores. The second is for processes they start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


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
