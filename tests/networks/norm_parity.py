"""Compares the kernels with PyTorch's batch norm, on a GPU or in Triton's interpreter; fails if they differ.

Run as a script, because Triton decides when it is imported whether it interprets.
"""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from stec.networks import norm_kernels, normalising
from stec.networks.encoders import ResNetEncoder
from stec.networks.target import Target

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def images(*shape, dtype=torch.float32):
    return torch.randn(shape).to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)


def check_operation(shape, relu, residual, shared, dtype, tolerance):
    """Values and gradients; y has two gradients if it is shared."""
    x, r, *gradients = (images(*shape, dtype=dtype) for _ in range(3 + shared))
    x = 2 * x + 5
    weight, bias = 1 + 0.3 * torch.randn(shape[1]), torch.randn(shape[1])
    inputs = [x, *(value.to(DEVICE) for value in (weight, bias)), *([r] if residual else [])]
    mine, yours = ([value.clone().requires_grad_() for value in inputs] for _ in range(2))
    mean, variance, *twins = normalising._Norm.apply(*mine, *([] if residual else [None]), relu, shared, 1e-5)
    torch.autograd.backward(twins, gradients)
    z = F.batch_norm(yours[0].float(), None, None, yours[1], yours[2], training=True)
    z = z + yours[3].float() if residual else z
    z = F.relu(z) if relu else z
    z.backward(sum(gradient.float() for gradient in gradients))
    pairs = [(twins[0], z), (twins[-1], z), *((a.grad, b.grad) for a, b in zip(mine, yours, strict=True))]
    for a, b in [*pairs, (mean, x.float().mean((0, 2, 3))), (variance, x.float().var((0, 2, 3)))]:
        torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance * b.abs().max().item())


def check_encoder(block, stem, side, target=False):
    """Compiled, with gradients and running statistics; the kernels have to be called for every batch norm.

    A ReLU whose input is zero to rounding may open in one and not in the other, as it may between PyTorch in float32
    and in float64, and moves all gradients before it by about a percent. So one of a few drawings has to agree.
    """
    for seed in range(4):
        torch.manual_seed(seed)
        distances = compare_encoders(block, stem, side, target)
        if max(distances.values(), default=0.0) < 1e-3:
            return
    raise AssertionError(distances)


def compare_encoders(block, stem, side, target):
    """How far gradients are from PyTorch's, which are none in a target; all else has to be the same."""
    theirs = ResNetEncoder(block, (1, 1, 1, 2), stem).to(DEVICE).to(memory_format=torch.channels_last)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.2)
    if target:
        theirs = Target(theirs, nn.Identity()).encoder
    ours, calls = copy.deepcopy(theirs), []
    forward = norm_kernels.forward
    norm_kernels.forward = lambda *arguments: (calls.append(1), forward(*arguments))[1]
    if not CUDA:
        normalising._on_gpu = lambda x: True
    ours.compile(fullgraph=True, dynamic=False, backend="inductor" if CUDA else "aot_eager")
    x, gradient = images(16, 3, side, side), torch.randn(16, theirs.dim, device=DEVICE)
    with torch.set_grad_enabled(not target):
        y, z = ours(x), theirs(x)
    if not target:
        y.backward(gradient)
        z.backward(gradient)
    norm_kernels.forward = forward
    assert len(calls) == sum(isinstance(module, nn.BatchNorm2d) for module in theirs.modules())
    buffers = {n: distance(b.float(), theirs.get_buffer(n).float()) for n, b in ours.named_buffers()}
    results = {"y": distance(y, z), **buffers}
    assert max(results.values()) < 1e-4, results
    if target:
        return {}
    return {n: distance(p.grad, theirs.get_parameter(n).grad) for n, p in ours.named_parameters()}


def distance(a, b):
    return ((a - b).norm() / b.norm().clamp(min=1e-12)).item()


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # its rounding turns ReLUs over, and with them gradients, by percents
    norm_kernels.MEASURING, norm_kernels.ADDING, norm_kernels.TILES = 4, 4, 2  # several turns even of a small image
    if sys.argv[1] == "operation":
        for relu, residual, shared in ((1, 1, 1), (1, 1, 0), (1, 0, 1), (1, 0, 0), (0, 0, 0)):
            check_operation((5, 64, 7, 9), relu, residual, shared, torch.float32, 2e-5)
            check_operation((5, 128, 4, 6), relu, residual, shared, torch.bfloat16, 2e-2)
    else:
        basic, bottleneck = (BasicBlock, "cifar", 8), (Bottleneck, "imagenet", 32)
        check_encoder(*{"basic": basic, "bottleneck": bottleneck, "target": (*basic, True)}[sys.argv[1]])
