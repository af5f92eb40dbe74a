"""The BYOL identity model, alone and in two processes."""

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from processes import (
    PAIRS,
    Model,
    views_of,
)
from torch import nn

from stec.config import IdentityConfig
from stec.identity import BYOL


def test_the_loss_is_lightlys_between_predictions_and_targets_of_the_other_view() -> None:
    model = Model("byol")
    views = torch.cat(views_of(0))
    loss, accuracy = model(views)
    predictions = model.identity.predictor(model.identity.projector(model.encoder(views)))
    targets = model.identity.target(views)
    crossed = torch.cat([targets[PAIRS:], targets[:PAIRS]])
    mean_cosine = -NegativeCosineSimilarity()(predictions, crossed)
    torch.testing.assert_close(loss, 2 * (2 - 2 * mean_cosine))
    assert not accuracy.requires_grad

    found = 0
    for i in range(2 * PAIRS):
        similarity = torch.cosine_similarity(predictions[i], targets, dim=1)
        similarity[i] = -2
        found += int(similarity.argmax()) == (i + PAIRS) % (2 * PAIRS)
    assert found > 0
    assert float(accuracy) == pytest.approx(found / (2 * PAIRS))


def test_projector_and_predictor_have_the_configured_shape() -> None:
    encoder = nn.Linear(3, 7)
    encoder.dim = 7
    model = BYOL(encoder, IdentityConfig(hidden=11, output=5))
    shapes = [(m.in_features, m.out_features) for m in (*model.projector, *model.predictor) if isinstance(m, nn.Linear)]
    assert shapes == [(7, 11), (11, 5), (5, 11), (11, 5)]
    assert not any("predictor" in name for name in model.target.state_dict())
