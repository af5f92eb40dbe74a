"""The equations of models that assign views to prototypes, against slow loops in float64 and against lightly."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import DINOLoss
from torch import Tensor

from stec.clustering import sharpened, swapped_prediction, warming

sizes = {"pairs": st.integers(1, 10), "number": st.integers(2, 24), "seed": st.integers(0, 10_000)}


def cosines(pairs: int, number: int, seed: int, views: int = 2) -> list[Tensor]:
    """Scores of x and x', which are related; of other networks, as many as there are. (B, K) each, from -1 to 1"""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(pairs, number, generator=generator)
    return [torch.tanh(image + 0.7 * torch.randn(pairs, number, generator=generator)) for _ in range(views)]


def in_both_precisions(scores: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    return [s.clone().requires_grad_() for s in scores], [s.double().requires_grad_() for s in scores]


def assert_same(ours: Tensor, inputs: list[Tensor], theirs: Tensor, precise: list[Tensor]) -> None:
    """Values, and gradients relative to the largest of them."""
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    gradients, wanted = torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, precise)
    largest = max(float(each.abs().max()) for each in wanted)
    assert largest > 0
    for gradient, expected in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=1e-5 * largest)


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
    assert_same(dino(inputs, targets, centre, tau, tau_target), inputs, wanted, precise)


@given(**sizes, tau=st.floats(0.1, 1), tau_target=st.floats(0.04, 0.5))
@settings(max_examples=40, deadline=None)
def test_dino_is_twice_lightlys(pairs: int, number: int, seed: int, tau: float, tau_target: float) -> None:
    """Which averages over the two directions, and moves its centre after it has used it."""
    inputs, precise = in_both_precisions(cosines(pairs, number, seed))
    targets, centre = cosines(pairs, number, seed + 1), 0.3 * torch.randn(number)
    theirs = DINOLoss(number, teacher_temp=tau_target, student_temp=tau).double()
    theirs.center.copy_(centre)
    wanted = 2 * theirs([t.double() for t in targets], precise)
    assert_same(dino(inputs, targets, centre, tau, tau_target), inputs, wanted, precise)


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
