"""The paper's figures from the book: points with intervals, the best of each kind, sweeps, learning curves.

matplotlib (extra `analysis`) is imported only here, and only when a figure is drawn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stec.errors import UserError
from stec.experiments.book import Run
from stec.experiments.measured import Group, Line, Measured
from stec.experiments.tables import name_of

COLOURS = ("#0b69c7", "#d9480f", "#2b8a3e", "#862e9c", "#e67700", "#087f5b")
QUIET = "#6a737d"
CURVES = (
    ("manipulation", "manipulation loss"),
    ("manipulation_accuracy", "manipulation accuracy"),
    ("identity", "identity loss"),
    ("identity_accuracy", "identity accuracy"),
)
BESIDE = 0.18  # how far from its runs a mean stands
NAME = 0.75  # inches, which hold a word of a row's name
WIDE = 4.8  # inches, which hold the explanation in one line
_FROM = "Comment"  # of a PNG: a digest of the numbers that it shows
SMOOTH = 5  # points of a learning curve over which the bold line is averaged


def draw(measured: Measured, folder: Path, endings: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draws the experiment's figure, if it has one and any run to show. -> the files."""
    names = pictures_of(measured)
    if not names:
        return []
    try:
        import matplotlib
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'stec[analysis]'") from None
    kind, groups = str(measured.experiment.figure), _shown(measured)
    files = []
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "stec"}):
        figures = map(_curves, groups) if kind == "curves" else [_FIGURES[kind](measured, groups)]
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in zip(names, figures, strict=True):
            for ending in endings:
                files.append(folder / f"{name}.{ending}")
                # No date, and the same names inside of an SVG every time: the same runs give the same file.
                about = {"Date": None} if ending == "svg" else {_FROM: _digest(measured)}
                figure.savefig(files[-1], dpi=150, metadata=about)
    return files


def pictures_of(measured: Measured) -> dict[str, str]:
    """The names of the files that show the experiment, without ending, and what is in each; none without a run."""
    name, about, groups = measured.experiment.name, measured.experiment.about, _shown(measured)
    if measured.experiment.figure == "curves":
        return {f"{name}-{_slug(group.column)}": f"{about}: {group.column}" for group in groups}
    return {name: about} if groups and measured.experiment.figure is not None else {}


def is_drawn(measured: Measured, folder: Path) -> bool:
    """Whether all its PNG files are there, and drawn from the same numbers."""
    from PIL import Image, UnidentifiedImageError

    for name in pictures_of(measured):
        try:
            with Image.open(folder / f"{name}.png") as picture:
                if picture.info.get(_FROM) != _digest(measured):
                    return False
        except (OSError, UnidentifiedImageError):
            return False
    return True


def _shown(measured: Measured) -> list[Group]:
    return [group for group in measured.groups if group.runs]


def _lines(group: Group) -> list[Line]:
    """Those that have been run."""
    return [line for line in group.lines if line.n(group.metrics[0])]


def _digest(measured: Measured) -> str:
    """Of all numbers that a figure can show."""
    numbers = [measured.to_json(), [[*run.key, run.curve] for run in measured.runs]]
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def _points(measured: Measured, groups: Sequence[Group]) -> Any:
    """Figure S1: a panel for every setting; every run a point, beside it the mean with its 95 % interval."""
    most = max(len(_lines(group)) for group in groups)
    figure, panels = _panels(len(groups), columns=4, width=max(2.4, NAME * most), height=2.9)
    for panel, group in zip(panels, groups, strict=True):
        metric, lines = group.metrics[0], _lines(group)
        for x, line in enumerate(lines):
            _spread(panel, x, line, metric, COLOURS[x % len(COLOURS)])
        names = [line.row.replace(" ", "\n") + f"\nn = {line.n(metric)}" for line in lines]
        panel.set_xticks(range(len(lines)), names)
        panel.set_xlim(-0.6, len(lines) - 0.4)
        panel.set_title(group.column or measured.experiment.name, fontsize=9)
        panel.set_ylabel(f"{name_of(metric)} (%)")
    _explain(
        figure, panels, published=any(_published(line, g.metrics[0]) for g in groups for line in g.lines if line.runs)
    )
    return figure


def _best(measured: Measured, groups: Sequence[Group]) -> Any:
    """Figure 3A: the best row of every kind."""
    figure, (panel,) = _panels(1, columns=1, width=1.6 + 1.5 * len(groups), height=3.4)
    for x, group in enumerate(groups):
        if group.best is not None:
            _spread(panel, x, group.best, group.metrics[0], COLOURS[x % len(COLOURS)])
    ticks = [
        "\n".join(
            [
                *group.column.split(", "),
                (group.best.row if group.best else ""),
                f"n = {group.best.n(group.metrics[0]) if group.best else 0}",
            ]
        )
        for group in groups
    ]
    panel.set_xticks(range(len(groups)), ticks)
    panel.set_xlim(-0.6, len(groups) - 0.4)
    panel.set_ylabel(f"{name_of(groups[0].metrics[0])} (%)")
    panel.set_title(measured.experiment.about, fontsize=8, wrap=True)
    _explain(figure, [panel], published=any(_published(g.best, g.metrics[0]) for g in groups if g.best))
    return figure


