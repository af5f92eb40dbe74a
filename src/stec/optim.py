"""Optimizers, which parameters they scale and decay, and the schedule of their learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stec.config import OptimizerConfig
from stec.partition import is_part, norms, own_part

# Layers whose parameters are never decayed and never rescaled. `_NormBase` is every batch and instance norm.
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_MATRICES = (nn.Linear, nn.modules.conv._ConvNd)


class LARS(torch.optim.Optimizer):
    """SGD with momentum and layer-wise adaptive rate scaling (https://arxiv.org/abs/1708.03888).

    For each parameter tensor w with gradient g::

        d = g + weight_decay * w
        local = trust * |w| / |d|    (1 where either norm is 0)
        v = momentum * v + local * d
        w = w - lr * v

    As in google-research/simclr the norm is that of the gradient with its decay, and a weight decay of 0 does
    not switch LARS off; unlike there, and as in `torch.optim.SGD`, the rate stays outside of the momentum
    buffer v.

    With `clip` it is LARC, as in apex and solo-learn: plain SGD as long as no step exceeds `trust` times the weight::

        local = min(trust * |w| / |d| / lr, 1)

    Nothing in a step waits for the device. The tensors of a group must be on one device.

    Args:
        params: Tensors, or groups with any of the keys below.
        lr: Learning rate; may be changed before every step. A tensor stays on its device.
        momentum: Decay of the buffer v.
        weight_decay: L2 penalty.
        trust: Trust coefficient; 0 or None makes a group plain SGD with momentum.
        clip: Whether trust is the most that a step may be, and not what every step is.

    A group may have a `factor`, by which its learning rate differs from `lr`.

    Examples:
        >>> model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        >>> optimizer = LARS(parameter_groups(model, weight_decay=1e-6, trust=0.001), lr=1.0)
        >>> model(torch.rand(16, 8)).square().sum().backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float | None = 0.001,
        clip: bool = False,
    ) -> None:
        for name, value in (("lr", float(lr)), ("weight_decay", weight_decay), ("trust", trust or 0.0)):
            if value < 0:
                raise ValueError(f"{name}={value}: must be at least 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum}: must be at least 0 and below 1")
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust, clip=clip))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient.

        Args:
            closure: Computes the loss and the gradients anew; its value is returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(parameters, group)
        return loss

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        weights = [own_part(p) for p in parameters]
        directions = [own_part(p.grad) for p in parameters]  # d
        if group["weight_decay"]:
            directions = list(torch._foreach_add(directions, weights, alpha=group["weight_decay"]))
        buffers = [own_part(self._buffer(p)) for p in parameters]  # v
        rate = group["lr"] * group.get("factor", 1.0)
        if group["trust"]:
            limit = rate if group.get("clip") else None  # absent from older checkpoints
            local = _local_rates(weights, directions, group["trust"], limit, is_part(parameters[0]))
            directions = list(torch._foreach_mul(directions, local))
        _move(weights, directions, buffers, rate, group["momentum"])

    def _buffer(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state["momentum_buffer"]


def _move(
    weights: list[Tensor], directions: list[Tensor], buffers: list[Tensor], lr: float | Tensor, momentum: float
) -> None:
    """v = momentum v + d, w = w - lr v"""
    if weights[0].is_cuda and momentum and _share_layout(weights, directions, buffers):
        _move_in_one_pass(weights, directions, buffers, lr, momentum)
        return
    torch._foreach_mul_(buffers, momentum)
    torch._foreach_add_(buffers, directions)
    torch._foreach_sub_(weights, torch._foreach_mul(buffers, lr))


def _share_layout(*lists: list[Tensor]) -> bool:
    return all(len({each.stride() for each in same}) == 1 for same in zip(*lists, strict=True))


def _move_in_one_pass(
    weights: list[Tensor], directions: list[Tensor], buffers: list[Tensor], lr: float | Tensor, momentum: float
) -> None:
    """As `torch.optim.SGD(fused=True)` does it: over memory once instead of three times."""
    torch._fused_sgd_(
        weights, directions, buffers,
        weight_decay=0.0, momentum=momentum, lr=lr, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def _local_rates(
    weights: list[Tensor], directions: list[Tensor], trust: float, limit: float | Tensor | None, parts: bool
) -> list[Tensor]:
    """trust * |w| / |d| for each tensor, 1 where either norm is 0, as scalars on the device; see `norms` for parts.

    With a limit, by how much the rate `limit` has to shrink to be no larger than that.
    """
    w, d = norms([*weights, *directions], parts).chunk(2)  # (tensors,)
    local = trust * w / d
    if limit is not None:
        local = (local / limit).clamp(max=1.0)
    return list(torch.where((w > 0) & (d > 0), local, 1.0).unbind())


def create_optimizer(
    settings: OptimizerConfig,
    model: nn.Module,
    rate: float | Tensor,
    plain: Iterable[nn.Module] = (),
    steady: Iterable[nn.Module] = (),
    steady_rate: float = 0.0,
) -> torch.optim.Optimizer:
    """The optimizer that the settings name, for what `parameter_groups` makes of the model.

    Args:
        settings: Its name and constants; not the rate, which has a schedule.
        model: All that is to be trained.
        rate: Learning rate; may be changed before every step. A tensor on a GPU lets a step be recorded.
        plain: See `parameter_groups`. The settings may have a rate and a decay of their own for these.
        steady: Modules whose rate does not change.
        steady_rate: That rate.
    """
    plain = list(plain)
    groups = parameter_groups(
        model, settings.weight_decay, settings.trust, plain, settings.decayed == "all", settings.probe_decay
    )
    if settings.probe_rate is not None:
        groups = set_apart(groups, plain, factor=settings.probe_rate / settings.rate)
    groups = set_apart(groups, steady, lr=steady_rate, steady=True)
    if settings.name in ("lars", "larc"):
        return LARS(groups, rate, settings.momentum, clip=settings.name == "larc")
    for group in groups:
        del group["trust"]
    recorded = isinstance(rate, Tensor) and rate.is_cuda
    return torch.optim.AdamW(groups, rate, (settings.momentum, 0.999), fused=recorded, capturable=recorded)


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    trust: float,
    plain: Iterable[nn.Module] = (),
    decay_all: bool = False,
    plain_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Groups for an optimizer, by the type of the module that owns a parameter, never by its name.

    ==================================================  =====  =====
    parameters                                          LARS   decay
    ==================================================  =====  =====
    weights                                             yes    yes
    weights of the modules in `plain`                   no     yes
    all of a normalisation layer, and all vectors       no     no
    ==================================================  =====  =====

    Vectors are the biases, and what has at most one axis longer than 1 and does not belong to a linear or
    convolutional layer: layer scales and class tokens of vision transformers, norms that a library wrote
    itself. Position embeddings are weights. Parameters that require no gradient are left out, shared ones
    come once, and there are no empty groups.

    Args:
        model: All that is to be trained.
        weight_decay: For the first two kinds.
        trust: For the first kind.
        plain: Modules trained by plain SGD, such as the online linear head; inside of `model` or beside it.
        decay_all: Whether weight_decay is for the third kind, too, as `torch.optim.SGD(model.parameters())` has it.
        plain_decay: For what decays of the modules in `plain`, in place of weight_decay.
    """
    plain = list(plain)
    in_plain = {id(p) for module in plain for p in module.parameters()}
    scaled: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for owner, parameter in _owned_parameters([model, *plain]):
        if isinstance(owner, _NORMS) or _is_vector(owner, parameter):
            free.append(parameter)
        elif id(parameter) in in_plain:
            decayed.append(parameter)
        else:
            scaled.append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": scaled, "weight_decay": weight_decay, "trust": trust},
        {"params": decayed, "weight_decay": weight_decay if plain_decay is None else plain_decay, "trust": 0.0},
        {"params": free, "weight_decay": weight_decay if decay_all else 0.0, "trust": 0.0},
    ]
    if decay_all and plain_decay is not None:
        groups = set_apart(groups, plain, weight_decay=plain_decay)
    return [group for group in groups if group["params"]]


def set_apart(groups: Iterable[dict[str, Any]], modules: Iterable[nn.Module], **keys: Any) -> list[dict[str, Any]]:
    """The groups, but with the parameters of some modules in groups of their own, which differ in these keys."""
    theirs = {id(p) for module in modules for p in module.parameters()}
    parts = []
    for group in groups:
        for inside, own in ((False, {}), (True, keys)):
            some = [p for p in group["params"] if (id(p) in theirs) == inside]
            parts += [group | {"params": some} | own] if some else []
    return parts


def _owned_parameters(roots: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """Every trained parameter once, with the module whose attribute it is."""
    seen: set[int] = set()
    for root in roots:
        for module in root.modules():
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield module, parameter


def _is_vector(owner: nn.Module, parameter: nn.Parameter) -> bool:
    if isinstance(owner, _MATRICES):
        return parameter.ndim <= 1  # the weight (1, D) of a linear layer with one output is a weight
    return sum(length > 1 for length in parameter.shape) <= 1


def warmup_cosine(step: int, total: int, warmup: int) -> float:
    """Factor for the base learning rate at one optimizer step: linear warm-up, then half a cosine down to 0.

    Step `warmup - 1` ends the warm-up with factor 1; the factor reaches 0 at `step == total`, right after the
    last step.

    Args:
        step: Steps already done: 0 for the first one, whose factor is 1 / warmup.
        total: Steps of the whole run.
        warmup: Steps of the warm-up; 0 for none.
    """
    if not 0 <= warmup <= total:
        raise ValueError(f"warmup={warmup}: must be from 0 to the {total} steps of the run")
    if step >= total:
        return 0.0
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def warmup_steps_down(step: int, total: int, warmup: int, drops: Sequence[float]) -> float:
    """Factor for the base learning rate at one optimizer step: linear warm-up, then a tenth of it after every drop.

    Args:
        step: Steps already done: 0 for the first one, whose factor is 1 / warmup.
        total: Steps of the whole run.
        warmup: Steps of the warm-up; 0 for none.
        drops: Parts of the run, from 0 to 1.
    """
    rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
    return rise * 0.1 ** sum(step >= round(part * total) for part in drops)


def scaled_rate(rate_per_256: float, batch_size: int) -> float:
    """The base learning rate of a batch (over all devices) by the linear scaling rule."""
    return rate_per_256 * batch_size / 256
