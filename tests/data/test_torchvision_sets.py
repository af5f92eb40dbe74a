from __future__ import annotations

import pickle
import shutil
from urllib.error import URLError

import numpy as np
import pytest
import torch
from torchvision import datasets

from stec.config import DataConfig
from stec.data import load
from stec.errors import UserError

RANDOM = np.random.default_rng(0)
CPU = torch.device("cpu")


def everything(split):
    return next(split.batches(torch.arange(len(split)), len(split)))


@pytest.fixture
def _any_checksum(monkeypatch):
    """Take files of any content for the real ones."""
    for kind in (datasets.CIFAR10, datasets.CIFAR100, datasets.STL10):
        for name in ("train_list", "test_list"):
            monkeypatch.setattr(kind, name, [[file, None] for file, _ in getattr(kind, name)])
    for kind in (datasets.CIFAR10, datasets.CIFAR100):
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": None})


def write_cifar10(root):
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    pixels = RANDOM.integers(0, 256, (6, 4, 3072), np.uint8)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        (folder / name).write_bytes(pickle.dumps({"data": pixels[i], "labels": [i, 1, 2, 9]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {i}" for i in range(10)]}))
    return pixels.reshape(6, 4, 3, 32, 32)


def write_cifar100(root):
    folder = root / "cifar-100-python"
    folder.mkdir()
    pixels = RANDOM.integers(0, 256, (2, 5, 3072), np.uint8)
    for i, name in enumerate(["train", "test"]):
        entry = {"data": pixels[i], "fine_labels": [i, 1, 2, 98, 99], "coarse_labels": [0] * 5}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"fine {i}" for i in range(100)]}))
    return pixels.reshape(2, 5, 3, 32, 32)


def write_stl10(root):
    """Column by column, labels from 1 on: the layout of the binary files."""
    folder = root / "stl10_binary"
    folder.mkdir()
    pixels = RANDOM.integers(0, 256, (3, 4, 3, 96, 96), np.uint8)
    for i, name in enumerate(["train", "unlabeled", "test"]):
        (folder / f"{name}_X.bin").write_bytes(pixels[i].transpose(0, 1, 3, 2).tobytes())
        if name != "unlabeled":
            (folder / f"{name}_y.bin").write_bytes(bytes([1, 10, 3, 4]))
    return torch.from_numpy(pixels)


@pytest.mark.usefixtures("_any_checksum")
def test_cifar10(tmp_path):
    pixels = torch.from_numpy(write_cifar10(tmp_path))
    data = load(DataConfig(source="cifar10", root=str(tmp_path)), CPU)
    assert data.name == "cifar10"
    assert data.classes == tuple(f"class {i}" for i in range(10))
    assert torch.equal(everything(data.train).images, pixels[:5].flatten(0, 1))
    assert torch.equal(everything(data.test).images, pixels[5])
    assert data.train.labels.tolist() == [label for i in range(5) for label in (i, 1, 2, 9)]
    assert data.test.labels.tolist() == [5, 1, 2, 9]


@pytest.mark.usefixtures("_any_checksum")
def test_cifar100_has_fine_labels(tmp_path):
    pixels = torch.from_numpy(write_cifar100(tmp_path))
    data = load(DataConfig(source="cifar100", root=str(tmp_path)), CPU)
    assert data.name == "cifar100"
    assert data.classes[99] == "fine 99"
    assert torch.equal(everything(data.train).images, pixels[0])
    assert data.train.labels.tolist() == [0, 1, 2, 98, 99]
    assert data.test.labels.tolist() == [1, 1, 2, 98, 99]


@pytest.mark.usefixtures("_any_checksum")
def test_stl10_trains_on_unlabelled_images_too(tmp_path):
    pixels = write_stl10(tmp_path)
    data = load(DataConfig(source="stl10", root=str(tmp_path), size=96), CPU)
    assert data.name == "stl10"
    assert data.classes[9] == "truck"
    assert torch.equal(everything(data.train).images, pixels[:2].flatten(0, 1))
    assert torch.equal(everything(data.test).images, pixels[2])
    assert data.train.labels.tolist() == [0, 9, 2, 3, -1, -1, -1, -1]
    assert data.test.labels.tolist() == [0, 9, 2, 3]


@pytest.mark.usefixtures("_any_checksum")
def test_kept_at_another_size(tmp_path):
    write_stl10(tmp_path)
    batch = everything(load(DataConfig(source="stl10", root=str(tmp_path), size=24), CPU).test)
    assert batch.images.shape == (4, 3, 24, 24)
    assert batch.sizes.tolist() == [[96, 96]] * 4


