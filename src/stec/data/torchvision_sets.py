"""CIFAR-10, CIFAR-100, STL-10 and ImageNet, in the layouts that torchvision reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets
from torchvision.datasets.imagenet import META_FILE, load_meta_file

from stec.data.folder import labelled, list_images
from stec.data.pictures import ArrayPictures, Collection
from stec.errors import UserError

_STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")


def open_cifar(name: str, root: Path, size: int, download: bool) -> Collection:
    """CIFAR-10 or CIFAR-100 (fine labels)."""
    kind = {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]
    train, test = (_open(kind, name, root, download, train=train) for train in (True, False))
    pictures = [ArrayPictures(part.data, torch.tensor(part.targets), size) for part in (train, test)]
    return Collection(name, pictures[0], pictures[1], tuple(train.classes))


def open_stl10(root: Path, size: int, download: bool) -> Collection:
    """STL-10: trains on the labelled and the unlabelled images, whose label is -1."""
    parts = (_open(datasets.STL10, "stl10", root, download, split=s) for s in ("train+unlabeled", "test"))
    train, test = (
        ArrayPictures(part.data.transpose(0, 2, 3, 1), torch.from_numpy(part.labels.astype(np.int64)), size)
        for part in parts
    )
    return Collection("stl10", train, test, _STL10_CLASSES)


def open_imagenet(root: Path, size: int) -> Collection:
    """ImageNet: `train` and `val` with a folder per class; torchvision's `meta.bin`, if there, names them."""
    for split in ("train", "val"):
        if not (root / split).is_dir():
            raise UserError(
                f"data.root={root}: no folder '{split}'; it needs train/ and val/ with a folder per class "
                "(torchvision.datasets.ImageNet(root, split) unpacks the archives from image-net.org)"
            )
    train, test = list_images(root / "train"), list_images(root / "val")
    for listing in (train, test):
        if not listing.is_labelled:
            raise UserError(f"{listing.folder} should have a folder per class, but holds images only")
    found = labelled("imagenet", train, test, size)
    if not (root / META_FILE).is_file():
        return found
    names = _names(root)
    called = [names.get(folder, folder) for folder in found.classes]
    # There are two cranes, a bird and a machine.
    classes = tuple(
        f"{name} ({folder})" if called.count(name) > 1 else name
        for name, folder in zip(called, found.classes, strict=True)
    )
    return Collection(found.name, found.train, found.test, classes)


def _names(root: Path) -> dict[str, str]:
    """Of the folders of classes."""
    try:
        return {folder: ", ".join(words) for folder, words in load_meta_file(root)[0].items()}
    except Exception:  # a damaged file raises nearly anything
        raise UserError(f"{root / META_FILE} is damaged; without it, classes are called as their folders") from None


def _open(kind: Callable[..., Any], name: str, root: Path, download: bool, **split: Any) -> Any:
    """A data set of torchvision; what is missing or fails is said in our words."""
    try:
        return kind(root, download=download, **split)
    except (RuntimeError, OSError) as error:  # OSError: no network
        if download:
            reason = " ".join(str(error).split())
            raise UserError(f"cannot download {name} to {root}: {reason}") from None
        raise UserError(
            f"data.root={root}: no {name} there, or its files are damaged; data.download=true gets it, "
            f"or put {kind.base_folder}/ (from {kind.url}) there"  # type: ignore[attr-defined]
        ) from None
