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
    """One line for errors of files, of memory, of a compiler, and of processes that were killed; None for any other."""
    import torch  # late: the command line answers without it

    compiling = type(error).__name__ == "InductorError"  # by its name: to import it takes seconds
    if compiling:
        error = getattr(error, "inner_exception", error)
    text = str(error)
    if isinstance(error, OSError) and not (compiling and error.errno == errno.ENOENT):
        where = f"{error.filename}: " if error.filename else ""
        advice = f" ({_ADVICE[error.errno]})" if error.errno in _ADVICE else ""
        return f"{where}{error.strerror or text.splitlines()[-1]}{advice}"
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU's memory is full: lower batch_size, or use more devices"
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in text or "std::bad_alloc" in text:
        return "the memory is full: lower batch_size, or keep the images on the disk (data.resident=never)"
    if compiling and isinstance(error, ImportError) and ".so: " in text:
        return f"a killed run may have left what PyTorch's compiler keeps damaged ({text}): remove that file"
    if compiling or "Failed to find C compiler" in text:
        lines = text.splitlines() or [type(error).__name__]
        reason = next((line for line in reversed(lines) if "error" in line.lower()), lines[0])
        advice = "it needs gcc and Python's headers (python3-dev); compile=never trains without it, more slowly"
        return f"PyTorch's compiler does not work here ({reason.strip()[:200]}): {advice}"
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
