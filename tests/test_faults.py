"""What a machine lacks is told in one line."""

import pytest
import torch
from torch._inductor.exc import InductorError

from stec.faults import describe


@pytest.mark.parametrize(
    ("inner", "line"),
    [
        (
            RuntimeError("C++ compile error\n\nCommand:\ng++ x\n\nfatal error: Python.h: No such file\n done"),
            "Python.h",
        ),
        (FileNotFoundError(2, "No such file or directory", "gcc"), "'gcc'): it needs gcc"),
        (OSError(28, "No space left on device", "/cache"), "make room on that disk"),
        (torch.OutOfMemoryError("CUDA out of memory"), "lower batch_size"),
        (RuntimeError(), "(RuntimeError)"),
        (ImportError("/cache/ab.main.so: file too short"), "/cache/ab.main.so: file too short): remove that file"),
    ],
)
def test_what_breaks_a_compilation(inner, line):
    assert line in describe(InductorError(inner, None))
