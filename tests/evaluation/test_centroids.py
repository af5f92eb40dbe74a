"""Distances between centroids, against NumPy and by hand."""

import numpy as np
import pytest
import torch

from stec.evaluation.centroids import centroids


def test_distances_are_those_of_a_slow_loop():
    rng = np.random.default_rng(0)
    originals, views = rng.normal(size=(30, 5)), rng.normal(size=(60, 5))
    labels = rng.integers(-1, 3, size=30)
    found = centroids(*map(torch.from_numpy, (originals, views, labels)), classes=("a", "b", "c", "absent"))
    plain, shifts = [], []
    for label in range(3):
        rows = [i for i in range(30) if labels[i] == label]
        plain.append(np.mean([originals[i] for i in rows], axis=0))
        acted = np.mean([views[i] for i in rows] + [views[30 + i] for i in rows], axis=0)
        shifts.append(np.linalg.norm(acted - plain[-1]))
    assert found.shift == pytest.approx(dict(zip("abc", shifts, strict=True)))
    assert found.mean_shift == pytest.approx(np.mean(shifts))
    assert found.between == pytest.approx(
        np.mean([np.linalg.norm(plain[i] - plain[j]) for i, j in ((0, 1), (0, 2), (1, 2))])
    )
    assert found.scale == pytest.approx(np.sqrt(originals.var(axis=0).sum()))


def test_without_labels_all_images_are_one_class():
    originals = torch.zeros(4, 2)
    views = torch.tensor([[3.0, 4.0]]).repeat(8, 1)
    found = centroids(originals, views, torch.full((4,), -1), ())
    assert found.shift == {"all": 5.0}
    assert found.mean_shift == 5.0
    assert found.between is None
