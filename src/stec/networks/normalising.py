"""A ResNet on a GPU, whose batch norms go together with what surrounds them: residual sums, ReLU, sums of gradients.

At 32 pixels a ResNet-18 spends a third of its time there, all of it on moving memory. Forward, one pass reads for the
statistics and another reads and writes; backward, one reads for the sums and another reads and writes. ReLU is not
remembered but found again, and the two gradients of what a block and its shortcut share are added on the way.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from stec.compiling import one_operation

CHANNELS = 64  # networks whose widths are no multiples of it take PyTorch's batch norm,
MOMENTUM = 0.1  # and so do those whose norms remember faster or slower, unless, in targets, they remember nothing
TRITON = importlib.util.find_spec("triton") is not None


def has_kernels(network: ResNet, images: Tensor) -> bool:
    """Whether `features` can be called: compiled, in training, on one GPU."""
    if not (torch.compiler.is_compiling() and TRITON and _on_gpu(images) and network.training):
        return False
    norms = [norm for norm in network.modules() if isinstance(norm, nn.modules.batchnorm._BatchNorm)]
    return all(_is_plain(norm) for norm in norms) and len({norm.momentum for norm in norms}) == 1


def _on_gpu(images: Tensor) -> bool:
    return images.is_cuda


def _is_plain(norm: nn.Module) -> bool:
    if type(norm) is not nn.BatchNorm2d:  # a synchronised one
        return False
    return norm.training and norm.momentum in (MOMENTUM, 0.0) and norm.num_features % CHANNELS == 0


def features(network: ResNet, x: Tensor) -> Tensor:
    """What comes out of the last block, given what the first convolution made of images."""
    blocks = [block for layer in (network.layer1, network.layer2, network.layer3, network.layer4) for block in layer]
    pooled = not isinstance(network.maxpool, nn.Identity)
    norms = _Norms()
    x, twin = norms(x, network.bn1, shared=not pooled)
    if pooled:
        x = twin = network.maxpool(x)
    for block in blocks:
        shortcut = twin
        if block.downsample is not None:
            conv, norm = block.downsample
            shortcut, _ = norms(conv(twin), norm, relu=False)
        *inner, (conv, norm) = _layers(block)
        for before, its in inner:
            x, _ = norms(before(x), its)
        x, twin = norms(conv(x), norm, shortcut, shared=block is not blocks[-1])
    norms.remember()
    return x


def _layers(block: BasicBlock | Bottleneck) -> list[tuple[nn.Module, nn.BatchNorm2d]]:
    layers = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
    return [*layers, (block.conv3, block.bn3)] if isinstance(block, Bottleneck) else layers


class _Norms:
    """Normalises, and has the norms remember their statistics, all at once."""

    def __init__(self) -> None:
        self.norms: list[Any] = []
        self.means: list[Tensor] = []
        self.variances: list[Tensor] = []

    def __call__(
        self, x: Tensor, norm: nn.BatchNorm2d, residual: Tensor | None = None, relu: bool = True, shared: bool = False
    ) -> tuple[Tensor, Tensor]:
        """relu(norm(x) + residual), and, if it is shared, the same once more, with a gradient of its own."""
        x = x.contiguous(memory_format=torch.channels_last)
        mean, variance, *twins = _norm(x, norm.weight, norm.bias, residual, relu, shared, norm.eps)
        self.norms.append(norm)
        self.means.append(mean)
        self.variances.append(variance)
        return twins[0], twins[-1]

    def remember(self) -> None:
        """Updates the running statistics."""
        kept = self.norms if all(norm.momentum for norm in self.norms) else []
        _remember(
            [norm.num_batches_tracked for norm in self.norms],
            [norm.running_mean for norm in kept] + [norm.running_var for norm in kept],
            self.means + self.variances,
        )


@one_operation("(Tensor(a!)[] counts, Tensor(b!)[] running, Tensor[] statistics) -> ()")
def _remember(counts: list[Tensor], running: list[Tensor], statistics: list[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_add_(counts, 1)
        if running:
            torch._foreach_lerp_(running, statistics, MOMENTUM)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, relu: bool, shared: bool, eps: float
    ) -> tuple[Tensor, ...]:
        y, mean, rstd, variance = norm_forward(x, weight, bias, residual, relu, eps)
        ctx.relu, ctx.residual = relu, residual is not None
        ctx.save_for_backward(x, weight, bias, mean, rstd, *([y] if ctx.residual else []))
        ctx.mark_non_differentiable(mean, variance)
        return (mean, variance, y, y.view_as(y)) if shared else (mean, variance, y)

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd, *rest = ctx.saved_tensors
        first, *more = (gradient.contiguous(memory_format=torch.channels_last) for gradient in gradients)
        second, y = more[0] if more else None, rest[0] if rest else None
        of_x, of_weight, of_bias, passed = norm_backward(first, second, x, y, weight, bias, mean, rstd, ctx.relu)
        return of_x, of_weight, of_bias, passed if ctx.residual else None, None, None, None


@one_operation(
    "(Tensor x, Tensor weight, Tensor bias, Tensor? residual, bool relu, bool shared, float eps) -> Tensor[]"
)
def _norm(*arguments: Any) -> list[Tensor]:
    return list(_Norm.apply(*arguments))


@torch.library.custom_op("stec::norm_forward", mutates_args=())
def norm_forward(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, relu: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """relu(norm(x) + residual); mean, 1 / standard deviation, and unbiased variance of every channel, (C,)."""
    from stec.networks import norm_kernels

    return norm_kernels.forward(x, weight, bias, residual, relu, eps)


@norm_forward.register_fake
def _(x: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(x), *(torch.empty_like(weight) for _ in range(3))


@torch.library.custom_op("stec::norm_backward", mutates_args=())
def norm_backward(
    gradient: Tensor,
    second: Tensor | None,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias; and the gradient behind ReLU, which is the residual's, or nothing.

    Args:
        gradient: of relu(norm(x) + residual).
        second: what is to be added to it.
        x: the input.
        y: the output, if there was a residual.
        weight: of the norm, as the next.
        bias: (C,)
        mean: of x.
        rstd: of x.
        relu: whether there was one.
    """
    from stec.networks import norm_kernels

    return norm_kernels.backward(gradient, second, x, y, weight, bias, mean, rstd, relu)


@norm_backward.register_fake
def _(
    gradient: Tensor, second: Tensor | None, x: Tensor, y: Tensor | None, weight: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    passed = x.new_empty(0) if second is None and y is None else torch.empty_like(x)
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight), passed
