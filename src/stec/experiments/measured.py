"""An experiment beside the book: what was measured in each of its cells, and the differences that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stec.experiments.book import Book, Run
from stec.experiments.experiment import Cell, Experiment, Published
from stec.experiments.statistics import Spread, paired, spread


@dataclass(frozen=True)
class Line:
    """A row of a table: a cell, or the difference of two."""

    row: str
    published: Mapping[str, Published]  # metric -> number
    measured: Mapping[str, Spread]  # metric -> over runs, or over pairs of runs with the same seed
    cell: Cell | None  # None: a difference
    runs: tuple[Run, ...]  # by seed; none for a difference

    def n(self, metric: str) -> int:
        """Runs, or pairs of runs, that have it."""
        return self.measured[metric].n if metric in self.measured else 0


@dataclass(frozen=True)
class Group:
    """The lines of one column of the experiment, such as a data set."""

    column: str
    metrics: tuple[str, ...]  # the first is the one that was published
    lines: tuple[Line, ...]
    differences: tuple[Line, ...]
    best: Line | None  # the row with the highest mean, where the experiment asks for it

    @property
    def runs(self) -> list[Run]:
        """All that the group rests on."""
        return [run for line in self.lines for run in line.runs]


@dataclass(frozen=True)
class Measured:
    """A whole experiment."""

    experiment: Experiment
    groups: tuple[Group, ...]

    @property
    def runs(self) -> list[Run]:
        """All that it rests on, each once."""
        return list({run.key: run for group in self.groups for run in group.runs}.values())

    def to_json(self) -> dict[str, Any]:
        """Everything, for another program."""
        return {
            "experiment": self.experiment.name,
            "about": self.experiment.about,
            "notes": list(self.experiment.notes),
            "groups": [
                {
                    "column": group.column,
                    "metric": group.metrics[0],
                    "rows": [_line_to_json(line) for line in group.lines],
                    "paired_differences": [_line_to_json(line) for line in group.differences],
                    "best": _line_to_json(group.best) if group.best else None,
                }
                for group in self.groups
            ],
        }


def measure(experiment: Experiment, book: Book) -> Measured:
    """Takes from the book what belongs to the experiment, whatever the seeds."""
    seeds = sorted({run.seed for run in book.runs.values()})
    groups = []
    for column in experiment.columns:
        cells = [cell for cell in experiment.cells if cell.column == column]
        lines = tuple(_line(cell, _runs_of(cell, seeds, book)) for cell in cells)
        by_row = {line.row: line for line in lines}
        pairs = [(by_row[a], by_row[b]) for a, b in experiment.compare if a in by_row and b in by_row]
        differences = tuple(_difference(a, b) for a, b in pairs)
        best = _best(lines, experiment.best.get(column)) if experiment.figure == "best" else None
        groups.append(Group(column, cells[0].metrics, lines, differences, best))
    return Measured(experiment, tuple(groups))


def _runs_of(cell: Cell, seeds: list[int], book: Book) -> tuple[Run, ...]:
    keys = ((cell.at(seed).hash, seed) for seed in seeds)
    return tuple(book.runs[key] for key in keys if key in book.runs)


def _line(cell: Cell, runs: tuple[Run, ...]) -> Line:
    values = {metric: _by_seed(runs, metric) for metric in cell.metrics}
    measured = {metric: spread(list(found.values())) for metric, found in values.items() if found}
    return Line(cell.row, cell.published, measured, cell, runs)


def _by_seed(runs: tuple[Run, ...], metric: str) -> dict[int, float]:
    values = ((run.seed, run.metric(metric)) for run in runs)
    return {seed: value for seed, value in values if value is not None}


def _difference(one: Line, other: Line) -> Line:
    metrics = one.cell.metrics if one.cell else ()
    found = {metric: paired(_by_seed(one.runs, metric), _by_seed(other.runs, metric)) for metric in metrics}
    published = {
        metric: Published(number.mean - other.published[metric].mean, None)
        for metric, number in one.published.items()
        if metric in other.published
    }
    measured = {metric: spread for metric, spread in found.items() if spread is not None}
    return Line(f"{one.row} - {other.row}", published, measured, None, ())


def _best(lines: tuple[Line, ...], published: Published | None) -> Line | None:
    metric = lines[0].cell.metrics[0] if lines[0].cell else ""
    run = [line for line in lines if metric in line.measured]
    if not run:
        return None
    line = max(run, key=lambda line: line.measured[metric].mean)
    return Line(f"best: {line.row}", {metric: published} if published else {}, line.measured, line.cell, line.runs)


def _line_to_json(line: Line) -> dict[str, Any]:
    content: dict[str, Any] = {
        "row": line.row,
        "published": {metric: number._asdict() for metric, number in line.published.items()},
        "measured": {metric: spread._asdict() for metric, spread in line.measured.items()},
    }
    if line.cell is not None:
        content |= {"recipe": line.cell.recipe, "overrides": list(line.cell.words), "data": line.cell.data}
        content["runs"] = [{"seed": r.seed, **{m: r.metric(m) for m in line.cell.metrics}} for r in line.runs]
    return content
