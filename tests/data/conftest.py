"""Small files in the layouts of real data sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from served import serve
from tar_files import write_shards

ImageWriter = Callable[..., Path]


@pytest.fixture
def write_image() -> ImageWriter:
    """Write a random image, the same for the same path and shape."""

    def write(path: Path, height: int = 8, width: int = 8) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng([height, width, *os.fsencode(path.name), *os.fsencode(path.parent.name)])
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(path)
        return path

    return write


@pytest.fixture
def class_folders(tmp_path: Path, write_image: ImageWriter) -> Path:
    """root/{train,test}/{ant,bee,cat}/*.png: 6 and 2 images per class, of different shapes."""
    for split, number in (("train", 6), ("test", 2)):
        for name in ("ant", "bee", "cat"):
            for i in range(number):
                write_image(tmp_path / split / name / f"{i}.png", height=8 + i, width=8 + 2 * (i % 2))
    return tmp_path


@pytest.fixture
def samples() -> Path:
    """A few real files of real data sets, where they are at hand."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "fixtures"
    folder = Path(os.environ.get("STEC_FIXTURES", beside))
    if not folder.is_dir():
        pytest.skip("no real sample files: set STEC_FIXTURES to their folder")
    return folder


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards")


@pytest.fixture
def pattern(shards):
    with serve(shards) as (address, server):
        server.pattern = f"{address}/train-{{000000..000005}}.tar"
        yield server
