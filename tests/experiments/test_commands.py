"""`stec experiment` and `stec results` as a person meets them."""

import json
import sys

import pytest
from tiny_runs import TINY

from stec.experiments.book import Book

WORDS = " ".join(word for word in TINY if not word.startswith("epochs"))


@pytest.fixture
def mine(tmp_path):
    cells = "[{row: simclr, recipe: default, overrides: method=simclr}, {row: stec, recipe: default, published: 90}]"
    text = f"about: mine\noverrides: epochs=2 {WORDS}\nmetrics: [linear]\nfigure: points\ncells: {cells}\n"
    (tmp_path / "mine.yaml").write_text(text)
    return "mine.yaml"


def test_without_a_name_experiments_are_listed(stec):
    code, out, _ = stec("experiment")
    assert code == 0
    for name in ("table1", "table2", "table3", "figure3a", "figure3b", "figure-s1", "curves", "methods", "shapes-demo"):
        assert f"\n{name} " in f"\n{out}"


def test_a_dry_run_lists_and_touches_nothing(stec, tmp_path):
    code, out, _ = stec("experiment", "table1", "--dry-run", "--seeds", "2", "--only", "cifar10-resnet18")
    assert code == 0
    assert "12 runs missing; 12 unknown: nothing comparable was measured yet" in " ".join(out.split())
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_from_nothing_to_a_page(stec, mine, tmp_path):
    code, out, _ = stec("experiment", mine, "--json", "numbers.json", "device=cpu")
    assert code == 0
    assert "2 of 2" in out
    assert (tmp_path / "results/figures/mine.png").exists()
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["groups"][0]["rows"][1]["published"]["linear"]["mean"] == 90
    assert numbers["groups"][0]["rows"][1]["measured"]["linear"]["n"] == 1

    code, out, _ = stec("experiment", mine, "--dry-run")
    assert "nothing is missing" in out
    code, out, _ = stec("experiment", mine)
    assert "epochs of shapes" not in out, "no run was repeated"
    assert out.endswith("drawn: results/figures/mine.png\ndrawn: results/figures/mine.svg\n")
    code, out, _ = stec("experiment", mine, "--dry-run", "--seeds", "3")
    assert "4 runs missing; 4 of them" in out, "the speed is known now"
    code, shown, _ = stec("results", "show", mine)
    assert shown.startswith("mine\n")

    (tmp_path / "page.md").write_text("<!-- experiment: mine.yaml -->\n<!-- end -->\n")
    assert "page.md: made anew" in stec("results", "write", "page.md")[1]
    assert "up to date" in stec("results", "write", "page.md")[1]
    assert "| stec | 90.0 |" in (tmp_path / "page.md").read_text()


def test_a_book_that_is_not_there_is_named(stec):
    code, out, _ = stec("results", "show", "shapes-demo")
    assert code == 0
    assert "there is no book results/runs.jsonl here" in out


def test_a_run_made_by_hand_counts(stec, mine):
    words = [*TINY, "epochs=2", "method=simclr"]
    assert stec("pretrain", *words, "--out", "elsewhere")[0] == 0
    code, out, _ = stec("results", "add", "elsewhere")
    assert code == 0
    assert out.startswith("added: default method=simclr epochs=2 ")
    assert stec("results", "add", "elsewhere")[1].startswith("already there")
    assert "1 runs missing" in stec("experiment", mine, "--dry-run")[1]


def test_runs_come_from_another_machine_as_a_book_or_as_three_small_files(stec, tmp_path):
    assert stec("pretrain", *TINY, "epochs=1", "--out", "there")[0] == 0
    assert stec("results", "add", "there", "--book", "there.jsonl")[0] == 0
    (tmp_path / "brought").mkdir()
    for name in ("config.yaml", "metrics.jsonl", "summary.json"):
        (tmp_path / "brought" / name).write_bytes((tmp_path / "there" / name).read_bytes())
    assert stec("results", "add", "there.jsonl")[1].startswith("added: default ")
    assert stec("results", "add", "there.jsonl", "brought")[1].count("already there") == 2
    many = stec("results", "add", *["there.jsonl"] * 9)[1].splitlines()
    assert many == ["already there: 9 runs"], "whoever brings in a whole book wants to see what is new"
    assert Book(tmp_path / "results" / "runs.jsonl").runs == Book(tmp_path / "there.jsonl").runs
    (tmp_path / "other.jsonl").write_text("{}\n")
    assert "other.jsonl, line 1: not a run" in stec("results", "add", "other.jsonl")[2]


