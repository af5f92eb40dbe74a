"""The page about transfers: results, classes, curves, and what was found in test images."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path
from typing import Any

from stec.config import read_text
from stec.report.frame import fill, frame, listing
from stec.report.payload import curves
from stec.report.tables import table
from stec.run import CONFIG, RunFolder
from stec.transfer.pictures import SHEET

_RESULTS = {
    "task": "task", "start": "start", "encoder": "encoder", "data": "data", "seed": "seed",
    "ap50": "AP50, area under the curve, %", "ap50_11": "AP50, at 11 recalls, %", "ap": "AP, overlaps 0.5 to 0.95, %",
    "ap75": "AP75, %", "miou": "mean intersection over union, %", "pixel_accuracy": "pixels right, %",
    "images_per_second": "images per second", "seconds": "seconds of training", "device": "device", "commit": "commit",
    "torch": "torch", "data_fingerprint": "data fingerprint",
}  # fmt: skip
_CLASSES = {"ap50_by_class": "AP50", "ap_by_class": "AP", "ap75_by_class": "AP75", "iou_by_class": "IoU"}


def render_transfers(paths: dict[str, Path]) -> str:
    """The page as text, about runs by their names."""
    folders = {name: RunFolder.open(path) for name, path in paths.items()}
    summaries = {name: folder.summary() or {} for name, folder in folders.items()}
    data = [{"name": name, "curves": curves(folder.metrics())} for name, folder in folders.items()]
    first, *others = paths
    unfinished = [name for name, summary in summaries.items() if not summary]
    about = f"{', '.join(unfinished)}: not finished." if unfinished else "Trained further from an encoder, and scored."
    body = fill(
        "transfer.html",
        results=_results(summaries),
        classes=_classes(summaries),
        sheets="".join(_sheet(name, path) for name, path in paths.items()),
        setting="".join(listing(name, read_text(path / CONFIG)) for name, path in paths.items()),
    )
    return frame(f"{len(paths)} transfers" if others else first, about, body, data, ["curves.js"])


def _results(summaries: dict[str, dict[str, Any]]) -> str:
    known = [key for key in _RESULTS if any(summary.get(key) is not None for summary in summaries.values())]
    rows = [[_RESULTS[key], *(_word(summary.get(key)) for summary in summaries.values())] for key in known]
    return table(["", *summaries], rows)


def _classes(summaries: dict[str, dict[str, Any]]) -> str:
    """A row for every class, a column for every run and measure."""
    columns = {
        f"{name}: {title}" if len(summaries) > 1 else title: summary[key]
        for name, summary in summaries.items()
        for key, title in _CLASSES.items()
        if summary.get(key)
    }
    names = dict.fromkeys(name for values in columns.values() for name in values)
    return table(["", *columns], [[name, *(_word(v.get(name)) for v in columns.values())] for name in names])


def _sheet(name: str, path: Path) -> str:
    if not (path / SHEET).is_file():
        return f'<p class="quiet">{escape(name)} has no {SHEET} yet.</p>'
    encoded = base64.b64encode((path / SHEET).read_bytes()).decode()
    alt = f"Test images with what is marked in them and what {name} found"
    picture = f'<img src="data:image/png;base64,{encoded}" alt="{escape(alt)}" style="max-width:100%;height:auto">'
    return f"<figure>{picture}<figcaption>{escape(name)}</figcaption></figure>"


def _word(value: Any) -> str:
    return "–" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)
