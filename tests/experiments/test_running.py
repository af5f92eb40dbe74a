"""`stec experiment` does what is missing, once, and continues what was interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_runs import TINY, Silent

import stec
from stec.engine import Loop
from stec.errors import UserError
from stec.experiments.book import Book
from stec.experiments.engine import Here, Local, create_engine
from stec.experiments.experiment import load_experiment
from stec.experiments.jobs import Place, choose, make_job, missing, parse_place, parse_places, to_run
from stec.locking import locked

WORDS = " ".join(word for word in TINY if not word.startswith(("epochs", "checkpoint_every")))
GRID = f"""
about: two methods, two seeds
overrides: {WORDS} epochs=6 checkpoint_every=1
seeds: 2
metrics: [linear, knn]
compare: [[stec, simclr]]
cells:
  - {{row: simclr, recipe: default, overrides: method=simclr}}
  - {{row: stec, recipe: default}}
"""


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "grid.yaml").write_text(GRID)
    return load_experiment(str(tmp_path / "grid.yaml"))


def jobs_of(grid, book, path, seeds=2):
    return [make_job(cell, seed, [], {}, path / "runs") for cell, seed in missing(grid, book, seeds)]


def finish(engine, jobs, book):
    for outcome in engine.run(jobs, Silent()):
        assert outcome.error is None
        book.add(to_run(outcome.job, book))


def command(path):
    words = [sys.executable, "-m", "stec", "experiment", "grid.yaml", "--book", "book.jsonl"]
    return {"args": words, "cwd": path, "env": os.environ | {"OMP_NUM_THREADS": "1"}}


@pytest.mark.slow
def test_killed_in_the_middle_it_continues_and_repeats_nothing(tmp_path, grid):
    first, second = (job.path for job in jobs_of(grid, Book(tmp_path / "book.jsonl"), tmp_path)[:2])
    process = subprocess.Popen(**command(tmp_path), stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (second / "checkpoint.pt").exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (second / "summary.json").exists(), "it was killed in the middle of the second run"
    book = Book(tmp_path / "book.jsonl")
    assert [run.settings["method"] for run in book.runs.values()] == ["simclr"]
    before = {file.name: file.stat().st_mtime_ns for file in first.iterdir()}

    again = subprocess.run(**command(tmp_path), capture_output=True, text=True, check=True)
    assert "resumed at epoch" in again.stdout
    assert again.stdout.count("epochs of shapes, seed") == 3, "three runs were left"
    assert {file.name: file.stat().st_mtime_ns for file in first.iterdir()} == before
    book = Book(tmp_path / "book.jsonl")
    assert len((tmp_path / "book.jsonl").read_text().splitlines()) == len(book.runs) == 4
    steps = [json.loads(line)["step"] for line in (second / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))
    assert steps[-1] == 18

    # The interrupted run ends where an uninterrupted one does.
    whole = Book(tmp_path / "whole.jsonl")
    finish(Here(), jobs_of(choose(grid, ["stec"]), whole, tmp_path / "whole", seeds=1), whole)
    (key,) = whole.runs
    for metric in ("linear", "knn", "linear_online", "identity", "manipulation"):
        assert book.runs[key].metric(metric) == whole.runs[key].metric(metric), metric

    assert missing(grid, book, 2) == []


@pytest.mark.slow
def test_several_processes_make_the_same_runs(tmp_path, grid, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process: other sums of the same numbers round differently
    books = [Book(tmp_path / name / "book.jsonl") for name in ("pool", "here")]
    for engine, book in zip((Local(processes=2), Here()), books, strict=True):
        finish(engine, jobs_of(grid, book, book.path.parent, seeds=1), book)
    pool, here = ({key: run.metric("linear") for key, run in book.runs.items()} for book in books)
    assert pool == here
    assert len(pool) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("several", "number", "code"),
    [
        ("--jobs 2", signal.SIGTERM, os.EX_TEMPFAIL),
        ("--jobs 2", signal.SIGKILL, -signal.SIGKILL),
        ("--engine ray", signal.SIGTERM, os.EX_TEMPFAIL),
    ],
)
def test_several_processes_stop_with_the_one_that_started_them(tmp_path, several, number, code):
    (tmp_path / "grid.yaml").write_text(GRID.replace("epochs=6", "epochs=100000").replace("_every=1", "_every=100000"))
    grid = load_experiment(str(tmp_path / "grid.yaml"))
    jobs = jobs_of(grid, Book(tmp_path / "book.jsonl"), tmp_path)[:2]
    words = command(tmp_path)
    words["args"] = [*words["args"], *several.split()]
    process = subprocess.Popen(**words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not all((job.path / "metrics.jsonl").exists() for job in jobs):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=30) == code
    while True:
        try:
            for job in jobs:
                with locked(job.path.with_name(f".{job.path.name}.lock"), wait=False):
                    assert (job.path / "checkpoint.pt").is_file(), "it has saved, also if only its parent was killed"
                    assert not (job.path / "summary.json").exists()
            break
        except UserError:
            assert time.monotonic() < deadline, "somebody is still at work"
            time.sleep(0.1)
    assert "Traceback" not in process.stderr.read()


def test_a_run_that_ended_before_it_was_written_down_is_only_written_down(tmp_path, grid):
    book = Book(tmp_path / "book.jsonl")
    (job, *_) = jobs_of(grid, book, tmp_path)
    (outcome,) = Here().run([job], Silent())
    assert outcome.error is None
    before = (job.path / "summary.json").stat().st_mtime_ns
    finish(Here(), [job], book)
    assert (job.path / "summary.json").stat().st_mtime_ns == before
    assert len(book.runs) == 1


def test_a_run_of_which_only_the_checkpoint_before_the_last_is_left_goes_on(tmp_path, grid, monkeypatch):
    """As where a disk has no hard links and the process is killed between two names."""
    (job, *_) = jobs_of(grid, Book(tmp_path / "book.jsonl"), tmp_path)
    monkeypatch.setattr(Loop, "finish", lambda *_: (_ for _ in ()).throw(UserError("killed")))
    (outcome,) = Here().run([job], Silent())
    assert outcome.error == "killed"
    monkeypatch.undo()
    (job.path / "checkpoint.pt").replace(job.path / "checkpoint-previous.pt")
    reporter = Silent()
    (outcome,) = Here().run([job], reporter)
    assert outcome.error is None
    assert "resumed at epoch 6 of 6, step 18 of 18" in reporter.notes


def test_a_run_that_another_process_makes_is_left_to_it(tmp_path, grid):
    (job, *_) = jobs_of(grid, Book(tmp_path / "book.jsonl"), tmp_path)
    job.path.parent.mkdir()
    with locked(job.path.with_name(f".{job.path.name}.lock")):
        (outcome,) = Here().run([job], Silent())
    assert "another process" in outcome.error
    assert not job.path.exists()


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, grid):
    (job, *_) = jobs_of(grid, Book(tmp_path / "book.jsonl"), tmp_path)
    job.path.mkdir(parents=True)
    (job.path / "thesis.txt").write_text("years of work")
    (outcome,) = Here().run([job], Silent())
    assert "not a run folder" in outcome.error
    assert (job.path / "thesis.txt").exists()


def test_runs_of_a_recipe_of_ones_own_lie_where_all_do(tmp_path):
    recipe = tmp_path / "recipes" / "own.yaml"
    recipe.parent.mkdir()
    recipe.write_text("base: default\n")
    (tmp_path / "grid.yaml").write_text(f"cells: [{{row: a, recipe: {recipe}}}, {{row: b, recipe: audio/cpc}}]")
    own, sound = load_experiment(str(tmp_path / "grid.yaml")).cells
    runs = tmp_path / "runs"
    assert make_job(own, 0, [], {}, runs).path == runs / f"own.yaml-{own.hash}-seed0"
    assert make_job(sound, 0, [], {}, runs).path == runs / f"audio/cpc-{sound.hash}-seed0"


def test_every_cell_comes_once_before_any_comes_twice(grid, tmp_path):
    todo = missing(grid, Book(tmp_path / "none.jsonl"), 2)
    assert [(cell.row, seed) for cell, seed in todo] == [("simclr", 0), ("stec", 0), ("simclr", 1), ("stec", 1)]


def test_cells_that_two_groups_share_are_run_once(tmp_path):
    sweep = load_experiment("figure3b")
    hashes = [cell.hash for cell, _ in missing(sweep, Book(tmp_path / "none.jsonl"), 1)]
    assert len(hashes) == len(set(hashes)) == len(sweep.cells) - 1, "lambda = 1 is K = 6"


def test_words_may_say_where_and_how_but_not_what(grid, tmp_path):
    cell = grid.cells[0]
    job = make_job(cell, 3, ["log_every=7", "device=cpu"], {}, tmp_path)
    assert (job.config.log_every, job.config.seed, job.hash) == (7, 3, cell.hash)
    with pytest.raises(UserError, match=r"epochs=3: would change the results"):
        make_job(cell, 0, ["epochs=3"], {}, tmp_path)
    for word, reason in (("devices=2", "one device"), ("data.source=arrays", "--data NAME"), ("seed=3", "--seeds N")):
        with pytest.raises(UserError, match=reason):
            make_job(cell, 0, [word], {}, tmp_path)


def test_images_are_found_by_their_name(tmp_path):
    cells = {cell.data: cell for cell in load_experiment("table1").cells}
    places = parse_places(["imagenette=folder:/x/y:z", "cifar10=arrays:c10"])
    assert places["imagenette"] == Place("folder", "/x/y:z")
    job = make_job(cells["cifar10"], 0, [], places, tmp_path)
    assert (job.config.data.source, job.config.data.root, job.data) == ("arrays", "c10", "cifar10")
    assert make_job(cells["cifar100"], 0, [], places, tmp_path).config.data.source == "cifar100"
    with pytest.raises(UserError, match="say where imagenette lies: --data imagenette=folder:PATH"):
        make_job(cells["imagenette"], 0, [], {}, tmp_path)


def test_images_that_a_recipe_does_not_have_are_named_before_it_is_trained(tmp_path):
    (tmp_path / "grid.yaml").write_text("cells: [{row: a, recipe: default, data: cifar10}]")
    (cell,) = load_experiment(str(tmp_path / "grid.yaml")).cells
    with pytest.raises(UserError, match="default is trained on shapes, not on cifar10; --data cifar10=arrays:PATH"):
        make_job(cell, 0, [], {}, tmp_path)
    assert make_job(cell, 0, [], parse_places(["cifar10=arrays:x"]), tmp_path).config.data.source == "arrays"


@pytest.mark.parametrize("text", ["cifar10", "cifar10=arrays", "cifar10=arras:x", "cifar10=stl10:x", "=arrays:x"])
def test_places_are_checked(text):
    with pytest.raises(UserError, match="--data"):
        parse_place(text)


def test_images_lie_in_one_place():
    assert len(parse_places(["cifar10=arrays:x", "cifar10=arrays:x"])) == 1
    with pytest.raises(UserError, match="--data cifar10= is given twice: in x and in y; choose one"):
        parse_places(["cifar10=arrays:x", "cifar10=arrays:y"])


def test_only_some_cells():
    table = load_experiment("table1")
    chosen = choose(table, ["cifar10-resnet18", "SimCLR"])
    assert [(cell.column, cell.row) for cell in chosen.cells] == [("CIFAR-10, ResNet-18", "SimCLR")]
    whole = choose(table, ["cifar10-resnet18-stec"])
    assert [cell.row for cell in whole.cells] == ["S-TEC"], "a whole name goes before a part of one"
    assert {cell.data for cell in choose(table, ["cifar10"]).cells} == {"cifar10"}
    assert {cell.row for cell in choose(table, ["stec"]).cells} == {"S-TEC", "S-TEC*"}
    with pytest.raises(UserError, match="no such row, recipe or data in table1"):
        choose(table, ["cifar11"])
    with pytest.raises(UserError, match="--only BYOL --only SimCLR: no row, recipe or data that fits every"):
        choose(table, ["BYOL", "SimCLR"])


def test_a_run_written_down_does_not_mark_the_next_as_changed(tmp_path):
    """The book may lie in the repository of the source; only the source itself counts."""
    package = tmp_path / "src" / "stec"
    shutil.copytree(Path(stec.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    book = tmp_path / "results" / "runs.jsonl"
    book.parent.mkdir()
    book.write_text("")

    def call(*words):
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    def commit():
        return call(sys.executable, "-c", "from stec import provenance; print(provenance.commit())")

    call("git", "init", "-q")
    call("git", "add", "-A")
    call("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")
    head = call("git", "rev-parse", "--short=12", "HEAD")
    book.write_text("a line")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "src"))
        assert commit() == head
        (package / "views.py").write_text("# edited")
        assert commit() == f"{head}+changes"


def test_engines_have_names():
    assert isinstance(create_engine(None), Here)
    assert isinstance(create_engine("local"), Local)
    assert list(Local().run([], Silent())) == [], "nothing to do is no mistake"
    with pytest.raises(UserError, match="did you mean 'local'"):
        create_engine("locla")
