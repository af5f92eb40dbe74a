"""The page without a browser: whole, self-contained, and honest about what is missing."""

import dataclasses
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image
from tiny_runs import Runner

from stec.config import IdentityConfig, load
from stec.errors import UserError
from stec.identity import IDENTITIES
from stec.report.page import write_report
from stec.report.settings import used


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runner:
    return Runner(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def stec(runs) -> Path:
    return runs("stec", "baselines=true")[0].path


@pytest.fixture(autouse=True)
def _no_umap(monkeypatch):
    """UMAP takes many seconds to load, and PCA does for these tests."""
    monkeypatch.setitem(sys.modules, "umap", None)


def written(*paths, out=None, images=10) -> tuple[str, dict, list[str]]:
    """The page, the data inside of it, and what is missing."""
    page, missing = write_report(list(paths), out, images)
    text = page.read_text(encoding="utf-8").replace("<wbr>", "")  # where a narrow screen may break a key
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(data), missing


def test_the_page_of_a_run_shows_all_of_it(stec):
    text, data, missing = written(stec)
    summary = json.loads((stec / "summary.json").read_text())
    for key in ("linear", "linear_online", "knn", "linear_untrained"):
        assert f"{summary[key]:.1f} %" in text
    assert summary["commit"] in text
    assert "resnet-small" in text
    (run,) = data["runs"]
    metrics = [json.loads(line) for line in (stec / "metrics.jsonl").read_text().splitlines()]
    assert run["curves"]["identity"] == pytest.approx([record["identity"] for record in metrics], rel=1e-4)
    assert len(run["map"]["x"]) == 30
    assert run["map"]["method"] == "PCA"
    assert len(missing) == 1
    assert "stec[analysis]" in missing[0]
    assert "stec[analysis]" in text
    assert [part["name"] for part in run["pairs"][0]["components"]] == ["xx", "x", "yy", "y"]
    assert data["explorer"]["own"] == "egocentric"
    assert "xx and yy tell how many times as wide and high" in text
    assert "no sign of collapse" in text
    assert text.count(" %; 10 pairs</span>") == 4
    assert '<th scope="col">10 test images</th>' in text, "on what the distances rest"


def test_too_few_images_for_umap_are_not_taken_for_a_missing_package(stec, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", ModuleType("umap"))
    (note,) = written(stec, images=5)[2]
    assert note.endswith("The map shows two principal components; there are too few images for UMAP.")


def test_what_was_measured_in_training_says_so(stec):
    text, _, _ = written(stec)
    assert "Accuracies of classes are on unaugmented test images" in text
    assert (
        re.findall("<dt>([^<]*action[^<]*)</dt>", text.partition("Setting</h2>")[0]) == ["right action, training"] * 2
    )


def test_the_page_asks_for_nothing_outside_of_it(stec):
    text, _, _ = written(stec)
    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"<(?:link|iframe|script[^>]*\ssrc)", text)
    assert "default-src 'none'" in text


def test_a_method_without_psi(runs):
    text, data, _ = written(runs("simclr", "method=simclr", "epochs=1")[0].path)
    assert "This method has none" in text
    assert data["runs"][0]["pairs"][0]["placed"] is None
    assert "manipulation" not in data["runs"][0]["curves"]
    assert "manipulation.action" not in text.split("All settings")[0]
    assert data["explorer"]["own"] is None


def test_regression_of_quantile_bins_and_a_turn(runs):
    words = ("method=stec-byol", "epochs=1", "lambda_turn=0.5", "manipulation.action=colour+allocentric")
    bins = ("manipulation.readout=regression", "manipulation.bins=quantile", "manipulation.k=4")
    text, data, _ = written(runs("other", *words, *bins)[0].path)
    assert "right turn, training" in text
    assert data["explorer"]["own"] == "allocentric"
    assert len(data["explorer"]["bins"]["paper"]["edges"][0]) == 3
    assert len(data["runs"][0]["pairs"][0]["placed"]) == 6


@pytest.mark.parametrize("bins", ["uniform", "quantile"])
def test_views_that_are_never_moved(runs, bins):
    words = ("views.area=[1,1]", "views.aspect=[1,1]", "views.mirror=0", f"manipulation.bins={bins}", "epochs=1")
    _, data, _ = written(runs(f"still-{bins}", "method=simclr", *words)[0].path)
    for representation in data["explorer"]["bins"].values():
        for edges in representation["edges"]:
            assert edges == sorted(set(edges)), "of one value there are no quantiles"
            assert len(edges) == 5


def folder_of_images(root: Path, number: int, name: str) -> None:
    for i in range(number):
        path = root / name / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 30), (5 * i, 100, 200)).save(path)


