"""Where a result comes from."""

import subprocess
import sys

import pytest
import torch

from stec.compiling import forget_earlier_runs
from stec.provenance import peak_memory_bytes

CPU = torch.device("cpu")


linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process knows only of one peak")


@linux
def test_the_peak_of_a_run_is_not_that_of_those_before_it():
    before = peak_memory_bytes(CPU)
    torch.ones(before // 4 + 2**28)  # of 4 bytes each
    large = peak_memory_bytes(CPU)
    assert large > before + 2**29
    forget_earlier_runs()
    assert peak_memory_bytes(CPU) < large - 2**29


@linux
def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it():
    program = "import torch, stec.provenance; print(stec.provenance.peak_memory_bytes(torch.device('cpu')))"
    command = [sys.executable, "-c", program]
    alone = int(subprocess.run(command, check=True, capture_output=True).stdout)
    held = torch.ones(alone // 4 + 2**27)  # of 4 bytes each
    again = int(subprocess.run(command, check=True, capture_output=True).stdout)
    assert again < alone + 2**28 < peak_memory_bytes(CPU), len(held)
