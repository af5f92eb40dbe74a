"""The equations of models that assign views to prototypes, against slow loops in float64 and against lightly."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import DINOLoss, SwaVLoss
from torch import Tensor

from stec.clustering import equal_shares, sharpened, swapped_prediction, warming

sizes = {"pairs": st.integers(1, 10), "number": st.integers(2, 24), "seed": st.integers(0, 10_000)}


def cosines(pairs: int, number: int, seed: int, views: int = 2) -> list[Tensor]:
    """Scores of x and x', which are related; of other networks, as many as there are. (B, K) each, from -1 to 1"""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(pairs, number, generator=generator)
    return [torch.tanh(image + 0.7 * torch.randn(pairs, number, generator=generator)) for _ in range(views)]


def in_both_precisions(scores: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    return [s.clone().requires_grad_() for s in scores], [s.double().requires_grad_() for s in scores]


def assert_same(ours: Tensor, inputs: list[Tensor], theirs: Tensor, precise: list[Tensor], tau: float) -> None:
    """Values, and gradients but for what is rounded off the probabilities of which they are differences."""
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-6 / tau)
    gradients, wanted = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, precise)
    assert any(each.any() for each in wanted)
    for gradient, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=1e-5 / (tau * len(expected)))


# --- DINO -------------------------------------------------------------------------------------------------------------


def dino_loop(scores: Sequence[Tensor], targets: Sequence[Tensor], centre: Tensor, tau: float, tau_target: float):
    """Caron et al. 2021, equations 1 to 3: H(P_t(x'), P_s(x)) + H(P_t(x), P_s(x')), one number at a time."""
    pairs, number = scores[0].shape

    def probability(row: Tensor, k: int, temperature: float) -> Tensor:
        return torch.exp(row[k] / temperature) / sum(torch.exp(other / temperature) for other in row)

    total = torch.zeros((), dtype=torch.float64)
    for i in range(pairs):
        for side in (0, 1):
            teacher = (targets[1 - side][i] - centre).detach()
            for k in range(number):
                mine = probability(scores[side][i], k, tau)
                total = total - probability(teacher, k, tau_target) * torch.log(mine)
    return total / pairs


def dino(scores: Sequence[Tensor], targets: Sequence[Tensor], centre: Tensor, tau: float, tau_target: float) -> Tensor:
    return swapped_prediction(scores, [sharpened(each, centre, tau_target) for each in targets], tau)


@given(**sizes, tau=st.floats(0.1, 1), tau_target=st.floats(0.04, 0.5))
@settings(max_examples=25, deadline=None)
def test_dino_equals_the_loop(pairs: int, number: int, seed: int, tau: float, tau_target: float) -> None:
    inputs, precise = in_both_precisions(cosines(pairs, number, seed))
    targets, centre = cosines(pairs, number, seed + 1), 0.3 * torch.randn(number)
    wanted = dino_loop(precise, [t.double() for t in targets], centre.double(), tau, tau_target)
    assert_same(dino(inputs, targets, centre, tau, tau_target), inputs, wanted, precise, tau)


@given(**sizes, tau=st.floats(0.1, 1), tau_target=st.floats(0.04, 0.5))
@settings(max_examples=40, deadline=None)
def test_dino_is_twice_lightlys(pairs: int, number: int, seed: int, tau: float, tau_target: float) -> None:
    """Which averages over the two directions, and moves its centre after it has used it."""
    inputs, precise = in_both_precisions(cosines(pairs, number, seed))
    targets, centre = cosines(pairs, number, seed + 1), 0.3 * torch.randn(number)
    theirs = DINOLoss(number, teacher_temp=tau_target, student_temp=tau).double()
    theirs.center.copy_(centre)
    wanted = 2 * theirs([t.double() for t in targets], precise)
    assert_same(dino(inputs, targets, centre, tau, tau_target), inputs, wanted, precise, tau)