def test_images_without_labels_and_then_without_images(runs, tmp_path):
    folder_of_images(tmp_path, 40, "pictures")
    words = ("data.source=folder", f"data.root={tmp_path / 'pictures'}", "epochs=1")
    path = runs("unlabelled", *words)[0].path
    text, data, _ = written(path)
    assert data["runs"][0]["map"]["classes"] == []
    assert data["runs"][0]["pairs"][0]["class"] is None
    assert data["runs"][0]["pairs"][0]["first"]["source"] == [30, 60]
    assert "linear accuracy" not in text
    assert "no sign of collapse" in text or "all images look alike" in text
    shutil.rmtree(tmp_path / "pictures")
    text, data, missing = written(path)
    assert len(missing) == 1
    assert "No images" in missing[0]
    assert "pictures" in missing[0]
    assert data["runs"][0]["map"] is None
    assert data["explorer"]["builtin"]
    assert len(data["explorer"]["starts"]) == 12


def test_what_is_left_of_a_run_is_shown(stec, tmp_path):
    path = Path(shutil.copytree(stec, tmp_path / "left"))
    (path / "checkpoint.pt").unlink()
    text, data, missing = written(path)
    assert any("Only the encoder" in note for note in missing)
    assert data["runs"][0]["map"] is not None
    assert data["runs"][0]["pairs"][0]["placed"] is None
    (path / "summary.json").unlink()
    assert "The run has not finished: epoch 4 of 4 was its last, and there are no accuracies yet." in written(path)[0]
    (path / "encoder.safetensors").unlink()
    (path / "metrics.jsonl").unlink()
    text, data, missing = written(path)
    assert any("has not finished" in note for note in missing)
    assert any("has no weights" in note for note in missing)
    assert data["runs"][0]["map"] is None
    assert data["runs"][0]["pairs"]
    assert data["runs"][0]["curves"] == {}
    assert "resnet-small" in text


def test_several_runs_share_a_page_and_their_pictures(stec, runs, tmp_path):
    other = runs("seed1", "seed=1", "optimizer.rate=4", "epochs=1")[0].path
    text, data, _ = written(stec, other)
    assert (stec.parent / "report.html").is_file()
    assert len(data["runs"]) == 2
    assert len(data["pictures"]) == 3, "points, images, pairs: the same for both"
    differing = re.findall(r'class="differs"><th scope="row">([^<]*)', text)
    assert {"seed", "optimizer.rate", "epochs"} <= set(differing)
    assert "batch_size" not in differing
    twin = Path(shutil.copytree(stec, tmp_path / "other" / stec.name))
    _, data, _ = written(stec, twin, out=tmp_path / "both.html")
    assert len({run["name"] for run in data["runs"]}) == 2


