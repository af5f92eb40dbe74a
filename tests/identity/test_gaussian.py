"""The identity model that is a normal distribution, against the paper's formula."""

import math

import pytest
import torch
from comparison import assert_equal, assert_exact_under_autocast, partners_found, related_views
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import (
    Model,
    views_of,
)
from torch import Tensor, nn

from stec.noncontrastive import gaussian


def loop(first: Tensor, second: Tensor) -> Tensor:
    """-log q(a_id = 0 | x, x') with q = exp(-|z - z'|^2), one direction and one pair at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for a, b in zip(first, second, strict=True):
        z, other = a / a.norm(), b / b.norm()
        total = total - torch.log(torch.exp(-((z - other) ** 2).sum()))  # x -> x'
        total = total - torch.log(torch.exp(-((other - z) ** 2).sum()))  # x' -> x
    return total / len(first)


@given(pairs=st.integers(1, 12), dim=st.integers(2, 24), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_the_loss_equals_the_loop(pairs: int, dim: int, seed: int) -> None:
    views = related_views(pairs, dim, seed)
    # Where all pairs point the same way, nothing is left of the gradient but how directions round, over the length.
    shortest = min(float(view.norm(dim=1).min()) for view in views)
    assert_equal(gaussian, loop, views, rounding=1e-6 / shortest)


def test_by_hand() -> None:
    """Directions 60 degrees apart are at distance 1."""
    first, second = torch.tensor([[5.0, 0.0]]), torch.tensor([[1.0, math.sqrt(3)]])
    assert float(gaussian(first, second)) == pytest.approx(2)


def test_alike_images_are_its_minimum() -> None:
    assert float(gaussian(torch.ones(4, 3), torch.ones(4, 3))) == 0


def test_autocast_does_not_touch_it() -> None:
    assert_exact_under_autocast(gaussian, related_views(8, 5, 0))


def test_the_model_compares_projections_that_nothing_spreads() -> None:
    model = Model("gaussian")
    views = torch.cat(views_of(0))
    loss, accuracy = model(views)
    z = model.identity.projector(model.encoder(views))
    torch.testing.assert_close(loss.double(), loop(*z.detach().double().chunk(2)), rtol=1e-5, atol=1e-5)
    assert float(accuracy) == pytest.approx(partners_found(z))
    assert isinstance(model.identity.projector[-1], nn.Linear)
