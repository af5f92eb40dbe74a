"""PASCAL VOC, SBD, and other data sets in the same layouts, which are torchvision's.

    root/[VOCdevkit/]VOC2012/JPEGImages/NAME.jpg
                             Annotations/NAME.xml           boxes
                             SegmentationClass/NAME.png     masks; SegmentationClassAug goes before it
                             ImageSets/Main/train.txt       names, one a line: for detection
                             ImageSets/Segmentation/...     for segmentation
    root/SBD/img/NAME.jpg, cls/NAME.mat, train.txt          masks alone

An image set is FOLDER/SET, as VOC2012/train; FOLDER/Segmentation/SET takes one of the other task's. The paper's
`train_aug2012` is [VOC2012/train, SBD/train, SBD/val] with VOC2012/val to test: of SBD, only images that no other set
has are taken.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from stec.checking import require_folder
from stec.data.decoding import UnreadableError, open_rgb
from stec.data.pictures import Failure
from stec.data.split import check_failures, report_failures
from stec.errors import UserError, nearest
from stec.transfer.scenes import VOID, Scene

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
_KINDS = {"detection": "Main", "segmentation": "Segmentation"}


class Entry(NamedTuple):
    """An image with its annotation."""

    image: Path
    annotation: Path  # .xml, .png or .mat


class Found(NamedTuple):
    """What was read of some entries."""

    scenes: list[Scene]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


def open_sets(root: Path, train: Sequence[str], test: Sequence[str], task: str) -> tuple[list[Entry], list[Entry]]:
    """The images to train and to test on."""
    require_folder(root.expanduser(), "data.root=")
    taken: set[str] = set()
    found: dict[str, list[Entry]] = {}
    # SBD last, as it holds images of VOC's own sets: those are taken from there.
    for word in sorted(dict.fromkeys([*test, *train]), key=lambda word: _is_sbd(_folder(root, word))):
        entries = _open_set(root, word, task)
        for files in ([entry.image for entry in entries], [entry.annotation for entry in entries]):
            if not any(file.is_file() for file in files):  # a test set without annotations, before minutes of reading
                raise UserError(f"image set {word}: {files[0]} is missing, and so are all others of its kind")
        if _is_sbd(_folder(root, word)):
            entries = [entry for entry in entries if entry.image.stem not in taken]
        taken.update(entry.image.stem for entry in entries)
        found[word] = entries
    for words in (train, test):
        if not any(found[word] for word in words):
            raise UserError(f"image set {', '.join(words)}: other sets have all of its images")
    return [entry for word in train for entry in found[word]], [entry for word in test for entry in found[word]]


def _folder(root: Path, word: str) -> Path:
    root, name = root.expanduser(), word.split("/")[0]
    for place in (root / name, root / "VOCdevkit" / name):
        if place.is_dir():
            return place
    raise UserError(f"image set {word}: neither {root / name} nor {root / 'VOCdevkit' / name} is a folder")


def _is_sbd(folder: Path) -> bool:
    return (folder / "cls").is_dir() and not (folder / "ImageSets").is_dir()


def _open_set(root: Path, word: str, task: str) -> list[Entry]:
    parts = word.split("/")
    if not 2 <= len(parts) <= 3 or not all(parts):
        raise UserError(f"image set {word}: expected FOLDER/SET, such as VOC2012/train")
    folder, kind, name = _folder(root, word), parts[1] if len(parts) == 3 else _KINDS[task], parts[-1]
    if _is_sbd(folder):
        if task != "segmentation":
            raise UserError(f"image set {word}: SBD has masks alone, and no boxes for {task}")
        return [Entry(folder / "img" / f"{n}.jpg", folder / "cls" / f"{n}.mat") for n in _names(folder, name, word)]
    names = _names(folder / "ImageSets" / kind, name, word)
    images = folder / "JPEGImages"
    if task == "detection":
        return [Entry(images / f"{n}.jpg", folder / "Annotations" / f"{n}.xml") for n in names]
    return [Entry(images / f"{n}.jpg", _mask_file(folder, n)) for n in names]


def _names(folder: Path, name: str, word: str) -> list[str]:
    path = folder / f"{name}.txt"
    if not path.is_file():
        sets = [file.stem for file in folder.glob("*.txt")] if folder.is_dir() else []
        hint = nearest(name, sets) if sets else f"there are no image sets in {folder}"
        raise UserError(f"image set {word}: {path} is missing; {hint}")
    text = path.read_text("utf-8-sig", errors="surrogateescape")  # names of files may be no UTF-8
    # Lists for one class have a second column, 1 where the image shows it.
    names = [line.split()[0] for line in text.splitlines() if line.strip()]
    if not names:
        raise UserError(f"image set {word}: {path} names no image")
    return names


def _mask_file(folder: Path, name: str) -> Path:
    wider = folder / "SegmentationClassAug" / f"{name}.png"
    return wider if wider.is_file() else folder / "SegmentationClass" / f"{name}.png"


def read_scenes(entries: Sequence[Entry], classes: Sequence[str], side: int, task: str, workers: int) -> Found:
    """Reads all; a scene that cannot be read is named and left out, if they are few. Larger images shrink to `side`."""
    read = partial(_read, classes=classes, side=side, detects=task == "detection")
    scenes: list[Scene] = []
    failures: list[Failure] = []
    lost: Counter[str] = Counter()
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for result in pool.map(read, entries):
            if isinstance(result, Failure):
                report_failures([result], "left out")
                failures.append(result)
                check_failures(failures, len(entries))
                continue
            scene, flat = result
            lost["boxes of no area left out"] += flat
            lost["images without an object"] += task == "detection" and not len(scene.boxes)
            scenes.append(scene)
    notes = tuple(f"{number:,} {what}" for what, number in lost.items() if number)
    return Found(scenes, tuple(failure.name for failure in failures), notes)


def _read(entry: Entry, classes: Sequence[str], side: int, detects: bool) -> tuple[Scene, int] | Failure:
    """A scene, and how many boxes of no area it had."""
    blamed = entry.annotation
    boxes, labels, difficult = np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, bool)
    mask, flat = None, 0
    try:
        if detects:
            boxes, labels, difficult, annotated = _read_boxes(entry.annotation, classes)
        else:
            values = _read_mask(entry.annotation, len(classes))
            annotated = values.shape[::-1]
        blamed = entry.image
        picture = _open_as_annotated(entry.image, annotated)
        width, height = picture.size
        shrink = min(1.0, side / max(height, width))
        size = max(1, round(width * shrink)), max(1, round(height * shrink))
        if detects:
            boxes = np.clip(boxes, 0, np.asarray([width, height] * 2, np.float32))
            boxes = boxes * np.asarray([size[0] / width, size[1] / height] * 2, np.float32)
            fine = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
            flat = int((~fine).sum())
            boxes, labels, difficult = boxes[fine], labels[fine], difficult[fine]
        else:
            blamed = entry.annotation
            if annotated != picture.size:
                raise UnreadableError(f"a mask of {values.shape[1]} x {values.shape[0]} for {width} x {height} pixels")
            mask = np.array(Image.fromarray(values).resize(size, Image.Resampling.NEAREST))
    except UnreadableError as error:
        return Failure(str(blamed), str(error))
    pixels = np.array(picture if shrink == 1 else picture.resize(size, Image.Resampling.BILINEAR))
    return Scene(pixels, boxes, labels, difficult, mask), flat


def _open_as_annotated(path: Path, size: tuple[int, int] | None) -> Image.Image:
    """Turned as the EXIF orientation says, unless the annotation is of the image as it is stored: tools do either."""
    picture = open_rgb(path)
    if size is not None and picture.size != size:
        stored = open_rgb(path, turned=False)
        return stored if stored.size == size else picture
    return picture


def _read_boxes(
    path: Path, classes: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int] | None]:
    """Boxes, labels from 1, which of them are difficult, and the size of the image, if the file tells.

    VOC counts pixels from 1, and the last one belongs.
    """
    try:
        root = ElementTree.parse(path).getroot()
        objects = root.findall("object")
        names = [str(item.findtext("name")).strip() for item in objects]
        difficult = [int(item.findtext("difficult") or 0) != 0 for item in objects]
        corners = [
            [float(str(item.findtext(f"bndbox/{key}"))) for key in ("xmin", "ymin", "xmax", "ymax")] for item in objects
        ]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    for name in names:
        if name not in classes:
            raise UserError(f"{path}: unknown class '{name}': {nearest(name, classes)}; data.classes=[...] names them")
    boxes = np.asarray(corners, np.float32).reshape(-1, 4) - np.asarray([1, 1, 0, 0], np.float32)
    labels = np.asarray([classes.index(name) + 1 for name in names], np.int64)
    size = [str(root.findtext(f"size/{key}")) for key in ("width", "height")]
    annotated = (int(size[0]), int(size[1])) if all(word.isdecimal() for word in size) else None
    return boxes, labels, np.asarray(difficult, bool), annotated


def _read_mask(path: Path, classes: int) -> np.ndarray:
    """uint8 (h, w): 0 for the background, 1 ... for the classes, VOID."""
    try:
        if path.suffix == ".mat":
            values = _read_mat(path)
        else:
            with Image.open(path) as picture:
                if picture.mode not in ("P", "L"):
                    raise UnreadableError(f"colours ({picture.mode}) instead of numbers of classes")
                values = np.asarray(picture)
    except (UnreadableError, UserError):
        raise
    except Exception as error:  # a broken file raises nearly anything
        raise UnreadableError(f"{type(error).__name__}: {error}") from None
    wrong = np.unique(values[(values > classes) & (values != VOID)])
    if len(wrong):
        raise UnreadableError(f"values up to {classes}, and {VOID}, are known, not {wrong[0]}")
    return values.astype(np.uint8)


def _read_mat(path: Path) -> np.ndarray:
    try:
        from scipy.io import loadmat
    except ImportError:
        raise UserError("the masks of SBD need SciPy: pip install 'stec[transfer]'") from None
    return np.asarray(loadmat(path)["GTcls"][0]["Segmentation"][0])
