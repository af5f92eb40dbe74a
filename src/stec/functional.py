"""The equations, as pure functions: no state, no processes, logits in float32."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

PLAIN_VIEWS = 8192  # up to so many views all similarities are held at once; beyond, a block of rows at a time
BLOCK_ENTRIES = 2**26  # similarities held at once then: 256 MiB


class Contrast(NamedTuple):
    """A contrastive loss, and how often the partner is the most similar of all candidates."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1


def nt_xent(first: Tensor, second: Tensor, temperature: float = 0.5, block: int | None = None) -> Tensor:
    """SimCLR's loss, l(i, j) + l(j, i), averaged over pairs (Chen et al. 2020, equation 1).

    In the paper's terms: the identity inverse model's -log q(a_id = 0 | x, x') in both directions, where q compares
    the partner with all other views of the batch. It is twice the mean over views that other libraries report.

    Args:
        first: (B, D) projections of x; normalised here.
        second: (B, D) projections of x'.
        temperature: tau.
        block: see `contrast_pairs`.
    """
    return contrast_pairs(first, second, temperature, block).loss


def contrast_pairs(first: Tensor, second: Tensor, temperature: float, block: int | None = None) -> Contrast:
    """`nt_xent` and its accuracy.

    Args:
        first: (B, D)
        second: (B, D)
        temperature: tau.
        block: how many rows of the (2B, 2B) similarities are held at once; the rest is computed again in the backward
            pass, so that memory grows with B and not with its square. Chosen by size if left out.
    """
    with torch.autocast(first.device.type, enabled=False):  # it would compute the similarities in bfloat16
        z = F.normalize(torch.cat([first, second]).float(), dim=1)  # (2B, D)
        views = len(z)
        if block is None:
            block = views if views <= PLAIN_VIEWS else max(1, BLOCK_ENTRIES // views)
        loss, hits = z.new_zeros(()), z.new_zeros(())
        for start in range(0, views, block):
            rows = (z, start, min(start + block, views), temperature)
            part = _contrast_rows(*rows) if block >= views else checkpoint(_contrast_rows, *rows, use_reentrant=False)
            loss, hits = loss + part[0], hits + part[1]
    return Contrast(2 * loss / views, hits / views)


def _contrast_rows(z: Tensor, start: int, stop: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Sum of -log q over the views from `start` to `stop`, and how many of them find their partner."""
    row = torch.arange(start, stop, device=z.device)
    partner = (row + len(z) // 2) % len(z)
    logits = z[start:stop] @ z.mT / temperature  # (rows, 2B)
    logits = logits.scatter(1, row[:, None], float("-inf"))  # a view is not a candidate for itself
    hits = (logits.detach().argmax(dim=1) == partner).sum()
    return F.cross_entropy(logits, partner, reduction="sum"), hits


def manipulation_cross_entropy(logits: Tensor, codes: Tensor, valid: Tensor | None = None) -> Tensor:
    """-log q(a_manip | x, x'), mean over the action's components, then over the valid pairs.

    Args:
        logits: (B, C, K)
        codes: (B, C) which of the K bins each component fell into.
        valid: (B,) bool, pairs that count; all if left out. None valid gives 0.
    """
    per_pair = F.cross_entropy(logits.float().mT, codes, reduction="none").mean(dim=1)  # (B,)
    return masked_mean(per_pair, valid)


def manipulation_regression(predicted: Tensor, action: Tensor, valid: Tensor | None = None) -> Tensor:
    """Squared error, mean over the action's components (B, C), then over the valid pairs."""
    per_pair = (predicted.float() - action).square().mean(dim=1)
    return masked_mean(per_pair, valid)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of the values (B,) where mask (B,) holds; 0 if it holds nowhere."""
    if mask is None:
        return values.mean()
    return (values * mask).sum() / mask.sum().clamp(min=1)
