"""The equations, as pure functions: no state, no processes, logits in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pair_logits(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Similarities of all 2B views to each other, and where each one's partner is.

    Args:
        first: (B, D) projections of x; normalised here.
        second: (B, D) projections of x'.
        temperature: tau.

    Returns:
        Logits (2B, 2B), minus infinity for a view with itself, and the index of every view's partner (2B,).
    """
    with torch.autocast(first.device.type, enabled=False):  # it would compute the similarities in bfloat16
        z = F.normalize(torch.cat([first, second]).float(), dim=1)  # (2B, D)
        logits = z @ z.mT / temperature
    logits = logits.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), float("-inf"))
    partners = torch.arange(len(z), device=z.device).roll(len(first))
    return logits, partners


def nt_xent(first: Tensor, second: Tensor, temperature: float = 0.5) -> Tensor:
    """SimCLR's loss, l(i, j) + l(j, i), averaged over pairs (Chen et al. 2020, equation 1).

    In the paper's terms: the identity inverse model's -log q(a_id = 0 | x, x') in both directions, where q compares
    the partner with all other views of the batch. It is twice the mean over views that other libraries report.
    """
    logits, partners = pair_logits(first, second, temperature)
    return 2 * F.cross_entropy(logits, partners)


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
