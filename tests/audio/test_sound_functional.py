"""The losses for sound against loops in double precision, written from their formulas."""

import math

import pytest
import torch

from stec.audio.functional import contrast_utterances, info_nce
from stec.audio.method import Predictor
from stec.limits import CHOICES


def _drawn(seed=0, batch=3, length=7, steps=2, dim=5, pool=9):
    random = torch.Generator().manual_seed(seed)
    contexts = torch.randn(batch, length - steps, dim, generator=random)
    matches = torch.randn(batch, length, steps, dim, generator=random)
    utterances = torch.tensor([4, 9, 4][:batch])
    return contexts, matches, utterances, torch.randint(batch * length, (pool,), generator=random)


def _slow(contexts, matches, utterances, negatives, pool):
    """Every score by itself: the formula of the paper."""
    _, length, steps, _ = matches.shape
    losses, accuracies = [], []
    for k in range(1, steps + 1):
        total = right = 0.0
        for b in range(len(contexts)):
            for t in range(length - steps):

                def score(window, time, b=b, t=t, k=k):
                    pairs = zip(contexts[b, t].tolist(), matches[window, time, k - 1].tolist(), strict=True)
                    return math.fsum(c * m for c, m in pairs)

                true = score(b, t + k)
                others = []
                if negatives in ("same", "both"):
                    others += [score(b, u) for u in range(length) if u != t + k]
                if negatives in ("other", "both"):
                    for number in pool.tolist():
                        window, time = divmod(number, length)
                        if utterances[window] != utterances[b]:
                            others.append(score(window, time))
                total -= true - math.log(math.fsum(math.exp(s) for s in [true, *others]))
                right += all(true > other for other in others)
        pairs = len(contexts) * (length - steps)
        losses.append(total / pairs)
        accuracies.append(right / pairs)
    return losses, accuracies


@pytest.mark.parametrize("negatives", CHOICES["audio.negatives"])
def test_info_nce_of_every_step_is_that_of_a_loop(negatives):
    contexts, matches, utterances, pool = _drawn()
    losses, accuracies = _slow(contexts.double(), matches.double(), utterances, negatives, pool)
    found = info_nce(contexts, matches, utterances, negatives, pool)
    assert found.loss.tolist() == pytest.approx(losses, rel=1e-5)
    assert found.accuracy.tolist() == pytest.approx(accuracies)


@pytest.mark.parametrize("negatives", CHOICES["audio.negatives"])
def test_its_gradient_is_that_of_small_differences(negatives):
    contexts, matches, utterances, pool = _drawn(batch=2, length=5, dim=3, pool=4)

    def losses(contexts, matches):
        return torch.tensor(_slow(contexts, matches, utterances, negatives, pool)[0], dtype=torch.float64).sum()

    given = [contexts.requires_grad_(), matches.requires_grad_()]
    found = torch.autograd.grad(info_nce(*given, utterances, negatives, pool).loss.sum(), given)
    random = torch.Generator().manual_seed(5)
    ways = [torch.randn(each.shape, generator=random).double() for each in given]
    ahead, behind = (
        [each.detach() + step * way for each, way in zip(given, ways, strict=True)] for step in (1e-5, -1e-5)
    )
    slope = (losses(*ahead) - losses(*behind)) / 2e-5
    along = sum((gradient * way).sum() for gradient, way in zip(found, ways, strict=True))
    assert float(along) == pytest.approx(float(slope), rel=1e-4)


def test_scores_are_those_of_the_predicted_frame_over_the_root_of_the_dimension():
    torch.manual_seed(0)
    predictor = Predictor(units=3, steps=2, dim=5).double()
    contexts, frames = torch.randn(2, 4, 3).double(), torch.randn(2, 6, 5).double()
    predicted = torch.nn.functional.linear(contexts, predictor.weight).unflatten(2, (2, 5))  # W_k c_t
    wanted = torch.einsum("btkd,bud->btuk", predicted, frames) / math.sqrt(5)
    torch.testing.assert_close(torch.einsum("bth,bukh->btuk", contexts, predictor(frames)), wanted)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("negatives", CHOICES["audio.negatives"])
def test_on_a_gpu_bfloat16_is_rounded_nowhere_else(negatives):
    contexts, matches, utterances, pool = _drawn(dim=64, length=40)
    contexts /= 8
    rounded = [tensor.bfloat16().double().requires_grad_() for tensor in (contexts, matches)]
    given = [contexts.cuda().requires_grad_(), matches.cuda().bfloat16().requires_grad_()]
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
    matches = torch.stack([frames.roll(-k, dims=2) for k in (1, 2)], dim=2)  # as the context k steps before
    found = info_nce(frames[:, :6], matches, torch.zeros(1, dtype=torch.long))
    assert found.loss.max() < 1e-6
    assert found.accuracy.tolist() == [1, 1]
    nothing = info_nce(torch.zeros_like(frames[:, :6]), matches, torch.zeros(1, dtype=torch.long))
    assert nothing.loss.tolist() == pytest.approx([math.log(8)] * 2)


def test_negatives_of_the_same_window_do_not_see_other_windows():
    contexts, matches, utterances, _ = _drawn()
    alone = info_nce(contexts[:1], matches[:1], utterances[:1]).loss
    both = info_nce(contexts, matches, utterances).loss
    elsewhere = info_nce(contexts[1:], matches[1:], utterances[1:]).loss
    assert torch.allclose(both * 3, alone + 2 * elsewhere, atol=1e-5)


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