def test_dino_by_hand() -> None:
    """Two prototypes. The target is sure about x' and not about x; the student says 3 to 1 in both."""
    sure, unsure = torch.tensor([[40.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    student = torch.tensor([[math.log(3), 0.0]])
    forwards, backwards = -math.log(3 / 4), -(math.log(3 / 4) + math.log(1 / 4)) / 2
    loss = dino([student, student], [unsure, sure], torch.zeros(2), 1.0, 1.0)
    assert loss.item() == pytest.approx(forwards + backwards)
    assert dino([student, student], [unsure, sure], torch.tensor([40.0, 0.0]), 1.0, 1.0).item() > 1.2 * loss.item()


def test_assignments_get_no_gradient() -> None:
    scores, targets = cosines(4, 5, 0), [t.requires_grad_() for t in cosines(4, 5, 1)]
    assert not sharpened(targets[0], torch.zeros(5), 0.04).requires_grad
    scores = [s.requires_grad_() for s in scores]
    swapped_prediction(scores, [t.softmax(dim=1) for t in targets], 0.1).backward()
    assert all(s.grad is not None and s.grad.any() for s in scores)
    assert [t.grad for t in targets] == [None, None]


def test_scores_are_float32_under_autocast() -> None:
    scores, targets, centre = cosines(8, 16, 0), cosines(8, 16, 1), torch.randn(16)
    wanted = dino(scores, targets, centre, 0.1, 0.04)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dino(scores, targets, centre, 0.1, 0.04), wanted)
    low = [[s.bfloat16() for s in each] for each in (scores, targets)]
    assert dino(*low, centre.bfloat16(), 0.1, 0.04).dtype == torch.float32


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0.04), (0.05, 0.055), (0.1, 0.07), (0.6, 0.07), (1.0, 0.07)])
def test_the_targets_temperature_rises_in_a_straight_line_and_stays(progress: float, expected: float) -> None:
    for given_progress in (progress, torch.tensor(progress, dtype=torch.float64)):
        assert warming(0.07, given_progress, 0.1).item() == pytest.approx(expected)
    assert warming(0.07, progress, 0.0).item() == pytest.approx(0.07)


def test_the_targets_temperature_is_lightlys_at_its_epochs() -> None:
    """Which begins with the first and is done in the last of the epochs of its warm-up, so one earlier."""
    schedule = DINOLoss(5, warmup_teacher_temp=0.04, teacher_temp=0.07, warmup_teacher_temp_epochs=11)
    for epoch, wanted in enumerate(schedule.teacher_temp_schedule.tolist()):
        assert warming(0.07, epoch / 100, 0.1).item() == pytest.approx(wanted)


# --- SwAV -------------------------------------------------------------------------------------------------------------


