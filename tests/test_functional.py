"""The equations against slow loops in float64 and against lightly."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NTXentLoss
from torch import Tensor

from stec.functional import (
    contrast_pairs,
    manipulation_cross_entropy,
    manipulation_regression,
    masked_mean,
    nt_xent,
)


def nt_xent_loop(first: list[list[float]], second: list[list[float]], temperature: float) -> float:
    """Chen et al. 2020, equation 1, l(i, j) + l(j, i) averaged over pairs, one number at a time."""
    views = [*first, *second]
    pairs = len(first)

    def similarity(a: list[float], b: list[float]) -> float:
        product = math.fsum(x * y for x, y in zip(a, b, strict=True))
        return product / math.sqrt(math.fsum(x * x for x in a)) / math.sqrt(math.fsum(x * x for x in b))

    def one_direction(i: int, j: int) -> float:
        others = [math.exp(similarity(views[i], views[k]) / temperature) for k in range(2 * pairs) if k != i]
        return -math.log(math.exp(similarity(views[i], views[j]) / temperature) / math.fsum(others))

    return sum(one_direction(i, i + pairs) + one_direction(i + pairs, i) for i in range(pairs)) / pairs


def two_views(pairs: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Related, as the views of one image are, and of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(pairs, dim, generator=generator)
    second = first + torch.randn(pairs, dim, generator=generator)
    return first * (0.1 + 5 * torch.rand(pairs, 1, generator=generator)), second


sizes = {"pairs": st.integers(1, 12), "dim": st.integers(1, 24), "seed": st.integers(0, 10_000)}
temperatures = st.floats(0.05, 2.0)


@given(**sizes, temperature=temperatures)
@settings(max_examples=60, deadline=None)
def test_nt_xent_equals_the_loop(pairs: int, dim: int, seed: int, temperature: float) -> None:
    first, second = two_views(pairs, dim, seed)
    expected = nt_xent_loop(first.tolist(), second.tolist(), temperature)
    # float32 logits of up to 1 / temperature carry errors of that times 1e-7, whatever the loss
    assert float(nt_xent(first, second, temperature)) == pytest.approx(expected, rel=1e-6, abs=1e-6 / temperature)


@given(pairs=st.integers(2, 64), dim=st.integers(2, 64), seed=st.integers(0, 10_000), temperature=temperatures)
@settings(max_examples=60, deadline=None)
def test_nt_xent_is_twice_lightlys_with_the_same_gradients(pairs: int, dim: int, seed: int, temperature: float) -> None:
    """In units of 1 / (pairs * temperature * length), the scale of a gradient that float32 logits can resolve."""
    inputs = [view.requires_grad_() for view in two_views(pairs, dim, seed)]
    precise = [view.detach().double().requires_grad_() for view in inputs]
    ours, theirs = nt_xent(*inputs, temperature), 2 * NTXentLoss(temperature=temperature)(*precise)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-6 / temperature)
    gradients = zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, precise), precise, strict=True)
    for gradient, expected, view in gradients:
        error = (gradient - expected).norm(dim=1) * view.detach().norm(dim=1) * pairs * temperature
        assert error.max() < 5e-6
        scale = expected.norm(dim=1) * view.detach().norm(dim=1) * pairs * temperature
        assert scale.max() > 1e-3 or theirs < 1e-3  # there is something to compare


def test_nt_xent_by_hand() -> None:
    """Two orthogonal pairs of equal views, temperature 1: each of the 4 views has similarities 1, 0, 0."""
    views = torch.eye(2)
    assert float(nt_xent(views, views, 1.0)) == pytest.approx(2 * math.log((math.e + 2) / math.e), rel=1e-6)


@given(**sizes, temperature=temperatures, scale=st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_nt_xent_invariances(pairs: int, dim: int, seed: int, temperature: float, scale: float) -> None:
    first, second = two_views(pairs, dim, seed)
    loss = nt_xent(first, second, temperature)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(nt_xent(second, first, temperature), loss, **close)
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(nt_xent(first[order], second[order], temperature), loss, **close)
    torch.testing.assert_close(nt_xent(first * scale, second, temperature), loss, **close)


def test_nt_xent_depends_on_who_is_whose_partner() -> None:
    first, second = two_views(8, 16, seed=0)
    assert nt_xent(first, second.roll(1, dims=0), 0.5) > nt_xent(first, second, 0.5) + 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_computed_in_float32(dtype: torch.dtype) -> None:
    first, second = (view.to(dtype) for view in two_views(16, 32, seed=1))
    loss = nt_xent(first, second, 0.1)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, nt_xent(first.float(), second.float(), 0.1))


def test_similarities_are_float32_under_autocast() -> None:
    """Training runs under bfloat16 autocast, which must not reach into the similarities."""
    first, second = (view.requires_grad_() for view in two_views(16, 32, seed=2))
    expected = nt_xent(first, second, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nt_xent(first, second, 0.1)
    assert torch.equal(loss, expected)
    gradients = (torch.autograd.grad(value, (first, second)) for value in (loss, expected))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)


def test_accuracy_counts_the_views_whose_partner_is_nearest() -> None:
    first, second = two_views(40, 6, seed=3)
    views = torch.nn.functional.normalize(torch.cat([first, second]), dim=1)
    similar = (views @ views.mT).fill_diagonal_(-2)
    right = [int(row.argmax()) == (i + 40) % 80 for i, row in enumerate(similar)]
    assert 0.2 < sum(right) / 80 < 1
    assert float(contrast_pairs(first, second, 0.5).accuracy) == pytest.approx(sum(right) / 80)


@given(pairs=st.integers(1, 40), dim=st.integers(1, 32), seed=st.integers(0, 10_000), block=st.integers(1, 90))
@settings(max_examples=60, deadline=None)
def test_a_block_of_rows_at_a_time_gives_the_same(pairs: int, dim: int, seed: int, block: int) -> None:
    inputs = [view.requires_grad_() for view in two_views(pairs, dim, seed)]
    whole, parts = contrast_pairs(*inputs, 0.2), contrast_pairs(*inputs, 0.2, block=block)
    assert parts.loss.item() == pytest.approx(whole.loss.item(), rel=1e-5, abs=1e-5)
    assert parts.accuracy.item() == pytest.approx(whole.accuracy.item())
    gradients = (torch.autograd.grad(contrast.loss, inputs) for contrast in (parts, whole))
    for ours, theirs, view in zip(*gradients, inputs, strict=True):
        error = (ours - theirs).norm(dim=1) * view.detach().norm(dim=1) * pairs * 0.2  # in the same units as above
        assert error.max() < 1e-5


def test_blocks_hold_no_square_of_the_batch() -> None:
    """No tensor that is saved for the backward pass is larger than the projections themselves."""
    first, second = (view.requires_grad_() for view in two_views(512, 16, seed=5))
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
        loss = nt_xent(first, second, 0.5, block=64)
    assert max(saved) <= 1024 * 16
    loss.backward()


@pytest.mark.parametrize("pairs", [1, 2, 50])
def test_the_excluded_diagonal_leaves_gradients_finite(pairs: int) -> None:
    first, second = (view.requires_grad_() for view in two_views(pairs, 8, seed=4))
    nt_xent(first, second, 0.01).backward()
    assert first.grad is not None
    assert first.grad.isfinite().all()
    assert second.grad.isfinite().all()
    # A view's length does not matter, so the gradient has no part along it.
    assert (first.grad * first).sum(dim=1).abs().max() < 1e-4 * (1 + first.grad.abs().max())


# --- the manipulation losses ------------------------------------------------------------------------------------------


def masks(pairs: int) -> list[list[bool]]:
    return [[True] * pairs, [i % 3 == 0 for i in range(pairs)], [i == 1 for i in range(pairs)]]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize(("pairs", "components", "k"), [(2, 1, 2), (7, 6, 6), (9, 5, 11)])
def test_manipulation_cross_entropy_equals_the_loop(pairs: int, components: int, k: int, which: int) -> None:
    torch.manual_seed(which)
    logits, codes = 3 * torch.randn(pairs, components, k), torch.randint(0, k, (pairs, components))
    valid = masks(pairs)[which]
    losses = []
    for pair in range(pairs):
        terms = []
        for component in range(components):
            values = logits[pair, component].tolist()
            terms.append(math.log(sum(math.exp(v) for v in values)) - values[codes[pair, component]])
        losses.append(sum(terms) / components)
    expected = sum(loss for loss, counts in zip(losses, valid, strict=True) if counts) / sum(valid)
    loss = manipulation_cross_entropy(logits, codes, torch.tensor(valid))
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    if all(valid):
        assert float(manipulation_cross_entropy(logits, codes)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("which", range(3))
def test_manipulation_regression_equals_the_loop(which: int) -> None:
    torch.manual_seed(which)
    predicted, action, valid = torch.randn(7, 6), torch.randn(7, 6), masks(7)[which]
    rows = list(zip(predicted.tolist(), action.tolist(), strict=True))
    losses = [sum((p - a) ** 2 for p, a in zip(*row, strict=True)) / 6 for row in rows]
    expected = sum(loss for loss, counts in zip(losses, valid, strict=True) if counts) / sum(valid)
    assert float(manipulation_regression(predicted, action, torch.tensor(valid))) == pytest.approx(expected, rel=1e-5)


def test_no_valid_pair_gives_zero_and_zero_gradients() -> None:
    nobody = torch.zeros(4, dtype=torch.bool)
    logits = torch.randn(4, 6, 6, requires_grad=True)
    predicted = torch.randn(4, 6, requires_grad=True)
    loss = manipulation_cross_entropy(logits, torch.zeros(4, 6, dtype=torch.long), nobody)
    squared = manipulation_regression(predicted, torch.randn(4, 6), nobody)
    assert loss.item() == 0
    assert squared.item() == 0
    (loss + squared).backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))
    assert torch.equal(predicted.grad, torch.zeros_like(predicted))


def test_invalid_pairs_have_no_influence() -> None:
    logits, codes = torch.randn(4, 6, 6), torch.randint(0, 6, (4, 6))
    valid = torch.tensor([True, False, True, False])
    changed = logits.clone()
    changed[~valid] = 100 * torch.randn(2, 6, 6)
    assert torch.equal(
        manipulation_cross_entropy(logits, codes, valid), manipulation_cross_entropy(changed, codes, valid)
    )


def test_low_precision_logits_are_computed_in_float32() -> None:
    logits, codes = torch.randn(8, 6, 6).bfloat16(), torch.randint(0, 6, (8, 6))
    loss = manipulation_cross_entropy(logits, codes)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, manipulation_cross_entropy(logits.float(), codes))


def test_masked_mean() -> None:
    values = torch.tensor([1.0, 2.0, 6.0])
    assert float(masked_mean(values, None)) == 3
    assert float(masked_mean(values, torch.tensor([True, False, True]))) == 3.5
    assert float(masked_mean(values, torch.zeros(3, dtype=torch.bool))) == 0
