"""Writes the page about runs: of which kind they are, and where it goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from stec.errors import UserError
from stec.limits import SOUND
from stec.report import tables
from stec.report.frame import fill, frame
from stec.report.material import Material, all_notes, gather
from stec.report.payload import payload
from stec.report.transfers import render_transfers
from stec.run import RunFolder, replacing, task_of

SCRIPTS = ("actions.js", "map.js", "gallery.js", "explorer.js", "main.js")


def write_report(
    paths: list[Path], out: Path | None = None, images: int = 400, seed: int = 0, words: Sequence[str] = ()
) -> tuple[Path, list[str]]:
    """Writes the page about these runs: into the folder of one run, beside several, or where `out` says.

    Words say where the images or recordings are now, such as `data.root=PATH`.

    Returns:
        Its path, and what it could not show.
    """
    kinds = {_kind(path, words) for path in paths}
    if len(kinds) > 1:
        raise UserError("a page is about images, about sound or about transfers: name the runs of one kind")
    if out is None:
        beside = os.path.commonpath([path.resolve().parent for path in paths])
        out = (paths[0] if len(paths) == 1 else Path(beside)) / "report.html"
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"{out} cannot be written: name a file in a folder that exists")
    names = [path.resolve().name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    named = dict(zip(names, paths, strict=True))
    if kinds == {"sound"}:
        from stec.report.sound import render_sounds

        text, missing = render_sounds(named, images, seed, words)
    elif kinds == {"transfer"}:
        if words:
            raise UserError(f"{words[0]}: a page about transfers shows what is in their folders; leave it out")
        text, missing = render_transfers(named), []
    else:
        runs = [gather(path, name, images, seed, words) for name, path in named.items()]
        text, missing = render(runs), [f"{run.name}: {note}" for run in runs for note in run.notes]
    with replacing(out) as part:
        part.write_text(text, encoding="utf-8", errors="replace")  # names of folders may be no UTF-8
    return out, missing


def _kind(path: Path, words: Sequence[str]) -> str:
    if task_of(path) is not None:
        return "transfer"
    return "sound" if RunFolder.open(path).config(words).method in SOUND else "images"


def render(runs: list[Material]) -> str:
    """The page about pretraining on images, as text."""
    several = len(runs) > 1
    choice = "".join(f'<option value="{i}">{escape(run.name)}</option>' for i, run in enumerate(runs))
    body = fill(
        "images.html",
        results=tables.results(runs),
        setting=tables.setting(runs),
        verdict=tables.verdict(runs),
        choice=f'<label class="choice">Run <select id="run">{choice}</select></label>' if several else "",
        centroids=_each(runs, tables.centroids),
        knowledge=_each(runs, tables.knowledge),
    )
    title = f"{len(runs)} runs" if several else runs[0].name
    headline = "" if several else tables.headline(runs[0])
    return frame(title, tables.describe(runs), body, payload(runs), SCRIPTS, headline, all_notes(runs))


def _each(runs: list[Material], part: Callable[[Material], str]) -> str:
    """The part of every run; the script shows that of the chosen one."""
    blocks = (f'<div data-run="{i}"{" hidden" if i else ""}>{part(run)}</div>' for i, run in enumerate(runs))
    return "".join(blocks)
