"""The equations for sound, as pure functions with logits in float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.functional import Contrast

NEGATIVES = ("same", "other", "both")


class Prediction(NamedTuple):
    """CPC's loss for every prediction step, and how often the true frame had the highest score."""

    loss: Tensor  # (K,)
    accuracy: Tensor  # (K,), from 0 to 1


def info_nce(
    predictions: Tensor, frames: Tensor, utterances: Tensor, negatives: str = "same", pool: Tensor | None = None
) -> Prediction:
    """InfoNCE per prediction step (van den Oord et al. 2018, equation 4): which frame comes k steps after t?

    In the paper's terms this is the time-sensitive identity model. The score of a candidate z is the inner product of
    z with what was predicted from the context at t, over the square root of the dimension. The true frame is z_{t+k}.

    Args:
        predictions: (B, T - K, K, D): for the frames 1 ... K steps after t.
        frames: (B, T, D)
        utterances: (B,) which utterance each window is from.
        negatives: `same`: all other frames of the window; `other`: those of the pool from other utterances; `both`.
        pool: (N,) numbers of frames, b T + t, among which negatives from other utterances are.
    """
    batch, length, steps, dim = predictions.shape
    with torch.autocast(frames.device.type, enabled=False):
        if negatives == "same":
            pool = None
        candidates = frames
        if pool is not None:
            candidates = torch.cat([frames, frames.flatten(0, 1)[pool].expand(batch, -1, -1)], dim=1)
        scores = _products(candidates, predictions.flatten(1, 2)) / dim**0.5
        logits = scores.unflatten(2, (length, steps))  # (B, candidates, T - K, K)
        times = torch.arange(length, device=frames.device)
        ahead = torch.arange(1, steps + 1, device=frames.device)
        true = times[:, None] + ahead  # (T - K, K)
        if pool is not None:
            own = utterances[pool // frames.shape[1]] == utterances[:, None]  # (B, N)
            window, drawn = logits.split([frames.shape[1], len(pool)], dim=1)
            drawn = drawn.masked_fill(own[:, :, None, None], -torch.inf)
            if negatives == "other":
                window, true = window.gather(1, true.expand(batch, 1, -1, -1)), torch.zeros_like(true)
            logits = torch.cat([window, drawn], dim=1)
        hit = torch.arange(logits.shape[1], device=frames.device)[:, None, None] == true
        loss = logits.logsumexp(dim=1) - logits.where(hit, 0).sum(dim=1)  # cross entropy, with no scattered gradient
        right = logits.max(dim=1).indices == true  # as argmax, which is slow on CPUs
        return Prediction(loss.mean(dim=(0, 1)), right.float().mean(dim=(0, 1)))


def _products(frames: Tensor, predictions: Tensor) -> Tensor:
    """Inner products in float32 (B, N, M) of vectors (B, N, D) and (B, M, D), in the precision of the predictions."""
    if predictions.is_cuda and predictions.dtype == torch.bfloat16:
        return _Products.apply(frames.to(predictions.dtype), predictions)
    return frames.float() @ predictions.float().mT


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
