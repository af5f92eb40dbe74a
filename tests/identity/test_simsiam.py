"""SimSiam against lightly, and in two processes against one."""

import pytest
import torch
from comparison import assert_equal, assert_exact_under_autocast, partners_found, related_views
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NegativeCosineSimilarity
from processes import (
    Model,
    views_of,
)
from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.identity import SimSiam
from stec.noncontrastive import simsiam

SIZES = {"pairs": st.integers(1, 12), "dim": st.integers(2, 24), "seed": st.integers(0, 10_000)}


def lightlys(first: Tensor, second: Tensor, first_target: Tensor, second_target: Tensor) -> Tensor:
    """Both directions, summed; lightly's examples halve that sum."""
    cosine = NegativeCosineSimilarity()
    return cosine(first, second_target.detach()) + cosine(second, first_target.detach())


@given(**SIZES)
@settings(max_examples=40, deadline=None)
def test_the_loss_is_the_sum_of_lightlys_two_directions(pairs: int, dim: int, seed: int) -> None:
    assert_equal(simsiam, lightlys, related_views(pairs, dim, seed) + related_views(pairs, dim, seed + 1))


def test_by_hand() -> None:
    """One direction parallel (-1), the other orthogonal (0)."""
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert float(simsiam(x, x, y, 2 * x)) == pytest.approx(-1)
    assert float(simsiam(x, y, y, x)) == pytest.approx(-2)


def test_targets_get_no_gradient() -> None:
    inputs = [torch.randn(4, 3, requires_grad=True) for _ in range(4)]
    simsiam(*inputs).backward()
    assert [x.grad is None for x in inputs] == [False, False, True, True]


def test_autocast_does_not_touch_it() -> None:
    assert_exact_under_autocast(simsiam, related_views(8, 5, 0) + related_views(8, 5, 1))


def test_the_model_predicts_projections() -> None:
    model = Model("simsiam")
    views = torch.cat(views_of(0))
    loss, accuracy = model(views)
    z = model.identity.projector(model.encoder(views))
    expected = lightlys(*model.identity.predictor(z).chunk(2), *z.chunk(2))
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert float(accuracy) == pytest.approx(partners_found(z))
    assert not accuracy.requires_grad


def test_the_predictor_is_a_bottleneck_of_a_quarter() -> None:
    encoder = nn.Linear(10, 7)
    encoder.dim = 7
    model = SimSiam(encoder, IdentityConfig(hidden=11, output=20))
    layers = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert layers == [(7, 11), (11, 20), (20, 5), (5, 20)]
    assert isinstance(model.projector[-1], nn.BatchNorm1d)
    assert SimSiam(encoder, IdentityConfig(output=2)).predictor[0].out_features == 1


def test_all_dimensions_of_the_projections_count_alike_for_ever() -> None:
    """As in the authors' code, the output is normalised without a scale that training could shrink."""
    model = Model("simsiam")
    assert not list(model.identity.projector[-1].parameters())
