"""The page about pretraining on sound: results, curves, and what the probes heard."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from stec.analysis.plots import FIRST, INK, LINE, QUIET
from stec.audio.figures import CAPTIONS, as_svg, draw
from stec.audio.study import study
from stec.errors import UserError
from stec.report import tables
from stec.report.frame import fill, frame
from stec.report.material import Material, all_notes, unfinished
from stec.report.payload import curves
from stec.run import RunFolder

# Figures are drawn once, in colours that follow the page's light and dark.
COLOURS = {INK: "var(--ink)", QUIET: "var(--quiet)", LINE: "var(--line)", FIRST: "var(--first)"}


def render_sounds(paths: dict[str, Path], frames: int, seed: int, words: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The page as text, about runs by their names, and what it could not show."""
    runs, figures = [], []
    for name, path in paths.items():
        folder = RunFolder.open(path)
        config, summary, metrics = folder.config(), folder.summary(), folder.metrics()
        notes, drawn = [], '<p class="quiet">None.</p>'
        try:
            if summary is None:
                notes.append(unfinished(config, metrics))
            else:
                drawn = _figures(path, frames, seed, words)
        except UserError as error:
            notes.append(f"No figures: {error}.")
        runs.append(Material(name, folder.recipe, config, summary or {}, metrics, None, None, notes))
        figures.append(drawn)
    several = len(runs) > 1
    body = fill(
        "sound.html",
        results=tables.results(runs),
        setting=tables.setting(runs),
        figures="".join(
            f"<h3>{escape(run.name)}</h3>{drawn}" if several else drawn
            for run, drawn in zip(runs, figures, strict=True)
        ),
    )
    title = f"{len(runs)} runs on sound" if several else runs[0].name
    headline = "" if several else tables.headline(runs[0])
    data = [{"name": run.name, "curves": _curves(run.metrics)} for run in runs]
    page = frame(title, tables.describe(runs), body, data, ["curves.js"], headline, all_notes(runs))
    return page, [f"{run.name}: {note}" for run in runs for note in run.notes]


def _curves(metrics: list[dict[str, Any]]) -> dict[str, list[float]]:
    """CPC's own identity model is called what it does here; a figure has its single steps."""
    found = curves(metrics)
    return {
        key.replace("identity", "prediction"): values
        for key, values in found.items()
        if not key.startswith("identity_step")
    }


def _figures(path: Path, frames: int, seed: int, words: Sequence[str]) -> str:
    drawn = []
    for name, figure in draw(study(path, frames, seed, words)).items():
        svg = as_svg(figure)
        for colour, variable in COLOURS.items():
            svg = svg.replace(colour, variable)
        caption = CAPTIONS[name]
        place = f'<div class="scroll drawn {name}" tabindex="0" role="img" aria-label="{escape(caption)}">{svg}</div>'
        drawn.append(f"<figure>{place}<figcaption>{caption}</figcaption></figure>")
    return "".join(drawn)
