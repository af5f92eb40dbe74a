"""Features in two dimensions: UMAP, or the two principal components where there is no umap-learn."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from stec.errors import UserError

FEWEST = 20  # points below which UMAP has no neighbourhoods to keep


class Projection(NamedTuple):
    """Points in the plane, and how they got there."""

    method: str  # UMAP, PCA
    points: Tensor  # (N, 2)


def has_umap() -> bool:
    """Whether umap-learn is installed."""
    try:
        import umap  # noqa: F401
    except ImportError:
        return False
    return True


def project(features: Tensor, seed: int, method: str = "UMAP") -> Projection:
    """All features (N, D) in one plane; the same seed gives the same points."""
    if method == "PCA" or len(features) < FEWEST:
        return Projection("PCA", principal_components(features))
    if not has_umap():
        raise UserError("UMAP needs umap-learn: pip install 'stec[analysis]'")
    import umap

    points = umap.UMAP(random_state=seed, n_jobs=1).fit_transform(features.numpy())
    return Projection("UMAP", torch.from_numpy(points).float())


def principal_components(features: Tensor) -> Tensor:
    """The first two, each with its largest weight positive. (N, D) -> (N, 2)"""
    centred = (features - features.mean(dim=0)).double()
    weights = torch.linalg.svd(centred, full_matrices=False).Vh[:2]  # (2, D)
    signs = weights.gather(1, weights.abs().argmax(dim=1, keepdim=True)).sign()
    points = centred @ (weights * signs).T
    return torch.nn.functional.pad(points, (0, 2 - points.shape[1])).float()
