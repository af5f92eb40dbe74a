"""The images of one split, in batches on the device: kept there, or streamed to it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stec.data.pictures import Block, Failure, Pictures, allowed_failures, read_block
from stec.errors import UserError
from stec.interruption import serve

logger = logging.getLogger("stec")

AHEAD = 4  # batches that a worker process reads ahead
_BLOCK = 64  # images that a thread reads at a time


class Batch(NamedTuple):
    """Images as they enter training, before any augmentation."""

    images: Tensor  # uint8 (B, 3, S, S), on the device
    sizes: Tensor  # float32 (B, 2): true height and width of each image, before it was squashed to S x S
    labels: Tensor  # int64 (B,); -1 where there is none


class Split(Protocol):
    """One of train and test."""

    labels: Tensor  # int64 (N,), cpu; all -1 if unlabelled

    def __len__(self) -> int:
        """How many images there are."""

    def batches(self, order: Tensor, batch_size: int, drop_last: bool = True) -> Iterator[Batch]:
        """The images `order` (int64 (M,), cpu) names, in that order, on the device."""

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """All images in an order for one epoch. Those that a process takes of each batch are neighbours in it."""


class ResidentSplit:
    """All images in one tensor on the device."""

    def __init__(self, images: Tensor, sizes: Tensor, labels: Tensor) -> None:
        self.images = images  # uint8 (N, 3, S, S)
        self.sizes = sizes.to(images.device)
        self.labels = labels
        self._device_labels = labels.to(images.device)

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, order: Tensor, batch_size: int, drop_last: bool = True) -> Iterator[Batch]:
        """Gathered on the device; nothing but `order` is copied to it."""
        order = order.to(self.images.device)
        for chosen in _cut(order, batch_size, drop_last):
            yield Batch(self.images[chosen], self.sizes[chosen], self._device_labels[chosen])

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """Any order is as likely."""
        return torch.randperm(len(self), generator=shuffle)


class StreamedSplit:
    """Images read by worker processes while the device computes."""

    def __init__(self, pictures: Pictures, size: int, device: torch.device, workers: int) -> None:
        self.labels = pictures.labels
        self._pictures = pictures
        self._size = size
        self._device = device
        self._workers = workers
        self._failed: dict[str, Failure] = {}

    def __len__(self) -> int:
        return len(self._pictures)

    def batches(self, order: Tensor, batch_size: int, drop_last: bool = True) -> Iterator[Batch]:
        """Read ahead. An unreadable image is replaced by a neighbour and logged once; over 1 % are fatal."""
        loader: DataLoader[Block] = DataLoader(
            _Blocks(self._pictures, self._size),
            batch_sampler=(chosen.tolist() for chosen in _cut(order, batch_size, drop_last)),
            collate_fn=_as_it_is,
            num_workers=self._workers,
            prefetch_factor=AHEAD if self._workers else None,
            pin_memory=self._device.type == "cuda",
            worker_init_fn=serve,
            generator=torch.Generator(),  # else every epoch would draw from the generator that training uses
        )
        for block in loader:
            self._note(block.failures)
            labels = self.labels[block.indices]
            yield Batch(*(t.to(self._device, non_blocking=True) for t in (block.images, block.sizes, labels)))

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """As it is quick to read."""
        return self._pictures.order(shuffle, batch_size)

    def _note(self, failures: Iterable[Failure]) -> None:
        new = {failure.name: failure for failure in failures if failure.name not in self._failed}
        self._failed.update(new)
        report_failures(new.values(), "replaced by another image")
        check_failures(list(self._failed.values()), len(self))


class _Blocks(Dataset[Block]):
    """Lets a DataLoader's worker read a whole batch at once."""

    def __init__(self, pictures: Pictures, size: int) -> None:
        self.pictures = pictures
        self.size = size

    def __getitems__(self, indices: list[int]) -> Block:
        return read_block(self.pictures, indices, self.size, replace=True)


def _as_it_is(block: Any) -> Block:
    return block


def _cut(order: Tensor, batch_size: int, drop_last: bool) -> Sequence[Tensor]:
    if not len(order):
        return ()
    pieces = order.split(batch_size)
    return pieces[:-1] if drop_last and len(pieces[-1]) < batch_size else pieces


@dataclass(frozen=True)
class Taken:
    """A split that was read whole."""

    split: ResidentSplit
    skipped: tuple[str, ...]  # names of unreadable images, which are not in the split


def take(pictures: Pictures, size: int, device: torch.device, workers: int) -> Taken:
    """Read all images with this many threads and keep them on the device; leave out unreadable ones."""
    total = len(pictures)
    images = torch.empty((total, 3, size, size), dtype=torch.uint8, device=device)
    sizes, kept = [], []
    failures: list[Failure] = []
    filled = 0
    for block in read_all(pictures, size, workers):
        images[filled : filled + len(block.images)] = block.images.to(device)
        filled += len(block.images)
        sizes.append(block.sizes)
        kept.append(block.indices)
        failures.extend(block.failures)
    labels = pictures.labels[torch.cat(kept)]
    return Taken(ResidentSplit(images[:filled], torch.cat(sizes), labels), tuple(f.name for f in failures))


def read_all(pictures: Pictures, size: int, workers: int) -> Iterator[Block]:
    """All images in their order, read by this many threads; unreadable ones are named and left out, if they are few."""
    total = len(pictures)
    ranges = (range(start, min(start + _BLOCK, total)) for start in range(0, total, _BLOCK))
    failures: list[Failure] = []
    for block in read_blocks(pictures, ranges, size, workers):
        failures.extend(block.failures)
        check_failures(failures, total)
        yield block


def read_blocks(pictures: Pictures, ranges: Iterable[range], size: int, workers: int) -> Iterator[Block]:
    """A block for every range, in their order, read by this many threads; unreadable images are named and left out."""
    threads = max(1, workers)
    with ThreadPoolExecutor(threads) as pool:
        for block in _in_order(pool, pictures, ranges, size, ahead=4 * threads):
            report_failures(block.failures, "left out")
            yield block


def _in_order(
    pool: ThreadPoolExecutor, pictures: Pictures, ranges: Iterable[range], size: int, ahead: int
) -> Iterator[Block]:
    """Blocks read in parallel, at most `ahead` of them waiting in memory."""
    waiting = []
    for indices in ranges:
        waiting.append(pool.submit(read_block, pictures, indices, size, False))
        if len(waiting) >= ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def report_failures(failures: Iterable[Failure], consequence: str) -> None:
    """Name unreadable images in the log."""
    for failure in failures:
        logger.warning("cannot read %s (%s): %s", failure.name, failure.reason, consequence)


def check_failures(failures: Sequence[Failure], number: int, what: str = "images") -> None:
    """Stop if more than one percent of this many images are unreadable."""
    if len(failures) > allowed_failures(number):
        names = ", ".join(failure.name for failure in failures[:3])
        more = ", ..." if len(failures) > 3 else ""
        raise UserError(
            f"more than 1 % of {number} {what} cannot be read ({names}{more}): repair or remove these files"
        )
