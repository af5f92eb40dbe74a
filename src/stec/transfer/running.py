"""A transfer from start to end."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from stec.engine import Loop, make_fabric
from stec.fabric import Fabric
from stec.launching import working
from stec.reporter import Reporter
from stec.run import RunFolder
from stec.transfer.config import TransferConfig
from stec.transfer.pictures import save_sheet
from stec.transfer.scenes import SceneSet, load_scenes
from stec.transfer.tasks import Detection, Segmentation
from stec.transfer.trunks import Start, open_start

TASKS = {"detection": Detection, "segmentation": Segmentation}


def transfer(config: TransferConfig, folder: RunFolder, reporter: Reporter, resume: bool = False) -> dict[str, Any]:
    """Trains from the start that the config names, evaluates, writes the run folder; -> what summary.json holds.

    With several processes, all but the first return nothing.
    """
    torch.manual_seed(config.seed)
    start = open_start(config.start, config.encoder)
    config = dataclasses.replace(config, encoder=start.name)
    fabric = make_fabric(config)
    with working(fabric, folder, reporter) as reporter:
        about = f"{config.task} from {config.start} ({config.encoder}), {config.epochs} epochs, seed {config.seed}"
        reporter.note(f"{about} -> {folder.path}")
        return _transfer(config, start, fabric, folder, reporter, resume)


def _transfer(
    config: TransferConfig, start: Start, fabric: Fabric, folder: RunFolder, reporter: Reporter, resume: bool
) -> dict[str, Any]:
    scenes = load_scenes(config.data, config.task, fabric.device)
    _note_scenes(scenes, config.data.size, reporter)
    task = TASKS[config.task](config, start, scenes, fabric.device)
    loop = Loop(config, fabric, folder, reporter, task)
    loop.begin(resume)
    loop.run()
    if not fabric.is_global_zero:
        return {}
    task.module.eval()
    with torch.no_grad(), fabric.autocast():
        results = task.evaluate()
        save_sheet(task, folder.path)
    summary = {
        "task": config.task,
        "start": config.start,
        "start_encoder": start.digest,
        "encoder": config.encoder,
        **results,
        "data": scenes.name,
        "skipped_images": len(scenes.skipped),
        **loop.describe(),
    }
    loop.finish(summary)
    return summary


def _note_scenes(scenes: SceneSet, size: int, reporter: Reporter) -> None:
    numbers = f"{len(scenes.train):,} images to train, {len(scenes.test):,} to test"
    reporter.note(f"data: {scenes.name}, {numbers}, {size} px, {len(scenes.classes) - 1} classes")
    if scenes.skipped:
        reporter.note(f"data: {len(scenes.skipped)} broken image(s) or annotation(s) left out")
    for note in scenes.notes:
        reporter.note(f"data: {note}")
