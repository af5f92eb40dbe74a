"""What a machine lacks is told in one line."""

import os
import subprocess
import sys

import pytest
import torch

from stec.faults import describe


class InductorError(RuntimeError):
    """As PyTorch's: around what went wrong."""

    def __init__(self, inner):
        super().__init__(f"{type(inner).__name__}: {inner}")
        self.inner_exception = inner


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
    ],
)
def test_what_breaks_a_compilation(inner, line):
    assert line in describe(InductorError(inner))


COMPILES = """
import torch
from stec.faults import describe

try:
    torch.compile(lambda x: x + 1)(torch.ones(2))
except RuntimeError as error:
    print(describe(error))
"""


def test_no_compiler_at_all(tmp_path):
    environment = os.environ | {"CXX": str(tmp_path / "none"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", COMPILES], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "PyTorch's compiler does not work here (No working C++ compiler found" in done.stdout
    assert "compile=never" in done.stdout
