import copy

import pytest
import torch
from torch import nn

from stec.transfer.config import SegmentationConfig
from stec.transfer.scenes import VOID
from stec.transfer.segmentation import Segmenter, scale_crop_mirror
from stec.transfer.trunks import Trunk, dilate, last_stage, open_start


@pytest.mark.parametrize("encoder", ["resnet-small", "resnet18", "resnet50"])
def test_dilation_computes_the_same_map_at_twice_as_many_places(encoder):
    torch.manual_seed(0)
    start = open_start("none", encoder)
    for norm in (m for m in start.encoder.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 1.0)  # else blocks are but their shortcuts
    trunk, strided = Trunk(start).eval(), last_stage(start).eval()
    dense = copy.deepcopy(strided)
    dilate(dense)
    with torch.no_grad():
        maps = trunk(torch.rand(2, 3, 64, 64))
        coarse, fine = strided(maps), dense(maps)
    assert fine.shape[-1] == 2 * coarse.shape[-1]
    torch.testing.assert_close(fine[..., ::2, ::2], coarse)


def segmenter():
    torch.manual_seed(0)
    return Segmenter(open_start("none", "resnet-small"), 4, SegmentationConfig(width=16, dilation=2))


def test_loss_is_the_mean_over_pixels_that_are_not_void():
    module = segmenter().train()
    images = torch.rand(2, 3, 32, 32)
    masks = torch.randint(4, (2, 32, 32))
    masks[:, :8] = VOID
    loss, values = module(images, masks)
    chances = module.logits(images).log_softmax(dim=1)
    pixels = [(b, y, x) for b in range(2) for y in range(8, 32) for x in range(32)]
    each = [-chances[b, masks[b, y, x], y, x] for b, y, x in pixels]
    right = [float(chances[b, :, y, x].argmax() == masks[b, y, x]) for b, y, x in pixels]
    torch.testing.assert_close(loss, torch.stack(each).mean())
    torch.testing.assert_close(values, torch.tensor([loss.item(), sum(right) / len(right)]))


def test_a_batch_of_void_alone_teaches_nothing():
    loss, values = segmenter()(torch.rand(1, 3, 32, 32), torch.full((1, 32, 32), VOID))
    assert loss == 0
    assert values.isfinite().all()


def test_all_batch_norms_move():
    module = segmenter().train()
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    module(torch.rand(2, 3, 32, 32), torch.randint(4, (2, 32, 32)))[0].backward()
    assert all(not torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True))
    assert all(parameter.grad is not None for parameter in module.parameters())


def places(side=48):
    """Canvases whose pixels say where they are: red the row, green the column.

    The mask counts 1 right of column 21, and 2 below row 19.
    """
    place = torch.arange(side, dtype=torch.uint8)
    images = torch.stack([place[:, None].expand(side, side), place.expand(side, side), torch.zeros(side, side).byte()])
    masks = (place > 21).byte() + 2 * (place > 19).byte()[:, None]
    return images.repeat(64, 1, 1, 1), masks.repeat(64, 1, 1)


def test_image_and_mask_are_cut_from_the_same_place():
    images, masks = places()
    sizes = torch.tensor([[40.0, 48.0]]).repeat(64, 1)
    torch.manual_seed(0)
    cut, classes = scale_crop_mirror(images, masks, sizes, (0.5, 2.0), 32)
    assert cut.shape == (64, 3, 32, 32)
    assert classes.shape == (64, 32, 32)
    inside = classes != VOID
    assert 0.3 < inside.float().mean() < 1  # squares that are larger than the image see beyond it
    rows, columns = 255 * cut[:, 0], 255 * cut[:, 1]
    assert (cut[:, :2][~inside[:, None].expand(-1, 2, -1, -1)] == 0).all()
    assert rows[inside].max() <= 39  # never below the image, where the canvas goes on
    for seen, edge, bit in ((columns, 21.5, 1), (rows, 19.5, 2)):
        far = inside & ((seen - edge).abs() > 1)
        assert torch.equal(classes[far] & bit > 0, seen[far] > edge)

    # Every square is a straight, evenly spaced piece of the image.
    scales, mirrored = [], 0
    for i in range(64):
        line = columns[i][:, inside[i].any(dim=0)][inside[i].any(dim=1)][0][1:-1]
        steps = line.diff()
        steps = steps[(line[1:] > 0) & (line[1:] < 47) & (line[:-1] > 0) & (line[:-1] < 47)]  # not clamped at a border
        torch.testing.assert_close(steps, steps.mean().expand_as(steps), atol=1e-3, rtol=0)
        mirrored += steps.mean() < 0
        scales.append(1 / steps.mean().abs())
    assert 16 < mirrored < 48
    assert min(scales) < 0.7
    assert 1.6 < max(scales) <= 2.001


def test_squares_begin_anywhere_in_the_image():
    images, masks = (part.repeat(16, *[1] * (part.ndim - 1)) for part in places())
    torch.manual_seed(0)
    cut, _ = scale_crop_mirror(images, masks, torch.full((len(images), 2), 48.0), (1.0, 1.0), 16)
    top, left = 255 * cut[:, 0].amin(dim=(1, 2)), 255 * cut[:, 1].amin(dim=(1, 2))
    for start in (top, left):  # from 0 to 48 - 16
        assert start.min() < 1
        assert start.max() > 31
        assert start.mean() == pytest.approx(16, abs=1)


def test_without_scaling_a_square_of_the_images_size_is_the_image():
    images, masks = places(32)
    sizes = torch.full((64, 2), 32.0)
    cut, classes = scale_crop_mirror(images, masks, sizes, (1.0, 1.0), 32)
    turned = cut[:, 1, 0, 0] > 0.05
    assert turned.any()
    assert not turned.all()
    torch.testing.assert_close(cut[~turned], images[~turned] / 255)
    torch.testing.assert_close(cut[turned], images[turned].flip(-1) / 255)
    assert torch.equal(classes[turned], masks[turned].flip(-1).long())
