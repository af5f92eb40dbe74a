"""One process at a time."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stec.errors import UserError

_handles: set[int] = set()  # of all that this process holds


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[str]:
    """Holds a folder, or a file made for it, alone; the system lets it go when the process ends, however it ends.

    On a file system that cannot lock, nobody is kept out. Yields what to add to the names of unfinished files then, so
    that no two processes write the same one; "" where this one is alone.
    """
    mark = ""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    _handles.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            held = f"another process is at work on this run ({path} is locked)"
            raise UserError(f"{held}: wait until it has ended, or stop it") from None
        except OSError:
            mark = f".{uuid.uuid4().hex}"  # not every file system can
        yield mark
    finally:
        if handle in _handles:
            _handles.remove(handle)
            os.close(handle)


def _let_go() -> None:
    """Processes that read images outlive a run that is killed, by seconds: what it held, they must not hold on to."""
    while _handles:
        os.close(_handles.pop())


os.register_at_fork(after_in_child=_let_go)
