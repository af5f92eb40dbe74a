"""An identity model in two real processes, and in one that has all their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stec.config import IdentityConfig
from stec.identity import IDENTITIES
from stec.views import ViewBatch

PAIRS, PIXELS, DIM, PROCESSES = 6, 10, 8, 2  # pairs of each process


class Model(nn.Module):
    """A linear encoder and the identity model of that name, on rows of pixels.

    "moco, groups": the target normalises by its batches, one in each process.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        name, _, kind = name.partition(", ")
        self.encoder = nn.Linear(PIXELS, DIM)
        self.encoder.dim = DIM
        output = 12 if name == "simsiam" else 5  # a quarter of it is SimSiam's bottleneck
        config = IdentityConfig(temperature=0.2, hidden=16, output=output, queue=40, groups=PROCESSES)
        self.identity = IDENTITIES[name](self.encoder, config)
        # Batch norms use these instead of the statistics of a batch, which would differ between processes.
        for module in self.identity.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        with torch.no_grad():  # as after some training, when a target network is no longer the online network
            for parameter in self.identity.parameters():
                if not parameter.requires_grad:
                    parameter.add_(0.2 * torch.randn_like(parameter))
        self.eval()
        if kind == "groups":
            self.identity.target.train()

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        output = self.identity(self.encoder(views), ViewBatch(views, copy=None))
        return output.loss, output.accuracy


@dataclass
class Outcome:
    """What one process has after one step."""

    loss: Tensor
    accuracy: Tensor
    state: dict[str, Tensor]


def views_of(process: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + process)
    first = torch.randn(PAIRS, PIXELS, generator=generator)
    return first, first + 0.5 * torch.randn(PAIRS, PIXELS, generator=generator)


def in_one_process(name: str) -> Outcome:
    first, second = zip(*(views_of(process) for process in range(PROCESSES)), strict=True)
    return _step(Model(name), torch.cat([*first, *second]))


def in_two_processes(names: Sequence[str], folder: Path) -> dict[str, list[Outcome]]:
    """Each model in both processes; starting them is what takes time, so all models go together."""
    multiprocessing.spawn(_one_of_two, args=(names, str(folder)), nprocs=PROCESSES)
    files = [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]
    return {name: [Outcome(**file[name]) for file in files] for name in names}


def _one_of_two(rank: int, names: Sequence[str], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES)
    outcomes = {name: vars(_step(Model(name), torch.cat(views_of(rank)), seed=rank)) for name in names}
    torch.save(outcomes, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _step(model: Model, views: Tensor, seed: int = 0) -> Outcome:
    torch.manual_seed(seed)  # processes draw other numbers, the first those of one process
    # DDP averages gradients over processes, as long as it exists
    parallel: Any = DistributedDataParallel(model) if dist.is_initialized() else model
    loss, accuracy = parallel(views)
    loss.backward()
    model.identity.after_step(0.5)
    return Outcome(loss.detach(), accuracy, model.state_dict())


def assert_same_loss(processes: list[Outcome], one: Outcome) -> None:
    """Every process computes the loss of the whole batch."""
    for process in processes:
        torch.testing.assert_close(process.loss, one.loss, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(process.accuracy, one.accuracy)
