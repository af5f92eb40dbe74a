"""Images in tar files, as the package webdataset writes them: on a disk, or behind addresses."""

from __future__ import annotations

import glob
import io
import logging
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from stec.data.arrays import CLASSES, check_highest, parse_classes
from stec.data.decoding import Picture, UnreadableError, decode
from stec.data.folder import EXTENSIONS, TESTS, TRAINS
from stec.data.pictures import Collection, Encoded, Failure, allowed_failures
from stec.data.shard_index import DamagedError, Index
from stec.data.store import DownloadError, Store, get, is_address
from stec.errors import UserError

logger = logging.getLogger("stec")

LANES = 64  # shards that are read at once, by all processes together
_THREADS = 16  # that ask for indices
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


class ShardPictures:
    """Images in shards, found by their indices.

    Args:
        shards: paths or addresses.
        indices: of each.
        store: through which they are read.
        size: the side to which images are squashed.
        buffer: of the shuffling, in images, for all lanes together; see `order`.
    """

    def __init__(self, shards: Sequence[str], indices: Sequence[Index], store: Store, size: int, buffer: int) -> None:
        self.shards = tuple(shards)
        self.ends = np.cumsum([len(index.images) for index in indices])
        table = np.concatenate([index.images for index in indices])
        self.starts, self.lengths = table[:, 0].copy(), table[:, 1].copy()
        self.labels = torch.from_numpy(table[:, 2].copy())
        self.store, self.size, self.buffer = store, size, buffer

    def __len__(self) -> int:
        return len(self.starts)

    def _shard(self, index: int) -> int:
        return int(np.searchsorted(self.ends, index, side="right"))

    def _bytes(self, index: int) -> bytes:
        shard = self.shards[self._shard(index)]
        return self.store.read(shard, int(self.starts[index]), int(self.lengths[index]))

    def read(self, index: int) -> Picture:
        """The image, squashed; UnreadableError if it cannot be had or decoded."""
        return decode(io.BytesIO(self._bytes(index)), self.size)

    def encoded(self, index: int) -> Encoded:
        """As it lies in the shard."""
        content = self._bytes(index)
        try:
            with Image.open(io.BytesIO(content)) as picture:
                extension = str(picture.format).lower()
        except Exception as error:  # as in `decoding`
            raise UnreadableError(f"{type(error).__name__}: {error}") from None
        # Such as MPO, the photographs of phones: whatever the ending, readers look at the content.
        return Encoded(content, extension if f".{extension}" in EXTENSIONS else "jpg")

    def name(self, index: int) -> str:
        """The shard, and which of its images."""
        shard = self._shard(index)
        first = self.ends[shard - 1] if shard else 0
        return f"{self.shards[shard]}, image {index - first}"

    def content(self) -> Iterator[bytes]:
        """Names of the shards, and where the images lie in them: the same wherever the shards are kept."""
        for shard in self.shards:
            yield os.fsencode(shard.rpartition("/")[2]) + b"\0"
        for array in (self.ends, self.starts, self.lengths, self.labels.numpy()):
            yield array.tobytes()

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """Shard after shard in random order, every place of a batch in its own part of them, mixed within the buffer.

        The shuffled shards are one long row of images, which is cut into lanes. Each lane fills the same places of all
        batches, so that processes, which take neighbouring places, read shards of their own, however many they are.
        """
        starts = np.concatenate([[0], self.ends[:-1]])
        chosen = torch.randperm(len(self.shards), generator=shuffle)
        row = torch.cat([torch.arange(starts[shard], self.ends[shard]) for shard in chosen.tolist()])
        row = row.roll(int(torch.randint(len(row), (), generator=shuffle)))  # lanes begin anywhere in a shard
        steps, lanes = len(self) // batch_size, min(LANES, batch_size)
        parts, used = [], 0
        for lane in range(lanes):
            width = batch_size // lanes + (lane < batch_size % lanes)
            part = row[used : used + steps * width]
            moved = torch.arange(len(part)) + self.buffer / lanes * torch.rand(len(part), generator=shuffle).double()
            parts.append(part[moved.argsort()].view(steps, width))
            used += len(part)
        return torch.cat([torch.cat(parts, dim=1).flatten(), row[used:]])

    def limited(self, number: int) -> ShardPictures:
        """All of them, or a UserError: whole shards would have to be read for some of their images."""
        if number < len(self):
            raise UserError(f"data.limit={number}: not of shards; name fewer of them in data.root")
        return self


def open_shards(root: str, test_root: str | None, size: int, buffer: int, store: Store) -> Collection:
    """Shards of training images, and of test images where there are any.

    Args:
        root: a folder of `train*.tar` and `test*.tar` (or `val*.tar`), or of `NAME-train-*.tar` and so on; or the
            shards to train on: `*` stands for any letters in the name of a file, `{000000..000127}` for numbers,
            `{a,b}` for words.
        test_root: the shards to test on, if they do not lie in that folder.
        size: the side to which images are squashed.
        buffer: of the shuffling.
        store: through which shards are read.
    """
    train_shards = _find(root, "data.root")
    test_shards = _test_shards(root, test_root)
    if both := sorted({*train_shards} & {*test_shards}):
        raise UserError(f"{both[0]} is among the shards to train on and among those to test on: name others")
    if any(map(is_address, [*train_shards, *test_shards])):
        store.prepare()
    damaged: list[str] = []
    train = _open(train_shards, size, buffer, store, damaged)
    name = f"shards:{root}"
    if not bool((train.labels >= 0).any()):
        logger.info("%s: the images have no labels: training without a probe", root)
        return Collection(name, train, None, (), tuple(damaged))
    test = _open(test_shards, size, buffer, store, damaged) if test_shards else None
    if test is not None and bool((test.labels < 0).any()):
        logger.info("%s: some test images have no label: training without a probe", test_root or root)
        test = None
    classes = _classes(train_shards[0])
    highest = int(max(part.labels.max() for part in (train, test) if part is not None))
    check_highest(highest, classes, root)
    classes = classes or tuple(str(label) for label in range(highest + 1))
    return Collection(name, train, test, classes, tuple(damaged))


