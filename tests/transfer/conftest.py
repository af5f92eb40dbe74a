import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

NAMES = {"train": ["one", "two", "three"], "val": ["four", "five"]}
OBJECT = """<object><name>{}</name><difficult>{}</difficult>
<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"""


class Tree:
    """A small data set in VOC's layout: five images of 80 x 60 pixels, a cat in each, and a dog in the first."""

    def __init__(self, root: Path, folder="VOC2012") -> None:
        self.root, self.folder = root, root / folder
        for kind in ("Main", "Segmentation"):
            (self.folder / "ImageSets" / kind).mkdir(parents=True)
        for name in ("JPEGImages", "Annotations", "SegmentationClass"):
            (self.folder / name).mkdir()
        for name, images in NAMES.items():
            for image in images:
                self.image(image)
                self.boxes(image, ("cat", 0, 11, 6, 40, 45))
                mask = np.zeros((60, 80), np.uint8)
                mask[5:45, 10:40], mask[5] = 8, 255  # a cat, its border void
                self.mask(image, mask)
            for kind in ("Main", "Segmentation"):
                (self.folder / "ImageSets" / kind / f"{name}.txt").write_text("\n".join(images) + "\n")
        self.boxes("one", ("cat", 0, 11, 6, 40, 45), ("dog", 1, 41, 1, 80, 60))

    def image(self, name, size=(80, 60)):
        pixels = np.random.default_rng(len(name)).integers(0, 256, (size[1], size[0], 3), np.uint8)
        Image.fromarray(pixels).save(self.folder / "JPEGImages" / f"{name}.jpg", quality=95)

    def boxes(self, name, *objects):
        text = "".join(OBJECT.format(*values) for values in objects)
        (self.folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{text}</annotation>")

    def mask(self, name, values):
        Image.fromarray(values).save(self.folder / "SegmentationClass" / f"{name}.png")


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path / "voc")


@pytest.fixture
def real_voc() -> Path:
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "fixtures"
    folder = Path(os.environ.get("STEC_FIXTURES", beside)) / "voc"
    if not folder.is_dir():
        pytest.skip("no real sample files: set STEC_FIXTURES to their folder")
    return folder
