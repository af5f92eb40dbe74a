"""Compares the kernels with PyTorch's batch norm, on a GPU or in Triton's interpreter; fails if they differ.

Run as a script, because Triton decides when it is imported whether it interprets.
"""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

from stec.networks import create_encoder, norm_kernels, normalising

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def images(shape, dtype=torch.float32):
    return (5 + 2 * torch.randn(shape)).to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)


def norms(channels):
    norm = nn.BatchNorm2d(channels, momentum=0.3).to(DEVICE)
    nn.init.normal_(norm.weight, 1, 0.3)
    nn.init.normal_(norm.bias)
    return norm, copy.deepcopy(norm)


def check_operation(shape, relu, residual, dtype, tolerance):
    ours, theirs = norms(shape[1])
    inputs = [images(shape, dtype), *([images(shape, dtype) - 5] if residual else [])]
    mine, yours = ([value.clone().requires_grad_() for value in inputs] for _ in range(2))
    y = normalising._by_kernels(mine[0], ours, mine[1] if residual else None, relu)
    z = theirs(yours[0].float()) + (yours[1].float() if residual else 0)
    z = F.relu(z) if relu else z
    gradient = images(shape, dtype) - 5
    y.backward(gradient)
    z.backward(gradient.float())
    pairs = [(y, z), *((a.grad, b.grad) for a, b in zip(mine, yours, strict=True))]
    pairs += [(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
    pairs += list(zip(ours.buffers(), theirs.buffers(), strict=True))
    for a, b in pairs:
        torch.testing.assert_close(a.float(), b.float(), rtol=tolerance, atol=tolerance * b.abs().max().item())


def check_encoder(name):
    """Compiled, with gradients; the kernels have to be called as often as there are batch norms."""
    theirs = create_encoder(name).to(DEVICE).to(memory_format=torch.channels_last)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.2)
    ours, calls = copy.deepcopy(theirs), []
    forward = norm_kernels.forward
    norm_kernels.forward = lambda *arguments: (calls.append(1), forward(*arguments))[1]
    normalising._has_kernels = lambda x, norm: True
    ours.compile(dynamic=False, backend="aot_eager")
    x, gradient = images((16, 3, 16, 16)) - 5, torch.randn(16, theirs.dim, device=DEVICE)
    y, z = ours(x), theirs(x)
    y.backward(gradient)
    z.backward(gradient)
    assert len(calls) == sum(isinstance(module, nn.BatchNorm2d) for module in theirs.modules())
    torch.testing.assert_close(y, z, rtol=1e-3, atol=1e-3)
    for (parameter, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=5e-3, atol=5e-3 * b.grad.abs().max().item(), msg=parameter)
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    torch.manual_seed(0)
    norm_kernels.PROGRAMS = 6  # several chunks even of a small image
    if sys.argv[1] == "operation":
        for relu in (True, False):
            for residual in (True, False):
                check_operation((3, 64, 7, 9), relu, residual, torch.float32, 2e-5)
                check_operation((5, 128, 4, 6), relu, residual, torch.float32, 2e-5)
                check_operation((4, 64, 8, 8), relu, residual, torch.bfloat16, 2e-2)
    else:
        check_encoder(sys.argv[1])
