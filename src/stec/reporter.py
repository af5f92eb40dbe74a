"""Who watches a run. The library itself prints nothing."""

from __future__ import annotations

import logging
import warnings
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


def hush() -> None:
    """Keeps remarks of Lightning, of the compiler and of Pillow from whoever watches."""
    for chatty in ("lightning_fabric", "lightning.fabric"):  # the package itself sets its level when it is imported
        logging.getLogger(f"{chatty}.utilities.rank_zero").setLevel(logging.WARNING)
        logging.getLogger(f"{chatty}.utilities.distributed").setLevel(logging.WARNING)
    # The compiler suggests TensorFloat32, and tells of its own decisions; crops and logits are kept exact on purpose.
    warnings.filterwarnings("ignore", module=r"torch\._inductor")
    # Photographs of 90 megapixels and more are not an attack where they are one's own.
    warnings.filterwarnings("ignore", r"Image size .* could be decompression bomb")
