"""The equations for sound, as pure functions with logits in float32."""

from __future__ import annotations

from typing import NamedTuple

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
        predictions, frames = predictions.float() / dim**0.5, frames.float()
        scores = torch.einsum("btkd,bud->bktu", predictions, frames)  # (B, K, T - K, T): against the window's own
        times = torch.arange(length, device=frames.device)
        ahead = torch.arange(1, steps + 1, device=frames.device)
        true = (times + ahead[:, None]).expand(batch, steps, length)  # (B, K, T - K)
        candidates = [scores]
        if negatives == "other":
            candidates, true = [scores.gather(3, true[..., None])], torch.zeros_like(true)
        if negatives != "same":
            assert pool is not None
            drawn = frames.flatten(0, 1)[pool]  # (N, D)
            own = utterances[pool // frames.shape[1]] == utterances[:, None]  # (B, N)
            elsewhere = torch.einsum("btkd,nd->bktn", predictions, drawn)
            candidates.append(elsewhere.masked_fill(own[:, None, None], -torch.inf))
        logits = torch.cat(candidates, dim=3)
        loss = F.cross_entropy(logits.flatten(0, 2), true.flatten(), reduction="none").view_as(true)
        right = logits.argmax(dim=3) == true
        return Prediction(loss.mean(dim=(0, 2)), right.float().mean(dim=(0, 2)))


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
