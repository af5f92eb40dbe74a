"""Puts the page together: one file with its styles, scripts, images and data inside, which asks for nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from string import Template

import stec
from stec.errors import UserError
from stec.report import tables
from stec.report.material import Material, gather
from stec.report.payload import payload
from stec.report.transfers import page_file, render_transfers
from stec.run import replacing, task_of

SCRIPTS = ("actions.js", "drawing.js", "charts.js", "map.js", "gallery.js", "explorer.js", "main.js")


def write_report(
    paths: list[Path], out: Path | None = None, images: int = 400, seed: int = 0
) -> tuple[Path, list[str]]:
    """Writes the page about these runs: into the folder of one run, beside several, or where `out` says.

    Returns:
        Its path, and what it could not show.
    """
    transfers = [task_of(path) is not None for path in paths]
    if any(transfers) and not all(transfers):
        raise UserError("a page is about pretraining or about transfers: name the runs of one kind")
    if out is None:
        beside = os.path.commonpath([path.resolve().parent for path in paths])
        out = (paths[0] if len(paths) == 1 else Path(beside)) / "report.html"
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"{out} cannot be written: name a file in a folder that exists")
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if all(transfers):
        with replacing(out) as part:
            part.write_text(render_transfers(dict(zip(names, paths, strict=True))), encoding="utf-8")
        return out, []
    runs = [gather(path, name, images, seed) for path, name in zip(paths, names, strict=True)]
    with replacing(out) as part:
        part.write_text(render(runs), encoding="utf-8")
    return out, [f"{run.name}: {note}" for run in runs for note in run.notes]


def render(runs: list[Material]) -> str:
    """The page as text."""
    several = len(runs) > 1
    title = f"{len(runs)} runs" if several else runs[0].name
    choice = "".join(f'<option value="{i}">{escape(run.name)}</option>' for i, run in enumerate(runs))
    # Inside of a script element nothing but `</` and `<!--` could end or change it.
    data = json.dumps(payload(runs), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Template(page_file("template.html")).substitute(
        title=escape(title),
        about=f"<p>{escape(tables.describe(runs))}</p>",
        headline="" if several else tables.headline(runs[0]),
        notes=_notes(runs),
        results=tables.results(runs),
        setting=tables.setting(runs),
        verdict=tables.verdict(runs),
        choice=f'<label class="choice">Run <select id="run">{choice}</select></label>' if several else "",
        centroids=_each(runs, tables.centroids),
        knowledge=_each(runs, tables.knowledge),
        version=stec.__version__,
        style=page_file("style.css"),
        script="\n".join(page_file(name) for name in SCRIPTS),
        data=data,
    )


def _notes(runs: list[Material]) -> str:
    several = len(runs) > 1
    notes = [f"{run.name}: {note}" if several else note for run in runs for note in run.notes]
    return f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""


def _each(runs: list[Material], part: Callable[[Material], str]) -> str:
    """The part of every run; the script shows that of the chosen one."""
    blocks = (f'<div data-run="{i}"{" hidden" if i else ""}>{part(run)}</div>' for i, run in enumerate(runs))
    return "".join(blocks)
