"""Two dimensions, the same ones every time."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stec.analysis.projection import principal_components, project
from stec.errors import UserError


def test_principal_components_are_those_of_the_covariance():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 6, generator=generator) * torch.tensor([1.0, 5.0, 0.1, 3.0, 0.5, 0.2]) + 7
    points = principal_components(features).numpy()
    values, vectors = np.linalg.eigh(np.cov(features.numpy().T))
    expected = (features.numpy() - features.numpy().mean(axis=0)) @ vectors[:, [5, 4]]
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-3)
    np.testing.assert_allclose(points.var(axis=0, ddof=1), values[[5, 4]], rtol=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_weight_of_a_principal_component_is_positive(seed):
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed))
    for turned in (features, -features):
        weights = torch.linalg.lstsq(turned - turned.mean(dim=0), principal_components(turned)).solution  # (3, 2)
        assert (weights.gather(0, weights.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_one_dimension_has_one_principal_component():
    features = torch.randn(20, 1)
    assert torch.equal(principal_components(features)[:, 1], torch.zeros(20))
    torch.testing.assert_close(principal_components(features)[:, :1], features - features.mean())


def test_umap_draws_with_the_seed(monkeypatch):
    """The library itself takes twenty seconds to compile."""
    seeds = []

    class UMAP:
        def __init__(self, random_state, n_jobs):
            seeds.append(random_state)

        def fit_transform(self, features):
            return features[:, :2]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))
    assert project(torch.randn(30, 4), seed=7).method == "UMAP"
    assert seeds == [7]


def test_a_missing_umap_is_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UserError, match=r"stec\[analysis\]"):
        project(torch.randn(30, 4), seed=0)


def test_few_points_do_without_umap():
    assert project(torch.randn(9, 4), seed=0).method == "PCA"
