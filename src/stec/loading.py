"""Opens a run that exists, to look at it or to use its encoder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from stec import data
from stec.checkpoint import read_newest
from stec.config import Config
from stec.data import DataSet
from stec.errors import UserError
from stec.manipulation import Manipulation
from stec.method import build
from stec.networks.encoders import library_module
from stec.run import ENCODER, FINE_TUNING, RunFolder
from stec.views import Views

logger = logging.getLogger("stec")

# Files that cannot be read are left out where images are resident, but not where they are streamed, as here: these
# have another fingerprint.
_FILES = ("folder", "imagenet")


@dataclass(frozen=True)
class LoadedRun:
    """A run with its trained networks, in evaluation mode."""

    folder: RunFolder
    config: Config
    views: Views
    encoder: nn.Module
    manipulation: Manipulation | None  # None if the method has none, or if only the encoder's file is left
    device: torch.device


def open_run(path: Path, device: torch.device | None = None) -> LoadedRun:
    """The run in a folder. Its last checkpoint has all weights; without one, the encoder's file does for the encoder.

    Only tensors and plain values are read: a file from a stranger can run no code.
    """
    folder = RunFolder.open(path)
    config = folder.config()
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    views, method = build(config)
    manipulation = method.manipulation
    try:
        tuned = folder.recipe == FINE_TUNING  # its checkpoint is one of an encoder and a classifier
        if not tuned and folder.checkpoint.is_file() and (found := read_newest(folder, logger.warning)):
            method.load_state_dict(_method_state(found[0]))
        elif (path / ENCODER).is_file():
            library_module(method.encoder).load_state_dict(load_file(path / ENCODER))
            manipulation = None
        else:
            raise UserError(f"{path} has no weights yet: {folder.command} goes on to write them")
    except (RuntimeError, KeyError, AttributeError, TypeError, OSError, SafetensorError) as error:
        raise UserError(f"the weights in {path} cannot be read: {str(error).splitlines()[0]}") from None
    parts = [part.to(device).eval() for part in (method.encoder, manipulation) if part is not None]
    for parameter in (value for part in parts for value in part.parameters()):
        parameter.requires_grad_(False)
    return LoadedRun(folder, config, views, method.encoder, manipulation, device)


def open_data(folder: RunFolder, words: Sequence[str] = ()) -> DataSet:
    """The data set of a run, on the CPU; an image is read when it is asked for, and none is downloaded.

    Words say where it is now, such as `data.root=PATH`.
    """
    settings = dataclasses.replace(folder.config(words).data, resident="never", workers=0, download=False)
    dataset = data.load(settings, torch.device("cpu"))
    compare_data(folder, dataset, settings.source)
    return dataset


def compare_data(folder: RunFolder, dataset: DataSet, source: str) -> None:
    """Warns of images that are not those of the run."""
    known = fingerprint_of(folder)
    if source not in _FILES and known not in (None, dataset.fingerprint):
        logger.warning("%s: the images are not those that %s was trained on", dataset.name, folder.path)


def fingerprint_of(folder: RunFolder) -> str | None:
    """Of the data that a run was trained on; None before it has finished."""
    known: str | None = (folder.summary() or {}).get("data_fingerprint")
    if known is not None and folder.recipe == FINE_TUNING:
        known = known.rpartition("-")[0]  # behind it, where the weights come from
    return known


def _method_state(state: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of the method, without those of the online probe beside it."""
    prefix = "method."
    return {key.removeprefix(prefix): value for key, value in state["model"].items() if key.startswith(prefix)}


def encode(run: LoadedRun, images: Tensor, batch: int = 500) -> Tensor:
    """Features (N, D), float32 on the CPU, of views (N, 3, S, S) in [0, 1]."""
    features = []
    with torch.no_grad():
        for some in images.split(batch):
            some = some.to(run.device).contiguous(memory_format=torch.channels_last)
            features.append(run.encoder(some).float().cpu())
    return torch.cat(features)
