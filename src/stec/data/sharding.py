"""Writes the images of any source as shards, in an order that mixes them once for all."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch

from stec.config import DataConfig
from stec.data.arrays import CLASSES
from stec.data.decoding import UnreadableError
from stec.data.loading import open_source
from stec.data.pictures import Failure, Pictures
from stec.data.shard_index import SUFFIX, scan
from stec.data.split import check_failures, report_failures
from stec.errors import UserError

Files = dict[str, bytes]  # of one image: their names and what is in them
Watch = Callable[[int, int], None]  # is told how many images are done, and of how many


class Written(NamedTuple):
    """What is in the folder now."""

    images: dict[str, int]  # of every split
    shards: int
    size: int  # bytes
    skipped: int  # images that could not be read


def write_shards(config: DataConfig, folder: Path, megabytes: float, watch: Watch) -> Written:
    """`train-000000.tar` and so on, `test-000000.tar` and so on, their indices, and the names of the classes.

    Image files are copied as they are, arrays become PNG. The folder appears when all is written.

    Args:
        config: the source.
        folder: to be made.
        megabytes: at which a shard is full.
        watch: hears of progress.
    """
    if folder.exists():
        raise UserError(f"{folder} exists: name a folder that does not")
    found = open_source(config)
    splits = {"train": found.train} | ({"test": found.test} if found.test is not None else {})
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    images: dict[str, int] = {}
    failures: list[Failure] = []
    total, done = sum(map(len, splits.values())), 0
    try:
        part.mkdir(parents=True)
        for name, pictures in splits.items():
            before = len(failures)
            _write(part, name, _samples(pictures, failures, partial(_count, watch, done, total)), megabytes * 1e6)
            images[name] = len(pictures) - (len(failures) - before)
            done += len(pictures)
        if found.classes:
            (part / CLASSES).write_text(json.dumps(found.classes) + "\n")
        shards = sorted(part.glob("*.tar"))
        size = sum(shard.stat().st_size for shard in shards)
        part.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Written(images, len(shards), size, len(failures))


def _count(watch: Watch, before: int, total: int, done: int) -> None:
    watch(before + done, total)


def _samples(pictures: Pictures, failures: list[Failure], watch: Callable[[int], None]) -> Iterator[Files]:
    """The files of every image, in random order: most sources have their images class by class."""
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
    for number, index in enumerate(order.tolist()):
        try:
            image = pictures.encoded(index)
        except UnreadableError as error:
            failures.append(Failure(pictures.name(index), str(error)))
            report_failures(failures[-1:], "left out")
            check_failures(failures, len(pictures))
            continue
        key, label = f"{number:09}", int(pictures.labels[index])
        files = {f"{key}.{image.extension}": image.content}
        if label >= 0:
            files[f"{key}.cls"] = str(label).encode()
        yield files
        watch(number + 1)


def _write(folder: Path, name: str, samples: Iterator[Files], limit: float) -> None:
    """As many shards as it takes."""
    for number, first in enumerate(samples):
        path = folder / f"{name}-{number:06}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for files in chain([first], samples):
                for member_name, content in files.items():
                    member = tarfile.TarInfo(member_name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                if tar.offset >= limit:
                    break
        with path.open("rb") as file:
            path.with_name(path.name + SUFFIX).write_text(scan(file).to_json())