def equal_shares_loop(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Caron et al. 2020, equation 3 and appendix: Q = Diag(u) exp(C^T Z / epsilon) Diag(v), one number at a time.

    The rows of Q sum to 1 / K, its columns to 1 / B; assignments are its columns, each times B.
    """
    kernel = torch.exp(scores.double() / epsilon).tolist()
    views, prototypes = range(len(kernel)), range(len(kernel[0]))
    u, v = [1.0 for _ in prototypes], [1.0 for _ in views]
    for _ in range(iterations):
        u = [1 / (len(prototypes) * math.fsum(kernel[b][k] * v[b] for b in views)) for k in prototypes]
        v = [1 / (len(views) * math.fsum(u[k] * kernel[b][k] for k in prototypes)) for b in views]
    return torch.tensor([[len(views) * u[k] * kernel[b][k] * v[b] for k in prototypes] for b in views])


def swav(scores: Sequence[Tensor], tau: float, earlier: Sequence[Tensor] = (None, None), **settings) -> Tensor:
    assignments = [equal_shares(each, other, **settings) for each, other in zip(scores, earlier, strict=True)]
    return swapped_prediction(scores, assignments, tau)


@given(**sizes, epsilon=st.floats(0.05, 1), iterations=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_assignments_equal_the_loop(pairs: int, number: int, seed: int, epsilon: float, iterations: int) -> None:
    scores = torch.stack(cosines(pairs, number, seed))
    found = equal_shares(scores, epsilon=epsilon, iterations=iterations)  # those of either view by themselves
    for each, view in zip(found, scores, strict=True):
        torch.testing.assert_close(each, equal_shares_loop(view, epsilon, iterations), rtol=1e-4, atol=1e-6)


@given(**sizes, tau=st.floats(0.1, 1), epsilon=st.floats(0.05, 0.5), small=st.integers(0, 3), queue=st.booleans())
@settings(max_examples=60, deadline=None)
def test_swav_is_twice_lightlys(
    pairs: int, number: int, seed: int, tau: float, epsilon: float, small: int, queue: bool
) -> None:
    """Which averages over the two directions; over small views both do."""
    inputs, precise = in_both_precisions(cosines(pairs, number, seed, 2 + small))
    earlier = cosines(7, number, seed + 1) if queue else [None, None]
    theirs = SwaVLoss(tau, sinkhorn_epsilon=epsilon)
    wanted = 2 * theirs(precise[:2], precise[2:], [e.double() for e in earlier] if queue else None)
    keys = [equal_shares(each, other, epsilon=epsilon) for each, other in zip(inputs, earlier, strict=False)]
    losses = [swapped_prediction(pair, keys, tau) for pair in (inputs[:2], *((s, s) for s in inputs[2:]))]
    assert_same(sum(losses) / (1 + small), inputs, wanted, precise, tau)


def test_rows_are_probabilities_and_prototypes_get_equal_shares_after_many_iterations() -> None:
    scores = cosines(60, 6, 0)[0] + torch.linspace(0, 0.5, 6)  # the last is near to all
    few, many = (equal_shares(scores, iterations=n) for n in (3, 300))
    for assignments in (few, many):
        torch.testing.assert_close(assignments.sum(dim=1), torch.ones(60))
    torch.testing.assert_close(many.sum(dim=0), torch.full((6,), 10.0), rtol=1e-3, atol=0)
    assert scores.argmax(dim=1).bincount(minlength=6).max() > 20


def test_earlier_views_count_or_do_not() -> None:
    scores, earlier = cosines(12, 5, 3)
    together = equal_shares(torch.cat([scores, earlier]))[:12]
    torch.testing.assert_close(equal_shares(scores, earlier), together)
    alone = equal_shares(scores)
    assert torch.equal(equal_shares(scores, earlier, torch.zeros(())), alone)
    assert (together - alone).abs().max() > 0.05
    assert torch.equal(equal_shares(scores, torch.zeros(0, 5)), alone)


def test_sums_of_other_processes_join() -> None:
    """Of two that have the same views: half of the sums are another process's, and assignments are those of all."""
    scores = cosines(9, 5, 4)[0]
    whole = equal_shares(torch.cat([scores, scores]))[:9]
    torch.testing.assert_close(equal_shares(scores, total=lambda sums: 2 * sums), whole)
    earlier = cosines(4, 5, 5)[0]
    counted_once = equal_shares(torch.cat([scores, scores, earlier]))[:9]
    torch.testing.assert_close(equal_shares(scores, earlier, total=lambda sums: 2 * sums), counted_once)


def test_assignments_are_float32_under_autocast_and_finite_at_the_ends() -> None:
    scores = torch.cat([cosines(8, 16, 0)[0], torch.full((1, 16), -1.0), torch.ones(1, 16)])
    wanted = equal_shares(scores)
    assert wanted.isfinite().all()
    assert not equal_shares(scores.requires_grad_()).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(equal_shares(scores), wanted)
    assert equal_shares(scores.bfloat16()).dtype == torch.float32