def _sweep(measured: Measured, groups: Sequence[Group]) -> Any:
    """Figure 3B: a panel for every quantity of which more than one value has been run."""
    groups = [group for group in groups if len(_lines(group)) > 1] or groups
    figure, panels = _panels(len(groups), columns=2, width=3.6, height=2.9)
    for panel, group in zip(panels, groups, strict=True):
        metric, lines = group.metrics[0], _lines(group)
        means = [line.measured[metric].mean for line in lines]
        places = [x + BESIDE * (line.n(metric) > 1) for x, line in enumerate(lines)]
        panel.plot(places, means, color=COLOURS[0], linewidth=1)
        for x, line in enumerate(lines):
            _spread(panel, x, line, metric, COLOURS[0])
        panel.set_xticks(range(len(lines)), [line.row.replace(" ", "\n") for line in lines])
        numbers = [line.n(metric) for line in lines]
        each = str(numbers[0]) if len(set(numbers)) == 1 else f"{min(numbers)} to {max(numbers)}"
        panel.set_xlabel(f"{measured.experiment.labels.get(group.column, group.column)} (n = {each} each)")
        panel.set_ylabel(f"{name_of(metric)} (%)")
    _explain(
        figure, panels, published=any(_published(line, g.metrics[0]) for g in groups for line in g.lines if line.runs)
    )
    return figure


def _curves(group: Group) -> Any:
    """Figures S2 to S7: single runs thin, their smoothed mean bold."""
    lines = [line for line in group.lines if any(run.curve for run in line.runs)]
    shown = [(key, name) for key, name in CURVES if any(key in run.curve for line in lines for run in line.runs)]
    figure, panels = _panels(len(shown), columns=2, width=3.6, height=2.5)
    for panel, (key, name) in zip(panels, shown, strict=True):
        for i, line in enumerate(lines):
            colour, style = COLOURS[i % len(COLOURS)], ("-", "--", ":")[i // len(COLOURS) % 3]
            runs = [run for run in line.runs if key in run.curve]
            for run in runs:
                panel.plot(run.curve["epoch"], run.curve[key], color=colour, alpha=0.35, linewidth=0.6)
            if runs:
                mean = mean_curve(runs, key)
                label = f"{line.row} (n = {len(runs)})"
                panel.plot(*mean, color=colour, linestyle=style, linewidth=1.8, label=label)
        panel.set_xlabel("epoch")
        panel.set_ylabel(name)
        panel.legend(fontsize=7, frameon=False)
    figure.suptitle(f"{group.column}: training set, smoothed mean of the runs bold", fontsize=9)
    return figure


_FIGURES: dict[str, Callable[[Measured, Sequence[Group]], Any]] = {"points": _points, "best": _best, "sweep": _sweep}


def mean_curve(runs: Sequence[Run], key: str) -> tuple[list[float], list[float]]:
    """Epochs and the mean over runs, averaged over SMOOTH neighbours: fewer towards the ends, as many on each side."""
    import numpy as np

    epochs = np.array(max((run.curve["epoch"] for run in runs), key=len))
    curves = [np.interp(epochs, run.curve["epoch"], run.curve[key]) for run in runs]
    mean = np.mean(curves, axis=0)
    reach = [min(SMOOTH // 2, i, len(mean) - 1 - i) for i in range(len(mean))]
    return epochs.tolist(), [float(mean[i - r : i + r + 1].mean()) for i, r in enumerate(reach)]


def _spread(panel: Any, x: float, line: Line, metric: str, colour: str) -> None:
    """Every run as a point; the mean with its interval, and what was published, beside them."""
    values = [value for run in line.runs if (value := run.metric(metric)) is not None]
    spread = line.measured[metric]
    panel.plot([x] * len(values), values, "o", color=colour, alpha=0.45, markersize=4, markeredgewidth=0)
    if spread.interval is not None:
        panel.errorbar(x + BESIDE, spread.mean, spread.interval, fmt="_", color=colour, capsize=3, markersize=9)
    number = _published(line, metric)
    if number is not None:
        panel.errorbar(x - BESIDE, number.mean, number.std, fmt="D", color=QUIET, mfc="white", capsize=2, markersize=4)


def _published(line: Line, metric: str) -> Any:
    return line.published.get(metric)


def _explain(figure: Any, panels: Sequence[Any], published: bool) -> None:
    parts = ["points: runs", "bars: mean and 95 % interval (n > 1)"]
    parts += ["diamonds: published mean (and std)"] if published else []
    between = "; " if figure.get_figwidth() >= WIDE else "\n"
    figure.supxlabel(between.join(parts), fontsize=7, color=QUIET)
    for panel in panels:
        panel.margins(y=0.15)


def _panels(number: int, columns: int, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure

    columns = min(columns, number)
    rows = -(-number // columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in panels[number:]:
        spare.remove()
    for panel in panels[:number]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.grid(axis="y", color="#e5e8eb", linewidth=0.6)
        panel.set_axisbelow(True)
    return figure, panels[:number]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
