"""Frozen features of a whole split, from images as they are or from views of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stec.data import Split
from stec.views import Views

BATCH, BATCH_OF_VIEWS = 1000, 250  # images at once; drawing a view takes several times the memory


@torch.no_grad()
def extract(
    network: Callable[[Tensor], Tensor], views: Views, split: Split, act: bool = False
) -> tuple[Tensor, Tensor]:
    """Runs every labelled image of the split through `network`; with `act`, a random view of it.

    Returns:
        Features (N, D) float32 on the device, and labels (N,).
    """
    labelled = (split.labels >= 0).nonzero().squeeze(1)
    features, labels = [], []
    for batch in split.batches(labelled, BATCH_OF_VIEWS if act else BATCH, drop_last=False):
        images, sizes = batch.images, batch.sizes
        seen = views.render(images, views.sample(sizes)) if act else views.plain(images, sizes)
        features.append(network(seen).float())
        labels.append(batch.labels)
    return torch.cat(features), torch.cat(labels)


@torch.no_grad()
def extract_frozen(encoder: nn.Module, views: Views, split: Split, act: bool = False) -> tuple[Tensor, Tensor]:
    """`extract` with the encoder in evaluation mode, which is left afterwards as it was."""
    training = encoder.training
    encoder.eval()
    try:
        # .forward and not a call: evaluation has its own batch size, for which a compiled encoder would compile anew.
        return extract(lambda x: encoder.forward(x.contiguous(memory_format=torch.channels_last)), views, split, act)
    finally:
        encoder.train(training)
