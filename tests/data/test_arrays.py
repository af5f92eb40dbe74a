from __future__ import annotations

import json
import logging
import pickle
import re

import numpy as np
import pytest
import torch

from stec.config import DataConfig
from stec.data import load
from stec.data.arrays import open_arrays
from stec.data.pictures import ArrayPictures, read_block
from stec.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 6, 6, 3), np.uint8)
LABELS = np.arange(12) % 3


@pytest.fixture
def root(tmp_path):
    np.save(tmp_path / "train.npy", IMAGES)
    np.save(tmp_path / "train_labels.npy", LABELS)
    np.save(tmp_path / "test.npy", IMAGES[:4])
    np.save(tmp_path / "test_labels.npy", LABELS[:4])
    (tmp_path / "classes.json").write_text(json.dumps(["ant", "bee", "cat"]))
    return tmp_path


def load_arrays(root, size=6, **options):
    return load(DataConfig(source="arrays", root=str(root), size=size, workers=1, **options), torch.device("cpu"))


def everything(split):
    return next(split.batches(torch.arange(len(split)), len(split)))


def test_there_are_as_many_classes_as_either_part_has(root):
    (root / "classes.json").unlink()
    np.save(root / "test_labels.npy", LABELS[:4] + 2)
    assert load_arrays(root).classes == ("0", "1", "2", "3", "4")


def test_all_files(root):
    data = load_arrays(root)
    assert data.name == f"arrays:{root}"
    assert data.classes == ("ant", "bee", "cat")
    batch = everything(data.train)
    assert np.array_equal(batch.images.permute(0, 2, 3, 1).numpy(), IMAGES)
    assert batch.labels.tolist() == LABELS.tolist()
    assert batch.sizes.tolist() == [[6, 6]] * 12
    assert data.test.labels.tolist() == [0, 1, 2, 0]


def test_a_limit_takes_the_same_images_every_time_and_some_of_every_class(root):
    few = load_arrays(root, limit=8)
    again, fewer, enough = (load_arrays(root, limit=number) for number in (8, 4, 12))
    images = everything(few.train).images
    assert len(few.train) == 8
    assert len(few.test) == 4
    assert torch.equal(images, everything(again.train).images)
    assert few.fingerprint == again.fingerprint
    assert len({few.fingerprint, fewer.fingerprint, enough.fingerprint}) == 3
    assert enough.fingerprint == load_arrays(root).fingerprint
    rows = [int((image.permute(1, 2, 0).numpy() == IMAGES).all((1, 2, 3)).argmax()) for image in images]
    assert rows == sorted(set(rows))  # in the order of the source, none twice
    assert few.train.labels.tolist() == [int(LABELS[row]) for row in rows]
    assert set(few.train.labels.tolist()) == {0, 1, 2}  # though they come in turn
    inside = everything(fewer.train).images
    assert all(any(torch.equal(one, other) for other in images) for one in inside)
    streamed = load_arrays(root, limit=8, resident="never")
    assert torch.equal(everything(streamed.train).images, images)
    assert streamed.fingerprint == few.fingerprint


def test_other_sizes_are_squashed(root):
    flat = np.zeros((2, 4, 12, 3), np.uint8)
    flat[1] = 90
    flat[1, :, 6:] = 30
    np.save(root / "train.npy", flat)
    np.save(root / "train_labels.npy", LABELS[:2])
    batch = everything(load_arrays(root, size=4).train)
    assert batch.sizes.tolist() == [[4, 12]] * 2
    assert batch.images[0].unique().tolist() == [0]
    assert (batch.images[1, :, :, 0] == 90).all()
    assert (batch.images[1, :, :, 3] == 30).all()


@pytest.mark.parametrize("sizes", [None, np.array([[5, 9], [8, 8], [20, 3], [1, 2]])])
def test_images_read_together_are_those_read_one_by_one(tmp_path, sizes):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    pictures = ArrayPictures(mapped, torch.zeros(4, dtype=torch.int64), 8, sizes)
    block = read_block(pictures, [3, 0, 2], 8, replace=True)
    singles = [pictures.read(index) for index in (3, 0, 2)]
    assert block.indices.tolist() == [3, 0, 2]
    assert not block.failures
    assert block.sizes.dtype == torch.float32
    assert block.sizes.tolist() == [[one.height, one.width] for one in singles]
    assert block.images.is_contiguous()
    assert block.images.tolist() == [one.pixels.transpose(2, 0, 1).tolist() for one in singles]


def test_without_class_names_numbers_serve(root):
    (root / "classes.json").unlink()
    assert load_arrays(root).classes == ("0", "1", "2")


def test_train_alone(root, caplog):
    for name in ("train_labels.npy", "test.npy", "test_labels.npy", "classes.json"):
        (root / name).unlink()
    data = load_arrays(root)
    assert data.test is None
    assert data.classes == ()
    assert data.train.labels.tolist() == [-1] * 12


def test_no_train_labels_no_probe(root, caplog):
    (root / "train_labels.npy").unlink()
    with caplog.at_level(logging.INFO, "stec"):
        data = load_arrays(root)
    assert data.test is None
    assert data.classes == ()
    assert "has no train_labels.npy: training without a probe" in caplog.text


