"""Batch norms that normalise by the batch of all processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from stec.errors import UserError
from stec.processes import processes

_BatchNorm = nn.modules.batchnorm._BatchNorm
_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronise_batch_norms(model: nn.Module, apart: Iterable[nn.Module] = (), cuda: bool = True) -> None:
    """Makes every batch norm inside of the model a synchronised one, but for those inside of `apart`.

    They stay the same objects, with the same parameters and running statistics: optimizers and moving averages still
    hold them.
    """
    excluded = set(apart)
    for child in model.children():
        if child in excluded:
            continue
        if isinstance(child, _BatchNorm):
            _synchronise(child, cuda)
        else:
            synchronise_batch_norms(child, excluded, cuda)


def _synchronise(norm: nn.Module, cuda: bool) -> None:
    with_activation = [name for name, _ in norm.named_children()] == ["drop", "act"]  # timm's
    if not (type(norm) in _PLAIN or with_activation):
        raise UserError(f"{type(norm).__name__} is a batch norm that several processes cannot share: train in one")
    norm.process_group = None  # type: ignore[assignment]
    norm.__class__ = GPUBatchNorm if cuda else CPUBatchNorm


def adopt_batch_norms(model: nn.Module, apart: Iterable[nn.Module] = ()) -> None:
    """Where PyTorch has converted every batch norm of the model, makes of them what `synchronise_batch_norms` does.

    PyTorch knows of none that are to stay by themselves, and passes over the activations that timm has inside of some.
    """
    alone = {norm for module in apart for norm in module.modules()}
    converted: list[nn.Module] = [norm for norm in model.modules() if isinstance(norm, nn.SyncBatchNorm)]
    for norm in converted:
        norm.__class__ = LoneBatchNorm if norm in alone else GPUBatchNorm


class LoneBatchNorm(_BatchNorm):
    """A batch norm that sees the batch of its own process alone, and what follows in the same module."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, ...) -> the same shape."""
        return _follow(self, super().forward(input))

    def _check_input_dim(self, input: Tensor) -> None:
        """Any."""


class GPUBatchNorm(nn.SyncBatchNorm):
    """PyTorch's, and what follows in the same module."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, ...) -> the same shape."""
        return _follow(self, super().forward(input))


class CPUBatchNorm(LoneBatchNorm):
    """A synchronised one for CPUs, for which PyTorch has none."""

    def forward(self, input: Tensor) -> Tensor:
        """(N, C, ...) -> the same shape."""
        together = self.training and processes()[1] > 1
        return _follow(self, self._shared(input)) if together else super().forward(input)

    @torch.compiler.disable
    def _shared(self, input: Tensor) -> Tensor:
        standardised, mean, variance, count = _Standardise.apply(input, self.eps)
        if self.track_running_stats:
            assert self.num_batches_tracked is not None
            assert self.running_mean is not None
            assert self.running_var is not None
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            unbiased = variance * (count / (count - 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        shape = (-1, *[1] * (input.dim() - 2))
        if self.weight is not None:
            standardised = standardised * self.weight.view(shape)
        if self.bias is not None:
            standardised = standardised + self.bias.view(shape)
        return standardised.to(input.dtype)


def _follow(norm: nn.Module, output: Tensor) -> Tensor:
    for following in norm.children():
        output = following(output)
    return output


class _Standardise(torch.autograd.Function):
    """(x - mean) / sqrt(variance + eps), mean and variance over the rows of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        axes = [axis for axis in range(x.dim()) if axis != 1]
        variance, mean = (moment.double() for moment in torch.var_mean(x, axes, correction=0))
        count = x.numel() / x.shape[1]
        # In float64, sums of squares are exact enough to take the mean off again.
        sums = torch.stack([torch.full_like(mean, count), count * mean, count * (variance + mean.square())])
        dist.all_reduce(sums)
        total, mean = sums[0], sums[1] / sums[0]
        variance = (sums[2] / total - mean.square()).clamp(min=0)
        ctx.axes, ctx.total = axes, total
        ctx.inverse = (variance + eps).rsqrt().to(x.dtype)
        standardised = F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), eps=eps)
        ctx.save_for_backward(standardised)
        ctx.mark_non_differentiable(mean, variance, total)
        return standardised, mean, variance, total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, None]:
        (standardised,) = ctx.saved_tensors
        along = (gradient * standardised).sum(ctx.axes)
        sums = torch.stack([gradient.sum(ctx.axes), along]).double()
        dist.all_reduce(sums)
        shape = (-1, *[1] * (gradient.dim() - 2))
        constant, slope = ((each / ctx.total).to(gradient.dtype).view(shape) for each in sums)
        return ctx.inverse.view(shape) * (gradient - constant - standardised * slope), None
