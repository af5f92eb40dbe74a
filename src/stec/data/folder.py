"""Images from any tree of folders."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from stec.checking import require_folder
from stec.data.pictures import Collection, FilePictures
from stec.errors import UserError

logger = logging.getLogger("stec")

EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm",
    ".jpe", ".jfif", ".jp2", ".pgm", ".pnm", ".tga", ".avif",
)  # fmt: skip
# Images that Pillow does not read.
FOREIGN = (".heic", ".heif", ".jxl", ".svg", ".dcm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2")
# What folders of training and of test images may be called, in any case of letters, the likeliest first.
TRAINS = ("train", "training")
TESTS = ("test", "testing", "val", "valid", "validation")


@dataclass(frozen=True)
class Listing:
    """The image files of one split, as names relative to its folder."""

    folder: Path
    classes: dict[str, list[str]]  # files of each class folder
    loose: list[str]  # files that lie beside the class folders

    @property
    def is_labelled(self) -> bool:
        """Whether there are class folders."""
        return bool(self.classes)


def open_folder(root: Path, size: int) -> Collection:
    """A tree of images: folders of training and test images (`TRAINS`, `TESTS`), or one of which a tenth is held out.

    Folders inside a split are its classes. Where there are none, or only one, there are no labels and no test split.
    """
    require_folder(root, "data.root=")
    train_folder, test_folders = _split_folders(root)
    train = list_images(train_folder)
    if len(train.classes) < 2:
        number = "only one class folder" if train.classes else "no class folders"
        logger.info("%s has %s: there are no labels, and no probe", train_folder, number)
        train = Listing(train_folder, {}, sorted([*train.loose, *chain(*train.classes.values())]))
        return Collection(f"folder:{root}", _pictures(train, (), size), None, ())
    listings = [listing for listing in map(list_images, test_folders) if listing.is_labelled]
    if listings:
        return labelled(f"folder:{root}", train, listings[0], size)
    if test_folders:
        logger.info("%s has no class folders: training without a probe", test_folders[0])
        return labelled(f"folder:{root}", train, None, size)
    train, test = _hold_out(train)
    held_out = sum(len(names) for names in test.classes.values())
    if held_out:
        logger.info("%s has no test folder: held out %d of its images, a tenth of each class", root, held_out)
    else:
        logger.info("%s has no test folder, and one image of each class: training without a probe", root)
    return labelled(f"folder:{root}", train, test if held_out else None, size)


def labelled(name: str, train: Listing, test: Listing | None, size: int) -> Collection:
    """A collection whose classes are the class folders of the train split."""
    classes = tuple(train.classes)
    if len(classes) < 2:
        raise UserError(f"{train.folder} has only one class folder, '{classes[0]}'; data.source=folder needs none")
    if test is None:
        return Collection(name, _pictures(train, classes, size), None, classes)
    unknown = [name for name in test.classes if name not in train.classes]
    if unknown:
        raise UserError(f"{test.folder} has a class folder '{unknown[0]}' that {train.folder} has not")
    only_labelled = Listing(test.folder, test.classes, [])
    return Collection(name, _pictures(train, classes, size), _pictures(only_labelled, classes, size), classes)


def list_images(folder: Path) -> Listing:
    """Find the class folders and files of a split; UserError if there is no image at all."""
    classes: dict[str, list[str]] = {}
    loose: list[str] = []
    for name in image_names(folder):
        first, slash, _ = name.partition(os.sep)
        (classes.setdefault(first, []) if slash else loose).append(name)
    if classes and loose:
        logger.info("%s: %d images beside the class folders have no label", folder, len(loose))
    return Listing(folder, classes, loose)


def image_names(folder: Path) -> list[str]:
    """Names relative to the folder of all images below it, sorted; UserError if there is none."""
    return file_names(folder, EXTENSIONS, FOREIGN, "images")


def file_names(folder: Path, extensions: tuple[str, ...], foreign: tuple[str, ...], what: str) -> list[str]:
    """Names relative to the folder of all files below it with these endings, sorted; UserError if there is none.

    Files with `foreign` endings are of the same kind, and cannot be read: how many there are is told.
    """
    found = names_below(folder, (*extensions, *foreign))
    names = [name for name in found if name.lower().endswith(extensions)]
    others = Counter(Path(name).suffix.lower() for name in found if not name.lower().endswith(extensions))
    told = ", ".join(f"{number:,} {ending}" for ending, number in sorted(others.items()))
    if not names:
        lacking = f"{folder} holds no {what}: none of its files ends in {' '.join(extensions)}"
        raise UserError(f"{lacking}; convert those that it holds ({told})" if told else lacking)
    if told:
        logger.warning("%s: files that cannot be read are left out (%s): convert them", folder, told)
    return names


def names_below(folder: Path, extensions: tuple[str, ...]) -> list[str]:
    """As `file_names`, and there may be none."""
    return list(_file_names(folder, Path(), (), extensions))


def _split_folders(root: Path) -> tuple[Path, list[Path]]:
    """The train folder, and those that may be the test folder.

    A lone `train` among other folders of images is taken for a class of that name: there are data sets of vehicles.
    """
    named = {path.name.lower(): path for path in sorted(root.iterdir()) if path.is_dir() and path.name[0] != "."}
    train = next((named[name] for name in TRAINS if name in named), None)
    tests = [named[name] for name in TESTS if name in named]
    if train is None:
        return root, []
    others = (path for path in named.values() if path != train)
    if tests or not any(any(_file_names(path, Path(), (), EXTENSIONS)) for path in others):
        return train, tests
    return root, []


def _file_names(
    root: Path, folder: Path, above: tuple[tuple[int, int], ...], extensions: tuple[str, ...]
) -> Iterator[str]:
    """Names relative to root of all such files below it, sorted; follows links, but not in circles."""
    try:
        status = os.stat(root / folder)
        entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot look into {root / folder}: {error.strerror}") from None
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            yield from _file_names(root, folder / entry.name, (*above, here), extensions)
        elif entry.name.lower().endswith(extensions):
            yield str(folder / entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link to itself is none, nor is one that leads nowhere."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _hold_out(listing: Listing) -> tuple[Listing, Listing]:
    """A tenth of each class, at least one image of those that have two: on any machine the same."""
    train: dict[str, list[str]] = {}
    test: dict[str, list[str]] = {}
    for label, names in listing.classes.items():
        shuffled = sorted(names, key=lambda name: hashlib.sha256(os.fsencode(name)).digest())
        held_out = min(max(1, len(names) // 10), len(names) - 1)
        test[label], train[label] = sorted(shuffled[:held_out]), sorted(shuffled[held_out:])
    return Listing(listing.folder, train, listing.loose), Listing(listing.folder, test, [])


def _pictures(listing: Listing, classes: tuple[str, ...], size: int) -> FilePictures:
    names, labels = list(listing.loose), [-1] * len(listing.loose)
    for label, folder in enumerate(classes):
        files = listing.classes.get(folder, [])
        names += files
        labels += [label] * len(files)
    return FilePictures(listing.folder, names, torch.tensor(labels), size)
