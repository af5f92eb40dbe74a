"""The data that the scripts of the page draw: curves, points, pairs of views, and what an explorer needs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from stec.actions import Glimpse, egocentric
from stec.analysis.sample import Sample
from stec.analysis.study import Study
from stec.config import ManipulationConfig
from stec.data import shapes
from stec.manipulation import reader_of
from stec.report.material import Material, has_manipulation
from stec.report.pictures import atlas
from stec.views import Views

CURVE = 400  # points of a curve; more could not be seen
PAIRS = 12  # pairs of views in the gallery, and images in the explorer
POINT_SIDE, PAIR_SIDE = 48, 128  # of the images of a point and of a pair, at most, in pixels
PLACES = ("egocentric", "paper", "official", "allocentric")  # what the explorer shows


def payload(runs: list[Material]) -> dict[str, Any]:
    """Everything for the page's scripts; plain values that JSON can hold."""
    pictures: list[dict[str, Any]] = []

    def keep(picture: dict[str, Any]) -> int:
        """The place of a picture, kept once however many runs show it."""
        if picture not in pictures:
            pictures.append(picture)
        return pictures.index(picture)

    entries = []
    for run in runs:
        entry: dict[str, Any] = {"name": run.name, "curves": curves(run.metrics), "map": None, "pairs": []}
        if run.sample is not None:
            shown = [run.sample.plain, run.sample.views.first, run.sample.views.second]
            if run.study is not None:
                entry["map"] = points(run.study) | {"picture": keep(atlas(torch.cat(shown), POINT_SIDE))}
            sources = keep(atlas(run.sample.images[:PAIRS], PAIR_SIDE))
            views = keep(atlas(torch.cat([views[:PAIRS] for views in shown[1:]]), PAIR_SIDE))
            entry |= {"pairs": pairs(run.sample, run.study), "sources": sources, "views": views}
        entries.append(entry)
    explorer = _explorer(runs[0]) | {"owner": runs[0].name if len(runs) > 1 else None}
    explorer["picture"] = keep(explorer["picture"])
    return {"runs": entries, "pictures": pictures, "explorer": explorer}


def curves(metrics: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Every metric as a list beside that of the epochs, thinned out where it is long."""
    stride = max(1, math.ceil(len(metrics) / CURVE))
    kept = [record for i, record in enumerate(metrics) if i % stride == 0 or i == len(metrics) - 1]
    keys = [key for key in (kept[0] if kept else {}) if key not in ("step", "seconds")]
    return {key: [_short(record.get(key)) for record in kept] for key in keys}


def points(study: Study) -> dict[str, Any]:
    """The map: all originals, then all first views, then all second ones; y down."""
    sample = study.sample
    x, y = study.projection.points.T
    mirrored = torch.cat([glimpse.mirrored for glimpse in sample.views.copy])
    return {
        "method": study.projection.method,
        "split": sample.split,
        "x": _numbers(x),
        "y": _numbers(-y),
        "index": sample.index.tolist(),
        "label": sample.labels.tolist(),
        "classes": list(sample.classes),
        "magnitude": _numbers(sample.magnitude),
        "mirrored": mirrored.int().tolist(),
    }


def pairs(sample: Sample, study: Study | None) -> list[dict[str, Any]]:
    """The first pairs of the sample: what was done, and what psi thinks was done."""
    copy = sample.views.copy
    true = egocentric(copy)
    reading = study.reading if study is not None else None
    found = []
    for i in range(min(PAIRS, len(sample.index))):
        pair: dict[str, Any] = {
            "index": int(sample.index[i]),
            "class": sample.classes[sample.labels[i]] if sample.labels[i] >= 0 else None,
            "first": _glimpse(copy.first, i),
            "second": _glimpse(copy.second, i),
            "true": _numbers(true[i].flatten()),
            "placed": None,
            "components": [],
        }
        if reading is not None:
            if reading.placed is not None:
                pair["placed"] = _numbers(reading.placed[i].flatten())
            pair["counts"] = bool(reading.valid[i].any())
            pair["components"] = [
                {
                    "name": name,
                    "true": _short(reading.true[i, c].item()),
                    "code": int(reading.codes[i, c]),
                    "guess": _short(reading.guess[i, c].item()),
                    "guessCode": int(reading.guess_codes[i, c]),
                }
                for c, name in enumerate(reading.names)
                if reading.informative[c]
            ]
        found.append(pair)
    return found


def _explorer(run: Material) -> dict[str, Any]:
    """Images with a pair of crops each to begin with, and the bins of every representation."""
    config = run.config.manipulation
    if run.sample is not None:
        images, copy = run.sample.images[:PAIRS], run.sample.views.copy
    else:
        images = shapes.render(PAIRS, 64).images
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            copy = Views(size=64)(images).copy
    views = Views(**dataclasses.asdict(run.config.views))
    bins = {}
    for name in PLACES:
        reader = reader_of(ManipulationConfig(action=name, bins=config.bins, k=config.k), views)
        bins[name] = {"components": reader.components, "edges": reader.bins.edges.double().tolist()}
    own = [part for part in config.action.split("+") if part in PLACES] if has_manipulation(run) else []
    return {
        "builtin": run.sample is None,
        "picture": atlas(images, PAIR_SIDE),
        "starts": [{"first": _glimpse(copy.first, i), "second": _glimpse(copy.second, i)} for i in range(len(images))],
        "bins": bins,
        "own": own[0] if own else None,
        "k": config.k,
    }


def _glimpse(glimpse: Glimpse, i: int) -> dict[str, Any]:
    return {
        "crop": glimpse.crop[i].tolist(),
        "source": glimpse.source[i].tolist(),
        "mirrored": bool(glimpse.mirrored[i]),
        "solarized": bool(glimpse.solarized[i]),
    }


def _numbers(values: Tensor) -> list[float]:
    return values.double().round(decimals=4).tolist()


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
