"""The book of finished runs."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from synthetic import made_up
from tiny_runs import TINY

from stec.config import load
from stec.errors import UserError
from stec.experiments import settings
from stec.experiments.book import CURVES, POINTS, Book, read_run, thin
from stec.experiments.experiment import load_experiment
from stec.experiments.settings import hash_of, settings_of

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path / "results" / "runs.jsonl")


@pytest.fixture(scope="module")
def cells():
    return load_experiment("shapes-stec").cells


def test_a_run_folder_becomes_a_line_with_all_that_is_known(train, book):
    folder, summary = train("one", "seed=3", "manipulation.k=4")
    assert book.add(read_run(folder.path, book)) is True
    (line,) = (json.loads(line) for line in book.path.read_text().splitlines())
    assert line["summary"] == summary
    assert {"commit", "data_fingerprint", "device", "torch", "linear", "linear_online", "knn"} <= line["summary"].keys()
    assert (line["seed"], line["data"], line["recipe"]) == (3, "shapes", "default")
    assert line["hash"] == hash_of(settings_of(load("default", [*TINY, "manipulation.k=4"]), "shapes"))
    assert "manipulation.k=4" in line["overrides"]
    assert load("default", line["overrides"]).manipulation.k == 4
    assert not any(word.startswith(("log_every", "baselines", "checkpoint")) for word in line["overrides"])
    assert line["curve"]["epoch"][-1] == 4
    assert line["curve"]["identity"][-1] == pytest.approx(summary["final_metrics"]["identity"], rel=1e-3)
    (run,) = Book(book.path).runs.values()
    assert run.metric("linear") == summary["linear"]
    assert run.metric("effective_rank") == summary["final_metrics"]["effective_rank"]
    assert run.metric("nothing") is None


def test_the_same_run_again_changes_nothing_and_another_needs_a_word(book, cells):
    assert book.add(made_up(cells[0], 0, linear=90.0))
    text = book.path.read_text()
    assert not book.add(made_up(cells[0], 0, linear=90.0))
    with pytest.raises(UserError, match="--replace"):
        book.add(made_up(cells[0], 0, linear=95.0))
    assert book.path.read_text() == text
    assert book.add(made_up(cells[0], 0, linear=95.0), replace=True)
    assert [run.metric("linear") for run in Book(book.path).runs.values()] == [95.0]


def test_writers_do_not_undo_each_other(book, cells):
    others = [Book(book.path) for _ in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: pair[1].add(made_up(cells[0], pair[0])), enumerate(others)))
    assert sorted(run.seed for run in Book(book.path).runs.values()) == list(range(20))
    assert [path.name for path in book.path.parent.iterdir()] == ["runs.jsonl"]


def test_two_runs_of_the_same_settings_and_seed_are_named(book, cells):
    """As a merge of two books by their lines leaves them: neither may go unseen."""
    book.add(made_up(cells[0], 0, linear=90.0))
    book.add(made_up(cells[1], 0))
    same = book.path.read_text().splitlines()[0]
    with book.path.open("a") as file:
        file.write(same + "\n")
    assert len(Book(book.path).runs) == 2, "the same run twice is one"
    with book.path.open("a") as file:
        file.write(same.replace("90.0", "95.0") + "\n")
    with pytest.raises(UserError, match=r"runs.jsonl, lines 1 and 4: two runs of default seed 0"):
        Book(book.path)


@pytest.mark.parametrize("line", ["{", "[]", '{"seed": 1}', "<<<<<<< HEAD"])
def test_a_damaged_line_is_named(book, cells, line):
    book.add(made_up(cells[0], 0))
    with book.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=r"runs.jsonl, line 2: not a run"):
        Book(book.path)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"summary": None}, "summary should be dict"),
        ({"summary": {}}, "its summary has no commit"),
        ({"summary": {"commit": "", "device": "", "data_fingerprint": "", "final_metrics": [1]}}, "final_metrics"),
        ({"seed": [0]}, "seed should be int"),
        ({"settings": []}, "settings should be dict"),
        ({"curve": None}, "curve should be dict"),
    ],
)
def test_a_line_that_is_almost_a_run_is_named(book, cells, change, part):
    book.add(made_up(cells[0], 0))
    with book.path.open("a") as file:
        file.write(json.dumps(made_up(cells[0], 1).__dict__ | change) + "\n")
    with pytest.raises(UserError, match=f"runs.jsonl, line 2: not a run .{part}"):
        Book(book.path)


def test_a_metric_that_is_no_number_is_named(cells):
    run = made_up(cells[0], 3, linear="91 %")
    with pytest.raises(UserError, match="linear: 91 % is no number, in the run default seed 3"):
        run.metric("linear")


def test_an_unfinished_run_is_refused(train, book):
    folder, _ = train("one")
    (folder.path / "summary.json").unlink()
    with pytest.raises(UserError, match=r"not finished.*--resume"):
        read_run(folder.path, book)
    with pytest.raises(UserError, match="not a run folder"):
        read_run(folder.path.parent, book)


def test_images_in_files_need_a_name_once(train, book, tmp_path):
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}.npy", generator.integers(0, 255, (64, 32, 32, 3), dtype=np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(64) % 4)
    where = ("data.source=arrays", f"data.root={tmp_path}", "epochs=1")
    first, _ = train("a", *where)
    with pytest.raises(UserError, match="--data NAME"):
        read_run(first.path, book)
    run = read_run(first.path, book, "noise")
    assert (run.data, run.settings["data"], run.summary["data"]) == ("noise", "noise", "noise")
    assert str(tmp_path) not in json.dumps(run.__dict__), "where they lie is nobody's business"
    book.add(run)
    second, _ = train("b", *where, "seed=1")
    assert read_run(second.path, book).hash == run.hash, "the book knows the fingerprint"
    shapes, _ = train("c", "epochs=1")
    with pytest.raises(UserError, match="was trained on shapes, not on noise"):
        read_run(shapes.path, book, "noise")


@pytest.mark.parametrize("lines", [1, 2, 99, 100, 101, 250, 1001])
def test_long_curves_are_thinned_evenly_and_keep_their_end(lines):
    curve = thin([{"epoch": i, "identity": i / 3, "rate": 1.0} for i in range(1, lines + 1)])
    assert curve.keys() == {"epoch", "identity"}
    assert min(lines, POINTS // 2) <= len(curve["epoch"]) == len(curve["identity"]) <= POINTS
    assert curve["epoch"][-1] == lines
    assert len({b - a for a, b in zip(curve["epoch"], curve["epoch"][1:], strict=False)}) <= 1
    assert thin([]) == {}
    assert "epoch" not in CURVES


def test_a_changed_default_does_not_change_what_a_line_means(book, monkeypatch):
    """A run with the old value is none of the new default, and still one of those who ask for the old value."""
    (before,) = (cell for cell in load_experiment("methods").cells if cell.row == "relic")
    book.add(made_up(before, 0))
    monkeypatch.setitem(settings._DEFAULTS, "identity.alpha", 0.5)
    ours = {(run.key, run.settings["identity.alpha"]) for run in Book(book.path).runs.values()}
    config = before.config
    assert config.identity.alpha == 1.0, "what the config still says stands for one that names the old value"
    assert ours == {((hash_of(settings_of(config, "cifar10")), 0), 1.0)}
    assert hash_of({**settings_of(config, "cifar10"), "identity.alpha": 0.5}) not in {key[0] for key, _ in ours}


def test_the_committed_book_is_in_order():
    book = Book(RESULTS / "runs.jsonl")
    assert len(book.runs) == len((RESULTS / "runs.jsonl").read_text().splitlines()) > 20
    for run in book.runs.values():
        assert run.settings["data"] == run.data
        assert run.summary["data_fingerprint"]
        assert run.summary["data"] == run.data, "which images, not where they lay"
        assert len(json.dumps(run.__dict__)) < 10_000, "hundreds of runs stay small"
