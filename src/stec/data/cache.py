"""Image files decoded once and kept as one array on disk, from which later epochs and runs stream without decoding."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from stec.data.pictures import ArrayPictures, FilePictures
from stec.data.split import read_all
from stec.errors import UserError
from stec.locking import locked
from stec.run import replacing

Kept = tuple[ArrayPictures, tuple[str, ...]]  # the images, and the names of those that could not be read


def cached(pictures: FilePictures, size: int, folder: Path, workers: int) -> Kept:
    """The same images from an array in `folder`, which is filled first where it does not hold them yet.

    The array belongs to the folder, the names, lengths, times and labels of its files, and the size: when they change,
    another is made. Of several processes that need it at once, one fills it and the others wait.

    Returns:
        The images, and the names of those that could not be read and are left out.
    """
    # The folder too: where pictures are not compressed, train and test may have the same names and lengths.
    digest = hashlib.sha256(b"%d\0%s\0" % (size, os.path.abspath(pictures.root)))
    for piece in pictures.content(dated=True):
        digest.update(piece)
    name = digest.hexdigest()[:16]
    array, about = folder / f"{name}.npy", folder / f"{name}.npz"
    if (kept := _open(array, about, size)) is not None:
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f".{name}.lock") as mark:
            if (kept := _open(array, about, size)) is None:
                _fill(pictures, size, array, about, workers, mark)
                kept = _open(array, about, size)
    except OSError as error:
        raise UserError(f"data.cache={folder}: cannot be written ({error.strerror})") from None
    assert kept is not None
    return kept


def _open(array: Path, about: Path, size: int) -> Kept | None:
    """None if there is no such cache, or not the whole of it."""
    try:
        pixels = np.load(array, mmap_mode="r", allow_pickle=False)
        with np.load(about, allow_pickle=False) as facts:
            labels, sizes, skipped = torch.from_numpy(facts["labels"]), facts["sizes"], facts["skipped"].tolist()
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
    return ArrayPictures(pixels[: len(labels)], labels, size, sizes), tuple(skipped)


def _fill(pictures: FilePictures, size: int, array: Path, about: Path, workers: int, mark: str) -> None:
    """Writes the array, then what belongs to it: an interrupted attempt leaves nothing that looks finished."""
    sizes, kept, skipped = [], [], []
    shape = (len(pictures), size, size, 3)
    # Written and not mapped: where the disk is full, a map would kill the process instead of saying so.
    with replacing(array, mark) as part, part.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        end = file.tell() + int(np.prod(shape))
        for block in read_all(pictures, size, workers):
            file.write(block.images.permute(0, 2, 3, 1).contiguous().numpy().data)
            sizes.append(block.sizes.int().numpy())
            kept.append(block.indices)
            skipped += [failure.name for failure in block.failures]
        file.truncate(end)  # as long as if none had been left out
    labels = pictures.labels[torch.cat(kept)].numpy()
    with replacing(about, mark) as part, part.open("wb") as file:
        np.savez(file, labels=labels, sizes=np.concatenate(sizes), skipped=np.asarray(skipped, dtype=str))
