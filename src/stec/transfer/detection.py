"""Faster R-CNN on a C4 trunk: which objects are where?

The encoder up to its last stage gives the map on which regions are proposed and from which they are cut; its last
stage (conv5) is the box head. Both heads have a batch norm right before their linear output layers, and all layers are
trained (Ren et al. 2015, He et al. 2020). Proposals, sampling, losses and box arithmetic are torchvision's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.ops import MultiScaleRoIAlign, roi_align

from stec import randomness
from stec.processes import average
from stec.transfer.config import DetectionConfig
from stec.transfer.trunks import Start, Trunk, last_stage

METRICS = ("loss", "classes", "boxes", "objectness", "proposals")
_RATIOS = (0.5, 1.0, 2.0)  # height over width of the anchors


class ProposalHead(nn.Module):
    """Objectness and box of every anchor, from maps (B, C, H, W)."""

    def __init__(self, channels: int, anchors: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.objectness = nn.Conv2d(channels, anchors, kernel_size=1)
        self.boxes = nn.Conv2d(channels, 4 * anchors, kernel_size=1)
        for layer in (self.conv, self.objectness, self.boxes):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, maps: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """One map of either kind for each map; float32, as boxes of hundreds of pixels need it."""
        hidden = [self.norm(F.relu(self.conv(x))) for x in maps]
        return [self.objectness(x).float() for x in hidden], [self.boxes(x).float() for x in hidden]


class RegionAlign(MultiScaleRoIAlign):
    """Cuts regions out of one map of known stride, its pixels taken where they are (`aligned`).

    torchvision's own guesses the stride from the sizes of the first images that it sees, which a canvas would mislead.
    """

    def __init__(self, side: int, stride: int) -> None:
        super().__init__(featmap_names=["0"], output_size=side, sampling_ratio=2)
        self.stride = stride

    def forward(self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]) -> Tensor:
        """(regions, C, side, side) of the map x["0"]."""
        return roi_align(x["0"], boxes, self.output_size, 1 / self.stride, self.sampling_ratio, aligned=True)


class BoxHead(nn.Module):
    """The encoder's last stage, a batch norm, and the mean over the region: (R, C, S, S) to (R, D)."""

    def __init__(self, last: nn.Module, channels: int) -> None:
        super().__init__()
        self.last = last
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, regions: Tensor) -> Tensor:
        """(R, D)"""
        return self.norm(self.last(regions.contiguous(memory_format=torch.channels_last))).mean(dim=(2, 3))


class BoxOutput(FastRCNNPredictor):
    """Class and box of every region, in float32."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(R, classes), (R, 4 classes)"""
        classes, boxes = super().forward(x)
        return classes.float(), boxes.float()


class Targets:
    """What is in the images of a batch. No tuple: mixed precision would reach into it and round the boxes.

    Args:
        boxes: float32 (B, M, 4) left, top, right, bottom in pixels of the canvas.
        labels: int64 (B, M) from 1.
        sizes: height and width of every image.
        counts: how many of the M boxes every image has.
    """

    def __init__(self, boxes: Tensor, labels: Tensor, sizes: list[tuple[int, int]], counts: list[int]) -> None:
        self.sizes = sizes
        parts = zip(boxes, labels, counts, strict=True)
        self.images = [{"boxes": box[:count], "labels": label[:count]} for box, label, count in parts]


class Detector(nn.Module):
    """A Faster R-CNN for images that all lie on canvases of one size.

    Args:
        start: the encoder.
        classes: how many, with the background, which is class 0.
        config: anchors, proposals, samples.
    """

    def __init__(self, start: Start, classes: int, config: DetectionConfig) -> None:
        super().__init__()
        self.trunk = Trunk(start)
        self.rpn_weight = config.rpn_weight
        anchors = AnchorGenerator(sizes=(tuple(config.anchors),), aspect_ratios=(_RATIOS,))
        head = ProposalHead(self.trunk.channels, anchors.num_anchors_per_location()[0])
        self.proposals = RegionProposalNetwork(
            anchors, head,
            fg_iou_thresh=0.7, bg_iou_thresh=0.3,
            batch_size_per_image=config.anchors_per_image, positive_fraction=0.5,
            pre_nms_top_n={"training": 6 * config.proposals, "testing": 6 * config.test_proposals},
            post_nms_top_n={"training": config.proposals, "testing": config.test_proposals},
            nms_thresh=0.7,
        )  # fmt: skip
        width = self.trunk.last_channels
        self.regions = RoIHeads(
            RegionAlign(config.region_side, self.trunk.stride),
            BoxHead(last_stage(start), width),
            BoxOutput(width, classes),
            fg_iou_thresh=0.5, bg_iou_thresh=0.5,
            batch_size_per_image=config.regions_per_image, positive_fraction=0.25, bbox_reg_weights=None,
            score_thresh=0.05, nms_thresh=0.5, detections_per_img=100,
        )  # fmt: skip

    def pretrained(self) -> list[nn.Module]:
        """The parts that the encoder brought along."""
        return [self.trunk, self.regions.box_head.last]

    def losses(self, images: Tensor, targets: Targets) -> dict[str, Tensor]:
        """torchvision's four losses; see `forward`."""
        features = {"0": self.trunk(images).float()}
        proposals, losses = self.proposals(ImageList(images, targets.sizes), features, targets.images)
        return losses | self.regions(features, proposals, targets.sizes, targets.images)[1]

    def forward(self, images: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """The loss, and METRICS, averaged over the images of all processes.

        Images (B, 3, S, S) in [0, 1], each in the upper left of its canvas.
        """
        with randomness.of_this_process(images.device):  # how many boxes are drawn depends on the images
            losses = self.losses(images, targets)
        names = ("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg")
        classes, offsets, objectness, proposals = (average(losses[name], len(images)) for name in names)
        loss = classes + offsets + self.rpn_weight * (objectness + proposals)
        return loss, torch.stack([loss, classes, offsets, objectness, proposals]).detach()

    def detect(self, images: Tensor, sizes: list[tuple[int, int]]) -> list[dict[str, Tensor]]:
        """`boxes` (n, 4), `labels` (n,) and `scores` (n,) found in every image, best first; in evaluation mode."""
        features = {"0": self.trunk(images).float()}
        proposals, _ = self.proposals(ImageList(images, sizes), features)
        return self.regions(features, proposals, sizes)[0]


def mirror(images: Tensor, boxes: Tensor, sizes: Tensor, mirrored: Tensor) -> tuple[Tensor, Tensor]:
    """Turns some images and their boxes around, each within its own part of the canvas.

    Args:
        images: (B, 3, S, S)
        boxes: (B, M, 4)
        sizes: (B, 2) height and width of every image, whole numbers.
        mirrored: (B,) bool.
    """
    width = sizes[:, 1:].long()
    column = torch.arange(images.shape[-1], device=images.device)
    source = torch.where(mirrored[:, None] & (column < width), width - 1 - column, column)  # (B, S)
    images = images.gather(3, source[:, None, None, :].expand_as(images))
    left, top, right, bottom = boxes.unbind(-1)
    turned = torch.stack([width - right, top, width - left, bottom], dim=-1)
    return images, torch.where(mirrored[:, None, None], turned, boxes)


def resize(images: Tensor, side: int) -> Tensor:
    """Canvases (B, 3, S, S), uint8, as (B, 3, side, side) in [0, 1]."""
    pixels = images.float() / 255
    if images.shape[-1] == side:
        return pixels
    shrinks = images.shape[-1] > side
    return F.interpolate(pixels, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)
