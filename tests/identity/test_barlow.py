"""Barlow Twins against lightly and a loop, and in two processes against one."""

import pytest
import torch
from comparison import assert_equal, assert_exact_under_autocast, partners_found, related_views
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import BarlowTwinsLoss
from processes import (
    PROCESSES,
    Model,
    in_one_process,
    views_of,
)
from scipy.stats import pearsonr
from torch import nn

from stec.config import IdentityConfig
from stec.identity import BarlowTwins
from stec.noncontrastive import barlow


@given(pairs=st.integers(4, 32), dim=st.integers(2, 24), seed=st.integers(0, 10_000), redundancy=st.floats(0.001, 1))
@settings(max_examples=60, deadline=None)
def test_the_loss_is_twice_lightlys(pairs: int, dim: int, seed: int, redundancy: float) -> None:
    theirs = BarlowTwinsLoss(redundancy)
    inputs = related_views(pairs, dim, seed)
    assert_equal(lambda a, b: barlow(a, b, redundancy), lambda a, b: 2 * theirs(a, b), inputs)


def test_the_loss_is_made_of_pearsons_correlations() -> None:
    first, second = related_views(40, 3, 0)
    expected = 0.0
    for i in range(3):
        for j in range(3):
            correlation = pearsonr(first[:, i].numpy(), second[:, j].numpy()).statistic
            expected += (1 - correlation) ** 2 if i == j else 0.1 * correlation**2
    assert float(barlow(first, second, 0.1)) == pytest.approx(2 * expected, rel=1e-3)  # 1e-5 is added to variances


def test_off_diagonal_entries_survive_a_large_diagonal() -> None:
    """The redundancy term alone, where it is a ten-millionth of the sum of all squares. Independent: float64."""
    z = torch.randn(4096, 256, generator=torch.Generator().manual_seed(0))
    z = (torch.linalg.qr(z - z.mean(dim=0))[0] * 64).float()  # uncorrelated to rounding, of variance 1
    mixed = z.clone()
    mixed[:, 0] += 0.002 * z[:, 1]
    whole, none = (barlow(mixed, mixed, weight).item() for weight in (1.0, 0.0))
    correlation = torch.corrcoef(mixed.double().T)
    expected = 2 * (correlation - torch.diag(correlation.diagonal())).square().sum().item()
    assert whole - none == pytest.approx(expected, rel=1e-2)


def test_autocast_does_not_touch_it() -> None:
    assert_exact_under_autocast(barlow, related_views(8, 5, 0))


def test_two_processes_share_their_correlations() -> None:
    """The loss of one is not the mean of what its halves would give by themselves."""
    alone = [Model("barlow")(torch.cat(views_of(process)))[0].detach() for process in range(PROCESSES)]
    assert (in_one_process("barlow").loss - torch.stack(alone).mean()).abs() > 0.01


def test_the_model_takes_its_weight_from_the_config() -> None:
    encoder = nn.Linear(10, 7)
    encoder.dim = 7
    model = BarlowTwins(encoder, IdentityConfig(hidden=11, output=5, redundancy=0.3))
    layers = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert layers == [(7, 11), (11, 11), (11, 5)]
    features = torch.randn(12, 7)
    loss, accuracy, *_ = model.eval()(features, batch=None)
    z = model.expander(features)
    torch.testing.assert_close(loss, 2 * BarlowTwinsLoss(0.3)(*z.chunk(2)), rtol=1e-5, atol=1e-5)
    assert float(accuracy) == pytest.approx(partners_found(z))
    assert not accuracy.requires_grad
