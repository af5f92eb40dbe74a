"""The DINO identity model: its loss, its centre, what is frozen, what is compiled."""

import copy

import pytest
import torch
from comparison import partners_found
from lightly.loss import DINOLoss
from lightly.models.modules import DINOProjectionHead
from processes import Model, views_of
from torch import Tensor, nn

import stec
from stec.config import IdentityConfig
from stec.identity import DINO
from stec.networks.heads import Prototypes, bottleneck
from stec.views import Views


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


def test_prototypes_have_the_length_1_whatever_becomes_of_their_weights() -> None:
    prototypes, embeddings = Prototypes(5, 9), 4 * torch.randn(2, 3, 5)
    torch.testing.assert_close(prototypes.weight.norm(dim=1), torch.ones(9))
    expected = torch.stack([torch.cosine_similarity(embeddings, w.detach(), dim=2) for w in prototypes.weight], dim=2)
    prototypes.weight.data.mul_(torch.linspace(0.1, 10, 9)[:, None])
    torch.testing.assert_close(prototypes(embeddings), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(prototypes(embeddings), prototypes.float()(embeddings))


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
        keys.append(model(features, stec.views.ViewBatch(views, copy=None)).keys[0])
    assert keys[0].amax(dim=1).mean() > keys[1].amax(dim=1).mean()


def test_frozen_prototypes_keep_their_directions_and_move_from_then_on() -> None:
    """Weight decay alone shrinks them, which changes no score."""
    views, method = Views(size=32), stec.create("dino", "resnet-small", identity={"prototypes": 9, "frozen": 0.5})
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    start = method.identity.prototypes.weight.detach().clone()
    for step in range(4):
        optimizer.zero_grad()
        method(views(torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8))).total.backward()
        optimizer.step()
        weight = method.identity.prototypes.weight.detach()
        moved = (torch.cosine_similarity(weight, start, dim=1) - 1).abs().max()
        assert (moved > 1e-6) == (step >= 2), step
        assert weight.norm(dim=1).max() < 1
        method.after_step((step + 1) / 4)
    assert method.identity.projector[0][0].weight.grad.any()


def test_a_step_is_compiled_whole_and_does_the_same() -> None:
    method = stec.create("stec-dino", "resnet-small", identity={"prototypes": 9, "hidden": 16, "output": 5})
    twin, views = copy.deepcopy(method), Views(size=16, small=1, small_size=8)
    batch = views(torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8))
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True, dynamic=False)
    for progress in (0.5, 1.0):
        losses = [each(batch).total for each in (method, compiled)]
        torch.testing.assert_close(*losses)
        for each, loss in zip((method, twin), losses, strict=True):
            loss.backward()
            each.after_step(progress)
    torch.testing.assert_close(twin.state_dict(), method.state_dict())
    assert method.identity.centre.abs().max() > 0
    torch.testing.assert_close([p.grad for p in twin.parameters()], [p.grad for p in method.parameters()])


def test_centre_and_temperature_are_in_the_checkpoint() -> None:
    assert {"centre", "target_temperature", "projector.1.moving"} <= dino().state_dict().keys()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"prototypes": 1}, "identity.prototypes=1: must be at least 2"),
        ({"target_temperature": 0.0}, "identity.target_temperature=0.0: must be above 0"),
        ({"warmup": 1.0}, "identity.warmup=1.0: is a share of training, from 0 to below 1"),
        ({"frozen": -0.1}, "identity.frozen=-0.1: is a share of training"),
    ],
)
def test_bad_settings_are_refused(settings: dict, reason: str) -> None:
    with pytest.raises(stec.UserError, match=reason):
        stec.create("dino", "resnet-small", identity=settings)
