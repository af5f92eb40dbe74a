"""Bringing together the rows of all processes, with gradient, and mixing them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes, one below the other; just `rows` where there is one process.

    Every process then computes the loss of the whole batch. The gradient that comes back to `rows` is the sum over
    processes; averaging parameter gradients over processes, as DDP does, makes it that of one process with all rows.
    """
    return _Gather.apply(rows) if processes()[1] > 1 else rows


def processes() -> tuple[int, int]:
    """The number of this process, and of how many."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def shared_permutation(length: int, device: torch.device) -> Tensor:
    """A random order, drawn by the first process and the same in all."""
    order = torch.rand(length, device=device).argsort()  # unlike randperm, certain not to wait for the device
    if processes()[1] > 1:
        dist.broadcast(order, src=0)
    return order


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]
