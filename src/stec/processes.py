"""What processes that train together exchange: rows, sums and means, with gradient.

Every process has the loss L of the whole batch, and a gradient that comes back through an exchange is the sum over
processes: with W of them, W times that of L. Averaging parameter gradients over processes, as DDP does, makes it that
of one process with all rows. It makes no difference whether each computes L from all rows, or the part L_p of its own
rows, and L is their total: this hands the sum of W ones back, and W dL_p/dz, summed over p where z was gathered, is
W dL/dz. The processes may have different numbers of rows. Where there is one process, nothing is exchanged and nothing
is computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stec.functional import masked_mean

_known: ContextVar[tuple[int, ...] | None] = ContextVar("shares", default=None)


def processes() -> tuple[int, int]:
    """The number of this process, and of how many."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def launched() -> tuple[int, int] | None:
    """Processes on each machine, and machines, where torchrun or SLURM has started them; None where nobody has."""
    environment = os.environ
    if dist.is_available() and dist.is_torchelastic_launched():
        local = int(environment["LOCAL_WORLD_SIZE"])
        return local, int(environment["WORLD_SIZE"]) // local
    tasks = int(environment.get("SLURM_NTASKS", 1))
    if tasks > 1 and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        machines = int(environment.get("SLURM_NNODES", 1))
        return tasks // machines, machines
    return None


def processes_here() -> int:
    """How many processes of this run share this machine."""
    local, _ = launched() or (processes()[1], 1)
    return local


def shares(rows: int, world: int) -> tuple[int, ...]:
    """How many rows of a batch each process has: neighbouring rows, and no process more than one row more."""
    return tuple(rows // world + (rank < rows % world) for rank in range(world))


@contextmanager
def known_shares(rows: Sequence[int]) -> Iterator[None]:
    """Within, the processes have rows in these proportions, and need not tell each other how many before they gather.

    On a GPU, telling means to wait for the device.
    """
    token = _known.set(tuple(rows))
    try:
        yield
    finally:
        _known.reset(token)


def rows_of_all(rows: int) -> list[int]:
    """How many rows each process has, where this one has so many."""
    rank, world = processes()
    if world == 1:
        return [rows]
    known = _known.get()
    if known is not None:
        return [rows * share // known[rank] for share in known]
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    told = torch.empty(world, dtype=torch.long, device=device)
    dist.all_gather_into_tensor(told, torch.tensor([rows], device=device))
    return told.tolist()


def own_rows(rows: int) -> slice:
    """Where the rows of this process, so many, stand among those of all: what `gather` makes of them."""
    start = sum(rows_of_all(rows)[: processes()[0]])
    return slice(start, start + rows)


def rows_to_draw(rows: int) -> tuple[int, slice]:
    """For how many rows random numbers are drawn, and which of these are for this process, which has so many rows.

    With the same seed in all processes, what is done to a row does not depend on how many processes there are.
    """
    return sum(rows_of_all(rows)), own_rows(rows)


def gather(rows: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
    """The rows of all processes, one below the other; just `rows` where there is one process.

    Args:
        rows: (B, ...)
        lengths: B of every process, where it is known.
    """
    if processes()[1] == 1:
        return rows
    return _Gather.apply(rows, tuple(lengths or rows_of_all(len(rows))))


def total(sums: Tensor) -> Tensor:
    """The sum over processes of tensors of the same shape."""
    return _Total.apply(sums) if processes()[1] > 1 else sums


def mean(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """`masked_mean` over the rows (B, ...) of all processes.

    It is not the mean of their means: processes differ in how many of their rows count.
    """
    if processes()[1] == 1:
        return masked_mean(values, mask)
    mask = torch.ones_like(values, dtype=torch.bool) if mask is None else mask
    sums, counts = total(torch.stack([(values * mask).sum(dim=0), mask.sum(dim=0).to(values.dtype)]))
    return sums / counts.clamp(min=1)


def average(mean: Tensor, rows: int) -> Tensor:
    """The mean () over the rows of all processes, from that over the rows of this one, of which there are so many."""
    if processes()[1] == 1:
        return mean
    sums, counts = total(torch.stack([mean * rows, torch.full_like(mean, rows)]))
    return sums / counts


def shared_permutation(length: int, device: torch.device) -> Tensor:
    """A random order, drawn by the first process and the same in all."""
    order = torch.rand(length, device=device).argsort()  # unlike randperm, certain not to wait for the device
    if processes()[1] > 1:
        dist.broadcast(order, src=0)
    return order


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, lengths: tuple[int, ...]) -> Tensor:
        ctx.lengths, longest = lengths, max(lengths)
        even = min(lengths) == longest
        padded = rows.contiguous() if even else _padded(rows, longest)
        gathered = rows.new_empty((len(lengths) * longest, *rows.shape[1:]))
        dist.all_gather_into_tensor(gathered, padded)
        if even:
            return gathered
        parts = zip(gathered.split(longest), lengths, strict=True)
        return torch.cat([part[:length] for part, length in parts])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed.split(list(ctx.lengths))[dist.get_rank()], None


def _padded(rows: Tensor, length: int) -> Tensor:
    padded = rows.new_zeros((length, *rows.shape[1:]))
    padded[: len(rows)] = rows
    return padded


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: Tensor) -> Tensor:
        summed = sums.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed
