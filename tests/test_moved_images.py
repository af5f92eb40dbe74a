"""A run whose images lie elsewhere now, as on another machine: a word says where, for all that looks at them."""

import sys

import pytest
from PIL import Image
from tiny_runs import TINY, fitting

from stec.report.page import write_report


@pytest.fixture
def moved(stec, tmp_path, monkeypatch):
    """The word that says where the images of the run in `run` are now. It has one epoch of four to go."""
    monkeypatch.setitem(sys.modules, "umap", None)
    for i in range(40):
        path = tmp_path / "photos" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (60, 30), (5 * i, 100, 200)).save(path)
    words = fitting(*TINY, "data.source=folder", "data.root=photos", "checkpoint_every=1")
    assert stec("pretrain", *words, "--out", "run")[0] == 0
    (tmp_path / "run" / "checkpoint-previous.pt").rename(tmp_path / "run" / "checkpoint.pt")
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    return "data.root=elsewhere"


def test_it_is_continued(stec, moved):
    code, _, err = stec("pretrain", "--resume", "run")
    assert (code, err) == (2, "stec: data.root=photos: no such folder\n")
    code, out, err = stec("pretrain", "--resume", "run", moved)
    assert code == 0, err
    assert "resumed at epoch 3 of 4" in out


def test_its_page_is_written(stec, moved, tmp_path):
    _, missing = write_report([tmp_path / "run"])
    assert missing[-1].endswith("photos: no such folder. If they are elsewhere now, add data.root=PATH.")
    code, out, err = stec("report", "run", moved, "--images", "30")
    assert code == 0, err
    assert "No images" not in out
    assert '"map": null' not in (tmp_path / "run" / "report.html").read_text()


def test_it_is_analyzed(stec, moved, tmp_path):
    assert stec("analyze", "run", "--images", "30")[0] == 2
    code, _, err = stec("analyze", "run", moved, "--images", "30")
    assert code == 0, err
    assert (tmp_path / "run" / "analysis" / "analysis.json").is_file()


def test_whose_images_they_are_has_to_be_said(stec, moved):
    assert stec("report", moved)[1:] == ("", f"stec: {moved}: whose? Name the run folder, too\n")


def test_other_words_are_no_run(stec, moved):
    assert "epochs=3 is not a run folder" in stec("report", "run", "epochs=3")[2]
    for command in ("report", "analyze"):
        code, _, err = stec(command, "run", "data.rot=elsewhere")
        assert code == 2
        assert "data.rot" in err
    code, _, err = stec("pretrain", "--resume", "run", "epochs=9")
    assert (code, err.partition(";")[2]) == (2, " leave out the other words\n")
