"""Image files decoded once and kept as one array on disk, from which later epochs and runs stream without decoding."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from stec.data.pictures import ArrayPictures, FilePictures
from stec.data.split import read_all
from stec.errors import UserError


def cached(pictures: FilePictures, size: int, folder: Path, workers: int) -> tuple[ArrayPictures, tuple[str, ...]]:
    """The same images from an array in `folder`, which is filled first where it does not hold them yet.

    The array belongs to the names, lengths, times and labels of the files and to the size: when they change, another is
    made.

    Returns:
        The images, and the names of those that could not be read and are left out.
    """
    digest = hashlib.sha256(str(size).encode())
    for piece in pictures.content(dated=True):
        digest.update(piece)
    name = digest.hexdigest()[:16]
    array, about = folder / f"{name}.npy", folder / f"{name}.npz"
    if not about.is_file():
        _fill(pictures, size, array, about, workers)
    with np.load(about, allow_pickle=False) as facts:
        labels, sizes, skipped = torch.from_numpy(facts["labels"]), facts["sizes"], facts["skipped"].tolist()
    return ArrayPictures(np.load(array, mmap_mode="r")[: len(labels)], labels, size, sizes), tuple(skipped)


def _fill(pictures: FilePictures, size: int, array: Path, about: Path, workers: int) -> None:
    """Writes the array, then what belongs to it: an interrupted attempt leaves nothing that looks finished."""
    part = array.with_suffix(".part")
    sizes, kept, skipped = [], [], []
    filled = 0
    try:
        array.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=(len(pictures), size, size, 3))
        for block in read_all(pictures, size, workers):
            pixels[filled : filled + len(block.images)] = block.images.permute(0, 2, 3, 1).numpy()
            filled += len(block.images)
            sizes.append(block.sizes.int().numpy())
            kept.append(block.indices)
            skipped += [failure.name for failure in block.failures]
        pixels.flush()
        part.replace(array)
        labels = pictures.labels[torch.cat(kept)].numpy()
        np.savez(about, labels=labels, sizes=np.concatenate(sizes), skipped=np.asarray(skipped, dtype=str))
    except OSError as error:
        raise UserError(f"data.cache={array.parent}: cannot be written ({error.strerror})") from None
    finally:
        with suppress(OSError):
            part.unlink()
