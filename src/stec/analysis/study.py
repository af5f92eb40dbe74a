"""Everything that is measured of a trained run, at once: for `stec analyze` and `stec report`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from stec.analysis.knowledge import Component, Reading, judge, read
from stec.analysis.projection import Projection, project
from stec.analysis.sample import Sample
from stec.evaluation import health
from stec.evaluation.centroids import Centroids, centroids
from stec.loading import LoadedRun, encode


@dataclass(frozen=True)
class Study:
    """A sample of images, and what the run makes of it."""

    sample: Sample
    seed: int
    projection: Projection  # of all originals, then all first views, then all second ones: (3N, 2)
    in_features: Centroids
    in_projection: Centroids
    reading: Reading | None  # None without a manipulation model
    components: list[Component]
    alignment: float
    uniformity: float
    effective_rank: float
    feature_std: float

    def numbers(self) -> dict[str, Any]:
        """What can be written as JSON, without the points."""
        return {
            "split": self.sample.split,
            "images": len(self.sample.index),
            "seed": self.seed,
            "projection": self.projection.method,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
            "effective_rank": self.effective_rank,
            "feature_std": self.feature_std,
            "centroids": {
                "features": dataclasses.asdict(self.in_features),
                "projection": dataclasses.asdict(self.in_projection),
            },
            "components": [dataclasses.asdict(component) for component in self.components],
        }


def study(run: LoadedRun, sample: Sample, seed: int, projection: str = "UMAP") -> Study:
    """What a run makes of a sample. The seed is UMAP's."""
    original, first, second = (encode(run, each) for each in (sample.plain, sample.views.first, sample.views.second))
    views = torch.cat([first, second])
    projected = project(torch.cat([original, views]), seed, projection)
    flat_originals, flat_views = projected.points.tensor_split([len(original)])
    labels, classes = sample.labels, sample.classes
    reading = read(run, sample, first, second)
    return Study(
        sample=sample,
        seed=seed,
        projection=projected,
        in_features=centroids(original, views, labels, classes),
        in_projection=centroids(flat_originals, flat_views, labels, classes),
        reading=reading,
        components=judge(reading) if reading is not None else [],
        alignment=health.alignment(first, second).item(),
        uniformity=health.uniformity(first).item(),
        effective_rank=health.effective_rank(first).item(),
        feature_std=health.relative_std(first).item(),
    )
