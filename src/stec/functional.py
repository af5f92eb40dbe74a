"""The equations, as pure functions: no state, no processes, logits in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK_ENTRIES = 2**26  # similarities held at once, 256 MiB: those of 8,192 views; beyond, a block of rows at a time
ALL = slice(None)


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


def contrast_pairs(
    first: Tensor, second: Tensor, temperature: float, block: int | None = None, own: slice = ALL
) -> Contrast:
    """`nt_xent` and its accuracy.

    Args:
        first: (B, D)
        second: (B, D)
        temperature: tau.
        block: how many rows of the (2B, 2B) similarities are held at once; the rest is computed again in the backward
            pass, so that memory grows with B and not with its square. Chosen by size if left out.
        own: the b pairs to average over, by 2b rows of the similarities; the others are candidates alone.
    """
    with torch.autocast(first.device.type, enabled=False):  # it would compute the similarities in bfloat16
        candidates = _directions(first, second)  # (2B, D)
        z = _own(candidates, own)  # (2b, D)
        return _contrast(z, candidates, z, temperature, 0.0, block, own)


def contrast_small(
    small: Tensor, first: Tensor, second: Tensor, temperature: float, block: int | None = None, own: slice = ALL
) -> Tensor:
    """The loss of small views s, l(s, x') + l(s, x), averaged over images.

    s takes the place of x, and picks x' out of the large views of all images but x; then that of x'.

    Args:
        small: (b, D) projections of s, of the images `own`.
        first: as the rest, see `contrast_pairs`.
    """
    with torch.autocast(first.device.type, enabled=False):
        z, candidates = _directions(small, small), _directions(first, second)  # (2b, D), (2B, D)
        return _contrast(z, candidates, z, temperature, 0.0, block, own).loss


def relic(
    first: Tensor,
    second: Tensor,
    first_target: Tensor,
    second_target: Tensor,
    temperature: float = 0.5,
    alpha: float = 1.0,
    block: int | None = None,
    own: slice = ALL,
) -> Contrast:
    """ReLIC's loss (Mitrovic et al. 2021), both directions summed, averaged over pairs, and its accuracy.

    For a view x with partner x', all vectors normalised, z of the online and t of the target network:

        p(x_n | x) = exp(z(x) t(x_n) / tau) / sum over x_m of exp(z(x) t(x_m) / tau)
        loss(x)    = -log p(x' | x) + alpha KL(stopgrad p( . | x') ; p( . | x))

    The candidates x_n are the target's views of all images but x itself: the partner and the 2B - 2 views of other
    images. Those of x' are the same, with x in the place of x' (the paper's {x'} + C and {x} + C_pre), and that is how
    the two distributions are laid side by side. Without alpha and with t = z this is `nt_xent`.

    Args:
        first: (b, D) projections of x, of the pairs `own`.
        second: (b, D) projections of x'.
        first_target: (B, D) what the target network makes of x. The targets get no gradient.
        second_target: (B, D) what it makes of x'.
        temperature: tau.
        alpha: weight of the invariance term.
        block: see `contrast_pairs`.
        own: which b of the B pairs to average over.
    """
    with torch.autocast(first.device.type, enabled=False):
        z, targets = _directions(first, second), _directions(first_target, second_target).detach()  # (2b, D), (2B, D)
        return _contrast(z, targets, z, temperature, alpha, block, own)


def relic_small(
    small: Tensor,
    first: Tensor,
    second: Tensor,
    first_target: Tensor,
    second_target: Tensor,
    temperature: float = 0.5,
    alpha: float = 1.0,
    block: int | None = None,
    own: slice = ALL,
) -> Tensor:
    """The loss of small views s, which take the place of x, then of x', in `relic`, averaged over images.

        loss(s) = -log p(x' | s) + alpha KL(stopgrad p( . | x') ; p( . | s)), and the same with x in the place of x'

    Args:
        small: (b, D) projections of s.
        first: as the rest, see `relic`.
    """
    with torch.autocast(first.device.type, enabled=False):
        z, targets = _directions(first, second), _directions(first_target, second_target).detach()  # (2b, D), (2B, D)
        return _contrast(_directions(small, small), targets, z, temperature, alpha, block, own).loss


def _directions(first: Tensor, second: Tensor) -> Tensor:
    """Both views one below the other, in float32, with length 1. (B, D), (B, D) -> (2B, D)"""
    return F.normalize(torch.cat([first, second]).float(), dim=1)


def _own(views: Tensor, own: slice) -> Tensor:
    """Both views of these pairs, out of those of all. (2B, ...) -> (2b, ...)"""
    return views.unflatten(0, (2, -1))[:, own].flatten(0, 1)


def _contrast(
    z: Tensor, candidates: Tensor, partners: Tensor, temperature: float, alpha: float, block: int | None, own: slice
) -> Contrast:
    """Every view (2b, D) of the pairs `own` picks its partner out of the candidates (2B, D), all but that in its place.

    With alpha, it should do so as its partner does, one of the other half of `partners` (2b, D).
    """
    places = _own(torch.arange(len(candidates), device=z.device), own)  # (2b,)
    theirs = partners.detach().roll(len(z) // 2, dims=0) if alpha else z
    loss, accuracy = _by_rows(_contrast_rows, (z, theirs, places), block, candidates, temperature, alpha)
    return Contrast(2 * loss, accuracy)


def _by_rows(
    function: Callable[..., Any], rows: tuple[Tensor, ...], block: int | None, candidates: Tensor, *settings: float
) -> Contrast:
    """A function's sums over rows, a block of them at a time, by the number of all.

    Unless one block has all, what the gradient needs is computed again in the backward pass instead of being kept.
    """
    length = len(rows[0])
    block = block or max(1, BLOCK_ENTRIES // len(candidates))
    again = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
    loss, hits = candidates.new_zeros(()), candidates.new_zeros(())
    for some in zip(*(each.split(block) for each in rows), strict=True):
        part = (function if block >= length else again)(*some, candidates, *settings)
        loss, hits = loss + part[0], hits + part[1]
    return Contrast(loss / length, hits / length)


def _contrast_rows(
    z: Tensor, partners: Tensor, places: Tensor, candidates: Tensor, temperature: float, alpha: float
) -> tuple[Tensor, Tensor]:
    """Sum of the losses of some views, with their places among the candidates, and how many find their partner."""
    partner = (places + len(candidates) // 2) % len(candidates)
    logits = z @ candidates.mT / temperature  # (rows, 2B)
    logits = logits.scatter(1, places[:, None], float("-inf"))  # a view is not a candidate for itself
    hits = (logits.detach().argmax(dim=1) == partner).sum()
    loss = F.cross_entropy(logits, partner, reduction="sum")
    if alpha:
        theirs = (partners @ candidates.mT / temperature).detach()  # (rows, 2B)
        loss = loss + alpha * _divergence(logits, theirs, places[:, None], partner[:, None])
    return loss, hits


def _divergence(logits: Tensor, theirs: Tensor, own: Tensor, partner: Tensor) -> Tensor:
    """Sum over rows of KL(p( . | partner) ; p( . | view)), the partner's candidates in the view's order."""
    theirs = theirs.scatter(1, partner, theirs.gather(1, own))  # the view stands where its partner does
    theirs = theirs.scatter(1, own, float("-inf")).log_softmax(dim=1)
    difference = (theirs - logits.log_softmax(dim=1)).scatter(1, own, 0.0)  # there, both have probability 0
    return (theirs.exp() * difference).sum()


def info_nce(
    queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float = 0.5, block: int | None = None
) -> Contrast:
    """MoCo's loss for one direction (He et al. 2020, equation 1), averaged over queries, and its accuracy.

        -log( exp(q k / tau) / (exp(q k / tau) + sum over negatives n of exp(q n / tau)) )

    Args:
        queries: (B, D); all vectors are normalised here.
        keys: (B, D) the partner of each query. Keys and negatives get no gradient.
        negatives: (N, D) shared by all queries.
        temperature: tau.
        block: how many rows of the (B, N) similarities are held at once, as in `contrast_pairs`.
    """
    with torch.autocast(queries.device.type, enabled=False):
        q, k, n = (F.normalize(x.float(), dim=1) for x in (queries, keys.detach(), negatives.detach()))
        return _by_rows(_query_rows, (q, k), block, n, temperature)


def _query_rows(queries: Tensor, keys: Tensor, negatives: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sum of the losses of some queries, and how many of them are nearer to their key than to any negative."""
    positive = (queries * keys).sum(dim=1) / temperature  # (B,)
    others = queries @ negatives.mT / temperature  # (B, N)
    hits = (positive > others.amax(dim=1)).sum()
    return F.softplus(others.logsumexp(dim=1) - positive).sum(), hits


