"""All random numbers of a process: Python's, NumPy's, PyTorch's, and those of a GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from stec.processes import processes


def mix(*numbers: int) -> int:
    """One seed from several numbers, well apart from its neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])


def seed(number: int) -> None:
    """Starts all generators anew."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@contextmanager
def of_this_process(device: torch.device) -> Iterator[None]:
    """Within, each of several processes draws as many numbers of its own as it needs; after it they draw alike again.

    One process goes on drawing as ever.
    """
    rank, world = processes()
    if world == 1:
        yield
        return
    common = int(torch.randint(2**31, ()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(mix(common, rank))
        yield


def capture(device: torch.device) -> dict[str, Any]:
    """The state of all generators, as tensors and plain values."""
    numpy: Any = np.random.get_state(legacy=False)
    numpy["state"]["key"] = numpy["state"]["key"].tolist()
    state = {"python": random.getstate(), "numpy": numpy, "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Goes on from there."""
    random.setstate(state["python"])
    numpy = state["numpy"]
    key = np.array(numpy["state"]["key"], np.uint32)
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
