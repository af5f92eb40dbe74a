"""The page about sound in a real browser: what it shares with the others."""

import pytest
import torch

from stec.analysis.projection import Projection
from stec.audio.study import Study
from stec.config import load
from stec.report.page import write_report
from stec.run import RunFolder

SCREENS = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of what a run leaves behind; tests/audio has the page of one that was trained."""
    config = load("audio/stec-cpc")
    folder = RunFolder.new(tmp_path_factory.mktemp("runs") / "sound", "audio/stec-cpc")
    folder.begin(config)
    for step in range(1, 9):
        losses = {"loss": 4 / step, "identity": 3 / step, "utterance": 1 / step, "rate": 1e-4 * step}
        folder.add_metrics({"step": step, "epoch": step / 4, "seconds": 1.0, **losses})
    pages = {"unfinished": write_report([folder.path], folder.path / "early.html")[0]}
    summary = {"phones": 71.0, "speakers": 40.0, "seconds": 9.0}
    folder.save_summary(summary)
    plane = Projection("PCA", torch.rand(30, 2))
    found = Study("sound", config, summary, [1.0, 2.0], ("A", "B"), torch.eye(2), plane, torch.arange(30) % 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stec.report.sound.study", lambda *_: found)
        return pages | {"finished": write_report([folder.path])[0]}


@pytest.mark.parametrize("screen", SCREENS)
def test_it_has_the_curves_and_colours_of_the_others(visit, screen):
    page = visit("finished", **SCREENS[screen])
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    titles = page.locator(".chart h3").all_text_contents()
    assert {"loss", "prediction loss", "utterance loss", "learning rate"} <= set(titles)
    assert page.locator("nav a").all_text_contents() == ["Results", "Curves", "Figures", "Setting"]
    # Lines of the figures have the colours of the page, and nothing paints a ground of its own.
    line = page.locator(".drawn.steps path[style*='--first']").first
    colour = "rgb(105, 174, 242)" if screen == "dark" else "rgb(11, 105, 199)"
    assert line.evaluate("node => getComputedStyle(node).stroke") == colour
    assert page.locator(".drawn [style*='#ffffff']").count() == 0


def test_a_phone_does_not_shrink_figures_until_they_cannot_be_read(visit):
    scales = visit("finished", **SCREENS["phone"]).eval_on_selector_all(
        ".drawn svg", "nodes => nodes.map(node => node.clientWidth / (node.viewBox.baseVal.width * 4 / 3))"
    )
    assert len(scales) == 3
    assert min(scales) > 0.75  # of 9 points


def test_a_run_that_has_not_finished_has_its_curves(visit):
    page = visit("unfinished")
    assert page.locator(".chart").count() == 4
    assert "has not finished: epoch 2 of 24" in page.locator(".notes").text_content()
