"""VICReg against lightly, and in two processes against one."""

import pytest
import torch
from comparison import assert_equal, assert_exact_under_autocast, partners_found, related_views
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import VICRegLoss
from processes import (
    PROCESSES,
    Model,
    in_one_process,
    views_of,
)
from torch import nn

from stec.config import IdentityConfig
from stec.errors import UserError
from stec.identity import VICReg
from stec.noncontrastive import vicreg

WEIGHTS = st.floats(0.1, 30)


@given(
    pairs=st.integers(2, 24),
    dim=st.integers(2, 24),
    seed=st.integers(0, 10_000),
    weights=st.tuples(WEIGHTS, WEIGHTS, WEIGHTS),
)
@settings(max_examples=60, deadline=None)
def test_the_loss_is_twice_lightlys(pairs: int, dim: int, seed: int, weights: tuple[float, float, float]) -> None:
    theirs = VICRegLoss(*weights)
    assert_equal(lambda a, b: vicreg(a, b, *weights), lambda a, b: 2 * theirs(a, b), related_views(pairs, dim, seed))


def test_by_hand() -> None:
    """Two pairs in two dimensions. Dimension 0: values 0 and 2 in both views; dimension 1 the same in x, 0 in x'."""
    first, second = torch.tensor([[0.0, 0.0], [2.0, 2.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert float(vicreg(first, second, 1, 0, 0)) == pytest.approx(2 * 1)  # one of four squares is 4
    # Standard deviations are sqrt(2) but for that of x' in dimension 1, which is sqrt(1e-4).
    assert float(vicreg(first, second, 0, 1, 0)) == pytest.approx(2 * (0 + (1 - 0.01) / 2) / 2)
    assert float(vicreg(first, second, 0, 0, 1)) == pytest.approx(2 * (2**2 + 2**2) / 2)  # covariance 2 in x, 0 in x'


def test_one_pair_has_no_variance() -> None:
    """Its loss would be NaN, and so would all weights after a step on an incomplete last batch."""
    with pytest.raises(UserError, match="one pair has none"):
        vicreg(torch.randn(1, 5), torch.randn(1, 5))


def test_autocast_does_not_touch_it() -> None:
    assert_exact_under_autocast(vicreg, related_views(8, 5, 0))


def test_two_processes_share_their_statistics() -> None:
    """The loss of one is not the mean of what its halves would give by themselves."""
    alone = [Model("vicreg")(torch.cat(views_of(process)))[0].detach() for process in range(PROCESSES)]
    assert (in_one_process("vicreg").loss - torch.stack(alone).mean()).abs() > 1e-3


def test_the_model_takes_its_weights_from_the_config() -> None:
    encoder = nn.Linear(10, 7)
    encoder.dim = 7
    model = VICReg(encoder, IdentityConfig(hidden=11, output=5, invariance=2.0, variance=3.0, covariance=4.0))
    layers = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert layers == [(7, 11), (11, 11), (11, 5)]
    features = torch.randn(12, 7)
    loss, accuracy, *_ = model.eval()(features, batch=None)
    z = model.expander(features)
    torch.testing.assert_close(loss, 2 * VICRegLoss(2.0, 3.0, 4.0)(*z.chunk(2)), rtol=1e-5, atol=1e-5)
    assert float(accuracy) == pytest.approx(partners_found(z))
    assert not accuracy.requires_grad
