"""Other libraries' parts, run beside ours by `stec bench --compare`."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stec.compiling import compile_network, compiles
from stec.config import Config
from stec.errors import UserError
from stec.networks.encoders import create_encoder

WARM_UP = 3  # steps that are not counted
PREFETCH = 2  # batches that a worker keeps ready
ROUNDS = 4  # batches of every worker that are measured at least: they come in bursts, about all of a round at once


class _Pictures(Dataset[Any]):
    """Noise as PIL images, as a data set on disk gives them; endless, so that no epoch ends while measuring."""

    def __init__(self, size: int, transform: Any) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (256, size, size, 3), np.uint8)
        self.pictures = [Image.fromarray(picture) for picture in noise]
        self.transform = transform

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.pictures[index % len(self.pictures)])


def lightly_simclr(config: Config, batch_size: int, device: torch.device, seconds: float) -> dict[str, float]:
    """Views per second of SimCLR made of lightly's transform, head and loss, with our encoder, SGD and a DataLoader.

    The transform is that of lightly's own example on CIFAR-10, so it ends with a normalisation, which ours leaves to
    the encoder; jitter and blur are those of the config.

    Returns:
        `loader`: end to end, one worker process per core. `tensors`: the same steps on views that lie on the device
        already, so without any augmentation.
    """
    try:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import SimCLRProjectionHead
        from lightly.transforms import SimCLRTransform
    except ImportError:
        raise UserError("--compare lightly needs lightly: pip install lightly") from None
    views = config.views
    # lightly multiplies its jitters by a strength of their own; 0.5 of (0.8, 0.2) is (0.4, 0.1).
    transform = SimCLRTransform(
        input_size=views.size,
        cj_strength=views.jitter[0] / 0.8,
        gaussian_blur=views.blur,
    )
    workers = os.cpu_count() or 1
    loader: DataLoader[Any] = DataLoader(
        _Pictures(config.data.size, transform),
        batch_size,
        num_workers=workers,
        prefetch_factor=PREFETCH,
        pin_memory=device.type == "cuda",
    )
    encoder = create_encoder(config.encoder).to(device).to(memory_format=torch.channels_last)
    if compiles(config.compile, device):
        compile_network(encoder, config.compile)
    dim = int(encoder.dim)  # type: ignore[arg-type]
    head = SimCLRProjectionHead(dim, config.identity.hidden, config.identity.output).to(device)
    loss_of = NTXentLoss(temperature=config.identity.temperature)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.06, momentum=0.9)

    def step(first: Tensor, second: Tensor) -> None:
        both = torch.cat([first, second]).to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            projections: Tensor = head(encoder(both))
        loss = loss_of(*projections.float().chunk(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    batches = iter(loader)
    last: list[Tensor] = []

    def from_loader() -> None:
        last[:] = next(batches)
        step(*last)

    step(*(view.to(device) for view in next(batches)))  # compiles
    for _ in range(workers * PREFETCH):  # made meanwhile
        next(batches)
    rates = {"loader": _rate(from_loader, batch_size, device, seconds, ROUNDS * workers)}
    first, second = (view.to(device) for view in last)
    rates["tensors"] = _rate(lambda: step(first, second), batch_size, device, seconds)
    return {name: round(rate) for name, rate in rates.items()}


def _rate(step: Any, batch_size: int, device: torch.device, seconds: float, least: int = 1) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(WARM_UP):
        step()
    wait()
    begun, steps = time.perf_counter(), 0
    while steps < least or time.perf_counter() - begun < seconds:
        step()
        steps += 1
        wait()
    return 2 * batch_size * steps / (time.perf_counter() - begun)
