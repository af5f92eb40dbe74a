"""Who watches a run. The library itself prints nothing."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Progress(NamedTuple):
    """How far a run is, for whoever watches it."""

    epoch: int
    epochs: int
    step: int
    steps: int
    seconds: float
    metrics: dict[str, float]


class Reporter(Protocol):
    """Watches a run."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""

    def progress(self, progress: Progress) -> None:
        """Metrics were fetched."""


class Nobody:
    """Does not watch."""

    def note(self, text: str) -> None:
        """Nothing."""

    def progress(self, progress: Progress) -> None:
        """Nothing."""
