"""The figures of an analysis, with matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stec.analysis.study import Study
from stec.errors import UserError
from stec.evaluation.centroids import Centroids

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, LINE, FIRST, SECOND = "#1b1f24", "#6a737d", "#d8dde2", "#0b69c7", "#d9480f"
NAMED = 20  # classes that a legend can name
CHARACTER = 0.075  # inches, the width of one of a name
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 9, "text.color": INK, "axes.labelcolor": QUIET, "axes.titlesize": 10,
    "axes.edgecolor": LINE, "xtick.color": QUIET, "ytick.color": QUIET, "axes.spines.top": False,
    "axes.spines.right": False, "svg.hashsalt": "stec", "axes.titlelocation": "left",
}  # fmt: skip


def draw_figures(study: Study, title: str, folder: Path) -> list[Path]:
    """Writes every figure that the study has matter for, as PNG and SVG."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'stec[analysis]'") from None
    figures: dict[str, Callable[[Figure, Study], None]] = {"map": _map, "centroids": _centroids}
    if study.components:
        figures["actions"] = _actions
    paths = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that no font has, axes along which all is equal
        for name, draw in figures.items():
            figure = Figure(layout="constrained")
            draw(figure, study)
            figure.suptitle(_verbatim(title), x=0.01, ha="left", fontweight="bold")
            for suffix in (".png", ".svg"):
                paths.append(folder / f"{name}{suffix}")
                # Without a date, the same study gives the same file.
                metadata: dict[str, Any] = {"Date": None} if suffix == ".svg" else {}
                figure.savefig(paths[-1], dpi=150, metadata=metadata)
    return paths


def _map(figure: Figure, study: Study) -> None:
    """The paper's Figure 4: views by magnitude, and originals by class in the same projection."""
    figure.set_size_inches(10, 5)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    sample, n = study.sample, len(study.sample.index)
    originals, views = study.projection.points[:n], study.projection.points[n:]
    dots = left.scatter(*views.T, c=sample.magnitude, s=5, lw=0, cmap="viridis", rasterized=True)
    left.set_title("views, by magnitude of their action")
    figure.colorbar(dots, ax=left, location="bottom", aspect=40, label="1 - relative area of the crop")
    colours, names = class_colours(len(sample.classes)), sample.classes
    right.set_title("originals, by class" if names else "originals")
    for label in range(-1, len(names)):
        rows = sample.labels == label
        if rows.any():
            colour, name = (QUIET, "no label") if label < 0 else (colours[label], _verbatim(names[label]))
            right.scatter(*originals[rows].T, s=7, lw=0, color=colour, label=name, rasterized=True)
    if 0 < len(names) <= NAMED:
        longest = max(map(len, names))
        columns = max(1, min(5, int(7.5 / (0.6 + CHARACTER * longest))))
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=columns, frameon=False, markerscale=2)
        higher = 0.17 * max(0, -(-len(names) // columns) - 4)
        figure.set_size_inches(10 + 2 * CHARACTER * max(0, longest - 50), 5 + higher)
    for axes in (left, right):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)


def _centroids(figure: Figure, study: Study) -> None:
    spaces = {"feature space": study.in_features, f"{study.projection.method} plane": study.in_projection}
    rows = len(study.in_features.shift)
    longest = max(map(len, study.in_features.shift)) if rows <= 3 * NAMED else 0
    figure.set_size_inches(9 + CHARACTER * max(0, longest - 20), 1.6 + 0.22 * min(rows, 3 * NAMED))
    for axes, (space, found) in zip(figure.subplots(1, 2, sharey=True), spaces.items(), strict=True):
        _bars(axes, space, found)


def _bars(axes: Axes, space: str, found: Centroids) -> None:
    names = list(found.shift)[::-1]
    axes.barh(range(len(names)), [found.shift[name] for name in names], color=FIRST, height=0.6)
    axes.axvline(found.mean_shift, color=SECOND, lw=1)
    labelled = len(names) <= 3 * NAMED
    axes.set_yticks(range(len(names)) if labelled else [], map(_verbatim, names) if labelled else [])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(length=0)
    axes.set_title(f"{space}: mean {found.mean_shift:.2f}, originals spread {found.scale:.2f}")
    axes.set_xlabel("distance between the centroids of views and originals")


def _actions(figure: Figure, study: Study) -> None:
    """Per component: the confusion of its bins, and inferred values and their errors against true ones."""
    reading = study.reading
    shown = [c for c in study.components if c.informative]
    assert reading is not None
    figure.set_size_inches(2.6 * max(2, len(shown)), 7.2)
    grid = figure.subplots(3, len(shown), squeeze=False, height_ratios=(3, 3, 2))
    ticks = range(0, reading.k, -(-reading.k // 10))  # more numbers would run into each other
    for (above, middle, below), component in zip(grid.T, shown, strict=True):
        shares = [[100 * cell / max(1, sum(row)) for cell in row] for row in component.confusion]
        above.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        for y, row in enumerate(shares):
            for x, share in enumerate(row):
                if share >= 0.5 and reading.k <= 12:
                    above.text(x, y, f"{share:.0f}", ha="center", va="center", fontsize=7,
                               color="white" if share > 60 else INK)  # fmt: skip
        above.set(xlabel="inferred bin", ylabel="true bin", xticks=ticks, yticks=ticks)
        above.spines[:].set_visible(False)
        above.tick_params(length=0)
        above.set_title(f"{component.name}: {component.accuracy:.0f} % right\n(guessing {component.chance:.0f} %)")
        i = reading.names.index(component.name)
        rows = reading.valid[:, i]
        true, guess = reading.true[rows, i], reading.guess[rows, i]
        low, high = float(true.min()), float(true.max())
        margin = 0.04 * (high - low) or 0.5
        limits = (low - margin, high + margin)
        middle.plot([low, high], [low, high], color=LINE, lw=1, zorder=0)
        middle.scatter(true, guess, s=4, lw=0, color=FIRST, alpha=0.35, rasterized=True)
        middle.set(ylabel="inferred value", xlim=limits)
        middles = [group["median"] for group in component.by_value]
        below.plot(middles, [group["error"] for group in component.by_value], color=SECOND, lw=1.2, marker=".")
        below.axhline(component.error_chance, color=QUIET, lw=0.8, ls=":")
        below.set(xlabel="true value (dotted: guessing)", ylabel="mean error", xlim=limits, ylim=(0, None))


def _verbatim(name: str) -> str:
    """For matplotlib, which takes what is between dollars for a formula, and leaves a name with `_` out of a legend.

    Nor can it draw what is no UTF-8, as names of folders may be.
    """
    name = name.encode("utf-8", "replace").decode()
    return f" {name}".replace("$", r"\$") if name.startswith("_") else name.replace("$", r"\$")


def class_colours(number: int) -> list[tuple[float, float, float]]:
    """A colour each, evenly round the hues; neighbours differ in lightness too."""
    import colorsys

    return [colorsys.hls_to_rgb(i / max(1, number), (0.42, 0.58)[i % 2], 0.6) for i in range(number)]
