"""The losses for sound against loops in double precision, written from their formulas."""

import math

import pytest
import torch

from stec.audio.functional import NEGATIVES, contrast_utterances, info_nce


def _drawn(seed=0, batch=3, length=7, steps=2, dim=5, pool=9):
    random = torch.Generator().manual_seed(seed)
    predictions = torch.randn(batch, length - steps, steps, dim, generator=random)
    frames = torch.randn(batch, length, dim, generator=random)
    utterances = torch.tensor([4, 9, 4][:batch])
    return predictions, frames, utterances, torch.randint(batch * length, (pool,), generator=random)


def _slow(predictions, frames, utterances, negatives, pool):
    """Every score by itself: the formula of the paper."""
    batch, length, steps, dim = predictions.shape
    losses, accuracies = [], []
    for k in range(1, steps + 1):
        total = right = 0.0
        for b in range(batch):
            for t in range(length):

                def score(window, time, b=b, t=t, k=k):
                    pairs = zip(predictions[b, t, k - 1].tolist(), frames[window, time].tolist(), strict=True)
                    return math.fsum(p * z for p, z in pairs) / math.sqrt(dim)

                true = score(b, t + k)
                others = []
                if negatives in ("same", "both"):
                    others += [score(b, u) for u in range(frames.shape[1]) if u != t + k]
                if negatives in ("other", "both"):
                    for number in pool.tolist():
                        window, time = divmod(number, frames.shape[1])
                        if utterances[window] != utterances[b]:
                            others.append(score(window, time))
                total -= true - math.log(math.fsum(math.exp(s) for s in [true, *others]))
                right += all(true > other for other in others)
        losses.append(total / (batch * length))
        accuracies.append(right / (batch * length))
    return losses, accuracies


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_info_nce_of_every_step_is_that_of_a_loop(negatives):
    predictions, frames, utterances, pool = _drawn()
    losses, accuracies = _slow(predictions.double(), frames.double(), utterances, negatives, pool)
    found = info_nce(predictions, frames, utterances, negatives, pool)
    assert found.loss.tolist() == pytest.approx(losses, rel=1e-5)
    assert found.accuracy.tolist() == pytest.approx(accuracies)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("negatives", NEGATIVES)
def test_on_a_gpu_bfloat16_is_rounded_nowhere_else(negatives):
    predictions, frames, utterances, pool = _drawn(dim=64, length=40)
    rounded = [tensor.bfloat16().double().requires_grad_() for tensor in (predictions, frames)]
    given = [predictions.cuda().bfloat16().requires_grad_(), frames.cuda().requires_grad_()]
    found = info_nce(*given, utterances.cuda(), negatives, pool.cuda())
    losses, _ = _slow(*rounded, utterances, negatives, pool)
    assert found.loss.tolist() == pytest.approx(losses, rel=1e-5)
    slow = info_nce(*(tensor.float() for tensor in rounded), utterances, negatives, pool)
    for one, other in zip(
        torch.autograd.grad(found.loss.sum(), given), torch.autograd.grad(slow.loss.sum(), rounded), strict=True
    ):
        torch.testing.assert_close(one.double().cpu(), other, rtol=0.02, atol=0.02 * float(other.abs().max()))


def test_a_perfect_prediction_of_far_frames_costs_nothing_and_a_constant_one_the_logarithm_of_the_candidates():
    frames = torch.eye(8)[None] * 50
    perfect = torch.stack([frames[:, k : k + 6] for k in (1, 2)], dim=2)
    found = info_nce(perfect, frames, torch.zeros(1, dtype=torch.long))
    assert found.loss.max() < 1e-6
    assert found.accuracy.tolist() == [1, 1]
    nothing = info_nce(torch.zeros_like(perfect), frames, torch.zeros(1, dtype=torch.long))
    assert nothing.loss.tolist() == pytest.approx([math.log(8)] * 2)


def test_negatives_of_the_same_window_do_not_see_other_windows():
    predictions, frames, utterances, _ = _drawn()
    alone = info_nce(predictions[:1], frames[:1], utterances[:1]).loss
    changed = frames.clone()
    changed[1:] += 7
    both = info_nce(predictions, frames, utterances).loss
    elsewhere = info_nce(predictions[1:], frames[1:], utterances[1:]).loss
    assert torch.allclose(both * 3, alone + 2 * elsewhere, atol=1e-5)
    assert torch.allclose(info_nce(predictions[:1], changed[:1], utterances[:1]).loss, alone)


def test_utterances_are_contrasted_as_in_a_loop_and_never_with_themselves():
    random = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 4, 6, generator=random).double()
    utterances, temperature = torch.tensor([3, 5, 3, 8]), 0.2

    def similarity(a, b):
        return float(a @ b / a.norm() / b.norm()) / temperature

    total = right = 0.0
    for one, other in ((first, second), (second, first)):
        for i in range(4):
            scores = {j: similarity(one[i], other[j]) for j in range(4) if j == i or utterances[j] != utterances[i]}
            total += math.log(math.fsum(map(math.exp, scores.values()))) - scores[i]
            right += max(scores, key=scores.get) == i
    found = contrast_utterances(first.float(), second.float(), utterances, temperature)
    assert float(found.loss) == pytest.approx(total / 4, rel=1e-5)
    assert float(found.accuracy) == pytest.approx(right / 8)
