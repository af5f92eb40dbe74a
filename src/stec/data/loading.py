"""From a config to a data set on the device."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from stec.config import DataConfig
from stec.data import shapes
from stec.data.arrays import open_arrays
from stec.data.cache import cached
from stec.data.folder import open_folder
from stec.data.pictures import ArrayPictures, Collection, FilePictures, Pictures
from stec.data.residence import is_resident
from stec.data.shards import open_shards
from stec.data.split import Split, StreamedSplit, take
from stec.data.store import Store
from stec.data.torchvision_sets import open_cifar, open_imagenet, open_stl10
from stec.errors import UserError, nearest

SOURCES = {
    "shapes": "pictures of ten simple forms, drawn on the spot; needs no files",
    "arrays": "NumPy files: root/train.npy (uint8 N,H,W,3), train_labels.npy, test.npy, test_labels.npy",
    "folder": "any tree of images: root/train and root/test (or val), or root alone; folders are classes",
    "cifar10": "CIFAR-10: 60,000 images of 32 px, 10 classes; data.download=true gets it",
    "cifar100": "CIFAR-100: 60,000 images of 32 px, 100 classes; data.download=true gets it",
    "stl10": "STL-10: 105,000 images of 96 px, 5,000 of them labelled; data.download=true gets it",
    "imagenet": "ImageNet: root/train and root/val with a folder per class",
    "shards": "webdataset's tar files: a folder, 'train-{000000..000127}.tar' or such an http address",
}


@dataclass(frozen=True)
class DataSet:
    """Images to train on and, where they are labelled, to test on."""

    name: str  # such as "shapes", "cifar10", "folder:/path"
    train: Split
    test: Split | None  # None when there is no labelled test split: no probe then
    classes: tuple[str, ...]  # () when unlabelled
    size: int  # S: side in pixels
    fingerprint: str  # of the content; for files of their names, sizes in bytes and labels
    resident: bool
    skipped: tuple[str, ...]  # unreadable files that were left out


def worker_count(config: DataConfig) -> int:
    """How many processes or threads read images."""
    # Those of a job on a cluster, which may have a few of a machine's.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(config.workers, cores)  # more would only stand in each other's way


def load(config: DataConfig, device: torch.device) -> DataSet:
    """Open a source and, if it fits, bring all its images to the device."""
    found = open_source(config)
    parts: list[Pictures] = [found.train] if found.test is None else [found.train, found.test]
    needed = sum(len(part) for part in parts) * 3 * config.size**2
    resident = is_resident(config.resident, needed, device)
    workers = worker_count(config)
    skipped = list(found.skipped)
    splits: list[Split] = []
    digests: list[bytes] = []
    for source in parts:
        part = source
        if config.cache is not None and isinstance(source, FilePictures):
            part, unreadable = cached(source, config.size, Path(config.cache).expanduser(), workers)
            skipped += unreadable
        if resident:
            taken = take(part, config.size, device, workers)
            splits.append(taken.split)
            skipped += taken.skipped
        else:
            splits.append(StreamedSplit(part, config.size, device, workers))
        # One content wherever the images are kept; but where some are left out, all come in another order.
        left = splits[-1].labels.numpy().tobytes() if len(splits[-1]) < len(source) else b""
        digests.append(_digest(chain(source.content(), [left])))
    test = splits[1] if len(splits) > 1 else None
    return DataSet(found.name, splits[0], test, found.classes, config.size, _short(digests), resident, tuple(skipped))


def open_source(config: DataConfig) -> Collection:
    """What the source holds, or as much of it as `data.limit` allows, before any image is read."""
    found = _open_source(config)
    if config.limit is None:
        return found
    return dataclasses.replace(found, train=found.train.limited(config.limit))


def _open_source(config: DataConfig) -> Collection:
    if config.source == "utterances":
        raise UserError("data.source=utterances is sound: start from a recipe such as audio/cpc")
    if config.source not in SOURCES:
        raise UserError(f"data.source={config.source}: {nearest(config.source, SOURCES)}")
    if config.test_root is not None and config.source != "shards":
        inside = "a folder has train and test inside of data.root"
        raise UserError(f"data.test_root={config.test_root}: for shards alone; {inside}")
    if config.source == "shapes":
        return _draw_shapes(config)
    if config.root is None:
        raise UserError(f"data.source={config.source} needs data.root, the folder of its files")
    root = Path(config.root).expanduser()
    if config.source == "arrays":
        return open_arrays(root, config.size)
    if config.source == "folder":
        return open_folder(root, config.size)
    if config.source == "imagenet":
        return open_imagenet(root, config.size)
    if config.source == "shards":
        cache = config.cache or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "stec", "shards")
        store = Store(Path(cache).expanduser(), config.cache_gb * 1e9)
        return open_shards(config.root, config.test_root, config.size, config.buffer, store)
    if config.source == "stl10":
        return open_stl10(root, config.size, config.download)
    return open_cifar(config.source, root, config.size, config.download)


def _draw_shapes(config: DataConfig) -> Collection:
    """Always with the same seed: the data set does not change with the seed of a training run."""
    splits = []
    for split, number in (("train", config.train_images), ("test", config.test_images)):
        parts = [(part.images, part.labels[:, 0]) for part in shapes.chunks(number, config.size, split=split)]
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        splits.append(ArrayPictures(images.permute(0, 2, 3, 1).numpy(), labels, config.size))
    return Collection("shapes", splits[0], splits[1], shapes.CLASSES)


def _digest(content: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    return digest.digest()


def _short(digests: list[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]
