"""Shards on the disk of this machine: files as they are, and copies of those that are behind an address."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stec.data.decoding import UnreadableError
from stec.data.shard_index import SUFFIX, DamagedError, Index, scan
from stec.errors import UserError
from stec.locking import locked

logger = logging.getLogger("stec")

SCHEMES = ("http://", "https://")
PAUSES = (1.0, 4.0)  # seconds before a download is tried again
_TIMEOUT = 60  # seconds without a byte
_COPY = re.compile(r"[0-9a-f]{16}-.*\.tar")  # the names that copies have


class DownloadError(Exception):
    """An address that gives nothing."""


class Store:
    """Reads pieces of shards, in any process and thread.

    Args:
        folder: of the copies, which all processes of a machine share.
        limit: bytes of copies; beyond, those that were not read for the longest time make room.
    """

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder = folder
        self.limit = limit
        self._lost: dict[str, str] = {}  # shards that could not be had, and why: they are not asked for again
        self._lengths: dict[str, int] = {}  # of shards behind addresses, by their indices: others are not those

    def prepare(self) -> None:
        """Makes the folder; UserError if copies cannot be written there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise UserError(f"data.cache={self.folder}: shards cannot be kept there ({error.strerror})") from None

    def read(self, shard: str, start: int, length: int) -> bytes:
        """A piece of a shard; UnreadableError if it cannot be had."""
        try:
            with self._open(shard) as file:
                piece = os.pread(file.fileno(), length, start)
        except (OSError, DownloadError) as error:
            raise UnreadableError(f"{type(error).__name__}: {error}") from None
        if len(piece) < length:
            raise UnreadableError("the shard ends before the image does")
        return piece

    def index(self, shard: str) -> Index:
        """Where the images of a shard lie, which is found out only once; DamagedError if it cannot be."""
        if not is_address(shard):
            return _index_of_file(Path(shard))
        found = self._index_of_copy(shard)
        self._lengths[shard] = found.length
        return found

    def _index_of_copy(self, shard: str) -> Index:
        """From the file beside the shard; where there is none, the shard itself has to come."""
        with suppress(DownloadError):
            if found := Index.from_json(get(shard + SUFFIX)):
                return found
        kept = self._copy(shard + SUFFIX)
        if kept.is_file() and (found := Index.from_json(kept.read_bytes())):
            return found
        try:
            with self._open(shard) as file:
                found = scan(file)
            _write(kept, found.to_json())
        except (OSError, DownloadError) as error:
            raise DamagedError(str(error)) from None
        return found

    def _copy(self, shard: str) -> Path:
        name = hashlib.sha256(shard.encode()).hexdigest()[:16]
        return self.folder / f"{name}-{shard.rpartition('/')[2][-80:]}"

    def _open(self, shard: str) -> BinaryIO:
        if not is_address(shard):
            return open(shard, "rb", buffering=0)
        copy = self._copy(shard)
        try:
            return self._open_used(shard, copy)
        except FileNotFoundError:
            pass
        if shard in self._lost:
            raise DownloadError(self._lost[shard])
        with locked(copy.with_name(f".{copy.name}.lock")) as mark:
            with suppress(FileNotFoundError):
                return self._open_used(shard, copy)  # another process was faster
            try:
                return self._download(shard, copy, mark)
            except DownloadError as error:
                self._lost[shard] = str(error)
                raise

    def _open_used(self, shard: str, copy: Path) -> BinaryIO:
        """FileNotFoundError if there is no copy of the shard as it is now."""
        file = open(copy, "rb", buffering=0)  # noqa: SIM115
        if not self._fits(shard, os.fstat(file.fileno()).st_size):
            file.close()
            raise FileNotFoundError(copy)
        with suppress(FileNotFoundError):
            os.utime(copy)
        return file

    def _fits(self, shard: str, length: int) -> bool:
        return self._lengths.get(shard, length) == length

    def _download(self, shard: str, copy: Path, mark: str) -> BinaryIO:
        part = copy.with_name(f".{copy.name}{mark}.part")
        try:
            download(shard, part)
            if not self._fits(shard, length := part.stat().st_size):
                raise DownloadError(f"{shard}: {length:,} bytes, but its index is of {self._lengths[shard]:,}")
            file = open(part, "rb", buffering=0)  # noqa: SIM115 - nobody can take it away before it is read
            os.replace(part, copy)
        finally:
            part.unlink(missing_ok=True)
        self._make_room(copy)
        return file

    def _make_room(self, newest: Path) -> None:
        """Who still reads a copy that goes keeps it open. What others keep in the folder is not touched."""
        copies = []
        for path in self.folder.iterdir():
            if _COPY.fullmatch(path.name):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    copies.append((status.st_mtime_ns, status.st_size, path))
        used = sum(size for _, size, _ in copies)
        for _, size, path in sorted(copies):
            if used > self.limit and path != newest:
                path.unlink(missing_ok=True)
                used -= size


def is_address(shard: str) -> bool:
    """Whether a shard is to be downloaded."""
    return shard.startswith(SCHEMES)


def get(address: str) -> bytes:
    """A small file; DownloadError if it is not there."""
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            return answer.read()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DownloadError(f"{address}: {error}") from None


def download(address: str, path: Path) -> None:
    """A large file, tried again after a while unless the server says no; DownloadError if it does not come."""
    for pause in (*PAUSES, None):
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer, path.open("wb") as file:
                shutil.copyfileobj(answer, file, 1 << 20)
                length = answer.headers.get("Content-Length")
            if length is None or path.stat().st_size == int(length):
                return
            reason = f"{path.stat().st_size:,} of {int(length):,} bytes came"
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(error)
            if not _may_pass(error):
                break
        if pause is not None:
            logger.info("%s: %s; trying again", address, reason)
            time.sleep(pause)
    raise DownloadError(f"{address}: {reason}")


def _may_pass(error: Exception) -> bool:
    """Whether trying again may help: not where the server says no, nor where this machine has no room."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500
    return isinstance(error, urllib.error.URLError | ConnectionError | TimeoutError | http.client.HTTPException)


def _index_of_file(path: Path) -> Index:
    beside = path.with_name(path.name + SUFFIX)
    try:
        shard = path.stat()
        if beside.is_file() and beside.stat().st_mtime >= shard.st_mtime:
            found = Index.from_json(beside.read_bytes())
            if found is not None and found.length == shard.st_size:
                return found
        with path.open("rb", buffering=0) as file:
            found = scan(file)
    except OSError as error:
        raise DamagedError(error.strerror or str(error)) from None
    with suppress(OSError):  # in a folder of somebody else it is found out every time
        _write(beside, found.to_json())
    return found


def _write(path: Path, text: str) -> None:
    """Whole or not at all, whoever else writes the same."""
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")  # processes of two containers may have one number
    try:
        part.write_text(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
