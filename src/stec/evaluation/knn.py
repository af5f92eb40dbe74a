"""Evaluation by weighted nearest neighbours, without any training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.evaluation.linear import labelled_rows

_ELEMENTS = 2**25  # of the largest intermediate tensor: 128 MiB in float32


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    classes: int,
    k: int = 200,
    temperature: float = 0.1,
) -> float:
    """Accuracy in percent of the weighted k-nearest-neighbour classifier of https://arxiv.org/abs/1805.01978.

    The k training rows with the highest cosine similarity s to a test row vote for their classes, with
    weights exp(s / temperature).

    Args:
        train_features: (N, D), on any device, which then does all the work.
        train_labels: (N,) integers; rows with label -1 have none and are left out.
        test_features: (M, D).
        test_labels: (M,), likewise.
        classes: Number of classes.
        k: Neighbours; all of the training rows if there are fewer.
        temperature: Lower gives the nearest of the k more weight.
    """
    with torch.no_grad(), torch.autocast(train_features.device.type, enabled=False):
        train, labels = labelled_rows(train_features, train_labels, classes, "training")
        test, test_labels = labelled_rows(test_features.to(train), test_labels, classes, "test")
        train = F.normalize(train)
        k = min(k, len(train))
        rows = max(1, _ELEMENTS // max(len(train), k * classes))
        predicted = torch.cat(
            [_vote(block, train, labels, classes, k, temperature) for block in F.normalize(test).split(rows)]
        )
        return 100 * (predicted == test_labels).double().mean().item()


def _vote(test: Tensor, train: Tensor, labels: Tensor, classes: int, k: int, temperature: float) -> Tensor:
    """Classes (rows,) of one block of normalised test features (rows, D)."""
    similarity, neighbours = (test @ train.T).topk(k, dim=1)  # (rows, k)
    # The highest weight is taken as 1, which changes no vote and keeps exp from overflowing.
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    ballots = F.one_hot(labels[neighbours], classes).to(weights)  # (rows, k, classes)
    # A product and not scatter_add, whose order of summation changes from run to run on a GPU.
    return (weights.unsqueeze(1) @ ballots).squeeze(1).argmax(1)
