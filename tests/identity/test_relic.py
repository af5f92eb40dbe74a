"""The ReLIC identity model, alone and in two processes."""

import pytest
import torch
from processes import (
    PAIRS,
    PROCESSES,
    Model,
    in_one_process,
    views_of,
)
from torch import nn

import stec
from stec.functional import relic
from stec.identity import ReLIC


def test_two_processes_contrast_with_each_other() -> None:
    alone = [Model("relic")(torch.cat(views_of(process)))[0].detach() for process in range(PROCESSES)]
    assert in_one_process("relic").loss > torch.stack(alone).mean() + 0.1


def test_online_views_are_compared_with_the_targets_of_the_same_images() -> None:
    model = Model("relic")
    views = torch.cat(views_of(0))
    loss, accuracy = model(views)
    online = model.identity.projector(model.encoder(views))
    target = model.identity.target.projector(model.identity.target.encoder(views))
    assert (online - target).abs().max() > 0.1
    expected = relic(*online.chunk(2), *target.chunk(2), temperature=0.2, alpha=1.0)
    torch.testing.assert_close(loss, expected.loss)
    torch.testing.assert_close(accuracy, expected.accuracy)
    assert 0 < accuracy < 1
    assert len(views) == 2 * PAIRS


def test_alpha_comes_from_the_config() -> None:
    views = stec.Views(size=32)(torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8))
    losses = []
    for alpha in (0.0, 5.0):
        torch.manual_seed(0)
        method = stec.create("relic", "resnet-small", identity={"alpha": alpha, "temperature": 0.1})
        losses.append(method(views).identity)
    assert losses[1] > losses[0]


def test_stec_star_is_relic_with_the_manipulation_model() -> None:
    for name in ("stec*", "stec-star"):
        method = stec.create(name, "resnet-small")
        assert isinstance(method.identity, ReLIC)
        assert method.manipulation is not None
    assert stec.create("relic", "resnet-small").manipulation is None


@pytest.mark.parametrize("name", ["relic", "moco", "byol", "dino"])
def test_after_a_step_the_target_follows_by_the_schedule(name: str) -> None:
    method = stec.create(name, "resnet-small", identity={"ema": 0.9, "queue": 8})
    online, target = method.encoder.conv1.weight, method.identity.target.encoder.conv1.weight
    for progress, decay in ((0.0, 0.9), (0.5, 0.95), (1.0, 1.0)):
        with torch.no_grad():
            online.add_(1.0)
        expected = decay * target + (1 - decay) * online
        method.after_step(progress)
        torch.testing.assert_close(target, expected.detach())
    assert method.identity.target_encoders() == [method.identity.target.encoder]


@pytest.mark.parametrize("name", ["relic", "moco", "byol"])
def test_the_output_is_normalised_in_moco_alone(name: str) -> None:
    """Paper, appendix: batch norm on the output of g "except when target networks were used"; MoCo is as SimCLR."""
    identity = stec.create(name, "resnet-small", identity={"queue": 8}).identity
    assert isinstance(identity.projector[-1], nn.BatchNorm1d) == (name == "moco")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"alpha": -1.0}, "identity.alpha=-1.0: must be at least 0"),
        ({"alpha": float("nan")}, "identity.alpha=nan"),
        ({"ema": 1.0}, r"identity\.ema=1\.0: must be above 0 \(the target would be the encoder itself\) and below 1"),
        ({"ema": 0.0}, r"identity\.ema=0\.0: must be above 0"),
        ({"queue": 0}, "identity.queue=0: must be at least 1"),
        ({"temperature": 0.0}, "identity.temperature=0.0: must be above 0"),
        ({"momentum": 0.9}, "unknown setting 'momentum'"),
    ],
)
def test_bad_settings_are_refused_when_the_method_is_created(settings: dict, reason: str) -> None:
    for name in ("stec-star", "stec-moco", "stec-byol"):
        with pytest.raises(stec.UserError, match=reason):
            stec.create(name, "resnet-small", identity=settings)
