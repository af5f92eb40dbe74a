"""One step of sound, of segmentation and of detection: in two real processes, and in one that has all examples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stec.audio.loading import synthesise
from stec.audio.sounds import split
from stec.audio.training import Listening
from stec.config import load
from stec.networks.synchrony import synchronise_batch_norms
from stec.processes import known_shares
from stec.task import Task
from stec.transfer.config import load_transfer
from stec.transfer.scenes import load_scenes
from stec.transfer.tasks import Detection, Segmentation
from stec.transfer.trunks import open_start

EXAMPLES = 8
CPU = torch.device("cpu")
SOUND = ["batch_size=8", "audio.window=3200", "audio.steps=3", "identity.hidden=16", "manipulation.hidden=16"]
SCENES = ["batch_size=8", "data.size=32", "data.train_images=8", "data.test_images=1"]
KINDS = ("sound", "sound, frames", "segmentation", "detection")


def build(kind: str) -> Task:
    torch.manual_seed(1)
    if kind.startswith("sound"):
        pieces = "audio.pieces=frames" if kind.endswith("frames") else "audio.pieces=windows"
        sounds = synthesise(4, 8)
        config = load("audio/stec-cpc-actions", [*SOUND, pieces])
        fabric: Any = SimpleNamespace(device=CPU)
        return Listening(config, fabric, sounds, split(sounds, 0.25))
    config = load_transfer(f"shapes-{kind}", [*SCENES, "segmentation.side=40", "segmentation.width=8"])
    scenes = load_scenes(config.data, kind, CPU)
    return {"segmentation": Segmentation, "detection": Detection}[kind](
        config, open_start("none", config.encoder), scenes, CPU
    )


def step(kind: str, shares: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Metrics, gradients, and the inputs of this process's part of a batch."""
    task = build(kind)
    module: nn.Module = task.module
    rank, shares = (dist.get_rank(), shares) if shares else (0, (EXAMPLES,))
    if len(shares) > 1:
        synchronise_batch_norms(module, task.unsynchronised(), cuda=False)
        module = DistributedDataParallel(module)
    own = torch.arange(EXAMPLES).split(shares)[rank]
    torch.manual_seed(100)
    batch = next(task.batches(own, len(own)))
    with known_shares(shares):
        inputs = task.prepare(*batch)
        loss, metrics, *_ = module(*inputs)
    loss.backward()
    gradients = {name: p.grad for name, p in task.module.named_parameters() if p.grad is not None}
    rows: Tensor = inputs[0].transpose(0, 1) if kind.startswith("sound") else inputs[0]
    return {"metrics": metrics, "gradients": gradients, "rows": rows}