def expand(pattern: str) -> list[str]:
    """All names that a pattern with braces stands for, as a shell does it."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    if numbers := _RANGE.fullmatch(braces[1]):
        width = max(map(len, numbers.groups())) if any(n != str(int(n)) for n in numbers.groups()) else 0
        words = [f"{number:0{width}}" for number in range(int(numbers[1]), int(numbers[2]) + 1)]
    else:
        words = braces[1].split(",")
    return [name for word in words for name in expand(pattern[: braces.start()] + word + pattern[braces.end() :])]


def _test_shards(root: str, test_root: str | None) -> list[str]:
    if test_root is not None:
        return _find(test_root, "data.test_root")
    inside = os.path.expanduser(root)
    return _in_folder(inside).test if os.path.isdir(inside) else []


def _find(root: str, key: str) -> list[str]:
    """The shards that a key means: of a folder, those to train on or, for `data.test_root`, those to test on."""
    if is_address(root):
        if not root.endswith(".tar"):
            raise UserError(f"{key}={root}: name the shards, as in {root.rstrip('/')}/train-{{000000..000127}}.tar")
        return _some(expand(root), root, key)
    if "://" in root:
        raise UserError(f"{key}={root}: shards are read from files and from http(s) addresses")
    root = os.path.expanduser(root)
    if os.path.isdir(root):
        inside, trains = _in_folder(root), key == "data.root"
        shards = (inside.train if trains else inside.test) or inside.others
        if not shards:
            such = TRAINS[0] if trains else TESTS[0]
            raise UserError(f"{key}={root}: no shards there, which are files such as {such}-000000.tar")
        return shards
    shards = [found for name in expand(root) for found in (sorted(glob.glob(name)) if "*" in name else [name])]
    for shard in shards:
        if not os.path.isfile(shard):
            raise UserError(f"{key}={root}: no such file as {shard}")
    return _some(shards, root, key)


class _Shards(NamedTuple):
    """Those of a folder, by their names."""

    train: list[str]
    test: list[str]
    others: list[str]


def _in_folder(folder: str) -> _Shards:
    """As their names begin; or by a whole word in them, if there are both kinds: there are data sets of vehicles."""
    names = sorted(path.name for path in Path(folder).glob("*.tar") if not path.name.startswith("."))
    train, test = _named(names, TRAINS, "^{}"), _named(names, TESTS, "^{}")
    others = [name for name in names if not name.lower().startswith((*TRAINS, *TESTS))]
    if not train and not test:
        words = [_named(names, kinds, "(?<![a-z]){}(?![a-z])") for kinds in (TRAINS, TESTS)]
        train, test = words if all(words) else ([], [])
    return _Shards(*([os.path.join(folder, name) for name in part] for part in (train, test, others)))


def _named(names: Sequence[str], kinds: Sequence[str], pattern: str) -> list[str]:
    """The names that have the first of these words that any has, where the pattern says, in any case of letters."""
    found = ([name for name in names if re.search(pattern.format(kind), name.lower())] for kind in kinds)
    return next(filter(None, found), [])


def _some(shards: list[str], root: str, key: str) -> list[str]:
    if not shards:
        raise UserError(f"{key}={root}: stands for no shard at all")
    return shards


def _open(shards: Sequence[str], size: int, buffer: int, store: Store, skipped: list[str]) -> ShardPictures:
    """A damaged shard is named, left out and added to `skipped`, if there are few."""

    def look(shard: str) -> Index | Failure:
        try:
            return store.index(shard)
        except DamagedError as error:
            return Failure(shard, str(error))

    with ThreadPoolExecutor(_THREADS) as pool:
        found = dict(zip(shards, pool.map(look, shards), strict=True))
    damaged = [entry for entry in found.values() if isinstance(entry, Failure)]
    if len(damaged) > allowed_failures(len(found)):
        more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise UserError(
            f"{damaged[0].name} cannot be read ({damaged[0].reason}){more}: mend it, or leave it out; "
            f"these are more than 1 % of {len(found)} shards"
        )
    for name, reason in damaged:
        logger.warning("cannot read the shard %s (%s): left out", name, reason)
        skipped.append(name)
    whole = {shard: entry for shard, entry in found.items() if isinstance(entry, Index)}
    if not any(len(index.images) for index in whole.values()):
        raise UserError(f"{shards[0]}: no images in {len(shards)} shard(s)")
    return ShardPictures(list(whole), list(whole.values()), store, size, buffer)


def _classes(shard: str) -> tuple[str, ...]:
    """From a list of names beside the shards, if there is one."""
    where = shard.rpartition("/")[0] + f"/{CLASSES}" if "/" in shard else CLASSES
    try:
        text = get(where).decode() if is_address(shard) else Path(where).read_text("utf-8")
    except (DownloadError, FileNotFoundError):
        return ()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not a text file: {error}") from None
    return parse_classes(text, where)
