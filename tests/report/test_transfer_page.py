import json
import re

import pytest
from PIL import Image

from stec.encoder import load
from stec.errors import UserError
from stec.report.page import write_report


def folder(path, score):
    """What a transfer leaves behind, as far as a page shows it."""
    path.mkdir()
    (path / "config.yaml").write_text("# recipe: shapes-segmentation\ntask: segmentation\nstart: none\n")
    lines = [{"step": i, "epoch": i / 2, "loss": 1 / i, "pixel_accuracy": 0.5} for i in (1, 2, 3)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "task": "segmentation",
        "start": "a<b",
        "miou": score,
        "ap": 1.0,
        "iou_by_class": {"disc": score, "bar": None},
    }
    (path / "summary.json").write_text(json.dumps(summary))
    Image.new("RGB", (40, 20)).save(path / "predictions.png")
    return path


def test_a_page_of_transfers_shows_scores_curves_and_predictions(tmp_path):
    paths = [folder(tmp_path / "one", 61.23), folder(tmp_path / "two", 33.3)]
    page, missing = write_report(paths)
    text = page.read_text()
    assert page == tmp_path / "report.html"
    assert not missing
    assert "<td>61.2</td><td>33.3</td>" in text
    assert "a&lt;b" in text
    assert "AP, overlaps 0.5 to 0.95, %" in text, "no number is broken"
    assert text.count("data:image/png;base64,") == 2
    assert "https://" not in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(data)[0]["curves"]["loss"] == pytest.approx([1, 0.5, 1 / 3], rel=1e-3)


def test_a_page_is_about_one_kind_of_run(tmp_path, train):
    pretraining, _ = train("run", "epochs=1", "optimizer.warmup_epochs=0")
    with pytest.raises(UserError, match="about images, about sound or about transfers"):
        write_report([folder(tmp_path / "one", 1.0), pretraining.path])
    with pytest.raises(UserError, match="is a transfer"):
        load(tmp_path / "one")
