"""What goes wrong on a machine and is nobody's bug, in words."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stec.errors import UserError

_ADVICE = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "files may not be that large here",
    errno.EROFS: "it is read-only",
    errno.EACCES: "you may not do that there",
}


def describe(error: BaseException) -> str | None:
    """One line for errors of files, of memory, and of processes that were killed; None for any other."""
    import torch  # late: the command line answers without it

    text = str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        advice = f" ({_ADVICE[error.errno]})" if error.errno in _ADVICE else ""
        return f"{where}{error.strerror or text.splitlines()[-1]}{advice}"
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU's memory is full: lower batch_size, or use more devices"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in text or "std::bad_alloc" in text:
        return "the memory is full: lower batch_size, or keep the images on the disk (data.resident=never)"
    if isinstance(error, RuntimeError) and text.startswith("DataLoader worker"):
        return f"a process that reads images was killed ({text.splitlines()[0]}): lower data.workers if memory is short"
    return None


@contextmanager
def explained(consequence: Callable[[], str]) -> Iterator[None]:
    """Such errors become a UserError, which also says what that means for the run."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        line = describe(error)
        if line is None:
            raise
        raise UserError(f"{line}; {consequence()}") from error
