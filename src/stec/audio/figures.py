"""Figures of a run on sound, with matplotlib; and a page that holds them, as one file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stec.analysis.plots import FIRST, STYLE, class_colours
from stec.audio.study import Study
from stec.config import to_yaml
from stec.errors import UserError
from stec.run import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = {"": "trained", "_untrained": "untrained", "_mfcc": "MFCC, 11 frames", "_majority": "most frequent"}
CAPTIONS = {
    "steps": "Loss per prediction step: how hard it is to tell the frame k steps ahead from others.",
    "confusion": "Phones of unheard speakers (rows) and what the linear probe takes them for (columns), in percent.",
    "frames": "Frames of unheard speakers, by their phone.",
}


def draw(study: Study) -> dict[str, Figure]:
    """Every figure that the study has matter for, by name."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'stec[analysis]'") from None
    drawing: dict[str, Callable[[Figure, Study], None]] = {"steps": _steps}
    if study.confusion is not None:
        drawing |= {"confusion": _confusion, "frames": _frames}
    figures = {}
    with matplotlib.rc_context(STYLE):
        for name, function in drawing.items():
            figures[name] = Figure(layout="constrained")
            function(figures[name], study)
    return figures


def write_figures(study: Study, folder: Path) -> list[Path]:
    """As PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in draw(study).items():
        for suffix in (".png", ".svg"):
            paths.append(folder / f"{name}{suffix}")
            metadata: dict[str, Any] = {"Date": None} if suffix == ".svg" else {}
            figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


def write_page(studies: list[Study], paths: list[Path], out: Path | None) -> Path:
    """One HTML file about runs: into the folder of one, beside several, or where `out` says."""
    if out is None:
        beside = Path(os.path.commonpath([path.resolve().parent for path in paths]))
        out = (paths[0] if len(paths) == 1 else beside) / "report.html"
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"{out} cannot be written: name a file in a folder that exists")
    title = studies[0].name if len(studies) == 1 else f"{len(studies)} runs on sound"
    several = len(studies) > 1
    body = "".join(_section(study, f"<h2>{escape(study.name)}</h2>" if several else "") for study in studies)
    with replacing(out) as part:
        part.write_text(_PAGE.format(title=escape(title), body=body), encoding="utf-8")
    return out


def _section(study: Study, heading: str) -> str:
    rows = "".join(_row(study, suffix, text) for suffix, text in BASELINES.items())
    summary, config = study.summary, study.config
    about = (
        f"{config.method}, {config.encoder}, {config.epochs} epochs of {summary['data']}, seed {config.seed}; "
        f"{summary['seconds']:.0f} s on {summary['device']}"
    )
    pictures = "".join(
        f"<figure>{_svg(figure)}<figcaption>{CAPTIONS[name]}</figcaption></figure>"
        for name, figure in draw(study).items()
    )
    table = f"<table><tr><th>linear accuracy</th><th>phones</th><th>speakers</th></tr>{rows}</table>"
    setting = f"<details><summary>All settings</summary><pre>{escape(to_yaml(config))}</pre></details>"
    return f"<section>{heading}<p>{escape(about)}</p>{table}{pictures}{setting}</section>"


def _row(study: Study, suffix: str, text: str) -> str:
    values = [study.summary.get(f"{name}{suffix}") for name in ("phones", "speakers")]
    if all(value is None for value in values):
        return ""
    cells = "".join(f"<td>{'-' if value is None else f'{value:.1f} %'}</td>" for value in values)
    return f"<tr><th>{text}</th>{cells}</tr>"


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def _steps(figure: Figure, study: Study) -> None:
    figure.set_size_inches(6, 3)
    axes = figure.subplots()
    numbers = range(1, len(study.steps) + 1)
    axes.plot(numbers, study.steps, "o-", color=FIRST, ms=4)
    axes.set_xticks(list(numbers))
    axes.set(xlabel="prediction step, 10 ms each", ylabel="InfoNCE")


def _confusion(figure: Figure, study: Study) -> None:
    assert study.confusion is not None
    count = len(study.classes)
    side = max(4.5, 0.28 * count + 1)
    figure.set_size_inches(side + 0.8, side)
    axes = figure.subplots()
    image = axes.imshow(100 * study.confusion.numpy(), cmap="Blues", vmin=0, vmax=100)
    axes.set_xticks(range(count), study.classes, rotation=90, fontsize=7)
    axes.set_yticks(range(count), study.classes, fontsize=7)
    axes.set(xlabel="taken for", ylabel="phone")
    figure.colorbar(image, ax=axes, shrink=0.8, label="% of its frames")


def _frames(figure: Figure, study: Study) -> None:
    assert study.projection is not None
    assert study.phones is not None
    figure.set_size_inches(7, 5.5)
    axes = figure.subplots()
    colours, plane = class_colours(len(study.classes)), study.projection.points.numpy()
    for label, name in enumerate(study.classes):
        points = plane[study.phones.numpy() == label]
        if len(points):
            axes.scatter(points[:, 0], points[:, 1], s=5, lw=0, color=colours[label], rasterized=True)
            axes.annotate(
                name, (np.median(points[:, 0]), np.median(points[:, 1])), fontsize=8, fontweight="bold", ha="center"
            )
    axes.set(xticks=[], yticks=[], title=study.projection.method)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse }} th, td {{ padding: .2rem 1rem .2rem 0; text-align: left; font-weight: normal }}
tr:nth-child(2) > * {{ font-weight: bold }}
figure {{ margin: 2rem 0 }} figcaption {{ color: #6a737d }} svg {{ max-width: 100%; height: auto }}
pre {{ overflow: auto }}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""
