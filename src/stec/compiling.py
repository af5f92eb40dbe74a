"""Whether and how networks are compiled."""

from __future__ import annotations

import gc
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stec import provenance

Options = dict[str, str | int | bool | Callable[..., Any]]  # of PyTorch's compiler

TUNED: Options = {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}

# Scaling the blocks of reductions compiles kernels once more, one after the other in the process that waits for them,
# when they are loaded from the cache too; it made no step faster.
QUICK: Options = {"dynamic_scale_rblock": False}


def compiles(choice: str, device: torch.device) -> bool:
    """Whether a run is compiled on that device; `choice` is the key `compile` of its config."""
    return choice in ("always", "tuned") or (choice == "auto" and device.type == "cuda")


def start_compilers(choice: str, device: torch.device) -> None:
    """Starts the processes that compile kernels for a GPU, where a run will need them.

    By itself PyTorch starts them when it has kernels for them; until they are there, which takes many seconds, it
    compiles one kernel after the other by itself. So they start while data are loaded and networks are made.
    """
    if device.type == "cuda" and compiles(choice, device):
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()


def compile_network(network: nn.Module, choice: str) -> None:
    """Compiles it in place, when it is called first; for every shape of its inputs anew."""
    network.compile(dynamic=False, options=TUNED if choice == "tuned" else quick())


def quick() -> Options:
    """Options for a quick start, as far as this PyTorch knows them."""
    from torch._inductor import list_options

    known = list_options()
    return {name: value for name, value in QUICK.items() if name in known}


def one_operation(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of tensors one operation to the compiler, which saves time at every start.

    The compiler looks into it only if it has not compiled the same before. It knows it by its name alone, so the name
    holds a hash of the file that the function is in, on which alone its result may depend.

    Args:
        schema: arguments and result, "(Tensor images, int size) -> Tensor".
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        code = hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()
        name = f"{function.__name__.strip('_')}_{code[:16]}"
        _library.define(name + schema)
        _library.impl(name, function, "CompositeImplicitAutograd")
        return getattr(torch.ops.stec, name)

    return register


_library = torch.library.Library("stec", "FRAGMENT")


def forget_earlier_runs() -> None:
    """Gives a run the process as if it were the first in it: memory, its peak, and the number of compiled shapes."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    provenance.forget_peak()
