"""How commands print."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

PLAIN_SECONDS = 10  # between two plain lines


def forget(stream: TextIO) -> None:
    """What is still said to somebody who has left goes nowhere, also when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Console(Console):
    """Whoever stops reading stops no run: Ctrl-C also ends the `tee` behind one, which has yet to save."""

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.on_broken_pipe()  # a terminal that has been closed

    def on_broken_pipe(self) -> None:
        """Goes on in silence, where rich would end the process."""
        self.quiet = True
        forget(sys.stdout)


console = _Console()


def show_list(lines: dict[str, str]) -> None:
    """A line each, whole in a pipe; a terminal that is too narrow has columns."""
    width = max(map(len, lines))
    if console.is_terminal:
        table = make_table("", "")
        for name, about in lines.items():
            table.add_row(f"[bold]{name}[/bold]", escape(about))
        table.columns[0].no_wrap = True
        console.print(table, highlight=False)
        return
    for name, about in lines.items():
        console.print(f"[bold]{name:{width}}[/bold]  {escape(about)}", highlight=False, soft_wrap=True)


def make_table(*columns: str) -> Table:
    """Without lines; without a header if no column has a name."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        table.add_column(column)
    return table


def hint(text: str, whole: bool = False) -> None:
    """What to do next, in grey; `whole`: a command to paste, which no narrow screen cuts in two."""
    console.print(f"\n{text}", style="dim", highlight=False, markup=False, soft_wrap=whole)


def say(text: str) -> None:
    """A line as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class Saying(logging.Handler):
    """What the library logs, as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Warnings are marked as such."""
        mark = "warning: " if record.levelno >= logging.WARNING else ""
        say(f"{mark}{record.getMessage()}")


class Counter(Protocol):
    """Is told how many are done, and of how many."""

    def __call__(self, done: int, total: int, /) -> None:
        """Shows it."""


@contextmanager
def counting(what: str) -> Iterator[Counter]:
    """A bar in a terminal; elsewhere a plain line every few seconds."""
    if console.is_terminal:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last = time.monotonic()

    def line(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_SECONDS:
            last = time.monotonic()
            say(f"{what} {done:,}/{total:,}")

    yield line
