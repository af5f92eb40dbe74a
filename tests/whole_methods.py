"""Every method as a whole, batch norms training: in two real processes, and in one that has all their images."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import whole_tasks
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from stec.checkpoint import to_host
from stec.method import METHODS, create
from stec.networks.synchrony import synchronise_batch_norms
from stec.optim import LARS, parameter_groups
from stec.partition import own_part, partition, whole
from stec.processes import known_shares
from stec.training import Trainee
from stec.views import Views

IMAGES, CLASSES, STEPS = 8, 3, 2
MESH = partial(init_device_mesh, "cpu", (2,), mesh_dim_names=("data_parallel",))
NORMS = ("plain", "timm", "bfloat16")
SHARES = {"even": (4, 4), "uneven": (5, 3), "in parts": (5, 3)}  # images of each process, the last with fsdp


class Encoder(nn.Module):
    """A convolution, batch norms over space and over images; the latter in blocks."""

    dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3, bias=False)
        self.norm = nn.BatchNorm2d(5)
        linear = nn.Linear(5, self.dim, bias=False)
        self.blocks = nn.Sequential(nn.Sequential(linear, nn.BatchNorm1d(self.dim)))

    def forward(self, images: Tensor) -> Tensor:
        seen = self.norm(self.convolution(images.to(self.norm.running_mean.dtype))).relu()
        return self.blocks(seen.square().mean(dim=(2, 3)))


@dataclass
class Outcome:
    """What a process has after the first step, and after the last."""

    metrics: Tensor  # of the first step
    gradients: dict[str, Tensor]
    state: dict[str, Tensor]
    held: int  # numbers in weights, gradients and momentum


def build(name: str) -> tuple[Views, Trainee]:
    """All that there is at once: small views, turned views, colours, pairs that do not count."""
    torch.manual_seed(1)
    views = Views(size=8, blur=0.5, solarize=0.3, small=2, small_size=6, turn=True)
    action = {} if name == "augself" else {"action": "egocentric+colour"}
    method = create(
        name,
        Encoder(),
        identity={
            "hidden": 10,
            "output": 12 if "simsiam" in name or name == "augself" else 7,
            "queue": 30,
            "ema": 0.8,
            "prototypes": 11,
            "target_temperature": 0.06,
            "assigned_queue": 6,
        },
        manipulation={"hidden": 9, **action},
        views=views,
        lambda_turn=0.8,
        turn={"hidden": 8},
    )
    trainee = Trainee(method, CLASSES).double()  # losses are in float32 all the same, and so are MoCo's keys
    for key, buffer in method.identity.named_buffers(recurse=False):
        method.identity.register_buffer(key, buffer.float() if buffer.is_floating_point() else buffer)
    with torch.no_grad():  # as after some training, when a target network is no longer the online network
        for parameter in trainee.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return views, trainee


def train(name: str, shares: tuple[int, ...] | None = None, parts: bool = False) -> Outcome:
    """Some steps of all images, or of the share that this process has of them."""
    views, trainee = build(name)
    rank = dist.get_rank() if shares else 0
    start = sum(shares[:rank]) if shares else 0
    own = slice(start, start + shares[rank] if shares else None)
    model: nn.Module = trainee
    if shares:
        views.draw_for_all(shares, rank)
        synchronise_batch_norms(trainee, trainee.method.identity.unsynchronised(), cuda=False)
        # Without its broadcast of buffers, they are the same in all processes only if all compute the same.
        model = partition(trainee, MESH()) if parts else DistributedDataParallel(trainee, broadcast_buffers=False)
    groups = parameter_groups(trainee, 1e-4, 0.05, [trainee.probe])
    optimizer = LARS(groups, lr=0.5)
    data = torch.Generator().manual_seed(0)
    metrics, gradients = torch.empty(0), {}
    for step in range(STEPS):
        images = torch.rand(IMAGES, 3, 9, 11, generator=data)
        labels = torch.tensor([-1, 0, -1, -1, 2, 1, 0, -1]).roll(step)  # -1: without
        sizes = torch.tensor([[9.0, 11.0], [30.0, 20.0]]).repeat(IMAGES // 2, 1)
        torch.manual_seed(100 + step)
        loss, measured, *_ = model(views(images[own], sizes[own]), labels[own])
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            metrics = measured
            gradients = {key: whole(p.grad).clone() for key, p in trainee.named_parameters() if p.grad is not None}
        optimizer.step()
        trainee.method.after_step((step + 1) / STEPS)
    momentum = [s["momentum_buffer"] for s in optimizer.state.values()]
    kept = [*trainee.parameters(), *(p.grad for p in trainee.parameters() if p.grad is not None), *momentum]
    held = sum(own_part(tensor).numel() for tensor in kept)
    state = trainee.state_dict() | {f"momentum {i}": buffer for i, buffer in enumerate(momentum)}
    return Outcome(metrics, gradients, to_host(state), held)


def normalise(kind: str, shares: tuple[int, ...] | None = None) -> dict[str, Tensor]:
    """A batch norm of values far from zero: output, gradients, running statistics; of all rows, or this process's."""
    torch.manual_seed(2)
    # timm's has an activation in the same module; a momentum of None averages over all batches
    norm = BatchNormAct2d(4) if kind == "timm" else nn.BatchNorm2d(4, momentum=None)
    nn.init.uniform_(norm.weight, 0.5, 2)
    nn.init.normal_(norm.bias)
    rank = dist.get_rank() if shares else 0
    holder = nn.Sequential(norm)
    if shares:
        synchronise_batch_norms(holder, cuda=False)
    result = {}
    for step in range(2):
        inputs = 100 + step + torch.randn(IMAGES, 4, 3, 5)
        towards = torch.randn(IMAGES, 4, 3, 5)
        if shares:
            inputs, towards = (rows.split(shares)[rank] for rows in (inputs, towards))
        inputs = inputs.to(torch.bfloat16) if kind == "bfloat16" else inputs.clone()
        norm.zero_grad()
        output = holder(inputs.requires_grad_())
        (output * towards).sum().backward()
        result = {"output": output.detach(), "inputs": inputs.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return result | {"mean": norm.running_mean, "variance": norm.running_var, "batches": norm.num_batches_tracked}


def in_two_processes(folder: Path) -> tuple[dict[tuple[str, str], list[Outcome]], *tuple[list[dict[str, Any]], ...]]:
    """Every method with either shares, batch norms, other tasks, in both processes: starting these takes the time."""
    multiprocessing.spawn(_one_of_two, args=(str(folder),), nprocs=2)
    outcomes, norms, tasks = zip(*(torch.load(folder / f"{rank}.pt") for rank in range(2)), strict=True)
    methods = {case: [Outcome(**each[case]) for each in outcomes] for case in outcomes[0]}
    return methods, list(norms), list(tasks)


def _one_of_two(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    outcomes = {}
    for name, (kind, shares) in itertools.product(METHODS, SHARES.items()):
        if name == "stec":  # as in the engine, which knows them
            with known_shares(shares):
                outcomes[name, kind] = vars(train(name, shares, kind == "in parts"))
        else:
            outcomes[name, kind] = vars(train(name, shares, kind == "in parts"))
    norms = {kind: normalise(kind, SHARES["uneven"]) for kind in NORMS}
    tasks = {kind: whole_tasks.step(kind, SHARES["uneven"]) for kind in whole_tasks.KINDS}
    torch.save((outcomes, norms, tasks), f"{folder}/{rank}.pt")
    dist.destroy_process_group()
