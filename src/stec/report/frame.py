"""What all pages share: one file with its styles, scripts and data inside, which asks for nothing else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

import stec


def frame(
    title: str,
    about: str,
    body: str,
    data: Any,
    scripts: Sequence[str],
    headline: str = "",
    notes: Sequence[str] = (),
) -> str:
    """The page as text.

    Args:
        title: plain text, as are `about`, a line below it, and `notes`, what is missing.
        about: what the page is about.
        body: sections of HTML, each of which has an `id`: they make the navigation.
        data: for the scripts; plain values.
        scripts: files of the folder `page`, in their order.
        headline: the few numbers that one looks for first, as HTML.
        notes: what the page cannot show.
    """
    sections = re.findall(r'<section id="(\w+)">', body)
    # Inside of a script element nothing but `</` and `<!--` could end or change it.
    text = json.dumps(clean(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Template(page_file("frame.html")).substitute(
        title=escape(title),
        about=f"<p>{escape(about)}</p>",
        headline=headline,
        notes=f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else "",
        nav="".join(f'<a href="#{name}">{name.capitalize()}</a>' for name in sections),
        body=body,
        version=stec.__version__,
        style=page_file("style.css"),
        script="\n".join(page_file(name) for name in ("drawing.js", "charts.js", *scripts)),
        data=text,
    )


def fill(name: str, **parts: str) -> str:
    """The sections of a page, with its parts in them."""
    return Template(page_file(name)).substitute(parts, curves=page_file("curves.html"))


def page_file(name: str) -> str:
    """A part of the pages."""
    return (resources.files("stec") / "report" / "page" / name).read_text(encoding="utf-8")


def clean(value: Any) -> Any:
    """The same, with null for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [clean(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def listing(name: str, text: str) -> str:
    """All settings of a run, folded away."""
    summary = f"<summary>All settings of {escape(name)}</summary>"
    return f'<details>{summary}<pre tabindex="0">{escape(text)}</pre></details>'
