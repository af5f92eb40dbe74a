"""`stec analyze`: what a run has learnt, as figures and numbers in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from stec.analysis.plots import draw_figures
from stec.analysis.projection import has_umap
from stec.analysis.sample import draw_sample
from stec.analysis.study import study
from stec.loading import open_data, open_run
from stec.provenance import commit, versions
from stec.run import replacing

FOLDER = "analysis"


def analyze(path: Path, images: int = 1000, seed: int = 0, words: Sequence[str] = ()) -> dict[str, Any]:
    """Writes RUN/analysis: map, centroids and actions as PNG and SVG, and analysis.json, which is returned.

    Words say where the images are now, such as `data.root=PATH`.
    """
    run = open_run(path)
    sample = draw_sample(run.views, open_data(run.folder, words), images, seed)
    found = study(run, sample, seed, "UMAP" if has_umap() else "PCA")
    folder = path / FOLDER
    folder.mkdir(exist_ok=True)
    config = run.config
    draw_figures(found, f"{config.method}, {config.data.name}, seed {config.seed}", folder)
    n = len(sample.index)
    record = {
        "method": config.method,
        "run_seed": config.seed,
        **found.numbers(),
        "points": {
            "index": sample.index.tolist(),
            "label": sample.labels.tolist(),
            "original": _rounded(found.projection.points[:n]),
            "first": _rounded(found.projection.points[n : 2 * n]),
            "second": _rounded(found.projection.points[2 * n :]),
            "magnitude": _rounded(sample.magnitude),
        },
        "commit": commit(),
        **versions(),
    }
    with replacing(folder / "analysis.json") as part:
        part.write_text(json.dumps(record) + "\n")
    return record


def _rounded(values: Tensor) -> list[Any]:
    return values.double().round(decimals=4).tolist()
