"""One process at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stec.errors import UserError


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Holds a folder, or a file made for it, alone; the system lets it go when the process ends, however it ends."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UserError(f"another process is at work on this run ({path} is locked)") from None
        yield
    finally:
        os.close(handle)