def test_what_cannot_be_run_does_not_stop_the_rest(stec, tmp_path):
    b = f"{{row: b, recipe: default, overrides: {WORDS}}}"
    cells = f"[{{row: a, recipe: cifar10-resnet18-stec}}, {b}, {{row: c, recipe: default, data: x}}]"
    (tmp_path / "mine.yaml").write_text(f"overrides: epochs=1 optimizer.warmup_epochs=0\ncells: {cells}\n")
    code, out, err = stec("experiment", "mine.yaml")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert err.startswith("stec: 2 of 3 runs could not be made: 1 x say where x lies: --data x=folder:PATH")
    assert "no cifar10 there" in err
    assert "b" in out
    assert len((tmp_path / "results/runs.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("experiment", "tabel1"), "did you mean 'table1'"),
        (("experiment", "shapes-demo", "epochs=1"), "epochs=1: would change the results"),
        (("experiment", "shapes-demo", "epoch=1"), "unknown key 'epoch'"),
        (("experiment", "shapes-demo", "epoch=1", "--dry-run"), "unknown key 'epoch'"),
        (("experiment", "table4", "epochs=1", "--dry-run"), "epochs=1: would change the results"),
        (("experiment", "shapes-demo", "seed=1", "--dry-run"), "--seeds N makes that many runs"),
        (("experiment", "table1", "--data", "cifra10=folder:x", "--dry-run"), "did you mean 'cifar10'?"),
        (("experiment", "shapes-demo", "--engine", "rya"), "--engine rya"),
        (("experiment", "shapes-demo", "--only", "nothing"), "no such row, recipe or data in shapes-demo"),
        (("experiment", "shapes-demo", "--data", "x"), "expected NAME=SOURCE:PATH"),
        (("experiment", "shapes-demo", "--dry-run", "--json", "x.json"), "--json writes what was measured"),
        (("experiment", "shapes-demo", "--json", "mine.yaml/x"), "there is a file where its folder should be"),
        (("experiment", "shapes-demo", "--out", "mine.yaml"), "--out mine.yaml: a file, not a folder"),
        (("experiment", "shapes-demo", "--book", "."), ". is a folder: a book is a file, such as runs.jsonl"),
        (("experiment", "shapes-demo", "--book", "mine.yaml/x"), "there is a file where its folder should be"),
        (("results", "show", "shapes-demo", "--json", "mine.yaml/x"), "there is a file where its folder should be"),
        (("results", "add", "nowhere"), "not a run folder"),
        (("results", "show", "tabel1"), "did you mean 'table1'"),
        (("results", "write", "nowhere.md"), "no such file"),
    ],
)
def test_mistakes_are_one_line(stec, words, part, tmp_path):
    (tmp_path / "mine.yaml").touch()
    code, _, err = stec(*words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert part in err
    assert not (tmp_path / "runs").exists()


def test_places_of_other_images_may_be_told(stec):
    assert stec("experiment", "table1", "--data", "voc=voc:x", "--data", "imagenet=folder:x", "--dry-run")[0] == 0


def test_a_word_that_fits_no_run_is_answered_alone(stec):
    for words in (["epochs=1"], ["epochs=1", "--dry-run"]):
        code, out, err = stec("experiment", "shapes-demo", *words)
        assert (code, out) == (2, "")
        assert err.startswith("stec: epochs=1: would change the results")


def test_without_matplotlib_the_numbers_are_there_all_the_same(stec, monkeypatch, mine):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, _ = stec("experiment", mine)
    assert code == 0
    assert "figures need matplotlib: pip install 'stec[analysis]'" in out
