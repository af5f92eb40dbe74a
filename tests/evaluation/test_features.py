"""What evaluation shows to an encoder."""

import pytest
import torch
from torch import nn

from stec.data import ResidentSplit
from stec.evaluation.features import extract, extract_frozen
from stec.views import Views


@pytest.mark.parametrize("act", [False, True])
def test_mixed_precision_does_not_touch_the_pixels(act):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (300, 3, 20, 20), dtype=torch.uint8, generator=generator)
    split = ResidentSplit(images, torch.tensor([[20.0, 30.0]]).repeat(300, 1), torch.arange(300) % 3 - 1)
    views, seen = Views(size=16), []
    for mixed in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            features, labels = extract(lambda x: x.flatten(1), views, split, act)
        seen.append(features)
        assert features.shape == (200, 3 * 16 * 16), "of those that have a label"
        assert labels.tolist() == [i % 3 - 1 for i in range(300) if i % 3]
    assert torch.equal(*seen)


@pytest.mark.parametrize("training", [False, True])
def test_an_encoder_is_frozen_meanwhile_and_left_as_it_was(training):
    encoder = nn.Sequential(nn.Flatten(), nn.Dropout()).train(training)
    images = torch.full((4, 3, 16, 16), 255, dtype=torch.uint8)
    features, _ = extract_frozen(
        encoder, Views(size=16), ResidentSplit(images, torch.full((4, 2), 16.0), torch.zeros(4))
    )
    torch.testing.assert_close(features, torch.ones(4, 3 * 16 * 16))
    assert encoder.training == training
