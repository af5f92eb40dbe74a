"""Each process computes the losses of its own rows: against a slow loop in float64, and in three real processes."""

from collections.abc import Callable

import pytest
import torch
from processes import Outcome, in_one_process, in_processes
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stec.functional import contrast_pairs, contrast_small, relic, relic_small, target_accuracy
from stec.noncontrastive import partner_accuracy
from stec.processes import own_rows

TAU, ALPHA, DIM = 0.3, 1.7, 6
CUTS = [(8,), (4, 4), (5, 3), (2, 5, 1), (1,) * 8]
UNEVEN = (6, 1, 3)
NAMES = ("simclr", "simclr, blocks", "relic", "relic, blocks", "byol", "dino", "simsiam", "swav", "vicreg")


def slow(views: list[Tensor], candidates: list[Tensor], partners: list[Tensor], own: range, alpha: float) -> Tensor:
    """The equations a view at a time: x, x' of the pairs `own`; a view's candidates are those of all images but it."""
    views, candidates, partners = (
        [x / x.norm(dim=1, keepdim=True) for x in each] for each in (views, candidates, partners)
    )

    def assignment(view: Tensor, image: int, side: int) -> Tensor:
        """Log-probabilities of the partner, then of the views of all other images."""
        others = [candidates[s][k] for k in range(len(candidates[0])) if k != image for s in (0, 1)]
        return torch.stack([view @ c / TAU for c in (candidates[1 - side][image], *others)]).log_softmax(dim=0)

    losses = []
    for i in own:
        for side in (0, 1):
            mine = assignment(views[side][i], i, side)
            theirs = assignment(partners[1 - side][i], i, 1 - side).detach()
            losses.append(-mine[0] + alpha * (theirs.exp() * (theirs - mine)).sum())
    return torch.stack(losses).sum() / len(own)


def slow_loss(name: str, small: Tensor, first: Tensor, second: Tensor, targets: list[Tensor], own: range) -> Tensor:
    candidates = [target.detach() for target in targets] if "relic" in name else [first, second]
    views = [small, small] if "small" in name else [first, second]
    return slow(views, candidates, [first, second], own, ALPHA if "relic" in name else 0.0)


def fast_loss(name: str, small: Tensor, first: Tensor, second: Tensor, targets: list[Tensor], own: slice, block):
    return {
        "simclr": lambda: contrast_pairs(first, second, TAU, block, own).loss,
        "simclr small": lambda: contrast_small(small[own], first, second, TAU, block, own),
        "relic": lambda: relic(first[own], second[own], *targets, TAU, ALPHA, block, own).loss,
        "relic small": lambda: relic_small(small[own], first[own], second[own], *targets, TAU, ALPHA, block, own),
    }[name]()


def drawn(dtype: torch.dtype, pairs: int = 8, dim: int = DIM) -> tuple[list[Tensor], list[Tensor]]:
    """Small view, x, x', which require a gradient, and the targets of x and x'."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(pairs, dim, generator=generator)
    views = [image + 0.7 * torch.randn(pairs, dim, generator=generator) for _ in range(5)]
    return [view.to(dtype).requires_grad_() for view in views[:3]], [view.to(dtype) for view in views[3:]]


def places(cut: tuple[int, ...]) -> list[slice]:
    return [slice(sum(cut[:rank]), sum(cut[: rank + 1])) for rank in range(len(cut))]


@pytest.mark.parametrize("block", [None, 3])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["simclr", "simclr small", "relic", "relic small"])
def test_each_share_is_that_of_the_slow_version_and_all_are_the_whole(name, cut, block) -> None:
    inputs, targets = drawn(torch.float32)
    precise, precise_targets = drawn(torch.float64)
    used = inputs if "small" in name else inputs[1:]
    total: Tensor = torch.zeros(())
    for own in places(cut):
        share = fast_loss(name, *inputs, targets, own, block)
        wanted = slow_loss(name, *precise, precise_targets, range(8)[own])
        assert share.item() == pytest.approx(wanted.item(), rel=1e-6)
        assert_same_gradients(share, used, wanted, precise[-len(used) :])
        total = total + share * (own.stop - own.start) / 8
    whole = slow_loss(name, *precise, precise_targets, range(8))
    assert total.item() == pytest.approx(whole.item(), rel=1e-6)
    assert_same_gradients(total, used, whole, precise[-len(used) :])


def assert_same_gradients(loss: Tensor, inputs: list[Tensor], wanted: Tensor, precise: list[Tensor]) -> None:
    gradients = torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)
    expected = torch.autograd.grad(wanted, precise, retain_graph=True, materialize_grads=True)
    largest = max(float(each.abs().max()) for each in expected)
    assert largest > 1e-2
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("cut", CUTS)
def test_accuracies_of_the_shares_add_up(cut) -> None:
    (_, first, second), targets = drawn(torch.float32)
    for whole, share in (
        (partner_accuracy(first, second), lambda own: partner_accuracy(first, second, own)),
        (
            target_accuracy(first, second, *targets),
            lambda own: target_accuracy(first[own], second[own], *targets, own),
        ),
    ):
        hits = [float(share(own)) * (own.stop - own.start) for own in places(cut)]
        assert 0 < float(whole) < 1
        assert sum(hits) / 8 == pytest.approx(float(whole))


def multiplications(loss: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        loss().backward()
    return counter.get_total_flops()


def largest_saved(loss: Callable[[], Tensor]) -> int:
    saved = [0]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.numel()), t)[1], lambda t: t):
        loss().backward()
    return max(saved)


@pytest.mark.parametrize("block", [None, 5])
@pytest.mark.parametrize("name", ["simclr", "simclr small", "relic", "relic small"])
def test_a_quarter_of_the_rows_takes_a_quarter_of_the_work_and_memory(name, block) -> None:
    inputs, targets = drawn(torch.float32, pairs=40)
    whole, quarter = (
        lambda own=own: fast_loss(name, *inputs, targets, own, block) for own in (slice(None), slice(10, 20))
    )
    assert multiplications(whole) == 4 * multiplications(quarter) > 0
    if block is None:
        assert largest_saved(whole) == 80 * 80
        assert largest_saved(quarter) == 20 * 80
    else:
        assert largest_saved(quarter) <= 80 * DIM


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    return in_processes(NAMES, tmp_path_factory.mktemp("three"), UNEVEN)


@pytest.mark.parametrize("name", NAMES)
def test_three_uneven_processes_are_one(name, three_processes) -> None:
    one = in_one_process(name, UNEVEN)
    for process in three_processes[name]:
        torch.testing.assert_close(process.loss, one.loss, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(process.accuracy, one.accuracy)
        assert process.gradients.keys() == one.gradients.keys()
        for key, wanted in one.gradients.items():
            torch.testing.assert_close(
                process.gradients[key], wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()) + 1e-8, msg=key
            )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vicreg"])  # its covariances are those of all rows
def test_the_work_of_a_process_is_that_of_its_rows(name, three_processes) -> None:
    whole = in_one_process(name, UNEVEN).multiplications
    done = [process.multiplications for process in three_processes[name]]
    assert done == [whole * pairs // sum(UNEVEN) for pairs in UNEVEN]


def test_one_process_owns_all_rows() -> None:
    assert own_rows(5) == slice(0, 5)
