"""Where a result comes from."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import TINY

import stec
from stec import provenance
from stec.compiling import forget_earlier_runs
from stec.provenance import in_turn, peak_memory_bytes

CPU = torch.device("cpu")


linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process knows only of one peak")


@linux
def test_the_peak_of_a_run_is_not_that_of_those_before_it():
    before = peak_memory_bytes(CPU)
    torch.ones(before // 4 + 2**28)  # of 4 bytes each
    large = peak_memory_bytes(CPU)
    assert large > before + 2**29
    forget_earlier_runs()
    assert peak_memory_bytes(CPU) < large - 2**29


@linux
def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it():
    program = "import torch, stec.provenance; print(stec.provenance.peak_memory_bytes(torch.device('cpu')))"
    command = [sys.executable, "-c", program]
    alone = int(subprocess.run(command, check=True, capture_output=True).stdout)
    held = torch.ones(alone // 4 + 2**27)  # of 4 bytes each
    again = int(subprocess.run(command, check=True, capture_output=True).stdout)
    assert again < alone + 2**28 < peak_memory_bytes(CPU), len(held)


EDITED_MEANWHILE = """
import os, signal, sys
from pathlib import Path
import stec
from stec.config import load
from stec.reporter import Nobody
from stec.run import RunFolder
from stec.training import pretrain

class Editor(Nobody):
    def progress(self, progress):
        (Path(stec.__file__).parent / "views.py").write_text("# for the next process")
        if sys.argv[1] == "stop":
            os.kill(os.getpid(), signal.SIGTERM)

folder = RunFolder(Path("run"), "default")
pretrain(load("default", sys.argv[2:]), folder, Editor(), resume=folder.checkpoint.is_file())
"""


def test_a_run_tells_the_source_that_trained_it_also_if_it_was_edited_or_the_run_continued(tmp_path):
    package = tmp_path / "src" / "stec"
    shutil.copytree(Path(stec.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))

    def call(*words, check=True):
        environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=check, env=environment)
        return done.stdout.strip()

    call("git", "init", "-q")
    call("git", "add", "-A")
    call("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")
    head = call("git", "rev-parse", "--short=12", "HEAD")
    original = (package / "views.py").read_text()
    call(sys.executable, "-c", EDITED_MEANWHILE, "stop", *TINY, check=False)  # it ends by the signal
    (package / "views.py").write_text(original + "# another version")
    call(sys.executable, "-c", EDITED_MEANWHILE, "go on", *TINY)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["commit"] == f"{head} then {head}+changes"
    assert " then " not in summary["device"] + summary["torch"]


def test_the_commit_is_that_of_a_repository_which_has_the_source_else_a_variable_or_the_version(tmp_path, monkeypatch):
    source, notes = tmp_path / "src" / "provenance.py", tmp_path / "notes"
    source.parent.mkdir()
    monkeypatch.setattr(provenance, "__file__", str(source))
    monkeypatch.delenv("STEC_COMMIT", raising=False)
    commit = provenance.commit.__wrapped__

    def git(*words):
        command = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    for path in (source, notes):
        path.write_text("first")
    assert commit() == f"v{stec.__version__}"
    monkeypatch.setenv("STEC_COMMIT", "abc")
    assert commit() == "abc"
    git("init", "-q")
    git("add", notes)
    git("commit", "-qm", "somebody's project, which the source is installed in")
    assert commit() == "abc"
    git("add", source)
    git("commit", "-qm", "all")
    head = git("rev-parse", "--short=12", "HEAD")
    notes.write_text("second")
    (tmp_path / "src" / "new").write_text("first")
    assert commit() == head, "what else has changed there is no source"
    source.write_text("second")
    assert commit() == f"{head}+changes"


def test_a_process_asks_for_its_commit_once_as_what_it_has_read_is_what_runs(tmp_path, monkeypatch):
    first = provenance.commit()
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    monkeypatch.setenv("STEC_COMMIT", "another")
    assert provenance.commit() == first


def test_what_a_continued_run_comes_from_is_told_once_and_in_order():
    here, there = {"device": "A", "torch": "2.11"}, {"device": "B", "torch": "2.11"}
    assert in_turn([here, here]) == here
    assert in_turn([here, there, there, here]) == {"device": "A then B", "torch": "2.11"}
