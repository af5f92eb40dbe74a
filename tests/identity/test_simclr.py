"""The SimCLR identity model: alone against the equations, and in two processes against one."""

import pytest
import torch
from lightly.loss import NTXentLoss
from processes import (
    PAIRS,
    PIXELS,
    PROCESSES,
    Model,
    in_one_process,
    views_of,
)
from torch import nn

from stec.config import IdentityConfig
from stec.identity import SimCLR
from stec.processes import gather


def test_two_processes_contrast_with_each_other() -> None:
    """The loss of one is not the mean of what its halves would give by themselves."""
    alone = [Model("simclr")(torch.cat(views_of(process)))[0].detach() for process in range(PROCESSES)]
    assert in_one_process("simclr").loss > torch.stack(alone).mean() + 0.1


def test_one_process_gathers_its_own_rows() -> None:
    rows = torch.randn(3, 2)
    assert gather(rows) is rows


def test_loss_and_accuracy_of_one_process() -> None:
    """Loss: twice lightly's, on the same projections. Accuracy: the nearest other view by a loop."""
    model = Model("simclr")
    first, second = views_of(0)
    views = torch.cat([first, second])
    loss, accuracy = model(views)
    projections = model.identity.projector(model.encoder(views))
    expected = 2 * NTXentLoss(temperature=0.2)(*projections.chunk(2))
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)

    found = 0
    for i in range(2 * PAIRS):
        similarity = torch.cosine_similarity(projections[i], projections, dim=1)
        similarity[i] = -2
        found += int(similarity.argmax()) == (i + PAIRS) % (2 * PAIRS)
    assert 0 < found < 2 * PAIRS
    assert float(accuracy) == pytest.approx(found / (2 * PAIRS))
    assert not accuracy.requires_grad


def test_the_projector_has_the_configured_shape() -> None:
    encoder = nn.Linear(PIXELS, 7)
    encoder.dim = 7
    model = SimCLR(encoder, IdentityConfig(hidden=11, output=3))
    assert [(m.in_features, m.out_features) for m in model.projector if isinstance(m, nn.Linear)] == [(7, 11), (11, 3)]
    assert not any(parameter is encoder.weight for parameter in model.parameters())  # the encoder is the method's
