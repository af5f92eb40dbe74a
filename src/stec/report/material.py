"""What a page can show of a run, gathered from its folder; what is missing is said, not fatal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stec.analysis.projection import has_umap
from stec.analysis.sample import Sample, draw_sample
from stec.analysis.study import Study, study
from stec.audio.method import METHODS as SOUNDS
from stec.config import Config
from stec.errors import UserError
from stec.limits import STORED
from stec.loading import open_data, open_run
from stec.method import METHODS, pairing_of
from stec.run import RunFolder
from stec.views import Views


@dataclass(frozen=True)
class Material:
    """One run, as far as its folder and its data are there."""

    name: str
    recipe: str
    config: Config
    summary: dict[str, Any]  # empty before the run has finished
    metrics: list[dict[str, Any]]
    sample: Sample | None  # None without images
    study: Study | None  # None without images or without weights
    notes: list[str]  # what is missing, and why


def gather(path: Path, name: str, images: int, seed: int, words: Sequence[str] = ()) -> Material:
    """Opens a run and looks at this many of its images, which are where words say."""
    folder = RunFolder.open(path)
    config = folder.config()
    summary, metrics = folder.summary(), folder.metrics()
    notes = [] if summary is not None else [unfinished(config, metrics)]
    sample = found = None
    try:
        views = Views(**dataclasses.asdict(config.views))
        sample = draw_sample(views, open_data(folder, words), images, seed)
    except UserError as error:
        where = " If they are elsewhere now, add data.root=PATH." if config.data.source in STORED else ""
        notes.append(f"No images, so no map and no pairs of views: {error}.{where}")
    if sample is not None:
        try:
            run = open_run(path)
            found = study(run, sample, seed, "UMAP" if has_umap() else "PCA")
            if run.manipulation is None and pairing_of(config.method).manipulation:
                notes.append("Only the encoder's weights are left, so the inferred actions are missing.")
            if found.projection.method == "PCA":
                why = "there are too few images for UMAP" if has_umap() else "pip install 'stec[analysis]' gives UMAP"
                notes.append(f"The map shows two principal components; {why}.")
        except UserError as error:
            notes.append(f"No map and no inferred actions: {error}.")
    return Material(name, folder.recipe, config, summary or {}, metrics, sample, found, notes)


def unfinished(config: Config, metrics: list[dict[str, Any]]) -> str:
    """The note about a run that is."""
    reached = f"epoch {metrics[-1]['epoch']:g} of {config.epochs:,} was its last, and " if metrics else ""
    return f"The run has not finished: {reached}there are no accuracies yet."


def has_manipulation(run: Material) -> bool:
    """Whether the run's method has a manipulation model."""
    return (METHODS | SOUNDS)[run.config.method].manipulation


def all_notes(runs: list[Material]) -> list[str]:
    """What is missing; of several runs, whose."""
    return [f"{run.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.notes]
