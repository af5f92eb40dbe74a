"""Books full of made-up runs, for tests."""

from __future__ import annotations

from stec.experiments.book import Book, Run
from stec.experiments.experiment import Cell
from stec.experiments.settings import settings_of


def made_up(cell: Cell, seed: int, device: str = "GPU", rate: int | None = 1000, **metrics: float) -> Run:
    summary = {"device": device, "commit": "abc", "data_fingerprint": "f", "views_per_second": rate, **metrics}
    epochs = [cell.config.epochs * i / 10 for i in range(1, 11)]
    names = ["identity", "identity_accuracy"]
    if getattr(cell.config, "method", "simclr") != "simclr":
        names += ["manipulation", "manipulation_accuracy"]
    curve = {"epoch": epochs, **{name: [seed + i / 10 for i in range(10)] for name in names}}
    settings = settings_of(cell.config, cell.data, cell.origin)
    return Run(cell.hash, seed, cell.data, cell.recipe, [], settings, summary, curve)


def fill(book: Book, cell: Cell, values: list[float], metric: str = "linear_online") -> None:
    for seed, value in enumerate(values):
        book.add(made_up(cell, seed, **{metric: value}))
