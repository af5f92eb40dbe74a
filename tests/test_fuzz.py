"""Malformed words, recipes, images, arrays, checkpoints, encoders, run folders: one line, exit code 2, nothing written.

300 and more by hypothesis, the same ones every time. What happens to be valid after all may end well.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lives import WORDS
from PIL import Image

from stec import cli
from stec.config import _keys, load, to_yaml
from stec.reporter import Nobody
from stec.run import RunFolder
from stec.training import pretrain

SECONDS = 60  # far more than any answer takes: it is no hang
TINY = (*WORDS, "epochs=2", "checkpoint_minutes=10")


def fuzz(number):
    return settings(
        max_examples=number, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip


def answer(*words, cwd):
    """What `stec WORDS` returns and says, in this process: any exception but SystemExit fails the test."""
    out, err, before, begin = io.StringIO(), io.StringIO(), os.getcwd(), time.monotonic()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["stec", *words])
        os.chdir(cwd)
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            os.chdir(before)
    assert time.monotonic() - begin < SECONDS
    assert "Traceback" not in err.getvalue() + out.getvalue()
    return code, err.getvalue()


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused_or_fine(*words, cwd, may_end_well=True):
    """One line and exit code 2 with nothing written; or success, where that is possible."""
    before = contents(cwd)
    code, err = answer(*words, cwd=cwd)
    assert code in ((0, 2) if may_end_well else (2,)), err
    if code == 2:
        usage = err.startswith("Usage:")  # what typer itself refuses, such as an unknown option
        assert usage or (err.startswith("stec: ") and len(err.splitlines()) == 1), err
        assert contents(cwd) == before
    return code


# --- strategies ---

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=12), st.just("${")
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
KEYS = sorted(_keys())
VALUES = st.one_of(
    SCALARS.map(str),
    st.sampled_from(["[1,", "{a:1}", "[]", "nan", "inf", "1e999", "-1", "0", "~", "a=b", "${x}", "!!"]),
)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)


@st.composite
def damaged(draw, content: bytes):
    """These bytes with some changed, cut off, doubled or put in; or others altogether."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "remove", "replace"])):
            case "flip" if content:
                content[place] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[place:]
            case "insert":
                content[place:place] = draw(st.binary(max_size=20))
            case "remove":
                del content[place : place + draw(st.integers(1, 50))]
            case "replace":
                content = bytearray(draw(st.binary(max_size=200)))
    return bytes(content)


# --- the run that is damaged ---


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = RunFolder.new(tmp_path_factory.mktemp("finished") / "run", "default")
    pretrain(load("default", TINY), folder, Nobody())
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An empty folder for every example."""
    root = tmp_path_factory.mktemp("fuzz")

    def empty():
        shutil.rmtree(root)
        root.mkdir()
        return root

    return empty


# --- the fuzz ---


@fuzz(110)
@given(words=st.lists(st.one_of(st.tuples(st.sampled_from(KEYS), VALUES).map("=".join), TEXT), min_size=1, max_size=3))
def test_words(place, words):
    refused_or_fine("pretrain", "--print-config", "--", *words, cwd=place())


@fuzz(70)
@given(content=st.one_of(damaged(to_yaml(load()).encode()), TREES.map(lambda tree: yaml.dump(tree).encode())))
def test_recipes(place, content):
    (folder := place()).joinpath("mine.yaml").write_bytes(content)
    refused_or_fine("pretrain", "mine.yaml", "--print-config", cwd=folder)


def picture(kind):
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@fuzz(50)
@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]))
def test_images(place, data, kind):
    folder = place()
    (folder / "pictures").mkdir()
    (folder / "pictures/one.png").write_bytes(data.draw(damaged(picture(kind))))
    refused_or_fine("data", "folder", "data.root=pictures", "data.workers=1", cwd=folder)


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


ARRAYS = {
    "train.npy": saved(np.zeros((6, 4, 4, 3), np.uint8)),
    "train_labels.npy": saved(np.arange(6)),
    "test.npy": saved(np.zeros((6, 4, 4, 3), np.uint8)),
    "test_labels.npy": saved(np.arange(6)),
    "classes.json": json.dumps([str(i) for i in range(6)]).encode(),
}
SHAPES = st.lists(st.integers(0, 6), max_size=4)
OTHERS = st.builds(
    lambda shape, kind: saved(np.zeros(shape, kind)),
    SHAPES,
    st.sampled_from(["u1", "i8", "f4", "?", "U3", "c8", "V4", "M8[s]"]),
)


@fuzz(50)
@given(data=st.data(), name=st.sampled_from(sorted(ARRAYS)))
def test_arrays(place, data, name):
    folder = place()
    (folder / "arrays").mkdir()
    for file, content in ARRAYS.items():
        (folder / "arrays" / file).write_bytes(content)
    trees = TREES.map(lambda tree: json.dumps(tree).encode())
    (folder / "arrays" / name).write_bytes(data.draw(st.one_of(damaged(ARRAYS[name]), OTHERS, trees)))
    refused_or_fine("data", "data.source=arrays", "data.root=arrays", "data.size=4", "data.workers=1", cwd=folder)


@fuzz(15)
@given(data=st.data())
def test_checkpoints(place, finished, data):
    """Neither of the two is whole, or one is whole and holds something else than a state."""
    folder = place()
    shutil.copytree(finished.path, folder / "run")
    whole = finished.checkpoint.read_bytes()
    body, file = whole[:-72], io.BytesIO()
    kind = data.draw(st.sampled_from(["damaged", "tree", "key"]))
    if kind == "damaged":
        content = data.draw(damaged(whole).filter(lambda content: not content.startswith(body)))
    elif kind == "tree":
        torch.save(data.draw(TREES), file)
        content = file.getvalue()
    else:
        state = torch.load(finished.checkpoint, weights_only=True)
        key = data.draw(st.sampled_from(["model", "optimizer", "step", "pending", "data_fingerprint", "random"]))
        state[key] = data.draw(TREES.filter(lambda tree: tree is not None))
        torch.save(state, file)
        content = file.getvalue()
    for name in ("checkpoint.pt", "checkpoint-previous.pt"):
        (folder / "run" / name).write_bytes(content)
    refused_or_fine("pretrain", "--resume", "run", cwd=folder, may_end_well=kind == "key")


@fuzz(40)
@given(data=st.data())
def test_encoders(place, finished, data):
    folder = place()
    content = (finished.path / "encoder.safetensors").read_bytes()
    (folder / "mine.safetensors").write_bytes(data.draw(damaged(content)))
    code = refused_or_fine("export", "mine.safetensors", "--to", "torchvision", "-o", "out.safetensors", cwd=folder)
    assert (folder / "out.safetensors").exists() == (code == 0)


@fuzz(20)
@given(data=st.data(), name=st.sampled_from(["config.yaml", "metrics.jsonl", "summary.json", "encoder.safetensors"]))
def test_run_folders(place, finished, data, name):
    folder = place()
    shutil.copytree(finished.path, folder / "run")
    content = (finished.path / name).read_bytes()
    trees = TREES.map(lambda tree: json.dumps(tree).encode())
    (folder / "run" / name).write_bytes(data.draw(st.one_of(damaged(content), trees)))
    refused_or_fine("results", "add", "run", "--book", "book.jsonl", cwd=folder)
    refused_or_fine("probe", "run", cwd=folder)