def test_no_test_labels_no_probe(root, caplog):
    (root / "test_labels.npy").unlink()
    with caplog.at_level(logging.INFO, "stec"):
        data = load_arrays(root)
    assert data.test is None
    assert data.classes == ("ant", "bee", "cat")
    assert "has no test_labels.npy: training without a probe" in caplog.text


@pytest.mark.parametrize("none", [2_000_000, 2**64 - 1])
def test_a_mark_of_images_without_a_label_is_no_class(root, none):
    """There would be as many as it is high."""
    (root / "classes.json").unlink()
    np.save(root / "train_labels.npy", np.where(LABELS == 2, np.uint64(none), LABELS.astype(np.uint64)))
    with pytest.raises(
        UserError, match=f"train_labels.npy: the highest label is {none}, should number a class, or be -1"
    ):
        load_arrays(root)


def test_part_of_the_training_images_may_be_unlabelled(root):
    np.save(root / "train_labels.npy", np.where(LABELS == 2, -1, LABELS))
    data = load_arrays(root)
    assert data.train.labels.tolist() == [0, 1, -1] * 4
    assert data.test is not None


def test_any_integer_type_of_labels(root):
    np.save(root / "train_labels.npy", LABELS.astype(np.uint8))
    assert load_arrays(root).train.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.npy", IMAGES.astype(np.float32), "should be uint8 (N, H, W, 3), is float32 (12, 6, 6, 3)"),
        ("train.npy", IMAGES[..., 0], "should be uint8 (N, H, W, 3), is uint8 (12, 6, 6)"),
        ("test.npy", IMAGES.transpose(0, 3, 1, 2), "should be uint8 (N, H, W, 3), is uint8 (12, 3, 6, 6)"),
        ("train.npy", IMAGES[:0], "holds no images, its shape is (0, 6, 6, 3)"),
        ("train_labels.npy", LABELS[:5], "should be integers (12,), is int64 (5,)"),
        ("train_labels.npy", LABELS * 1.0, "should be integers (12,), is float64 (12,)"),
        ("test_labels.npy", LABELS, "should be integers (4,), is int64 (12,)"),
        ("train_labels.npy", LABELS - 2, "the lowest label is -2, should be at least -1"),
        ("test_labels.npy", LABELS[:4] - 1, "the lowest label is -1, should be at least 0"),
        ("train_labels.npy", LABELS + 1, "the highest label is 3, but classes.json names 3 classes"),
    ],
)  # fmt: skip
def test_wrong_arrays(root, name, content, message):
    np.save(root / name, content)
    with pytest.raises(UserError, match=re.escape(f"{root}/{name}: {message}")):
        load_arrays(root)


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x01\x00", pickle.dumps([1, 2])])
def test_not_a_numpy_file(root, content):
    (root / "train.npy").write_bytes(content)
    with pytest.raises(UserError, match=r"train\.npy: not a NumPy file \(.*\)$") as caught:
        load_arrays(root)
    assert "\n" not in str(caught.value)


def test_truncated_array(root):
    path = root / "train.npy"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"train\.npy: not a NumPy file"):
        load_arrays(root)


def test_archive_in_place_of_an_array(root):
    with open(root / "train.npy", "wb") as file:
        np.savez(file, images=IMAGES)
    with pytest.raises(UserError, match=r"train\.npy: not a NumPy file \(an \.npz archive"):
        load_arrays(root)


@pytest.mark.parametrize("content", ["{", '{"0": "ant"}', "[1, 2, 3]"])
def test_wrong_class_names(root, content):
    (root / "classes.json").write_text(content)
    with pytest.raises(UserError, match=r"classes\.json: should be a list of the classes' names"):
        load_arrays(root)


def test_missing_files(root):
    (root / "test.npy").unlink()
    with pytest.raises(UserError, match=r"test_labels\.npy has no images: add test\.npy, or remove it"):
        load_arrays(root)
    (root / "train.npy").unlink()
    with pytest.raises(UserError, match=r"train\.npy: no such file; it should hold the images, uint8"):
        load_arrays(root)
    with pytest.raises(UserError, match=f"data.root={root}/nowhere: no such folder"):
        load_arrays(root / "nowhere")


def test_fingerprint_follows_pixels_and_labels(root):
    first = load_arrays(root).fingerprint
    assert load_arrays(root, size=4).fingerprint == first  # that of the source
    changed = IMAGES.copy()
    changed[5, 2, 3, 1] ^= 1
    np.save(root / "train.npy", changed)
    second = load_arrays(root).fingerprint
    np.save(root / "train_labels.npy", (LABELS + 1) % 3)
    assert len({first, second, load_arrays(root).fingerprint}) == 3


def test_mapped_arrays_go_to_other_processes_as_a_file_name(tmp_path):
    np.save(tmp_path / "train.npy", np.tile(IMAGES, (100, 1, 1, 1)))
    pictures = open_arrays(tmp_path, 6).train
    sent = pickle.dumps(pictures)
    assert len(sent) < pictures.array.nbytes // 5
    assert np.array_equal(pickle.loads(sent).read(700).pixels, pictures.read(700).pixels)
