"""The paper's protocol: against the same steps written out in NumPy."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from stec.data import ResidentSplit
from stec.evaluation import protocol
from stec.evaluation.protocol import fit_sgd, rate_of


def split(rows=40, unlabelled=6, classes=3):
    generator = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.arange(rows) % classes, torch.full((unlabelled,), -1)])
    images = torch.randint(0, 90, (rows + unlabelled, 3, 2, 2), generator=generator, dtype=torch.uint8)
    images[:rows] += (60 * labels[:rows, None, None, None]).to(torch.uint8)
    return ResidentSplit(images, torch.full((len(images), 2), 2.0), labels)


def features(images, sizes):
    return images.flatten(1).float() / 255


def by_hand(x, labels, weight, bias, rate, epochs, warmup):
    """Sutskever's Nesterov momentum as PyTorch writes it: v = m v + g, step by g + m v."""
    target = np.eye(len(bias))[labels]
    v_weight, v_bias = np.zeros_like(weight), np.zeros_like(bias)
    for step in range(epochs):  # one batch each
        if step < warmup:
            factor = (step + 1) / warmup
        else:
            factor = (1 + math.cos(math.pi * (step - warmup) / (epochs - warmup))) / 2
        logits = x @ weight.T + bias
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        g_weight = (p - target).T @ x / len(x) + 5e-4 * weight
        g_bias = (p - target).mean(axis=0)
        v_weight, v_bias = 0.9 * v_weight + g_weight, 0.9 * v_bias + g_bias
        weight = weight - rate * factor * (g_weight + 0.9 * v_weight)
        bias = bias - rate * factor * (g_bias + 0.9 * v_bias)
    return weight, bias


def test_full_batches_equal_the_steps_by_hand():
    data = split()
    torch.manual_seed(3)
    classifier = nn.Linear(12, 3)
    start = classifier.weight.detach().double().numpy(), classifier.bias.detach().double().numpy()
    x = features(data.images[:40], None).double().numpy()
    fit_sgd(features, data, classifier, rate=6.4, epochs=60)
    weight, bias = by_hand(x, data.labels[:40].numpy(), *start, rate=6.4 * 40 / 256, epochs=60, warmup=10)
    np.testing.assert_allclose(classifier.weight.detach(), weight, atol=1e-4)
    np.testing.assert_allclose(classifier.bias.detach(), bias, atol=1e-4)
    assert np.abs(weight - start[0]).max() > 0.1


def test_batches_are_drawn_anew_and_incomplete_ones_are_dropped(monkeypatch):
    monkeypatch.setattr(protocol, "BATCH", 16)
    seen, told = [], []

    def watching(images, sizes):
        seen.append(images[:, 0, 0, 0].tolist())
        return features(images, sizes)

    fit_sgd(watching, split(), nn.Linear(12, 3), 0.1, epochs=3, watch=lambda *counts: told.append(counts))
    assert [len(rows) for rows in seen] == [16] * 6
    assert seen[0] + seen[1] != seen[2] + seen[3]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_step_takes_as_many_images_as_in_the_authors_command():
    seen = []

    def counting(images, sizes):
        seen.append(len(images))
        return features(images, sizes)

    fit_sgd(counting, split(rows=2100), nn.Linear(12, 3), 0.01, epochs=1)
    assert seen == [1024, 1024]


@pytest.mark.parametrize(
    ("method", "rate"),
    [("stec", 0.01), ("simclr", 0.01), ("stec*", 0.01), ("byol", 0.175), ("moco", 0.175), ("stec-moco", 0.175)],
)
def test_the_rate_is_the_papers(method, rate):
    assert rate_of(method) == rate
