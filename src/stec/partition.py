"""Weights of which every process holds a part (PyTorch's `fully_shard`), for encoders that do not fit on one GPU.

Blocks of the networks are put together one at a time, when they compute. What is kept, gradients and the optimizer's
state among it, is in parts: tensors that know their whole shape (`DTensor`), cut along the first axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stec.errors import UserError
from stec.processes import total


def partition(module: nn.Module, mesh: Any) -> nn.Module:
    """Leaves each process its part of all weights, in place; buffers stay whole.

    Args:
        module: all that is trained. What is called must be this, or blocks inside of it.
        mesh: the processes, as `ModelParallelStrategy` arranges them.
    """
    from torch.distributed.fsdp import fully_shard

    for name, weight in module.named_parameters():
        if weight.ndim == 0:
            raise UserError(f"strategy=fsdp: the weight {name} is a single number, which has no parts; use ddp")
        weight.data = weight.data.contiguous()  # in the order of its axes, which parts need
    for part in (*blocks(module), module):
        fully_shard(part, mesh=mesh["data_parallel"], reshard_after_forward=True)
    return module


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The innermost networks in rows of networks: residual blocks of a ResNet, layers of a transformer."""
    row = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        inner = list(blocks(child))
        if row and not inner and any(True for part in child.children() for _ in part.parameters()):
            inner = [child]
        yield from inner


def join(module: nn.Module) -> None:
    """Gives every process all weights, from now on: any of them can use the module without the others."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()


def is_part(tensor: Any) -> bool:
    """Whether other processes hold the rest of a tensor."""
    return hasattr(tensor, "full_tensor")  # to import its class takes most of a second


def own_part(tensor: Any) -> Tensor:
    """What this process holds of a tensor, to be changed in place; all of it, if it has no parts."""
    return tensor.to_local() if is_part(tensor) else tensor


def whole(tensor: Any) -> Tensor:
    """All of a tensor, for which all processes have to ask at the same time."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def norms(own: list[Tensor], parts: bool) -> Tensor:
    """The norms of whole tensors, given what this process holds of them. (tensors,)"""
    found = torch.stack(torch._foreach_norm(own))
    return total(found.double().square()).sqrt().to(found.dtype) if parts else found


def cut(value: Any, place: Any) -> Any:
    """A whole tensor as `place` is, in its layout and of it what this process holds; other values as they are."""
    if not isinstance(value, Tensor) or place is None or value.shape != place.shape:
        return value
    part = torch.empty_like(place, dtype=value.dtype)
    if is_part(place):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value, place.device_mesh, place.placements, src_data_rank=None)
    own_part(part).copy_(own_part(value))
    return part


def cut_weights(state: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Of the whole state of a module, what this process is to load."""
    places = {name: place for name, place in module.state_dict().items() if is_part(place)}
    return {name: cut(value, places.get(name)) for name, value in state.items()}


def cut_optimizer(state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The same of an optimizer, whose state goes by the numbers of its weights."""
    places = dict(enumerate(weight for group in optimizer.param_groups for weight in group["params"]))
    each = {i: {key: cut(value, places.get(i)) for key, value in of.items()} for i, of in state["state"].items()}
    return state | {"state": each}
