"""Work that a GPU does beside other work, where that leaves it idle."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from stec.processes import processes


def beside(function: Callable[[Tensor], tuple[Tensor, ...]], given: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Starts a function of a tensor in a stream of its own; what is returned waits for its value.

    What is launched in between runs beside it, and backward their gradients do. Not where gradients are averaged over
    processes: DDP does not wait for other streams.
    """
    if not given.is_cuda or processes()[1] > 1:
        value = function(given)
        return lambda: value
    here, there = torch.cuda.current_stream(given.device), _stream(given.device)
    there.wait_stream(here)
    with torch.cuda.stream(there):
        value = function(given)
    given.record_stream(there)  # its memory is not given to others before both streams are done with it

    def wait() -> tuple[Tensor, ...]:
        here.wait_stream(there)
        for tensor in value:
            tensor.record_stream(here)
        return value

    return wait


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