def byol(first: Tensor, second: Tensor, first_target: Tensor, second_target: Tensor) -> Tensor:
    """BYOL's loss (Grill et al. 2020, equation 2): 2 - 2 cos(prediction, target), both directions, averaged over pairs.

    It is the squared distance of the normalised vectors, so in the paper's terms -log q(a_id = 0 | x, x') of a normal
    distribution (appendix "Recovering non-contrastive SSL").

    Args:
        first: (B, D) what is predicted from x, to be like the target of x'.
        second: (B, D) what is predicted from x'.
        first_target: (B, D) what the target network makes of x. The targets get no gradient.
        second_target: (B, D) what it makes of x'.
    """
    with torch.autocast(first.device.type, enabled=False):
        predictions, targets = _directions(first, second), _directions(second_target, first_target).detach()
        return 2 * (2 - 2 * (predictions * targets).sum(dim=1)).mean()


@torch.no_grad()
def target_accuracy(
    first: Tensor, second: Tensor, first_target: Tensor, second_target: Tensor, own: slice = ALL
) -> Tensor:
    """The share of views whose partner's target is the most similar of all targets but their own: 0 to 1.

    Args:
        first: (b, D) projections or predictions of x.
        second: (b, D) those of x'.
        first_target: (B, D) targets of x, as the rest, see `relic`.
    """
    return relic(first, second, first_target, second_target, alpha=0.0, own=own).accuracy


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of the values (B, ...) over B where the mask (B, ...) holds; 0 if it holds nowhere."""
    if mask is None:
        return values.mean(dim=0)
    return (values * mask).sum(dim=0) / mask.sum(dim=0).clamp(min=1)


Mean = Callable[[Tensor, Tensor | None], Tensor]


def component_mean(values: Tensor, valid: Tensor | None = None, mean: Mean = masked_mean) -> Tensor:
    """The mean of the values (B, C) over components and valid pairs.

    Args:
        values: (B, C)
        valid: bool, pairs that count, (B,) for all components alike or (B, C) for each its own; all if left out. Every
            component has the same weight; one without a valid pair gives 0.
        mean: how to average over pairs; `stec.processes.mean` takes those of all processes.
    """
    if valid is not None and valid.dim() == 2:
        return mean(values, valid).mean()
    return mean(values.mean(dim=1), valid)


def manipulation_cross_entropy(
    logits: Tensor, codes: Tensor, valid: Tensor | None = None, mean: Mean = masked_mean
) -> Tensor:
    """-log q(a_manip | x, x'), mean over the action's components and over the valid pairs.

    Args:
        logits: (B, C, K)
        codes: (B, C) which of the K bins each component fell into.
        valid: see `component_mean`.
        mean: see there, too.
    """
    return component_mean(F.cross_entropy(logits.float().mT, codes, reduction="none"), valid, mean)


def manipulation_regression(
    predicted: Tensor, action: Tensor, valid: Tensor | None = None, mean: Mean = masked_mean
) -> Tensor:
    """Squared error, mean over the action's components (B, C) and over the valid pairs."""
    return component_mean((predicted.float() - action).square(), valid, mean)