@pytest.mark.parametrize(
    ("source", "folder"),
    [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python"), ("stl10", "stl10_binary")],
)
def test_missing_files_say_how_to_get_them(tmp_path, source, folder):
    with pytest.raises(
        UserError, match=rf"no {source} there, .*data\.download=true gets it, or put {folder}/ \(from http"
    ):
        load(DataConfig(source=source, root=str(tmp_path)), CPU)


def test_damaged_files_are_not_loaded(tmp_path):
    write_cifar10(tmp_path)  # with wrong checksums
    with pytest.raises(UserError, match="no cifar10 there, or its files are damaged"):
        load(DataConfig(source="cifar10", root=str(tmp_path)), CPU)


@pytest.mark.parametrize("error", [URLError("no network"), RuntimeError("File not found\nor corrupted.")])
@pytest.mark.parametrize(("source", "kind"), [("cifar10", datasets.CIFAR10), ("stl10", datasets.STL10)])
def test_failed_download_is_one_line(tmp_path, monkeypatch, source, kind, error):
    def fail(self):
        raise error

    monkeypatch.setattr(kind, "download", fail)
    with pytest.raises(UserError, match=f"cannot download {source} to {tmp_path}: ") as caught:
        load(DataConfig(source=source, root=str(tmp_path), download=True), CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_any_checksum")
def test_download_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.CIFAR10, "download", lambda self: (tmp_path / "x").mkdir(exist_ok=True))
    write_cifar10(tmp_path)
    load(DataConfig(source="cifar10", root=str(tmp_path)), CPU)
    assert not (tmp_path / "x").exists()
    load(DataConfig(source="cifar10", root=str(tmp_path), download=True), CPU)
    assert (tmp_path / "x").exists()


@pytest.fixture
def imagenet(class_folders):
    (class_folders / "test").rename(class_folders / "val")
    return class_folders


def load_imagenet(root):
    return load(DataConfig(source="imagenet", root=str(root), size=8, workers=1), CPU)


def test_imagenet_from_plain_folders(imagenet):
    data = load_imagenet(imagenet)
    assert data.name == "imagenet"
    assert data.classes == ("ant", "bee", "cat")
    assert (len(data.train), len(data.test)) == (18, 6)


def test_imagenet_with_the_names_of_torchvision(imagenet):
    names = {"ant": ("ant", "emmet"), "bee": ("bee",), "cow": ("cow",)}
    torch.save((names, ["ant"]), imagenet / "meta.bin")
    assert load_imagenet(imagenet).classes == ("ant, emmet", "bee", "cat")


@pytest.mark.parametrize("damage", [lambda whole: b"", lambda whole: whole[:300], lambda whole: b"0\n"])
def test_names_that_are_damaged_are_one_line(imagenet, damage):
    torch.save(({"ant": ("ant",)}, ["ant"]), imagenet / "meta.bin")
    (imagenet / "meta.bin").write_bytes(damage((imagenet / "meta.bin").read_bytes()))
    with pytest.raises(UserError, match=r"meta\.bin is damaged; without it, classes are called as their folders$"):
        load_imagenet(imagenet)


def test_two_classes_of_one_name_are_told_apart(imagenet):
    """ImageNet has two cranes, a bird and a machine; results by class are kept by name."""
    torch.save(({"ant": ("crane",), "bee": ("crane",)}, ["ant"]), imagenet / "meta.bin")
    assert load_imagenet(imagenet).classes == ("crane (ant)", "crane (bee)", "cat")


@pytest.mark.parametrize("split", ["train", "val"])
def test_imagenet_needs_both_folders(imagenet, split):
    shutil.rmtree(imagenet / split)
    with pytest.raises(
        UserError, match=rf"no folder '{split}'; it needs train/ and val/ .*ImageNet\(root, split\) unpacks"
    ):
        load_imagenet(imagenet)


def test_imagenet_validation_needs_class_folders(imagenet, write_image):
    shutil.rmtree(imagenet / "val")
    write_image(imagenet / "val" / "a.png")
    with pytest.raises(UserError, match="val should have a folder per class, but holds images only"):
        load_imagenet(imagenet)


def test_imagenet_from_real_sample_files(samples):
    data = load_imagenet(samples / "imagenette96")
    assert (len(data.train), len(data.test), len(data.classes)) == (30, 20, 10)
    assert data.classes[0] == "n01440764"
