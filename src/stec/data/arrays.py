"""Images from NumPy files in one folder.

    train.npy, test.npy                uint8 (N, H, W, 3)
    train_labels.npy, test_labels.npy  integers (N,) from 0 on; -1 where a training image has no label
    classes.json                       list of the classes' names

All but `train.npy` may be missing.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stec.checking import require_folder
from stec.config import read_text
from stec.data.pictures import ArrayPictures, Collection
from stec.errors import UserError

logger = logging.getLogger("stec")

CLASSES = "classes.json"
MANY = 1_000_000  # classes: a label beyond is the number of something else, or a mark of images that have none


def open_arrays(root: Path, size: int) -> Collection:
    """The arrays under a folder; those of images stay on disk until they are read."""
    require_folder(root, "data.root=")
    classes = _read_classes(root / CLASSES)
    images = _read_images(root / "train.npy")
    labels = _read_labels(root / "train_labels.npy", len(images), classes, least=-1)
    test_images, test_labels = _read_test(root, classes)
    if labels is None or bool((labels < 0).all()):
        if test_images is not None:
            logger.info("%s has no train_labels.npy: training without a probe", root)
        unlabelled = torch.full((len(images),), -1)
        return Collection(f"arrays:{root}", ArrayPictures(images, unlabelled, size), None, ())
    train = ArrayPictures(images, labels, size)
    highest = int(max(part.max() for part in (labels, test_labels) if part is not None))
    classes = classes or tuple(str(label) for label in range(highest + 1))
    test = None
    if test_images is not None and test_labels is not None:
        test = ArrayPictures(test_images, test_labels, size)
    return Collection(f"arrays:{root}", train, test, classes)


def _read_test(root: Path, classes: tuple[str, ...]) -> tuple[np.ndarray | None, Tensor | None]:
    if not (root / "test.npy").exists():
        if (root / "test_labels.npy").exists():
            raise UserError(f"{root / 'test_labels.npy'} has no images: add test.npy, or remove it")
        return None, None
    images = _read_images(root / "test.npy")
    labels = _read_labels(root / "test_labels.npy", len(images), classes, least=0)
    if labels is None:
        logger.info("%s has no test_labels.npy: training without a probe", root)
    return images, labels


def _read(path: Path) -> np.ndarray:
    if not path.exists():
        raise UserError(f"{path}: no such file; it should hold the images, uint8 (N, H, W, 3)")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header raises nearly anything
        raise UserError(f"{path}: not a NumPy file ({' '.join(str(error).split())})") from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path}: not a NumPy file (an .npz archive; save one array with numpy.save)")
    return array


def _read_images(path: Path) -> np.ndarray:
    array = _read(path)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        raise UserError(f"{path}: should be uint8 (N, H, W, 3), is {array.dtype} {array.shape}")
    if 0 in array.shape:
        raise UserError(f"{path}: holds no images, its shape is {array.shape}")
    return array


def _read_labels(path: Path, number: int, classes: tuple[str, ...], least: int) -> Tensor | None:
    """Labels from `least` to the number of classes; None if there is no such file."""
    if not path.exists():
        return None
    array = _read(path)
    if array.dtype.kind not in "iu" or array.shape != (number,):
        raise UserError(f"{path}: should be integers ({number},), is {array.dtype} {array.shape}")
    low, high = int(array.min()), int(array.max())
    if low < least:
        raise UserError(f"{path}: the lowest label is {low}, should be at least {least}")
    check_highest(high, classes, path)
    return torch.from_numpy(np.array(array, np.int64))


def check_highest(label: int, classes: tuple[str, ...], where: object) -> None:
    """UserError unless the highest label is the number of a class."""
    if label >= (len(classes) or MANY):
        wrong = f"but {CLASSES} names {len(classes)} classes" if classes else "should number a class, or be -1 for none"
        raise UserError(f"{where}: the highest label is {label}, {wrong}")


def _read_classes(path: Path) -> tuple[str, ...]:
    return parse_classes(read_text(path), path) if path.exists() else ()


def parse_classes(text: str, path: object) -> tuple[str, ...]:
    """The names of the classes, from a JSON list."""
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: should be a list of the classes' names")
    return tuple(names)
