import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from stec.networks import normalising

SCRIPT = Path(__file__).with_name("norm_parity.py")


@pytest.mark.parametrize("what", ["operation", "resnet18-cifar"])
def test_kernels_do_what_batch_norm_does(what):
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux alone")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run([sys.executable, SCRIPT, what], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("norm", "channels"),
    [(nn.BatchNorm2d(64), 64), (nn.BatchNorm2d(16), 16), (nn.SyncBatchNorm(64), 64), (nn.BatchNorm2d(64).eval(), 64)],
)
def test_where_there_are_no_kernels_pytorch_does_it(norm, channels):
    x, residual = torch.randn(2, 4, channels, 3, 3).unbind(0)
    if isinstance(norm, nn.SyncBatchNorm):
        assert not normalising._has_kernels(x, norm)
        return
    expected = torch.relu(norm(x) + residual)
    assert torch.equal(normalising.normalised(x, norm, residual), expected)
    assert torch.equal(normalising.normalised(x, norm, relu=False), norm(x))
