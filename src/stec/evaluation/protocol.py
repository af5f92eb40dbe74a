"""The paper's linear evaluation on STL-10: a classifier trained by SGD on frozen features of augmented images."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stec.data import Split
from stec.optim import scaled_rate, warmup_cosine

EPOCHS, WARMUP = 2000, 10
RATE, RATE_BYOL_MOCO = 0.01, 0.175  # per 256 images
MOMENTUM, DECAY = 0.9, 5e-4
BATCH = 1024  # the paper does not say; the authors' command does


def rate_of(method: str) -> float:
    """The learning rate per 256 images that the paper used for a method."""
    return RATE_BYOL_MOCO if method.removeprefix("stec-") in ("byol", "moco") else RATE


def fit_sgd(
    features: Callable[[Tensor, Tensor], Tensor],
    split: Split,
    classifier: nn.Linear,
    rate: float,
    epochs: int = EPOCHS,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Trains a linear classifier on what `features` makes of the labelled images of a split, afresh in every epoch.

    Nesterov momentum, linear warm-up, then half a cosine; weight decay on the weights but not on the biases. Incomplete
    last batches are dropped. Order and augmentation are drawn from PyTorch's own generator.

    Args:
        features: From images (B, 3, S, S) and their true sizes (B, 2) to (B, D): augments, then encodes.
        split: To train on.
        classifier: From D to the classes, on the device of the split.
        rate: Learning rate per 256 images.
        epochs: Of the split's labelled images.
        watch: Is told how many epochs are done, and of how many.
    """
    labelled = (split.labels >= 0).nonzero().squeeze(1)
    batch_size = min(BATCH, len(labelled))
    steps_per_epoch = len(labelled) // batch_size
    steps, warmup = epochs * steps_per_epoch, min(WARMUP, epochs) * steps_per_epoch
    base = scaled_rate(rate, batch_size)
    groups = [
        {"params": [classifier.weight], "weight_decay": DECAY},
        {"params": [classifier.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=base, momentum=MOMENTUM, nesterov=True)
    step = 0
    for epoch in range(epochs):
        for batch in split.batches(labelled[torch.randperm(len(labelled))], batch_size):
            with torch.no_grad():
                x = features(batch.images, batch.sizes)
            for group in optimizer.param_groups:
                group["lr"] = base * warmup_cosine(step, steps, warmup)
            loss = F.cross_entropy(classifier(x), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        watch(epoch + 1, epochs)
