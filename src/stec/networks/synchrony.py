"""Batch norms that normalise by the batch of all processes."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def synchronise_batch_norms(model: nn.Module, apart: Iterable[nn.Module] = ()) -> None:
    """Makes every batch norm inside of the model a synchronised one, but for those inside of `apart`.

    Parameters and running statistics stay the same objects: optimizers and moving averages still hold them.
    """
    excluded = set(apart)
    for name, child in model.named_children():
        if child in excluded:
            continue
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            setattr(model, name, nn.SyncBatchNorm.convert_sync_batchnorm(child))
        else:
            synchronise_batch_norms(child, excluded)
