"""The equations of identity models without negatives and without a target network, as pure functions in float32.

Each value sums both directions, x -> x' and x' -> x, as the paper's L_id does: twice what the methods' own code gives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.errors import UserError
from stec.functional import ALL, contrast_pairs

VARIANCE_EPSILON = 1e-4  # added to VICReg's variances, as in its code
CORRELATION_EPSILON = 1e-5  # added to Barlow Twins' variances: that of a batch norm, as in its code


def simsiam(first: Tensor, second: Tensor, first_target: Tensor, second_target: Tensor) -> Tensor:
    """-cos(h(z), stopgrad(z')) in both directions, averaged over pairs (Chen and He 2021, equations 3 and 4).

    From 2 down to -2, twice the symmetrised loss of the paper. The targets get no gradient.

    Args:
        first: (B, D) predictions h(z) of x.
        second: (B, D) predictions h(z') of x'.
        first_target: (B, D) projections z of x.
        second_target: (B, D) projections z' of x'.
    """
    with torch.autocast(first.device.type, enabled=False):
        forwards = F.cosine_similarity(first.float(), second_target.detach().float())  # (B,)
        backwards = F.cosine_similarity(second.float(), first_target.detach().float())
    return -(forwards + backwards).mean()


def vicreg(
    first: Tensor, second: Tensor, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
) -> Tensor:
    """VICReg (Bardes et al. 2022): alike within a pair, spread over the batch, uncorrelated between dimensions.

    Twice the loss of the authors' code, which is, with n pairs in d dimensions:

        invariance: mean over pairs and dimensions of (z - z')^2
        variance:   mean over dimensions of max(0, 1 - std), averaged over the two views
        covariance: sum over the squared off-diagonal covariances / d, summed over the two views

    (The paper's formula does not divide the first by d, and sums the second over the views.)

    Args:
        first: (B, D) embeddings of x, of the whole batch.
        second: (B, D) embeddings of x'.
        invariance: weight of the first term.
        variance: weight of the second.
        covariance: weight of the third.
    """
    if len(first) < 2:
        raise UserError("VICReg needs the variances of a batch, and one pair has none: drop the incomplete last batch")
    with torch.autocast(first.device.type, enabled=False):
        first, second = first.float(), second.float()
        alike = F.mse_loss(first, second)
        spread = (_narrowness(first) + _narrowness(second)) / 2
        redundant = _covariation(first) + _covariation(second)
        return 2 * (invariance * alike + variance * spread + covariance * redundant)


def _narrowness(z: Tensor) -> Tensor:
    """By how much the standard deviations fall short of 1, mean over dimensions."""
    return F.relu(1 - (z.var(dim=0) + VARIANCE_EPSILON).sqrt()).mean()


def _covariation(z: Tensor) -> Tensor:
    """Sum of the squared covariances of different dimensions, by their number d."""
    centred = z - z.mean(dim=0)
    covariances = centred.mT @ centred / (len(z) - 1)  # (D, D)
    return _off_diagonal_squares(covariances) / z.shape[1]


def barlow(first: Tensor, second: Tensor, redundancy: float = 0.005) -> Tensor:
    """Barlow Twins (Zbontar et al. 2021, equation 1): the cross-correlation of the two views becomes the identity.

    The sum of (1 - C_ii)^2 and `redundancy` times the sum of C_ij^2, i != j, for C of (x, x') and of (x', x), which
    is its transpose: twice the paper's loss. Dimensions are normalised along the batch.

    Args:
        first: (B, D) embeddings of x, of the whole batch.
        second: (B, D) embeddings of x'.
        redundancy: the paper's lambda.
    """
    with torch.autocast(first.device.type, enabled=False):
        correlation = _standardised(first.float()).mT @ _standardised(second.float()) / len(first)  # (D, D)
        differing = (1 - correlation.diagonal()).square().sum()
        return 2 * (differing + redundancy * _off_diagonal_squares(correlation))


def _standardised(z: Tensor) -> Tensor:
    """Mean 0 and variance 1 along the batch."""
    return (z - z.mean(dim=0)) / (z.var(dim=0, correction=0) + CORRELATION_EPSILON).sqrt()


def _off_diagonal_squares(matrix: Tensor) -> Tensor:
    return (matrix - matrix.diagonal().diag()).square().sum()


def gaussian(first: Tensor, second: Tensor) -> Tensor:
    """-log q(a_id = 0 | x, x') up to a constant, for q = exp(-|z - z'|^2), in both directions, averaged over pairs.

    The paper's appendix "Recovering non-contrastive SSL (BYOL)", with the same networks on both sides: nothing in it
    keeps all images from looking alike.

    Args:
        first: (B, D) projections z of x; normalised here, as BYOL does.
        second: (B, D) projections z' of x'.
    """
    with torch.autocast(first.device.type, enabled=False):
        first, second = F.normalize(first.float()), F.normalize(second.float())
        return 2 * (first - second).square().sum(dim=1).mean()


@torch.no_grad()
def partner_accuracy(first: Tensor, second: Tensor, own: slice = ALL) -> Tensor:
    """The share of the views (B, D), (B, D) whose partner is the most similar (cosine) of all others: 0 to 1.

    Of the pairs `own`, if they are not all.
    """
    return contrast_pairs(first, second, temperature=1.0, own=own).accuracy
