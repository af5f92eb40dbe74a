"""Started by torchrun: a transformer with AdamW, sound, and a transfer, with weights in parts (fsdp) and without (ddp).

torchrun --nproc-per-node 2 train_in_parts.py FOLDER
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_runs import TINY

from stec import UserError, launching
from stec.config import load
from stec.partition import own_part
from stec.reporter import Nobody
from stec.run import RunFolder
from stec.training import pretrain
from stec.transfer.config import load_transfer
from stec.transfer.running import transfer
from stec.transfer.tasks import Segmentation

SHORT = ("epochs=1", "batch_size=8", "log_every=1", "device=cpu")
TRANSFORMER = (
    *TINY,
    "device=cpu",
    "encoder=timm:vit_tiny_patch16_224,patch_size=8,img_size=32,embed_dim=24,depth=3",
    "method=stec-byol",
    "optimizer.name=adamw",
    "optimizer.rate=0.001",
)
SOUND = (*SHORT, "audio.utterances=16", "audio.speakers=4", "audio.window=5120", "audio.steps=2", "baselines=false")
SOUND += ("optimizer.warmup_epochs=0",)
SCENES = (*SHORT, "encoder=resnet18", "data.train_images=16", "data.test_images=4", "optimizer.warmup_epochs=0")


def finetune(folder: RunFolder, strategy: str) -> None:
    summary = transfer(load_transfer("shapes-segmentation", [*SCENES, f"strategy={strategy}"]), folder, Nobody())
    assert bool(summary) == (dist.get_rank() == 0), "the first process evaluates, and it alone"


def poison(task: Segmentation, progress: torch.Tensor) -> None:
    """Breaks a weight that the second process holds, after the last step."""
    if progress == 1 and dist.get_rank() == 1:
        own_part(next(task.module.parameters())).detach().fill_(torch.nan)


def main(path: Path) -> None:
    names = ("vit-fsdp", "sound-ddp", "sound-fsdp", "scenes-ddp", "scenes-fsdp", "poisoned")
    folders = {name: RunFolder.new(path / name, "default") for name in names}  # before one of the processes makes any
    pretrain(load("default", [*TRANSFORMER, "strategy=fsdp"]), folders["vit-fsdp"], Nobody())
    for strategy in ("ddp", "fsdp"):
        words = [*SOUND, f"strategy={strategy}"]
        pretrain(load("audio/stec-cpc", words), folders[f"sound-{strategy}"], Nobody())
        finetune(folders[f"scenes-{strategy}"], strategy)
    Segmentation.after_step = poison
    launching.failing_together = lambda fabric: nullcontext()  # which would let one of them speak for both
    try:
        finetune(folders["poisoned"], "fsdp")
    except UserError as error:
        (path / f"told-{dist.get_rank()}").write_text(str(error))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
