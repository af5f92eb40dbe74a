import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from stec.networks import create_encoder, normalising

SCRIPT = Path(__file__).with_name("norm_parity.py")


def run_parity(what, **environment):
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run([sys.executable, SCRIPT, what], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["operation", "basic", "target"])
def test_kernels_do_what_batch_norm_does(what):
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux alone")
    run_parity(what, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("what", ["operation", "basic", "bottleneck", "target"])
def test_kernels_do_what_batch_norm_does_on_a_gpu(what):
    run_parity(what)


def test_only_plain_batch_norms_in_training_are_taken_over(monkeypatch):
    pytest.importorskip("triton", reason="PyTorch brings Triton on Linux alone")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    images, encoder = torch.zeros(1), create_encoder("resnet18-cifar")
    assert not normalising.has_kernels(encoder, images)
    monkeypatch.setattr(normalising, "_on_gpu", lambda images: True)
    assert normalising.has_kernels(encoder, images)
    assert not normalising.has_kernels(encoder.eval(), images)
    encoder.train()
    encoder.layer2[0].bn1.eval()  # frozen
    assert not normalising.has_kernels(encoder, images)
    encoder.train()
    encoder.layer2[0].bn1.momentum = 0.0  # some remember and some do not
    assert not normalising.has_kernels(encoder, images)
    assert not normalising.has_kernels(nn.SyncBatchNorm.convert_sync_batchnorm(create_encoder("resnet18")), images)
