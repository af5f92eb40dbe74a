"""Some images of a run's data set, as they are and in two views."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stec.data import DataSet
from stec.views import ViewBatch, Views


@dataclass(frozen=True)
class Sample:
    """N images and two views of each, on the CPU."""

    split: str  # test, or train where there is no labelled test split
    index: Tensor  # (N,) places in the split
    images: Tensor  # uint8 (N, 3, S, S)
    sizes: Tensor  # (N, 2) true height and width
    labels: Tensor  # (N,); -1 where there is none
    classes: tuple[str, ...]
    plain: Tensor  # (N, 3, s, s) in [0, 1]: what evaluation sees
    views: ViewBatch

    @property
    def magnitude(self) -> Tensor:
        """1 - relative area of the crop, of all first views, then all second ones. (2N,)"""
        glimpses = (self.views.copy.first, self.views.copy.second)
        return torch.cat([1 - g.crop[:, 2:].prod(dim=1) / g.source.prod(dim=1) for g in glimpses])


def draw_sample(views: Views, dataset: DataSet, images: int, seed: int) -> Sample:
    """At most this many images. Which, and how they are viewed, depends on the seed and the data alone."""
    split, name = (dataset.train, "train") if dataset.test is None else (dataset.test, "test")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        index = torch.randperm(len(split))[:images].sort().values
        batches = list(split.batches(index, 500, drop_last=False))
        pixels, sizes, labels = (
            torch.cat([getattr(batch, part).cpu() for batch in batches]) for part in ("images", "sizes", "labels")
        )
        pairs = views(pixels, sizes)
    return Sample(name, index, pixels, sizes, labels, dataset.classes, views.plain(pixels, sizes), pairs)
