"""Figures of a run on sound, with matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stec.analysis.plots import FIRST, STYLE, class_colours
from stec.audio.study import Study
from stec.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = {"": "trained", "_untrained": "untrained", "_mfcc": "MFCC, 11 frames", "_majority": "most frequent"}
CAPTIONS = {
    "steps": "Loss per prediction step: how hard it is to tell the frame k steps ahead from others.",
    "confusion": "Phones of test utterances (rows) and what the linear probe takes them for (columns), in percent.",
    "frames": "Frames of test utterances, by their phone.",
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


def as_svg(figure: Figure) -> str:
    """As an element of a page, whose ground it has."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return "<svg" + text.getvalue().partition("<svg")[2]


def _steps(figure: Figure, study: Study) -> None:
    figure.set_size_inches(6, 3)
    axes = figure.subplots()
    numbers = range(1, len(study.steps) + 1)
    axes.plot(numbers, study.steps, "o-", color=FIRST, ms=4)
    axes.set_xticks(list(numbers))
    axes.set(xlabel="prediction step, 10 ms each", ylabel="InfoNCE")


def _confusion(figure: Figure, study: Study) -> None:
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    assert study.confusion is not None
    count = len(study.classes)
    side = max(4.5, 0.28 * count + 1)
    figure.set_size_inches(side + 0.8, side)
    axes = figure.subplots()
    shades = LinearSegmentedColormap.from_list("shades", [(*to_rgb(FIRST), 0.03), (*to_rgb(FIRST), 1)])  # on any ground
    image = axes.imshow(100 * study.confusion.numpy(), cmap=shades, vmin=0, vmax=100)
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
