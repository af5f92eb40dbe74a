"""The SwAV identity model: its loss, its queue, and whose views are assigned together."""

import pytest
import torch
from comparison import partners_found
from lightly.loss import SwaVLoss
from lightly.models.modules import SwaVPrototypes
from processes import PAIRS, PROCESSES, Model, in_one_process, views_of
from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.identity import SwAV
from stec.views import ViewBatch


def swav(**settings) -> SwAV:
    encoder = nn.Linear(3, 7)
    encoder.dim = 7
    return SwAV(encoder, IdentityConfig(hidden=11, output=5, prototypes=9, temperature=0.2, **settings)).eval()


def scores_of(model: SwAV, projections: Tensor) -> list[Tensor]:
    """lightly's, whose prototypes are normalised in place before every step, without their bias: the paper has none."""
    prototypes = SwaVPrototypes(5, n_prototypes=9)
    prototypes.heads[0].weight.data.copy_(3 * model.prototypes.weight)
    nn.init.zeros_(prototypes.heads[0].bias)
    prototypes.normalize()
    return list(prototypes(nn.functional.normalize(projections, dim=-1)).chunk(2))


def test_the_loss_is_twice_lightlys_and_the_accuracy_that_of_projections() -> None:
    """lightly averages over the two directions."""
    model = Model("swav")
    views = torch.cat(views_of(0))
    loss, accuracy = model(views)
    projections = model.identity.projector(model.encoder(views))
    expected = 2 * SwaVLoss(temperature=0.2)(scores_of(model.identity, projections), [])
    torch.testing.assert_close(loss, expected.squeeze())
    assert float(accuracy) == pytest.approx(partners_found(projections))
    assert not accuracy.requires_grad


def test_two_processes_assign_their_views_together() -> None:
    """The loss of one is not the mean of what its halves would give by themselves."""
    alone = [Model("swav")(torch.cat(views_of(process)))[0].detach() for process in range(PROCESSES)]
    assert (in_one_process("swav").loss - torch.stack(alone).mean()).abs() > 0.01


def step(model: SwAV, progress: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """One of 4 images: the loss, and the projections (8, D)."""
    features = torch.randn(8, 7, generator=torch.Generator().manual_seed(seed))
    output = model(features, ViewBatch(features, copy=None))
    model.after_step(progress)
    return output.loss, output.embeddings.detach()


def test_the_queue_of_each_view_is_assigned_with_it_once_it_is_full_and_the_warm_up_over() -> None:
    model, plain = swav(assigned_queue=8, warmup=0.5), swav(assigned_queue=0)
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key != "queue"}, strict=False)
    losses, alone, seen = [], [], []
    for number, progress in enumerate((0.3, 0.4, 0.5, 0.6)):
        before = model.queue.clone()
        loss, projections = step(model, progress, number)
        losses.append(loss)
        alone.append(step(plain, progress, number)[0])
        seen.append(projections)
        own = model.queue[4 * (number % 2) :][:4]
        torch.testing.assert_close(own, torch.stack(projections.chunk(2), dim=1))
        assert torch.equal(model.queue[4 * (1 - number % 2) :][:4], before[4 * (1 - number % 2) :][:4])
    assert [torch.equal(*pair) for pair in zip(losses, alone, strict=True)] == [True, True, True, False]
    queue = torch.stack([torch.cat([views[side] for views in (p.chunk(2) for p in seen[1:3])]) for side in (0, 1)])
    expected = 2 * SwaVLoss(temperature=0.2)(
        scores_of(model, seen[3]), [], [each.squeeze(0) for each in scores_of(model, queue)]
    )
    torch.testing.assert_close(losses[3], expected.squeeze())


def test_a_queue_that_is_not_full_is_not_used() -> None:
    model, plain = swav(assigned_queue=9, warmup=0.0), swav()
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key != "queue"}, strict=False)
    for number, used in enumerate((False, False, False, True)):
        assert torch.equal(step(model, 0.5, number)[0], step(plain, 0.5, number)[0]) != used
    assert model.oldest == 16 % 9


def test_projections_of_all_batches_whose_gradients_are_accumulated_join_the_queue() -> None:
    model = Model("swav")
    model.identity = swav(assigned_queue=40)
    model.encoder = nn.Linear(10, 7)
    wanted = []
    for number in range(2):
        views = torch.cat(views_of(number))
        model(views)[0].backward()
        assert not model.identity.queue.any()
        wanted.append(torch.stack(model.identity.projector(model.encoder(views)).chunk(2), dim=1))
    with torch.no_grad():
        model(views)  # a look in between is no batch
    model.identity.after_step(0.5)
    torch.testing.assert_close(model.identity.queue[: 2 * PAIRS], torch.cat(wanted).detach())
    assert model.identity.oldest == 2 * PAIRS


def test_queue_position_and_use_are_in_the_checkpoint() -> None:
    assert {"queue", "oldest", "counts", "prototypes.moving"} <= swav().state_dict().keys()


def test_the_projector_has_the_configured_shape_and_no_norm_on_its_output() -> None:
    layers = [(m.in_features, m.out_features) for m in swav().projector if isinstance(m, nn.Linear)]
    assert layers == [(7, 11), (11, 5)]
    assert isinstance(swav().projector[-1], nn.Linear)
