"""Where images come from, one at a time: arrays in memory or on disk, and image files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from stec.data.decoding import Picture, UnreadableError, decode, squash


class Encoded(NamedTuple):
    """An image as a file."""

    content: bytes
    extension: str  # such as "jpg"


class Pictures(Protocol):
    """Images that can be read by index, in any process."""

    labels: Tensor  # int64 (N,); -1 where there is none

    def __len__(self) -> int:
        """How many there are."""

    def read(self, index: int) -> Picture:
        """The image; UnreadableError if it is broken."""

    def name(self, index: int) -> str:
        """What to call the image in a message."""

    def content(self) -> Iterator[bytes]:
        """Bytes that change when the images or labels do."""

    def encoded(self, index: int) -> Encoded:
        """The image as a file, with nothing lost; UnreadableError if there is none."""

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """All indices in an order for one epoch. Those that a process takes of each batch are neighbours in it."""

    def limited(self, number: int) -> Pictures:
        """At most so many of them, drawn at random, but always the same."""


class ArrayPictures:
    """Images of one shape in an array (N, H, W, 3), which may be mapped from a file.

    Args:
        array: uint8 (N, H, W, 3)
        labels: int64 (N,)
        size: the side to which images are squashed.
        sizes: (N, 2) heights and widths, where the images in the array are squashed already.
    """

    def __init__(self, array: np.ndarray, labels: Tensor, size: int, sizes: np.ndarray | None = None) -> None:
        self.array = array
        self.labels = labels
        self.size = size
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.array)

    def read(self, index: int) -> Picture:
        """The image, squashed if it has another size."""
        pixels = self.array[index]
        if pixels.shape[:2] == (self.size, self.size):
            height, width = (self.size, self.size) if self.sizes is None else self.sizes[index].tolist()
            return Picture(pixels, height, width)
        return squash(Image.fromarray(np.ascontiguousarray(pixels)), self.size)

    def read_together(self, indices: Iterable[int]) -> Block | None:
        """The images in one copy, many times as fast as one by one; None where they have yet to be squashed."""
        if self.array.shape[1:3] != (self.size, self.size):
            return None
        rows = np.fromiter(indices, np.int64)
        sizes = np.full((len(rows), 2), self.size) if self.sizes is None else self.sizes[rows]
        images = np.ascontiguousarray(self.array[rows].transpose(0, 3, 1, 2))
        return Block(torch.from_numpy(images), torch.tensor(sizes, dtype=torch.float32), torch.from_numpy(rows), ())

    def name(self, index: int) -> str:
        """The place in the array."""
        return f"image {index}"

    def content(self) -> Iterator[bytes]:
        """All pixels and labels."""
        yield f"{self.array.shape}".encode()
        for start in range(0, len(self), 1024):
            yield self.array[start : start + 1024].tobytes()
        yield self.labels.numpy().tobytes()

    def encoded(self, index: int) -> Encoded:
        """As PNG."""
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(self.array[index])).save(file, "PNG")
        return Encoded(file.getvalue(), "png")

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """Any order is as likely."""
        return torch.randperm(len(self), generator=shuffle)

    def limited(self, number: int) -> ArrayPictures:
        """At most so many of them, drawn at random, but always the same, copied into memory."""
        if number >= len(self):
            return self
        rows = _some(len(self), number)
        sizes = None if self.sizes is None else self.sizes[rows]
        return ArrayPictures(np.asarray(self.array[rows]), self.labels[rows], self.size, sizes)

    def __getstate__(self) -> dict[str, Any]:
        """A mapped array goes to another process as the name of its file, not as gigabytes."""
        state = self.__dict__.copy()
        if isinstance(self.array, np.memmap):
            state["array"] = (self.array.filename, len(self.array))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["array"], tuple):
            name, rows = state["array"]
            state["array"] = np.load(name, mmap_mode="r")[:rows]
        self.__dict__.update(state)


class FilePictures:
    """Image files under one folder, decoded when they are read."""

    def __init__(self, root: Path, names: list[str], labels: Tensor, size: int) -> None:
        self.root = os.fsencode(root)
        # One block of bytes, not a list: reading a list would copy it page by page into every worker process.
        self.names = np.asarray([os.fsencode(name) for name in names])
        self.labels = labels
        self.size = size

    def __len__(self) -> int:
        return len(self.names)

    def read(self, index: int) -> Picture:
        """The image, squashed; UnreadableError if it cannot be decoded."""
        return decode(self.name(index), self.size)

    def name(self, index: int) -> str:
        """The path of the file."""
        return os.fsdecode(os.path.join(self.root, self.names[index]))

    def content(self, dated: bool = False) -> Iterator[bytes]:
        """Relative names, file sizes and labels: quick, even for a million files.

        With `dated`, also when a file was changed: pixels that are not compressed have as many bytes as any others.
        """
        for name in self.names:
            try:
                status = os.stat(os.path.join(self.root, name))
                length, changed = status.st_size, status.st_mtime_ns
            except OSError:
                length = changed = -1
            yield name + b"\0%d\0" % length
            if dated:
                yield b"%d\0" % changed
        yield self.labels.numpy().tobytes()

    def encoded(self, index: int) -> Encoded:
        """The file as it is."""
        path = Path(self.name(index))
        try:
            return Encoded(path.read_bytes(), path.suffix[1:].lower())
        except OSError as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from None

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """Any order is as likely."""
        return torch.randperm(len(self), generator=shuffle)

    def limited(self, number: int) -> FilePictures:
        """At most so many of them, drawn at random, but always the same."""
        if number >= len(self):
            return self
        rows = _some(len(self), number)
        names = [os.fsdecode(name) for name in self.names[rows]]
        return FilePictures(Path(os.fsdecode(self.root)), names, self.labels[rows], self.size)


def _some(total: int, number: int) -> np.ndarray:
    """So many indices below the total, always the same, and among those of any larger number."""
    # A stream that NumPy keeps as it is. Not every n-th: classes may come in turn.
    return np.sort(np.random.RandomState(0).permutation(total)[:number])


@dataclass(frozen=True)
class Collection:
    """What a source found."""

    name: str
    train: Pictures
    test: Pictures | None  # labelled; None where there is none
    classes: tuple[str, ...]  # () when unlabelled
    skipped: tuple[str, ...] = ()  # files that could not be opened


class Failure(NamedTuple):
    """An image that could not be read, and why."""

    name: str
    reason: str


class Block(NamedTuple):
    """Some images, read one after the other. A tuple, so that a DataLoader knows how to pin its memory."""

    images: Tensor  # uint8 (n, 3, S, S)
    sizes: Tensor  # float32 (n, 2): height and width
    indices: Tensor  # int64 (n,): which images these are
    failures: Sequence[Failure]


def read_block(pictures: Pictures, indices: Iterable[int], size: int, replace: bool) -> Block:
    """Read images; one that is broken is left out, or replaced by the next image after it that is not.

    Replacing gives up after more failures in a row than `check_failures` allows; the image is then left out.
    """
    if isinstance(pictures, ArrayPictures) and (block := pictures.read_together(indices)) is not None:
        return block
    images, sizes, used, failures = [], [], [], []
    attempts = allowed_failures(len(pictures)) + 1 if replace else 1
    for wanted in indices:
        for index in islice(_in_place_of(pictures, wanted), attempts):
            try:
                picture = pictures.read(index)
            except UnreadableError as error:
                failures.append(Failure(pictures.name(index), str(error)))
                continue
            images.append(picture.pixels)
            sizes.append((picture.height, picture.width))
            used.append(index)
            break
    stacked = np.empty((len(images), 3, size, size), np.uint8)
    for target, pixels in zip(stacked, images, strict=True):
        target[:] = pixels.transpose(2, 0, 1)
    return Block(
        torch.from_numpy(stacked),
        torch.tensor(sizes, dtype=torch.float32).reshape(-1, 2),
        torch.tensor(used, dtype=torch.int64),
        tuple(failures),
    )


def _in_place_of(pictures: Pictures, wanted: int) -> Iterator[int]:
    """The image itself, then those after it; for one with a label, which a classifier may learn, only such ones."""
    yield wanted
    labelled = pictures.labels[wanted] >= 0
    for index in chain(range(wanted + 1, len(pictures)), range(wanted)):
        if not labelled or pictures.labels[index] >= 0:
            yield index


def allowed_failures(number: int) -> int:
    """How many of this many images may be unreadable: one in a hundred."""
    return number // 100
