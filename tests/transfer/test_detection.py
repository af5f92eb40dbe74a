import pytest
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN

from stec.transfer.config import DetectionConfig
from stec.transfer.detection import Detector, RegionAlign, Targets, mirror, resize
from stec.transfer.trunks import open_start

SMALL = DetectionConfig(
    anchors=(8, 16, 32),
    anchors_per_image=32,
    proposals=40,
    test_proposals=30,
    regions_per_image=16,
    region_side=6,
    rpn_weight=0.2,
)
SIZES = [(64, 48), (40, 64), (64, 56)]


def detector(encoder="resnet-small"):
    torch.manual_seed(0)
    return Detector(open_start("none", encoder), classes=4, config=SMALL)


def batch():
    """Three images on canvases of 64 x 64; the last has no object."""
    generator = torch.Generator().manual_seed(1)
    images = torch.zeros(3, 3, 64, 64)
    for image, (h, w) in zip(images, SIZES, strict=True):
        image[:, :h, :w] = torch.rand(3, h, w, generator=generator)
    boxes = torch.zeros(3, 2, 4)
    boxes[0] = torch.tensor([[4.0, 6.0, 30.0, 40.0], [20.0, 30.0, 47.0, 63.0]])
    boxes[1, 0] = torch.tensor([10.0, 3.0, 60.0, 30.0])
    labels = torch.tensor([[1, 3], [2, 0], [0, 0]])
    return images, boxes, labels, SIZES, [2, 1, 0]


class Backbone(nn.Module):
    """As torchvision wants it."""

    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.out_channels = trunk, trunk.channels

    def forward(self, images):
        return self.trunk(images)


def torchvisions(ours):
    """torchvision's own Faster R-CNN, built with the same parts and numbers."""
    return FasterRCNN(
        Backbone(ours.trunk),
        rpn_anchor_generator=ours.proposals.anchor_generator,
        rpn_head=ours.proposals.head,
        rpn_pre_nms_top_n_train=240,
        rpn_post_nms_top_n_train=40,
        rpn_pre_nms_top_n_test=180,
        rpn_post_nms_top_n_test=30,
        rpn_batch_size_per_image=32,
        box_roi_pool=ours.regions.box_roi_pool,
        box_head=ours.regions.box_head,
        box_predictor=ours.regions.box_predictor,
        box_batch_size_per_image=16,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        _skip_resize=True,  # in training, where it would draw a random number
        min_size=1000,
        max_size=64,  # which all images have already
    )


def test_losses_and_boxes_are_those_of_torchvisions_faster_rcnn():
    ours = detector()
    theirs = torchvisions(ours)
    images, boxes, labels, sizes, counts = batch()
    listed = [image[:, :h, :w] for image, (h, w) in zip(images, sizes, strict=True)]
    targets = [{"boxes": boxes[i, :n], "labels": labels[i, :n]} for i, n in enumerate(counts)]

    ours.train()
    theirs.train()
    torch.manual_seed(5)
    mine = ours.losses(images, Targets(boxes, labels, sizes, counts))
    torch.manual_seed(5)  # both sample anchors and regions at random
    expected = theirs(listed, targets)
    assert mine.keys() == expected.keys()
    for name in expected:
        assert mine[name] > 0
        torch.testing.assert_close(mine[name], expected[name])
    torch.manual_seed(5)
    loss, values = ours(images, Targets(boxes, labels, sizes, counts))
    weighted = sum(value * (0.2 if "rpn" in name or "objectness" in name else 1) for name, value in expected.items())
    torch.testing.assert_close(loss, weighted)
    torch.testing.assert_close(values[0], weighted.detach())

    ours.eval()
    theirs.eval()
    with torch.no_grad():
        found, known = ours.detect(images, sizes), theirs(listed)
    assert any(len(image["boxes"]) for image in known)
    for mine, expected in zip(found, known, strict=True):
        for key in ("boxes", "labels", "scores"):
            torch.testing.assert_close(mine[key], expected[key])


@pytest.mark.parametrize(
    ("encoder", "stride", "widths"),
    [
        ("resnet-small", 8, (64, 128)),
        ("resnet18", 16, (256, 512)),
        ("resnet18-cifar", 4, (256, 512)),
        ("resnet50", 16, (1024, 2048)),
    ],
)
def test_the_trunk_ends_before_the_last_stage(encoder, stride, widths):
    trunk = detector(encoder).trunk
    assert (trunk.stride, trunk.channels, trunk.last_channels) == (stride, *widths)
    with torch.no_grad():
        assert trunk(torch.rand(1, 3, 64, 64)).shape == (1, widths[0], 64 // stride, 64 // stride)


def test_all_layers_are_trained_and_all_batch_norms_move():
    module = detector().train()
    assert all(parameter.requires_grad for parameter in module.parameters())
    norms = {name: m for name, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
    assert {"proposals.head.norm", "regions.box_head.norm", "trunk.layers.1"} <= norms.keys()
    before = {name: norm.running_mean.clone() for name, norm in norms.items()}
    images, *marked = batch()
    loss, _ = module(images, Targets(*marked))
    loss.backward()
    for name, norm in norms.items():
        assert not torch.equal(norm.running_mean, before[name]), name
        assert norm.weight.grad is not None, name


def test_images_without_objects_train_too():
    images, boxes, labels, sizes, _ = batch()
    module = detector().train()
    loss, values = module(images, Targets(boxes, labels, sizes, [0, 0, 0]))
    loss.backward()
    assert values.isfinite().all()
    assert values[2] == 0  # no box to be right about


def test_mirroring_stays_within_the_image_and_takes_boxes_along():
    images, boxes, _, sizes, counts = batch()
    lengths = torch.tensor(sizes)
    turned, moved = mirror(images, boxes, lengths, torch.tensor([True, False, True]))
    for i, (h, w) in enumerate(sizes):
        expected = images[i, :, :h, :w].flip(-1) if i != 1 else images[i, :, :h, :w]
        assert torch.equal(turned[i, :, :h, :w], expected)
        assert turned[i, :, h:].sum() == 0
        assert turned[i, :, :, w:].sum() == 0
    assert moved[0].tolist() == [[18.0, 6.0, 44.0, 40.0], [1.0, 30.0, 28.0, 63.0]]
    assert torch.equal(moved[1], boxes[1])
    again, back = mirror(turned, moved, lengths, torch.tensor([True, False, True]))
    assert torch.equal(again, images)
    assert torch.equal(back[0, : counts[0]], boxes[0, : counts[0]])


def test_resizing_leaves_what_has_the_size():
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    assert torch.equal(resize(images, 64), images / 255)
    assert resize(images, 96).shape == (2, 3, 96, 96)
    stripes = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    stripes[..., ::4] = 255
    assert (resize(stripes, 16)[..., 1:-1] - 0.25).abs().max() < 0.05, "none is passed over"


def test_a_region_has_the_pixels_that_it_covers():
    """Columns 1 to 4 of a map whose values are its columns, in two bins."""
    columns = torch.arange(8.0).expand(1, 1, 8, 8)
    (found,) = RegionAlign(side=2, stride=8)({"0": columns}, [torch.tensor([[8.0, 16, 40, 48]])], [(64, 64)])
    torch.testing.assert_close(found[0], torch.tensor([[1.5, 3.5], [1.5, 3.5]]))
