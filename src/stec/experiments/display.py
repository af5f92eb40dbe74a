"""What a person sees of an experiment in a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from stec.experiments.book import Book
from stec.experiments.cost import cost_of, cost_of_repetition, measured_speeds
from stec.experiments.experiment import Cell, Experiment
from stec.experiments.jobs import has_run, starts_of
from stec.experiments.measured import Measured
from stec.experiments.tables import Table, mixed, not_run, provenance_of, table_of


def show_measured(console: Console, measured: Measured) -> None:
    """Published beside measured where anything has been run, and one line on the rest; all of it if nothing has."""
    console.print(Text(measured.experiment.about, style="bold"))
    ran = [group for group in measured.groups if group.runs]
    for group in ran or measured.groups:
        console.print()
        if group.column:
            console.print(Text(group.column, style="bold"))
        _print(console, table_of(group))
    console.print()
    if ran and (absent := not_run(measured)):
        console.print(Text(f"{absent}\n"))
    for note in (*measured.experiment.notes, *mixed(measured)):
        console.print(Text(f"- {' '.join(note.split())}", style="dim"))
    several = any(
        spread.n > 1 for group in measured.groups for line in group.lines for spread in line.measured.values()
    )
    if several:
        console.print(Text("- ± and 95 %: half the t-interval of the mean; differences are over paired seeds", "dim"))
    console.print(Text(f"- {provenance_of(measured)}", style="dim"))


def show_plan(
    console: Console, experiment: Experiment, book: Book, todo: Sequence[tuple[Cell, int]], seeds: int, runs: Path
) -> None:
    """What is there, what is missing, and what it would cost; `runs` is the folder of all run folders."""
    speeds = measured_speeds(book)
    console.print(Text(experiment.about, style="bold"))
    total, unknown, reckoned, devices = 0.0, 0, False, set()
    shown: set[str] = set()
    keys = {(cell.hash, seed) for cell, seed in todo}
    for column in experiment.columns:
        rows = []
        for cell in (cell for cell in experiment.cells if cell.column == column):
            lacking = sum((cell.at(seed).hash, seed) in keys for seed in range(seeds))
            cost = cost_of(cell, speeds) or cost_of_repetition(cell, book)
            text = "-"
            if lacking:
                about = "" if cost is None or cost.exact else "~"
                text = "unknown" if cost is None else f"{about}{lacking * cost.minutes:,.1f}"
            rows.append([cell.row, cell.recipe, f"{seeds - lacking} of {seeds}", str(lacking), text])
            if cell.hash in shown:
                continue
            shown.add(cell.hash)
            if cost is None:
                unknown += lacking
            elif lacking:
                total += lacking * cost.minutes
                devices.add(cost.device)
                reckoned = reckoned or not cost.exact
        console.print()
        _print(console, Table([column, "recipe", "there", "missing", "minutes"], rows))
    console.print()
    parts = [f"{len(todo)} runs missing"]
    starts = [(start, seed) for start, seed in starts_of(cell for cell, _ in todo) if (start.hash, seed) not in keys]
    absent = sum(not has_run(start, seed, runs) for start, seed in starts)
    if absent:
        parts.append(f"{absent} more to start from")
    if total:
        parts.append(
            f"{len(todo) - unknown} of them {total:,.0f} minutes on {' or '.join(sorted(devices))}, at measured speed"
        )
    if unknown:
        parts.append(f"{unknown} unknown: nothing comparable was measured yet")
    console.print(Text("; ".join(parts) if todo else "nothing is missing"))
    if reckoned:
        console.print(Text("~: reckoned from a like run, of images by views and passes of the encoder", style="dim"))


def _print(console: Console, table: Table) -> None:
    """With wide gaps if they fit, else with narrow ones; what is wider still is not cut off."""
    for gap in (2, 1):
        shown = _laid_out(table, gap)
        least = Measurement.get(console, console.options.update_width(1000), shown).minimum
        if least <= console.width:
            break
    else:
        shown.width = least
    console.print(shown, crop=False)


def _laid_out(table: Table, gap: int) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for i, name in enumerate(table.header):
        left = i == 0 or name == "recipe"
        title = name if left else re.sub(r" (?=\w)", "\n", name)
        # Only the first column may break its lines, and only between words.
        cells = [*title.splitlines(), *(row[i] for row in table.rows)]
        least = max((len(part) for cell in cells for part in (cell.split() if i == 0 else [cell])), default=None)
        shown.add_column(Text(title), justify="left" if left else "right", no_wrap=i > 0, min_width=least)
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown
