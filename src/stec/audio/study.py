"""A finished run on sound, looked at: which phones are taken for which, and where their frames lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stec.analysis.projection import Projection, has_umap, project
from stec.audio.loading import open_sounds
from stec.audio.network import load
from stec.audio.probes import has_phones, labelled_frames, network_features, probe, read_confusion
from stec.audio.sounds import split
from stec.config import Config
from stec.errors import UserError
from stec.run import RunFolder


@dataclass(frozen=True)
class Study:
    """What is drawn of a run."""

    name: str
    config: Config
    summary: dict[str, Any]
    steps: list[float]  # the loss of every prediction step at the end of training
    classes: tuple[str, ...]  # phones; () where they are not known, and nothing else is there
    confusion: Tensor | None  # (C, C): share of the frames of phone i that are taken for phone j
    projection: Projection | None  # of some frames of speakers to test
    phones: Tensor | None  # (N,) of these frames


def study(path: Path, frames: int, seed: int, words: Sequence[str] = ()) -> Study:
    """Looks at a run.

    Args:
        path: of its folder.
        frames: how many are projected into the plane.
        seed: which ones, and of the projection.
        words: where the recordings are now, such as `data.root=PATH`.
    """
    folder = RunFolder.open(path)
    config, summary = folder.config(words), folder.summary()
    metrics = folder.metrics()
    if summary is None or not metrics:
        raise UserError(f"{path} is not finished: {folder.command} continues it")
    steps = [metrics[-1][f"identity_step{k}"] for k in range(1, config.audio.steps + 1)]
    sounds = open_sounds(config)
    parts = split(sounds, config.audio.test_speakers)
    if not has_phones(sounds, parts):
        return Study(path.resolve().name, config, summary, steps, (), None, None, None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    features = network_features(load(path).to(device))
    counts = read_confusion(path, sounds.classes)
    if counts is None:
        counts = probe(features, sounds, parts, device).confusion
    assert counts is not None
    test = labelled_frames(features, sounds, parts.phones, device)
    chosen = torch.randperm(len(test[1]), generator=torch.Generator().manual_seed(seed))[:frames]
    plane = project(test[0].cpu()[chosen], seed, "UMAP" if has_umap() else "PCA")
    confusion = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    return Study(path.resolve().name, config, summary, steps, sounds.classes, confusion, plane, test[1].cpu()[chosen])
