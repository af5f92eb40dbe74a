"""An experiment is data: cells (a recipe, what is changed in it), seeds, metrics, and what was published.

about: "Table 1: ..."            # one line
notes: [...]                     # what a reader has to know
base: NAME                       # optional: another experiment, whose keys are taken where this one has none
overrides: epochs=200            # for every cell
seeds: 5                         # 0 ... 4
metrics: [linear_online, knn]    # of summary.json or the last metrics; the first is what was published
columns: {STL-10: {metric: linear}}   # where a group of cells differs: metric(s), overrides, data, published (best row)
cells:
  - {column: CIFAR-10, row: S-TEC, recipe: cifar10-resnet18-stec, published: 92.0 +- 0.2}
  - {row: S-TEC, recipe: voc-detection, start: {recipe: imagenet-resnet50-stec}}   # a transfer; start: none, too
  - {row: S-TEC, recipe: shapes-detection, start: {recipe: default, seed: same}}   # each seed from a run of its own
compare: [[S-TEC, SimCLR]]       # paired differences within every column
figure: points                   # points, best, sweep, curves
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stec.config import Config, load, read_text
from stec.errors import UserError, nearest
from stec.experiments.settings import hash_of, settings_of
from stec.transfer.config import TransferConfig, load_transfer

FIGURES = ("points", "best", "sweep", "curves")
_KEYS = {"about", "notes", "base", "overrides", "seeds", "metrics", "columns", "cells", "compare", "figure"}
_KINDS = {"notes": list, "seeds": int, "metrics": list, "columns": dict, "cells": list, "compare": list}
_SPOKEN = {int: "whole number", list: "list", dict: "mapping of keys to values"}
_COLUMN_KEYS = {"metric", "metrics", "overrides", "data", "published", "label"}
_CELL_KEYS = {"column", "row", "recipe", "overrides", "data", "published", "start"}
_START_KEYS = {"recipe", "overrides", "data", "seed"}
_TEXTS = {"about", "base", "overrides", "column", "row", "recipe", "data", "metric", "label"}


class Published(NamedTuple):
    """A number somebody printed."""

    mean: float
    std: float | None  # over runs, if it was given


@dataclass(frozen=True)
class Cell:
    """One setting, to be run with several seeds."""

    column: str  # the group it is shown in, such as a data set
    row: str
    recipe: str
    words: tuple[str, ...]  # `key=value`, changes in the recipe
    data: str  # name of the images
    metrics: tuple[str, ...]  # the first is the one that was published
    published: dict[str, Published]  # metric -> number
    config: Config | TransferConfig  # of its run with seed 0
    hash: str  # of its settings
    start: Cell | None  # of a transfer: the run that it starts from, if it does
    start_seed: int  # of that run
    own_starts: bool  # whether every seed starts from a run with the same seed
    origin: str  # of a transfer: what it starts from, as `settings_of` wants it

    def at(self, seed: int) -> Cell:
        """With the start of this seed."""
        if not self.own_starts or self.start is None or seed == self.start_seed:
            return self
        origin = _origin(self.start, seed)
        return replace(self, start_seed=seed, origin=origin, hash=hash_of(settings_of(self.config, self.data, origin)))


@dataclass(frozen=True)
class Experiment:
    """A table or a figure."""

    name: str
    about: str
    notes: tuple[str, ...]
    seeds: int
    cells: tuple[Cell, ...]
    best: dict[str, Published]  # column -> what was published for its best row
    compare: tuple[tuple[str, str], ...]  # rows: the difference of the first to the second
    figure: str | None
    labels: dict[str, str]  # column -> what its sweep varies

    @property
    def columns(self) -> list[str]:
        """The groups of cells, in order."""
        return list(dict.fromkeys(cell.column for cell in self.cells))


def experiment_names() -> list[str]:
    """The experiments that come with the package."""
    folder = resources.files("stec") / "experiments"
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))


def about(name: str) -> str:
    """The one line that describes an experiment."""
    return str(_read(name).get("about", ""))


def load_experiment(name: str) -> Experiment:
    """By name, or from the path of a YAML file."""
    content = _read(name)
    columns = {str(column): _check(name, keys, _COLUMN_KEYS) for column, keys in content.get("columns", {}).items()}
    for keys in (content, *columns.values()):
        _check_texts(name, "metrics", keys.get("metrics", ["linear_online"]), least=1)
    _check_texts(name, "notes", content.get("notes", []))
    entries = [_check(name, entry, _CELL_KEYS) for entry in content["cells"]]
    metrics = tuple(content.get("metrics", ("linear_online",)))
    cells = tuple(_cell(name, entry, content, columns.get(entry.get("column", ""), {}), metrics) for entry in entries)
    _check_names(name, cells, columns)
    figure = content.get("figure")
    if figure not in (None, *FIGURES):
        raise UserError(f"{name}: figure: {figure}: {nearest(str(figure), FIGURES)}")
    rows = {cell.row for cell in cells}
    for pair in content.get("compare", ()):
        if not (isinstance(pair, list) and len(pair) == 2):
            raise UserError(f"{name}: compare: {pair}: should be a list of two rows")
    compare = tuple((str(one), str(other)) for one, other in content.get("compare", ()))
    for row in (row for pair in compare for row in pair):
        if row not in rows:
            raise UserError(f"{name}: compare: no row '{row}': {nearest(row, rows)}")
    return Experiment(
        name=Path(name).stem,
        about=content.get("about", name),
        notes=tuple(content.get("notes", ())),
        seeds=content.get("seeds", 1),
        cells=cells,
        best={column: parse_published(keys["published"]) for column, keys in columns.items() if "published" in keys},
        compare=compare,
        figure=figure,
        labels={column: keys["label"] for column, keys in columns.items() if "label" in keys},
    )


def _check_names(name: str, cells: tuple[Cell, ...], columns: Iterable[str]) -> None:
    """UserError if a name means two cells, of which a difference would take one, or a column means none."""
    names = [(cell.column, cell.row) for cell in cells]
    for column, row in names:
        if names.count((column, row)) > 1:
            raise UserError(f"{name}: two cells{f' of {column}' if column else ''} are called '{row}'")
    known = {column for column, _ in names}
    for column in columns:
        if column not in known:
            raise UserError(f"{name}: columns: {column}: no cell has this column: {nearest(column, known)}")


def parse_published(text: Any) -> Published:
    """`91.5 +- 0.1` or `91.5`."""
    mean, _, std = str(text).partition("+-")
    try:
        return Published(float(mean), float(std) if std else None)
    except ValueError:
        raise UserError(f"published: {text}: expected a number, or 91.5 +- 0.1") from None


def _cell(
    name: str, entry: dict[str, Any], content: dict[str, Any], column: dict[str, Any], metrics: tuple[str, ...]
) -> Cell:
    for key in ("row", "recipe"):
        if key not in entry:
            raise UserError(f"{name}: a cell without '{key}': {entry}")
    words = tuple(word for part in (content, column, entry) for word in str(part.get("overrides", "")).split())
    metrics = tuple(column.get("metrics", metrics))
    if "metric" in column:
        metrics = (column["metric"], *(metric for metric in metrics if metric != column["metric"]))
    published = entry.get("published", {})
    if not isinstance(published, dict):
        published = {metrics[0]: published}
    start, origin, own_starts = None, str(entry.get("start", "")), False
    config: Config | TransferConfig
    if "start" in entry:
        if isinstance(entry["start"], dict):
            begun = _check(name, entry["start"], _START_KEYS)
            if begun.get("seed", "same") != "same":
                raise UserError(f"{name}: start: seed: {begun['seed']}: 'same', or left out, which is 0 for all")
            own_starts = begun.pop("seed", None) is not None
            start = _cell(name, {"row": entry["row"], **begun}, {}, {}, metrics)
            origin = _origin(start, 0)
        config = load_transfer(entry["recipe"], [*words, "data.root=."])
        if start is not None:
            config = replace(config, encoder=start.config.encoder)
    else:
        config = load(entry["recipe"], words)
    data = entry.get("data") or column.get("data") or config.data.source
    return Cell(
        column=entry.get("column", ""),
        row=entry["row"],
        recipe=entry["recipe"],
        words=words,
        data=data,
        metrics=metrics,
        published={metric: parse_published(text) for metric, text in published.items()},
        config=config,
        hash=hash_of(settings_of(config, data, origin)),
        start=start,
        start_seed=0,
        own_starts=own_starts,
        origin=origin,
    )


def _origin(start: Cell, seed: int) -> str:
    return f"{start.hash}-seed{seed}"


def _read(name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keys of an experiment; `above`: those that are based on it."""
    if name in above:
        raise UserError(f"{name}: the experiment is based on itself")
    if name in experiment_names():
        text = (resources.files("stec") / "experiments" / f"{name}.yaml").read_text()
    elif Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise UserError(f"{name}: no such file")
        text = read_text(Path(name))
    else:
        raise UserError(
            f"unknown experiment '{name}': {nearest(name, experiment_names())} ('stec experiment' lists them)"
        )
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{name}: an experiment is a mapping of keys to values")
    content = _check(name, content, _KEYS)
    for key, kind in _KINDS.items():
        if not isinstance(content.get(key, kind()), kind):
            raise UserError(f"{name}: {key}: {content[key]}: should be a {_SPOKEN[kind]}")
    if content.get("seeds", 1) < 1:
        raise UserError(f"{name}: seeds: {content['seeds']}: should be at least 1")
    if "base" in content:
        content = _read(content.pop("base"), (*above, name)) | content
    if not content.get("cells"):
        raise UserError(f"{name}: an experiment needs cells")
    return content


def _check(name: str, content: Any, known: set[str]) -> dict[str, Any]:
    """The same keys and values, where a number may stand for text: `row: 0.1`."""
    if not isinstance(content, dict):
        raise UserError(f"{name}: '{content}' should be a mapping of keys to values")
    for key in content:
        if key not in known:
            raise UserError(f"{name}: unknown key '{key}': {nearest(str(key), known)}")
    texts = {key: content[key] for key in content if key in _TEXTS}
    for key, value in texts.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UserError(f"{name}: {key}: {value}: should be text, in quotes where YAML takes it for something else")
    return content | {key: str(value) for key, value in texts.items()}


def _check_texts(name: str, key: str, values: Any, least: int = 0) -> None:
    if not (isinstance(values, list) and len(values) >= least and all(isinstance(value, str) for value in values)):
        raise UserError(f"{name}: {key}: {values}: should be a list of texts")
