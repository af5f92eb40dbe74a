"""The equations of models with a target network, against slow loops in float64, torch.distributions and lightly."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NegativeCosineSimilarity, NTXentLoss
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from stec.functional import byol, info_nce, nt_xent, relic, target_accuracy

sizes = {"pairs": st.integers(1, 12), "dim": st.integers(1, 24), "seed": st.integers(0, 10_000)}
temperatures = st.floats(0.05, 2.0)


def related(pairs: int, dim: int, seed: int) -> list[Tensor]:
    """x, x' and their targets: related, and of very different lengths. (B, D) each"""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(pairs, dim, generator=generator)
    views = [image + 0.7 * torch.randn(pairs, dim, generator=generator) for _ in range(4)]
    return [view * (0.1 + 5 * torch.rand(pairs, 1, generator=generator)) for view in views]


def online(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The first two require a gradient, in their own precision and in float64."""
    return [t.clone().requires_grad_() if i < 2 else t for i, t in enumerate(tensors)]


def assert_same_gradients(ours: Tensor, inputs: list[Tensor], theirs: Tensor, precise: list[Tensor], unit: float):
    """In units of `unit` / length, the scale of a gradient that float32 similarities can resolve."""
    for view, exact in zip(inputs, precise, strict=True):
        (gradient,) = torch.autograd.grad(ours, view, retain_graph=True)
        (expected,) = torch.autograd.grad(theirs, exact, retain_graph=True)
        error = (gradient - expected).norm(dim=1) * exact.detach().norm(dim=1) / unit
        assert error.max() < 1e-5


# --- ReLIC ------------------------------------------------------------------------------------------------------------


def relic_loop(views: Sequence[Tensor], targets: Sequence[Tensor], temperature: float, alpha: float) -> Tensor:
    """From the formula, a view at a time: the partner first, then the views of other images in a fixed order."""
    pairs = len(views[0])

    def unit(v: Tensor) -> Tensor:
        return v / v.norm()

    def assignment(i: int, side: int) -> Categorical:
        others = [targets[s][k] for k in range(pairs) if k != i for s in (0, 1)]
        candidates = [targets[1 - side][i], *others]
        query = unit(views[side][i])
        return Categorical(logits=torch.stack([query @ unit(c) for c in candidates]) / temperature)

    total = torch.zeros((), dtype=torch.float64)
    for i in range(pairs):
        for side in (0, 1):
            mine, partners = assignment(i, side), assignment(i, 1 - side)
            fixed = Categorical(logits=partners.logits.detach())
            total = total - mine.log_prob(torch.tensor(0)) + alpha * kl_divergence(fixed, mine)
    return total / pairs


@given(pairs=st.integers(1, 6), dim=st.integers(1, 12), seed=st.integers(0, 10_000), temperature=temperatures,
       alpha=st.floats(0, 5))  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_relic_equals_the_loop(pairs: int, dim: int, seed: int, temperature: float, alpha: float) -> None:
    inputs = online(related(pairs, dim, seed))
    precise = online([t.detach().double() for t in inputs])
    ours, theirs = relic(*inputs, temperature, alpha).loss, relic_loop(precise[:2], precise[2:], temperature, alpha)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-5 * (1 + alpha) / temperature)
    # the divergence has logarithms of probabilities in it, which are as large as 2 / temperature
    unit = (1 + alpha * (1 + 2 / temperature)) / (pairs * temperature)
    assert_same_gradients(ours, inputs[:2], theirs, precise[:2], unit)


@given(**sizes, temperature=temperatures)
@settings(max_examples=30, deadline=None)
def test_without_alpha_and_with_the_same_networks_relic_is_nt_xent(
    pairs: int, dim: int, seed: int, temperature: float
) -> None:
    first, second, *_ = related(pairs, dim, seed)
    loss = relic(first, second, first, second, temperature, alpha=0.0).loss
    torch.testing.assert_close(loss, nt_xent(first, second, temperature))


def test_without_alpha_relic_is_info_nce_a_view_at_a_time() -> None:
    first, second, *targets = related(6, 8, seed=0)
    losses = []
    for side, views in enumerate((first, second)):
        for i in range(6):
            others = torch.cat([t[torch.arange(6) != i] for t in targets])
            losses.append(info_nce(views[i : i + 1], targets[1 - side][i : i + 1], others, 0.3).loss)
    expected = torch.stack(losses).sum() / 6
    torch.testing.assert_close(relic(first, second, *targets, 0.3, alpha=0.0).loss, expected)


@given(**sizes, temperature=temperatures)
@settings(max_examples=30, deadline=None)
def test_the_invariance_term_is_a_divergence(pairs: int, dim: int, seed: int, temperature: float) -> None:
    """Never negative, linear in alpha, and zero where both views look alike."""
    tensors = related(pairs, dim, seed)
    none, one, three = (relic(*tensors, temperature, alpha).loss for alpha in (0.0, 1.0, 3.0))
    assert one >= none - 1e-5 / temperature
    torch.testing.assert_close(three - none, 3 * (one - none), rtol=1e-3, atol=1e-4 / temperature)
    view, _, target, _ = tensors
    alike = [relic(view, view, target, target, temperature, alpha).loss for alpha in (0.0, 7.0)]
    torch.testing.assert_close(*alike, rtol=1e-5, atol=1e-5 / temperature)


def test_targets_get_no_gradient() -> None:
    first, second, *targets = [t.requires_grad_() for t in related(6, 8, seed=1)]
    negatives = torch.randn(5, 8, requires_grad=True)
    loss = relic(first, second, *targets).loss + byol(first, second, *targets)
    (loss + info_nce(first, targets[0], negatives).loss).backward()
    assert first.grad is not None
    assert second.grad is not None
    assert [t.grad for t in (*targets, negatives)] == [None] * 3


@given(pairs=st.integers(1, 30), dim=st.integers(1, 16), seed=st.integers(0, 10_000), block=st.integers(1, 70))
@settings(max_examples=30, deadline=None)
def test_a_block_of_rows_at_a_time_gives_the_same(pairs: int, dim: int, seed: int, block: int) -> None:
    inputs = online(related(pairs, dim, seed))
    negatives = torch.randn(50, dim, generator=torch.Generator().manual_seed(seed))
    for function, arguments in ((relic, (*inputs, 0.2, 1.0)), (info_nce, (*inputs[::2], negatives, 0.2))):
        whole, parts = function(*arguments), function(*arguments, block=block)
        assert parts.loss.item() == pytest.approx(whole.loss.item(), rel=1e-5, abs=1e-5)
        assert parts.accuracy.item() == pytest.approx(whole.accuracy.item())
        for view in inputs[: 2 if function is relic else 1]:
            ours, theirs = (torch.autograd.grad(contrast.loss, view)[0] for contrast in (parts, whole))
            length = view.detach().norm(dim=1, keepdim=True)  # the gradient of a direction has the unit 1 / length
            torch.testing.assert_close(ours * length, theirs * length, rtol=1e-4, atol=1e-5)
            whole, parts = function(*arguments), function(*arguments, block=block)


def test_blocks_hold_no_square_of_the_batch() -> None:
    """No tensor that is saved for the backward pass is larger than the projections or the queue themselves."""
    inputs = online(related(512, 16, seed=5))
    queue = torch.randn(2048, 16)
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
        loss = relic(*inputs, 0.5, 1.0, block=64).loss + info_nce(inputs[0], inputs[3], queue, block=64).loss
    assert max(saved) <= 2048 * 16
    loss.backward()


def test_similarities_are_float32_under_autocast() -> None:
    """Training runs under bfloat16 autocast, which must not reach into the similarities."""
    tensors = related(16, 32, seed=2)
    queue = torch.randn(40, 32)

    def losses() -> list[Tensor]:
        nce = info_nce(tensors[0], tensors[3], queue, 0.1).loss
        return [relic(*tensors, 0.1).loss, byol(*tensors), nce]

    expected = losses()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(losses(), expected, strict=True))
    tensors = [t.bfloat16() for t in tensors]
    assert all(loss.dtype == torch.float32 for loss in losses())


@pytest.mark.parametrize("pairs", [1, 2, 50])
def test_a_low_temperature_leaves_gradients_finite(pairs: int) -> None:
    inputs = online(related(pairs, 8, seed=4))
    (relic(*inputs, 0.01).loss + info_nce(inputs[0], inputs[3], torch.randn(9, 8), 0.01).loss).backward()
    assert all(view.grad.isfinite().all() for view in inputs[:2])


# --- MoCo -------------------------------------------------------------------------------------------------------------


@given(**sizes, temperature=temperatures, negatives=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_info_nce_equals_lightlys_with_a_memory_bank(
    pairs: int, dim: int, seed: int, temperature: float, negatives: int
) -> None:
    queries, _, keys, _ = related(pairs, dim, seed)
    queries.requires_grad_()
    precise = queries.detach().double().requires_grad_()
    queue = torch.randn(negatives, dim, generator=torch.Generator().manual_seed(seed))
    theirs = NTXentLoss(temperature=temperature, memory_bank_size=(negatives, dim))
    theirs.memory_bank.bank = torch.nn.functional.normalize(queue.double(), dim=1)
    expected = theirs(precise, keys.double())
    loss = info_nce(queries, keys, queue, temperature).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5 / temperature)
    assert_same_gradients(loss, [queries], expected, [precise], unit=1 / (pairs * temperature))


def test_info_nce_by_hand() -> None:
    """The key is the query, two negatives are orthogonal to it, temperature 1."""
    query = torch.tensor([[2.0, 0.0, 0.0]])
    contrast = info_nce(query, query, torch.eye(3)[1:], 1.0)
    assert contrast.loss.item() == pytest.approx(math.log((math.e + 2) / math.e), rel=1e-6)
    assert contrast.accuracy == 1
    assert info_nce(query, query, query).accuracy == 0, "nothing is found where all are alike"


def test_accuracy_counts_the_queries_that_are_nearest_to_their_key() -> None:
    queries, _, keys, _ = related(60, 6, seed=3)
    queue = torch.randn(30, 6)
    right = 0
    for query, key in zip(queries, keys, strict=True):
        others = [torch.cosine_similarity(query, n, dim=0) for n in queue]
        right += bool(torch.cosine_similarity(query, key, dim=0) > max(others))
    assert 5 < right < 55
    assert info_nce(queries, keys, queue).accuracy.item() == pytest.approx(right / 60)


# --- BYOL -------------------------------------------------------------------------------------------------------------


@given(**sizes)
@settings(max_examples=40, deadline=None)
def test_byol_equals_lightlys_and_the_squared_distance(pairs: int, dim: int, seed: int) -> None:
    inputs = online(related(pairs, dim, seed))
    precise = online([t.detach().double() for t in inputs])
    first, second, first_target, second_target = precise
    criterion = NegativeCosineSimilarity()
    expected = 2 + 2 * criterion(first, second_target) + 2 + 2 * criterion(second, first_target)
    loss = byol(*inputs)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert_same_gradients(loss, inputs[:2], expected, precise[:2], unit=1 / pairs)
    units = [t.detach() / t.detach().norm(dim=1, keepdim=True) for t in precise]
    squared = (units[0] - units[3]).square().sum() + (units[1] - units[2]).square().sum()
    assert loss.item() == pytest.approx(squared.item() / pairs, abs=1e-5)


def test_target_accuracy_counts_the_views_whose_partners_target_is_nearest() -> None:
    tensors = related(40, 12, seed=3)
    views, targets = torch.cat(tensors[:2]), torch.cat(tensors[2:])
    right = 0
    for i in range(80):
        similar = torch.cosine_similarity(views[i], targets, dim=1)
        similar[i] = -2
        right += int(similar.argmax()) == (i + 40) % 80
    assert 8 < right < 72
    accuracy = target_accuracy(*(t.requires_grad_() for t in tensors))
    assert accuracy.item() == pytest.approx(right / 80)
    assert not accuracy.requires_grad
    assert relic(*tensors).accuracy.item() == pytest.approx(right / 80)
