import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightly.utils.benchmarking.knn import knn_predict
from sklearn.neighbors import KNeighborsClassifier

from stec.errors import UserError
from stec.evaluation import knn, knn_accuracy


def data(rows=300, dim=6, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    features = torch.randn(classes, dim, generator=generator)[labels] + 1.5 * torch.randn(
        rows, dim, generator=generator
    )
    cut = 2 * rows // 3
    return features[:cut], labels[:cut], features[cut:], labels[cut:]


def slow_knn(train, labels, test, test_labels, classes, k, temperature):
    correct = 0
    for row, label in zip(test.double(), test_labels.tolist(), strict=True):
        similar = [
            (float(row @ other / (row.norm() * other.norm())), int(vote))
            for other, vote in zip(train.double(), labels, strict=True)
        ]
        votes = [0.0] * classes
        for similarity, vote in sorted(similar, reverse=True)[:k]:
            votes[vote] += math.exp(similarity / temperature)
        correct += votes.index(max(votes)) == label
    return 100 * correct / len(test)


def test_200_vote_at_a_temperature_of_a_tenth_unless_told_otherwise():
    sample = data(rows=1500)
    usual = knn_accuracy(*sample, classes=4)
    assert usual == knn_accuracy(*sample, classes=4, k=200, temperature=0.1)
    assert usual != knn_accuracy(*sample, classes=4, k=100, temperature=0.1)
    assert usual != knn_accuracy(*sample, classes=4, k=200, temperature=0.2)


@pytest.mark.parametrize("k", [1, 7, 200, 10_000])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_against_a_slow_loop(k, temperature):
    found = knn_accuracy(*data(), classes=4, k=k, temperature=temperature)
    assert found == pytest.approx(slow_knn(*data(), 4, k, temperature))
    assert 30 < found < 90


@pytest.mark.parametrize("k", [5, 200])
def test_against_lightly(k):
    train, labels, test, test_labels = data(rows=900)
    predicted = knn_predict(F.normalize(test), F.normalize(train).T, labels, 4, knn_k=k, knn_t=0.1)[:, 0]
    expected = 100 * (predicted == test_labels).double().mean().item()
    assert knn_accuracy(train, labels, test, test_labels, 4, k=k) == pytest.approx(expected)


@pytest.mark.parametrize("k", [1, 20, 200])
def test_against_scikit_learn(k):
    """Whose cosine distance is 1 - similarity; votes are weighted as ours, or alike with a high temperature."""
    train, labels, test, test_labels = data(rows=900)

    def expected(weights):
        judge = KNeighborsClassifier(n_neighbors=k, metric="cosine", weights=weights).fit(train.double(), labels)
        return 100 * judge.score(test.double(), test_labels)

    weighted = knn_accuracy(train, labels, test, test_labels, 4, k=k, temperature=0.1)
    assert weighted == pytest.approx(expected(lambda distance: np.exp((1 - distance) / 0.1)))
    if k > 1:
        alike = knn_accuracy(train, labels, test, test_labels, 4, k=k, temperature=1e6)
        assert alike == pytest.approx(expected("uniform"), abs=0.5)  # ties are broken otherwise


def test_blocks_do_not_change_the_result(monkeypatch):
    whole = knn_accuracy(*data(), classes=4)
    for elements in (1, 7 * 800):
        monkeypatch.setattr(knn, "_ELEMENTS", elements)
        assert knn_accuracy(*data(), classes=4) == whole


def test_a_low_temperature_does_not_overflow():
    assert knn_accuracy(*data(), classes=4, temperature=1e-3) == knn_accuracy(*data(), classes=4, k=1)


def test_rows_without_a_label_are_left_out():
    train, labels, test, test_labels = data()
    none = torch.full((100,), -1)
    found = knn_accuracy(
        torch.cat([test, train]),
        torch.cat([none, labels]),
        torch.cat([test, test]),
        torch.cat([none, test_labels]),
        4,
    )
    assert found == knn_accuracy(train, labels, test, test_labels, 4)


def test_labels_out_of_range_are_the_users_error():
    train, labels, test, test_labels = data()
    with pytest.raises(UserError, match="test labels go from 100 to 103, expected 0 to 3"):
        knn_accuracy(train, labels, test, test_labels + 100, 4)
