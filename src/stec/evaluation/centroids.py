"""How far the views of a class lie from its originals: the paper's measure of what S-TEC does to feature space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Centroids:
    """Distances between centroids in one space."""

    shift: dict[str, float]  # class -> distance between the centroids of its views and of its originals
    mean_shift: float  # over classes; the paper's 10.5 (S-TEC) and 0.4 (SimCLR)
    scale: float  # root mean square distance of the originals from their own centroid, to compare shifts by
    between: float | None  # mean distance between the centroids of two classes of originals; None with one class


def centroids(originals: Tensor, views: Tensor, labels: Tensor, classes: tuple[str, ...]) -> Centroids:
    """Distances of centroids by class; without labels all images are one class.

    Args:
        originals: (N, D).
        views: (nN, D): all first views, then all second ones, and so on.
        labels: (N,), -1 where there is none.
        classes: names; () when unlabelled.
    """
    originals, views = originals.double(), views.double()
    if not classes or not (labels >= 0).any():
        labels, classes = torch.zeros_like(labels), ("all",)
    present = [i for i in range(len(classes)) if (labels == i).any()]
    plain = torch.stack([originals[labels == i].mean(dim=0) for i in present])  # (classes, D)
    acted = torch.stack([views[labels.repeat(len(views) // len(labels)) == i].mean(dim=0) for i in present])
    shift = (acted - plain).norm(dim=1)
    return Centroids(
        shift={classes[i]: distance for i, distance in zip(present, shift.tolist(), strict=True)},
        mean_shift=shift.mean().item(),
        scale=(originals - originals.mean(dim=0)).square().sum(dim=1).mean().sqrt().item(),
        between=torch.pdist(plain).mean().item() if len(present) > 1 else None,
    )
