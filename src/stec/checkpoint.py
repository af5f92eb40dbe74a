"""Checkpoints: written whole or not at all, and the last two kept.

A checkpoint is what `torch.save` writes, followed by a line with the SHA-256 of it, which `torch.load` passes over.
Only tensors and plain values are read back: a file from a stranger can run no code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from threading import Thread
from types import TracebackType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from stec.errors import UserError
from stec.partition import whole
from stec.run import RunFolder, publish

_SEAL = b"\nsha256 "
_LENGTH = len(_SEAL) + hashlib.sha256().digest_size * 2


class DamagedError(Exception):
    """A file that is no whole checkpoint."""


def to_host(value: Any, kept: bool = True) -> Any:
    """Copies of all tensors in dictionaries and sequences, in main memory: what happens next does not change them.

    Args:
        value: tensors of which other processes hold parts are put together, for which all processes have to call this.
        kept: whether this process needs the copies; else None takes their place.
    """
    if isinstance(value, Tensor):
        all_of_it = whole(value.detach())
        return all_of_it.to("cpu", copy=True) if kept else None
    if isinstance(value, dict):
        return {key: to_host(part, kept) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_host(part, kept) for part in value)
    return value


def write(state: dict[str, Any], folder: RunFolder) -> None:
    """Makes this the last checkpoint of a run, and what was the last one the previous one."""
    path = folder.checkpoint
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            sealing = _Sealing(file)
            torch.save(state, sealing)  # type: ignore[arg-type]
            sealing.seal()
        if path.exists():
            _set_aside(path, folder.previous)
        publish(part, path)
    finally:
        part.unlink(missing_ok=True)


def _set_aside(path: Path, previous: Path) -> None:
    """Gives the last checkpoint a second name, so that it is there under its own until the next one takes that."""
    previous.unlink(missing_ok=True)
    try:
        os.link(path, previous)
    except OSError:  # not every file system can
        os.replace(path, previous)


def read(path: Path) -> dict[str, Any]:
    """The state in a checkpoint; DamagedError if it is not whole."""
    try:
        _check_seal(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise DamagedError("it holds more than tensors and plain values, which is all that is read") from None
    except Exception as error:  # a damaged file raises nearly anything
        raise DamagedError(" ".join((str(error) or type(error).__name__).split("\n", 1)[0].split())) from None
    if not isinstance(state, dict):
        raise DamagedError("it holds no state of a run")
    return state


def read_newest(folder: RunFolder, warn: Callable[[str], None]) -> tuple[dict[str, Any], Path] | None:
    """The state in the newest checkpoint that is whole, and its path; None if there is none at all."""
    damaged: list[str] = []
    for path in (folder.checkpoint, folder.previous):
        if not path.exists():
            continue
        try:
            state = read(path)
        except DamagedError as error:
            damaged.append(f"{path.name} is damaged ({error})")
            continue
        if damaged:
            warn(f"{damaged[0]}: going back to the one before, {path.name}")
        return state, path
    if damaged:
        raise UserError(f"{folder.path} cannot be read: {', and '.join(damaged)}")
    return None


class Writer:
    """Does one thing at a time while training goes on; a context manager, at whose end it is done."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Begins, once the job before has ended."""
        self.wait()
        self._thread = Thread(target=self._do, args=(job,))
        self._thread.start()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raises what a job has raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def join(self) -> None:
        """Waits until all is done."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait(self) -> None:
        """The same, and raises what a job has raised."""
        self.join()
        self.check()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.join()
        if kind is None:  # else this error would hide the first one
            self.check()


class _Sealing:
    """A file that knows the checksum of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._error: OSError | None = None

    def write(self, data: bytes) -> int:
        """An error waits for `seal`: torch.save would turn it into one of its own."""
        self._digest.update(data)
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Nothing; `publish` sees to that."""

    def seal(self) -> None:
        if self._error is not None:
            raise self._error
        self._file.write(_SEAL + self._digest.hexdigest().encode())


def _check_seal(path: Path) -> None:
    """Compares the checksum. A file without one, such as an older version wrote, is left to torch.load's own checks."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _LENGTH))
        end = file.read()
        if not end.startswith(_SEAL):
            return
        file.seek(0)
        digest, left = hashlib.sha256(), size - _LENGTH
        while left:
            piece = file.read(min(left, 1 << 20))
            digest.update(piece)
            left -= len(piece)
    if digest.hexdigest().encode() != end.removeprefix(_SEAL):
        raise DamagedError("its checksum is wrong")
