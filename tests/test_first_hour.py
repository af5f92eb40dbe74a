"""A person with a folder of pictures, three commands and no config file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stec.data import shapes

PICTURES = 500


@pytest.fixture
def photos(tmp_path) -> Path:
    """JPEGs of mixed sizes without labels: one broken, some grey, some CMYK."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    drawn = shapes.render(PICTURES, size=48).images.permute(0, 2, 3, 1).numpy()
    for i, pixels in enumerate(drawn):
        size = tuple(random.integers(30, 200, 2).tolist())
        mode = {0: "L", 1: "CMYK"}.get(i % 10, "RGB")
        Image.fromarray(pixels).resize(size).convert(mode).save(folder / f"IMG_{i:04d}.JPG", "JPEG")
    broken = folder / "IMG_0042.JPG"
    broken.write_bytes(broken.read_bytes()[:300])
    return folder


def test_from_a_folder_to_nearest_neighbours_in_three_commands(photos, tmp_path):
    def stec(*words: str) -> str:
        environment = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "stec", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return done.stdout

    # The first is `pip install`. To be quick, the encoder sees small views, a few times.
    quick = ("views.size=32", "data.size=40", "epochs=2", "optimizer.warmup_epochs=1")
    out = stec("pretrain", "folder-small", "data.root=photos", *quick)
    assert "IMG_0042.JPG" in out
    assert "1 unreadable file(s) left out" in out
    assert "stec neighbors runs/folder-small-stec-seed0 photos shows what it finds alike" in out
    out = stec("neighbors", "runs/folder-small-stec-seed0", "photos", "IMG_0007.JPG")
    assert f"neighbors.html: the nearest of {PICTURES - 1} images to each query" in out
    page = (tmp_path / "neighbors.html").read_text()
    assert page.count("<img") == 9
    assert 'alt="IMG_0007.JPG"' in page

    # And on: the same as a file of features, with the broken one named and left out.
    out = stec("embed", "runs/folder-small-stec-seed0", "photos", "-o", "features.npz")
    assert "IMG_0042.JPG" in out
    with np.load(tmp_path / "features.npz") as file:
        names, features = file["names"].tolist(), file["features"]
    assert names == [f"IMG_{i:04d}.JPG" for i in range(PICTURES) if i != 42]
    assert features.shape == (PICTURES - 1, 128)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similar = unit @ unit[names.index("IMG_0007.JPG")]
    similar[names.index("IMG_0007.JPG")] = -1
    nearest = names[int(similar.argmax())]
    assert page.index('alt="IMG_0007.JPG"') < page.index(f'alt="{nearest}"')
    assert page.split("<figure")[2].count(nearest) == 2, "the first neighbour, shown and named"
    assert json.loads((tmp_path / "runs/folder-small-stec-seed0/summary.json").read_text())["skipped_images"] == 1