def test_settings_that_a_method_does_not_use_are_not_shown_as_its_own(stec, runs):
    gaussian = runs("beside", "method=gaussian", "epochs=1", "identity.queue=9", "turn.hidden=9")[0].path
    text, data, _ = written(stec, gaussian)
    rows = dict(re.findall(r'<th scope="row">([^<]*)</th><td>[^<]*</td><td>([^<]*)</td>', text))
    assert rows["method"] == "gaussian"
    foreign = ("lambda_manip", "manipulation.action", "manipulation.readout", "identity.temperature")
    assert {rows[key] for key in foreign} == {"–"}
    assert not {"identity.queue", "turn.hidden"} & set(rows), "neither of them has a queue or turns anything"
    assert data["explorer"]["owner"] == "stec", "the explorer is that of the first run, whichever is chosen"


@pytest.mark.parametrize("name", IDENTITIES)
def test_identity_models_say_which_settings_they_read(name):
    read = set()

    class Watched(IdentityConfig):
        def __getattribute__(self, key):
            read.add(key)
            return super().__getattribute__(key)

    encoder = torch.nn.Linear(4, 4)
    encoder.dim = 4
    IDENTITIES[name](encoder, Watched(queue=8))
    keys = {field.name for field in dataclasses.fields(IdentityConfig)}
    assert read & keys == set(IDENTITIES[name].settings)


def test_how_many_shapes_are_drawn_is_not_told_of_images_in_files(stec, runs, tmp_path):
    folder_of_images(tmp_path, 40, "pictures")
    words = ("data.source=folder", f"data.root={tmp_path / 'pictures'}", "epochs=1")
    text, _, _ = written(stec, runs("files", *words)[0].path)
    names = re.findall(r'<th scope="row">([^<]*)</th>', text)
    assert "data.source" in names
    assert "data.train_images" not in names


def test_settings_of_sound_are_those_that_its_method_uses():
    plain, actions = (used(load(f"audio/{name}")) for name in ("cpc", "stec-cpc-actions"))
    foreign = {
        "views.size",
        "turn.hidden",
        "data.size",
        "optimizer.decayed",
        "optimizer.trust",
        "identity.ema",
        "manipulation.readout",
    }
    assert not foreign & (set(plain) | set(actions))
    own = {"identity.temperature", "audio.lambda_identity", "manipulation.action", "lambda_manip"}
    assert own <= set(actions)
    assert not own & set(plain)


def test_whose_collapse_it_is(stec, tmp_path):
    path = Path(shutil.copytree(stec, tmp_path / "half"))
    line = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    for ranks, words in {
        (
            12.7,
            1.5,
        ): "collapsed: all images look alike to the identity model (rank 12.7 of the features, 1.5 of the emb",
        (1.2, 1.1): "collapsed: all images look alike (rank 1.2 of the features, 1.1 of the embeddings)",
    }.items():
        line |= dict(zip(("effective_rank", "embedding_rank"), ranks, strict=True))
        (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        assert words in written(path)[0]


@pytest.mark.parametrize("nasty", ["<!--<script>&", os.fsdecode(b"caf\xe9")], ids=["html", "no utf8"])
def test_names_cannot_break_the_page(runs, tmp_path, nasty):
    folder_of_images(tmp_path / "train", 40, nasty)
    folder_of_images(tmp_path / "train", 40, "plain")
    folder_of_images(tmp_path / "test", 6, nasty)
    folder_of_images(tmp_path / "test", 6, "plain")
    path = runs(f"nasty {nasty}", "data.source=folder", f"data.root={tmp_path}", "epochs=1")[0].path
    text, data, _ = written(path)
    assert nasty in data["runs"][0]["map"]["classes"]
    assert nasty not in text


def test_a_loss_that_is_no_number_is_left_out_of_its_curve(stec, tmp_path):
    path = Path(shutil.copytree(stec, tmp_path / "nan"))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "epoch": 9.0, "seconds": 1.0, "identity": NaN}\n')
    _, data, _ = written(path)
    assert data["runs"][0]["curves"]["identity"][-1] is None


def test_a_place_that_cannot_be_written_is_refused(stec, tmp_path):
    for out in (tmp_path, tmp_path / "no" / "such.html"):
        with pytest.raises(UserError, match="cannot be written"):
            write_report([stec], out)
