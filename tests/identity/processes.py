"""An identity model in several real processes, and in one that has all their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from stec import functional
from stec.config import IdentityConfig
from stec.identity import IDENTITIES
from stec.views import ViewBatch

PAIRS, PIXELS, DIM, PROCESSES = 6, 10, 8, 2  # pairs of each process
EVEN = (PAIRS,) * PROCESSES


class Model(nn.Module):
    """A linear encoder and the identity model of that name, on rows of pixels.

    "moco, groups": the target normalises by its batches, one in each process. "simclr, blocks": similarities of one
    view at a time.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        name, _, kind = name.partition(", ")
        self.encoder = nn.Linear(PIXELS, DIM)
        self.encoder.dim = DIM
        output = 12 if name == "simsiam" else 5  # a quarter of it is SimSiam's bottleneck
        config = IdentityConfig(temperature=0.2, hidden=16, output=output, queue=40, groups=PROCESSES, prototypes=9)
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
        self.entries = 1 if kind == "blocks" else functional.BLOCK_ENTRIES

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
        with mock.patch.object(functional, "BLOCK_ENTRIES", self.entries):
            output = self.identity(self.encoder(views), ViewBatch(views, copy=None))
        return output.loss, output.accuracy


@dataclass
class Outcome:
    """What one process has after one step."""

    loss: Tensor
    accuracy: Tensor
    state: dict[str, Tensor]
    gradients: dict[str, Tensor]
    multiplications: int  # of matrices, forwards and backwards


def views_of(process: int, pairs: int = PAIRS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + process)
    first = torch.randn(pairs, PIXELS, generator=generator)
    return first, first + 0.5 * torch.randn(pairs, PIXELS, generator=generator)


def in_one_process(name: str, shares: Sequence[int] = EVEN) -> Outcome:
    first, second = zip(*(views_of(process, pairs) for process, pairs in enumerate(shares)), strict=True)
    return _step(Model(name), torch.cat([*first, *second]))


def in_processes(names: Sequence[str], folder: Path, shares: Sequence[int] = EVEN) -> dict[str, list[Outcome]]:
    """Each model in all processes; starting them is what takes time, so all models go together."""
    multiprocessing.spawn(_one_of_them, args=(names, str(folder), shares), nprocs=len(shares))
    files = [torch.load(folder / f"{rank}.pt") for rank in range(len(shares))]
    return {name: [Outcome(**file[name]) for file in files] for name in names}


def _one_of_them(rank: int, names: Sequence[str], folder: str, shares: Sequence[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=len(shares))
    views = torch.cat(views_of(rank, shares[rank]))
    outcomes = {name: vars(_step(Model(name), views, seed=rank)) for name in names}
    torch.save(outcomes, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _step(model: Model, views: Tensor, seed: int = 0) -> Outcome:
    torch.manual_seed(seed)  # processes draw other numbers, the first those of one process
    # DDP averages gradients over processes, as long as it exists
    parallel: Any = DistributedDataParallel(model) if dist.is_initialized() else model
    with FlopCounterMode(display=False) as counter:
        loss, accuracy = parallel(views)
        loss.backward()
    model.identity.after_step(0.5)
    gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    return Outcome(loss.detach(), accuracy, model.state_dict(), gradients, counter.get_total_flops())


def assert_same_loss(processes: list[Outcome], one: Outcome) -> None:
    """Every process computes the loss of the whole batch."""
    for process in processes:
        torch.testing.assert_close(process.loss, one.loss, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(process.accuracy, one.accuracy)
