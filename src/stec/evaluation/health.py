"""Is a run healthy? What features and embeddings of one batch say about collapse, without labels.

A loss at its minimum does not tell: an encoder to which all images look alike may reach it as well.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.processes import gather, processes

PAIRS = 512  # of the batch that are looked at, so that a measurement costs the same however large the batch
COLLAPSED_RANK = 2.0  # collapsed embeddings have 1.0, those of healthy runs 5 and more


class Health(NamedTuple):
    """Signs of collapse; the functions below say what they mean. The first four are of the features."""

    feature_std: float
    effective_rank: float
    alignment: float
    uniformity: float
    embedding_rank: float  # effective rank of what the identity model compares

    @property
    def collapsed(self) -> bool:
        """Whether all images look alike to the encoder, or to the identity model on top of it."""
        return min(self.effective_rank, self.embedding_rank) < COLLAPSED_RANK


@torch.no_grad()
def measure(features: Tensor, embeddings: Tensor) -> Health:
    """The health of a batch, from features (2B, D) and embeddings (2B, E): all first views, then all second ones.

    Spread and ranks are those of the first views, so a rank is at most B, and at most `PAIRS`.
    """
    first, second = (half[:PAIRS].float() for half in features.chunk(2))
    embedded = embeddings.chunk(2)[0][:PAIRS]
    signs = (relative_std(first), effective_rank(first), alignment(first, second), uniformity(first))
    return Health(*torch.stack([*(sign.double() for sign in signs), effective_rank(embedded)]).tolist())


def of_all_processes(views: Tensor) -> Tensor:
    """What `measure` looks at of the views (2B, ...) of all processes; they themselves where there is one process."""
    if processes()[1] == 1:
        return views
    return torch.cat([gather(half[:PAIRS]) for half in views.chunk(2)])


def relative_std(features: Tensor) -> Tensor:
    """Standard deviation of each dimension of the l2-normalised features (N, D), mean over dimensions, times sqrt(D).

    0 when all features are the same, 1 when they are spread evenly over the sphere (Chen and He 2021, section 4.1).
    """
    return F.normalize(features, dim=1).std(dim=0).mean() * features.shape[1] ** 0.5


def effective_rank(features: Tensor) -> Tensor:
    """How many directions the features (N, D) use: exp of the entropy of their normalised singular values.

    From 1, all features on one line, to min(N, D). RankMe (Garrido et al. 2023); not centred.
    """
    tall = features.double() if len(features) >= features.shape[1] else features.double().mT
    values = torch.linalg.eigvalsh(tall.mT @ tall).clamp(min=0).sqrt()  # on a GPU far faster than an SVD
    return torch.special.entr(values / values.sum().clamp(min=1e-300)).sum().exp()


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared distance of the l2-normalised features (N, D) of a pair: 0 when both views look the same, at most 4.

    Wang and Isola 2020, with alpha = 2.
    """
    return (F.normalize(first, dim=1) - F.normalize(second, dim=1)).square().sum(dim=1).mean()


def uniformity(features: Tensor) -> Tensor:
    """log of the mean of exp(-2 d^2) over all pairs of l2-normalised features (N, D) at distance d.

    0 when all are the same, lower the more evenly they fill the sphere, about -4 at best. Wang and Isola 2020, t = 2.
    """
    distances = torch.pdist(F.normalize(features, dim=1))
    return distances.square().mul(-2).exp().mean().log()


def describe_collapse(health: Health, guarded: bool = True) -> str:
    """For the person whose run it is: the sign, the usual cause, and what to try.

    Args:
        health: of a run that has collapsed.
        guarded: whether the method has anything against collapse.
    """
    if health.effective_rank < COLLAPSED_RANK:
        whose, rank = "the encoder: its features use", health.effective_rank
    else:
        whose, rank = "the identity model: its embeddings use", health.embedding_rank
    sign = f"all images look alike to {whose} {rank:.1f} directions (effective rank), those of healthy runs 5 and more"
    cause = (
        "Usual cause: steps too large; try a smaller optimizer.rate or a longer optimizer.warmup_epochs"
        if guarded
        else "Cause: squared distance is least when all images are alike; other methods ('stec methods') prevent it"
    )
    return f"collapse: {sign}. {cause}"
