"""The DINO identity model: its loss, its head, its centre, the temperature of its target."""

import pytest
import torch
from comparison import partners_found
from lightly.loss import DINOLoss
from lightly.models.modules import DINOProjectionHead
from processes import Model, views_of
from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.identity import DINO
from stec.networks.heads import Prototypes, bottleneck
from stec.views import ViewBatch


def dino(**settings) -> DINO:
    encoder = nn.Linear(3, 7)
    encoder.dim = 7
    return DINO(encoder, IdentityConfig(hidden=11, output=5, prototypes=9, **settings))


def test_the_loss_is_twice_lightlys_between_student_and_target() -> None:
    """lightly averages over the two directions."""
    model = Model("dino")
    model.identity.centre.normal_(std=0.2)
    views = torch.cat(views_of(0))
    loss, accuracy = model(views)
    features, targets = model.encoder(views), model.identity.target(views)
    theirs = DINOLoss(9, teacher_temp=0.04, student_temp=0.2)
    theirs.center.copy_(model.identity.centre)
    expected = 2 * theirs(list(targets.chunk(2)), list(model.identity.projector(features).chunk(2)))
    torch.testing.assert_close(loss, expected)
    assert (targets - model.identity.projector(features)).abs().max() > 0.1
    embeddings = model.identity.projector[0](features)
    assert float(accuracy) == pytest.approx(partners_found(embeddings))
    assert not accuracy.requires_grad


@pytest.mark.filterwarnings("ignore:.*weight_norm")  # the older of PyTorch's two, in lightly
def test_the_head_is_lightlys_with_a_fixed_gain() -> None:
    theirs = DINOProjectionHead(7, 11, 5, 9)
    ours = nn.Sequential(bottleneck(7, 11, 5), Prototypes(5, 9))
    layers = [layer for layer in theirs.layers if isinstance(layer, nn.Linear)]
    ours[1].weight.data.mul_(3)  # its length means nothing
    with torch.no_grad():
        for mine, other in zip(ours[0][::2], layers, strict=True):
            assert mine.weight.shape == other.weight.shape
            assert not mine.bias.any()
            other.weight.copy_(mine.weight)
            other.bias.copy_(mine.bias)
        theirs.last_layer.weight_v.copy_(ours[1].weight)
    features = torch.randn(6, 7)
    torch.testing.assert_close(ours(features), theirs(features))
    assert not theirs.last_layer.weight_g.requires_grad


def scores_of(model: Model, *numbers: int) -> Tensor:
    with torch.no_grad():
        return torch.cat([model.identity.target(torch.cat(views_of(number))) for number in numbers])


def test_the_centre_stays_until_the_step_is_done_then_follows_the_target() -> None:
    model = Model("dino")
    model.identity.centre.normal_()
    before = model.identity.centre.clone()
    loss, _ = model(torch.cat(views_of(0)))
    assert torch.equal(model.identity.centre, before)
    loss.backward()
    expected = 0.9 * before + 0.1 * scores_of(model, 0).mean(dim=0)
    model.identity.after_step(0.5)
    torch.testing.assert_close(model.identity.centre, expected)
    model.identity.after_step(0.6)
    torch.testing.assert_close(model.identity.centre, expected, msg="no views, no change")


def test_all_views_whose_gradients_are_accumulated_count_alike_in_one_step_of_the_centre() -> None:
    model = Model("dino")
    few, many = torch.cat(views_of(0, 2)), torch.cat(views_of(1, 6))
    with torch.no_grad():
        expected = 0.1 * model.identity.target(torch.cat([few, many])).mean(dim=0)
    for views in (few, many):
        model(views)[0].backward()
    with torch.no_grad():
        model(torch.cat(views_of(2)))  # a look in between is no batch
    model.identity.after_step(0.5)
    torch.testing.assert_close(model.identity.centre, expected)


def test_the_targets_temperature_rises_with_training_and_sharpens_less() -> None:
    model = dino(target_temperature=0.07, warmup=0.1)
    seen = [model.target_temperature.item()]
    for progress in (0.05, torch.tensor(0.1, dtype=torch.float64), 1.0):
        model.after_step(progress)
        seen.append(model.target_temperature.item())
    assert seen == pytest.approx([0.04, 0.055, 0.07, 0.07])
    features, views = torch.randn(8, 7), torch.randn(8, 3)
    keys = []
    for temperature in (0.04, 0.07):
        model.target_temperature.fill_(temperature)
        keys.append(model(features, ViewBatch(views, copy=None)).keys[0])
    assert keys[0].amax(dim=1).mean() > keys[1].amax(dim=1).mean()


def test_centre_and_temperature_are_in_the_checkpoint() -> None:
    assert {"centre", "target_temperature", "projector.1.moving"} <= dino().state_dict().keys()
