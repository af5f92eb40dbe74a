"""The equations for sound, as pure functions with logits in float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.functional import Contrast


class Prediction(NamedTuple):
    """CPC's loss for every prediction step, and how often the true frame had the highest score."""

    loss: Tensor  # (K,)
    accuracy: Tensor  # (K,), from 0 to 1


def info_nce(
    contexts: Tensor, matches: Tensor, utterances: Tensor, negatives: str = "same", pool: Tensor | None = None
) -> Prediction:
    """InfoNCE per prediction step (van den Oord et al. 2018, equation 4): which frame comes k steps after t?

    In the paper's terms this is the time-sensitive identity model. The score c_t^T W_k z of a candidate z is the inner
    product of the context at t with what W_k makes of z. The true frame is z_{t+k}.

    Args:
        contexts: (B, T - K, H) c_t.
        matches: (B, T, K, H) W_k z of every frame, for the steps 1 ... K.
        utterances: (B,) which utterance each window is from.
        negatives: `same`: all other frames of the window; `other`: those of the pool from other utterances; `both`.
        pool: (N,) numbers of frames, b T + t, among which negatives from other utterances are.
    """
    batch, length, steps, _ = matches.shape
    with torch.autocast(contexts.device.type, enabled=False):
        logits = _products(contexts, matches.flatten(1, 2)).unflatten(2, (length, steps))  # (B, T - K, candidates, K)
        times = torch.arange(contexts.shape[1], device=contexts.device)
        ahead = torch.arange(1, steps + 1, device=contexts.device)
        true = (times[:, None] + ahead)[:, None]  # (T - K, 1, K)
        if negatives != "same" and pool is not None:
            drawn = _products(contexts.flatten(0, 1)[None], matches.flatten(0, 1)[pool].flatten(0, 1)[None])
            drawn = drawn.view(batch, -1, len(pool), steps)
            own = utterances[pool // length] == utterances[:, None]  # (B, N)
            drawn = drawn.masked_fill(own[:, None, :, None], -torch.inf)
            if negatives == "other":
                logits, true = logits.gather(2, true.expand(batch, -1, -1, -1)), torch.zeros_like(true)
            logits = torch.cat([logits, drawn], dim=2)
        hit = torch.arange(logits.shape[2], device=contexts.device)[:, None] == true
        best, which = logits.detach().max(dim=2)  # faster on CPUs than argmax, and than what logsumexp does itself
        among = (logits - best[:, :, None]).exp().sum(dim=2).log() + best
        loss = among - logits.where(hit, 0).sum(dim=2)  # cross entropy, with no scattered gradient
        right = which == true[:, 0]
        return Prediction(loss.mean(dim=(0, 1)), right.float().mean(dim=(0, 1)))


def _products(contexts: Tensor, matches: Tensor) -> Tensor:
    """Inner products in float32 (B, N, M) of vectors (B, N, H) and (B, M, H), in the precision of the latter."""
    if matches.is_cuda and matches.dtype == torch.bfloat16:
        return _Products.apply(contexts.to(matches.dtype), matches)
    return contexts.float() @ matches.float().mT


class _Products(torch.autograd.Function):
    """Of bfloat16 vectors on a GPU, summed in float32: the product of two such numbers has no rounding error there."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return torch.bmm(first, second.mT, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        first, second = ctx.saved_tensors
        gradient = gradient.to(first.dtype)
        return gradient @ second, gradient.mT @ first


def contrast_utterances(first: Tensor, second: Tensor, utterances: Tensor, temperature: float) -> Contrast:
    """The time-insensitive identity model: is this a piece of the same utterance, whenever it was said?

    Every piece has to find its partner among the partners of all other utterances, both directions summed and averaged
    over pairs, as NT-Xent does for images. Further pieces of its own utterance are no candidates.

    Args:
        first: (B, D) embeddings of one piece each; normalised here.
        second: (B, D) embeddings of another piece of the same utterances.
        utterances: (B,) which ones.
        temperature: tau.
    """
    with torch.autocast(first.device.type, enabled=False):
        similarity = F.normalize(first.float(), dim=1) @ F.normalize(second.float(), dim=1).T / temperature
        pairs = torch.eye(len(first), dtype=torch.bool, device=first.device)
        same = (utterances[:, None] == utterances) & ~pairs
        logits = similarity.masked_fill(same, -torch.inf)
        partner = torch.arange(len(first), device=first.device)
        loss = F.cross_entropy(logits, partner) + F.cross_entropy(logits.T, partner)
        right = torch.cat([logits.argmax(dim=1) == partner, logits.argmax(dim=0) == partner])
        return Contrast(loss, right.float().mean().detach())
