"""Bringing together the rows of all processes, with gradient."""

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
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return _Gather.apply(rows)
    return rows


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
