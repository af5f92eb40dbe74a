"""First in, first out: rows of earlier batches that some identity models keep."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def enqueue(queue: Tensor, oldest: Tensor, rows: Tensor) -> None:
    """Puts rows in the places of the oldest ones; of more than the queue holds, the last. Nothing waits for the device.

    Args:
        queue: (N, ...), changed in place.
        oldest: (), the place that is taken next, changed in place.
        rows: (B, ...)
    """
    rows, size = rows[-len(queue) :].to(queue), len(queue)
    places = (oldest + torch.arange(len(rows), device=rows.device)) % size
    queue.index_copy_(0, places, rows)
    oldest.add_(len(rows)).remainder_(size)
