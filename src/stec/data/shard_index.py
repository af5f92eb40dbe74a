"""Where the images of a shard lie in it: found by reading all headers once, and kept in a small file beside it.

A shard is a plain tar file as the package webdataset writes it. Files that share a name up to its first dot belong
together: `000017.jpg` is an image, `000017.cls` its label as a number, or `000017.json` an object with a `label`.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, BinaryIO

import numpy as np

from stec.data.folder import EXTENSIONS
from stec.errors import UserError

SUFFIX = ".index.json"  # of the small file, after the whole name of the shard
_NAME = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]*)$")
_BLOCK = 512  # bytes: the unit of a tar file


class DamagedError(Exception):
    """A shard that is no tar file, or only a part of one."""


@dataclass(frozen=True)
class Index:
    """The images of a shard."""

    length: int  # of the shard, in bytes
    images: np.ndarray  # int64 (n, 3): where an image starts, its length in bytes, and its label; -1 if it has none

    def to_json(self) -> str:
        """As the small file holds it."""
        return json.dumps({"length": self.length, "images": self.images.tolist()})

    @classmethod
    def from_json(cls, text: str | bytes) -> Index | None:
        """None if the text is no index, or one that points outside of its shard."""
        try:
            content = json.loads(text)
            length, images = int(content["length"]), np.array(content["images"], np.int64).reshape(-1, 3)
            start, size, label = images.T
            inside = (start >= 0) & (size >= 0) & (start <= length) & (size <= length - start) & (label >= -1)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        return cls(length, images) if inside.all() else None


def scan(file: BinaryIO) -> Index:
    """Reads all headers of a shard; DamagedError if it does not come to its end."""
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            rows = list(_rows(tar))
        file.seek(tar.offset)
        end = file.read(_BLOCK)  # zeros, or nothing; tarfile itself stops at anything without a word
        more = any(piece.strip(b"\0") for piece in iter(partial(file.read, 1 << 20), b""))
        length = file.seek(0, io.SEEK_END)
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from None
    if end.strip(b"\0") or len(end) not in (0, _BLOCK):
        raise DamagedError(f"no header where one should be, at byte {tar.offset}")
    if more:
        raise DamagedError(f"it goes on behind its end, at byte {tar.offset}, as tar files that 'cat' has joined")
    return Index(length, np.array(rows, np.int64).reshape(-1, 3))


def _rows(tar: tarfile.TarFile) -> Iterator[tuple[int, int, int]]:
    matches = ((_NAME.match(name), member) for name, member in _files(tar))
    named = ((match[1], match[2].lower(), member) for match, member in matches if match)
    images: list[tuple[str, tarfile.TarInfo, dict[str, tarfile.TarInfo]]] = []
    apart: dict[str, dict[str, tarfile.TarInfo]] = {}  # what stands elsewhere than its image: tar sorts no names
    for key, group in groupby(named, lambda entry: entry[0]):
        parts = {extension: member for _, extension, member in group}
        image = next((member for extension, member in parts.items() if f".{extension}" in EXTENSIONS), None)
        if image is None:
            apart[key] = apart.get(key, {}) | parts
        else:
            images.append((key, image, parts))
    for key, image, parts in images:
        if image.issparse():
            raise DamagedError(f"{image.name} has holes, which 'tar --sparse' has left out")
        yield image.offset_data, image.size, _label(tar, apart.get(key, {}) | parts)


def _files(tar: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    """All names of files, and where their content lies: files that were hard links to one have it only once."""
    there: dict[str, tarfile.TarInfo] = {}
    for member in tar:
        found = there.get(member.linkname) if member.islnk() else member
        if found is not None and found.isreg():
            there[member.name] = found
            yield member.name, found


def _label(tar: tarfile.TarFile, parts: dict[str, tarfile.TarInfo]) -> int:
    label: Any = -1
    if "cls" in parts:
        label = _text(tar, parts["cls"]).strip()
    elif "json" in parts:
        try:
            content = json.loads(_text(tar, parts["json"]))
        except (ValueError, RecursionError):
            content = None
        label = content.get("label", -1) if isinstance(content, dict) else -1
    try:
        number = int(str(label))
    except ValueError:
        number = -2
    if not -1 <= number < 2**31:
        name = parts["cls" if "cls" in parts else "json"].name
        raise UserError(f"{tar.name!s}: the label in {name} is {str(label)[:40]!r}, should be a number from 0 on")
    return number


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    return file.read().decode("utf-8", "replace") if file else ""
