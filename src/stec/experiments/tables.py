"""Published beside measured, as rows of text: for the terminal and for results/README.md."""

from __future__ import annotations

from typing import NamedTuple

from stec.experiments.experiment import Published
from stec.experiments.measured import Group, Measured
from stec.experiments.statistics import Spread

NAMES = {
    "linear_online": "online linear",
    "linear": "offline linear",
    "knn": "kNN",
    "ap": "AP",
    "ap50": "AP50",
    "ap50_11": "AP50 (11 recalls)",
    "ap75": "AP75",
    "miou": "mIoU",
    "views_per_second": "views/s",
    "peak_memory_bytes": "GiB",
    "effective_rank": "feature rank",
    "embedding_rank": "embedding rank",
    "centroid_shift": "views from images",
    "feature_spread": "spread of images",
    "phones_mfcc": "MFCC",
    "phones_untrained": "untrained",
    "phones_majority": "most frequent",
    "phones_gain": "over untrained",
    "speakers_mfcc": "MFCC",
    "speakers_untrained": "untrained",
    "speakers_majority": "most frequent",
    "audio_seconds_per_second": "sound s/s",
}
NOTHING = "-"


class Table(NamedTuple):
    """A header and rows of as many words."""

    header: list[str]
    rows: list[list[str]]


def table_of(group: Group) -> Table:
    """The first metric with mean, standard deviation (std) and half the 95 % interval, the others with one of them.

    `n` is the number of runs that have the first metric; where another number of runs has another, it says how many.
    """
    lines = [*group.lines, *((group.best,) if group.best else ()), *group.differences]
    first, *others = group.metrics
    several = any(line.n(first) > 1 for line in lines)
    known = {metric for line in lines for metric in line.published}
    header = [
        "",
        *(["published"] if first in known else []),
        name_of(first),
        *(["std", "95 %"] if several else []),
        "n",
    ]
    for metric in others:
        header += ["published", name_of(metric)] if metric in known else [name_of(metric)]
    rows = []
    for line in lines:
        signed = line.cell is None
        spread = line.measured.get(first)
        row = [line.row]
        row += [_published(line.published.get(first), signed)] if first in known else []
        row.append(_number(first, spread.mean, 2, signed) if spread else NOTHING)
        if several:
            row += [
                _optional(first, spread.std if spread else None),
                _optional(first, spread.interval if spread else None, "± "),
            ]
        row.append(str(line.n(first)))
        for metric in others:
            row += [_published(line.published.get(metric), signed)] if metric in known else []
            fewer = f" (n = {line.n(metric)})" if line.n(metric) not in (0, line.n(first)) else ""
            row.append(_with_interval(metric, line.measured.get(metric), signed) + fewer)
        rows.append(row)
    return Table(header, rows)


def provenance_of(measured: Measured) -> str:
    """One line on what the numbers rest on."""
    runs = measured.runs
    if not runs:
        return "no runs yet"
    commits = ", ".join(dict.fromkeys(str(run.summary["commit"]) for run in runs))
    devices = ", ".join(sorted({str(run.summary["device"]) for run in runs}))
    images = ", ".join(sorted({f"{run.data} {run.summary['data_fingerprint']}" for run in runs}))
    return f"{len(runs)} run(s); commit {commits}; {devices}; data {images}"


def mixed(measured: Measured) -> list[str]:
    """A line on every group whose runs did not all see the same data, by their fingerprints."""
    lines = []
    for group in measured.groups:
        rows: dict[str, list[str]] = {}
        for line in group.lines:
            for run in line.runs:
                rows.setdefault(str(run.summary["data_fingerprint"]), []).append(line.row)
        if len(rows) > 1:
            found = "; ".join(f"{', '.join(dict.fromkeys(names))}: {data}" for data, names in rows.items())
            of = f" of {group.column}" if group.column else ""
            lines.append(f"The runs{of} are not all on the same data, from which differences may come ({found}).")
    return lines


def not_run(measured: Measured) -> str:
    """One line on the groups without a run; nothing where each has one."""
    empty = [group.column for group in measured.groups if group.column and not group.runs]
    return f"Not run yet: {'; '.join(empty)}." if empty else ""


def markdown_of(measured: Measured) -> str:
    """The groups that have runs as tables, then the rest by name, the notes, and what the numbers rest on."""
    parts = [measured.experiment.about + "."]
    for group in measured.groups:
        if group.runs:
            parts += [f"**{group.column}**"] if group.column else []
            parts.append(_markdown(table_of(group)))
    parts += [absent] if (absent := not_run(measured)) else []
    notes = (*measured.experiment.notes, *(_escaped(line) for line in mixed(measured)), provenance_of(measured))
    parts.append("\n".join(f"- {' '.join(note.split())}" for note in notes))
    return "\n\n".join(parts)


def _markdown(table: Table) -> str:
    rule = ["---", *["---:"] * (len(table.header) - 1)]
    escaped = [[_escaped(word) for word in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (table.header, rule, *escaped))


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("|", "\\|")


def name_of(metric: str) -> str:
    """What a table calls a metric."""
    return NAMES.get(metric, metric.replace("_", " "))


def _number(metric: str, value: float, digits: int, signed: bool = False) -> str:
    if metric in ("views_per_second", "audio_seconds_per_second"):
        return f"{value:{'+' if signed else ''},.0f}"
    if metric == "peak_memory_bytes":
        value, digits = value / 2**30, 1
    return f"{value:{'+' if signed else ''}.{digits}f}"


def _optional(metric: str, value: float | None, before: str = "") -> str:
    return NOTHING if value is None else before + _number(metric, value, 2)


def _published(number: Published | None, signed: bool) -> str:
    if number is None:
        return NOTHING
    digits = 1 if signed or round(number.mean, 1) == number.mean else 2
    mean = f"{number.mean:{'+' if signed else ''}.{digits}f}"
    return mean if number.std is None else f"{mean} ± {number.std:g}"


def _with_interval(metric: str, spread: Spread | None, signed: bool) -> str:
    """`94.0 ± 1.2`: as many digits as the interval lets stand."""
    if spread is None:
        return NOTHING
    if spread.interval is None:
        return _number(metric, spread.mean, 2, signed)
    digits = 1 if spread.interval >= 1 else 2
    same = spread.interval < 1e-9  # in all runs, but for the rounding of their mean
    interval = "0" if same else _number(metric, spread.interval, digits)
    return f"{_number(metric, spread.mean, digits, signed)} ± {interval}"
