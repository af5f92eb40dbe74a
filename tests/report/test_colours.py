"""The colours of a page: those that tell things apart do so for everybody, on every screen and on paper."""

import io
import re
import shutil
import sys
import zlib
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_runs import Runner

from stec.report.page import write_report

# What linear RGB becomes to the colour-blind: Machado, Oliveira and Fernandes 2009, severity 1.
SIGHT = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # of linear sRGB


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Of one tiny run, twice. With PCA: UMAP takes many seconds to load."""
    root = tmp_path_factory.mktemp("runs")
    run = Runner(root)("one", "epochs=1")[0].path
    shutil.copytree(run, root / "two")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "umap", None)
        return {"both": write_report([run, root / "two"], root / "both.html", 20)[0]}


def lab(colour: str, sight: str) -> np.ndarray:
    """CIE L*a*b* of #rrggbb."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    relative = XYZ @ np.clip(np.array(SIGHT[sight]) @ linear, 0, 1) / XYZ.sum(axis=1)
    x, y, z = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_six_runs_are_told_apart(visit, scheme, sight):
    page = visit("both", color_scheme=scheme)
    colours = [page.evaluate(f"drawing.colour('run-{i}')") for i in range(6)]
    distances = [np.linalg.norm(lab(one, sight) - lab(other, sight)) for one, other in combinations(colours, 2)]
    assert min(distances) > 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_that_tell_something_survive_a_forced_palette(visit, scheme):
    page = visit("both", color_scheme=scheme, forced_colors="active")

    def ground(selector: str) -> tuple[int, ...]:
        picture = Image.open(io.BytesIO(page.locator(selector).first.screenshot())).convert("RGB")
        return picture.getpixel((picture.width // 2, picture.height // 4))

    assert ground(".legend span:nth-child(1) .swatch") != ground(".legend span:nth-child(2) .swatch")
    assert ground(".strip i.on") != ground(".strip i:not(.on)")
    assert ground("[data-mode=views]") != ground("[data-mode=originals]")


def test_colours_of_the_legend_are_printed(visit):
    page = visit("both")
    page.evaluate("document.body.replaceChildren(document.getElementById('curve-legend'))")
    streams = re.findall(rb"stream\r?\n(.*?)endstream", page.pdf(), re.DOTALL)
    drawn = b"".join(zlib.decompressobj().decompress(each) for each in streams if each[:1] == b"\x78")
    fills = {tuple(round(255 * float(v)) for v in found.split()) for found in re.findall(rb"([\d. ]+) rg\b", drawn)}
    assert {(0x0B, 0x69, 0xC7), (0xC8, 0x43, 0x0C)} <= fills
