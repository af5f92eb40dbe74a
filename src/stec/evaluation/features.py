"""Frozen features of a whole split, from unaugmented images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stec.data import Split
from stec.views import Views

BATCH = 1000


@torch.no_grad()
def extract(network: Callable[[Tensor], Tensor], views: Views, split: Split) -> tuple[Tensor, Tensor]:
    """Runs every labelled image of the split through `network`.

    Returns:
        Features (N, D) float32 on the device, and labels (N,).
    """
    labelled = (split.labels >= 0).nonzero().squeeze(1)
    features, labels = [], []
    for batch in split.batches(labelled, BATCH, drop_last=False):
        features.append(network(views.plain(batch.images, batch.sizes)).float())
        labels.append(batch.labels)
    return torch.cat(features), torch.cat(labels)


@torch.no_grad()
def extract_frozen(encoder: nn.Module, views: Views, split: Split) -> tuple[Tensor, Tensor]:
    """`extract` with the encoder in evaluation mode, which is left afterwards as it was."""
    training = encoder.training
    encoder.eval()
    try:
        # .forward and not a call: evaluation has its own batch size, for which a compiled encoder would compile anew.
        return extract(lambda x: encoder.forward(x.contiguous(memory_format=torch.channels_last)), views, split)
    finally:
        encoder.train(training)
