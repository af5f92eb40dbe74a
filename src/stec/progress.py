"""What a person sees while a run trains: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from stec.reporter import Progress

PLAIN_SECONDS = 10  # between two plain lines
SPEEDS = {
    "views_per_second": "views/s",
    "images_per_second": "images/s",
    "audio_seconds_per_second": "seconds of sound/s",
}
WIDE = 130  # columns of a terminal that has room for a bar


class Watcher:
    """A `Reporter` that writes to a console. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        # On a narrow screen the line becomes two, and there is no room for a bar.
        line = TextColumn("{task.description}", table_column=Column(overflow="fold"))
        bar = [BarColumn(bar_width=20)] if console.width >= WIDE else []
        self.bar = Bar(*bar, line, console=console)
        self.task = self.bar.add_task("", total=None, visible=False)
        self.last = time.monotonic()

    def __enter__(self) -> Watcher:
        if self.live:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.bar.stop()

    def note(self, text: str) -> None:
        """A line of its own."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def progress(self, progress: Progress) -> None:
        """Redraws the live line, or writes a plain one every few seconds and at the end."""
        line = f"epoch {progress.epoch}/{progress.epochs}  {describe(progress)}"
        if self.live:
            self.bar.update(self.task, description=line, completed=progress.step, total=progress.steps, visible=True)
            return
        done = progress.step == progress.steps
        if done or time.monotonic() - self.last >= PLAIN_SECONDS:
            self.last = time.monotonic()
            self.note(line)


def describe(progress: Progress) -> str:
    """The time left, losses, accuracies and speed."""
    m = progress.metrics
    seconds = (progress.steps - progress.step) * progress.seconds / progress.step
    parts = ["done" if progress.step == progress.steps else f"{clock(seconds)} left"]
    parts += [] if "identity" in m else [f"loss {m['loss']:.2f}"]
    for name, value in m.items():
        whole = name.removesuffix("_accuracy")
        if f"{name}_accuracy" in m:
            parts.append(f"{name} {value:.2f} ({100 * m[f'{name}_accuracy']:.0f} %)")
        elif whole != name and whole not in m:
            parts.append(f"{whole} {100 * value:.0f} %")
    parts += [f"{m[key]:,.0f} {name}" for key, name in SPEEDS.items() if key in m]
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """1:05 or 2:03:04."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
