"""FCN-16s: which class does every pixel show?

The encoder to its last stage, whose stride gives way to a dilation of 2; two 3 x 3 convolutions with batch norm and
ReLU; a 1 x 1 convolution to the classes (Long et al. 2015, He et al. 2020). All layers are trained.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stec.processes import mean, rows_to_draw
from stec.transfer.config import SegmentationConfig
from stec.transfer.scenes import VOID
from stec.transfer.trunks import Start, Trunk, dilate, last_stage

METRICS = ("loss", "pixel_accuracy")


class Segmenter(nn.Module):
    """A fully convolutional network.

    Args:
        start: the encoder.
        classes: how many, with the background, which is class 0.
        config: of the layers behind the encoder.
    """

    def __init__(self, start: Start, classes: int, config: SegmentationConfig) -> None:
        super().__init__()
        self.trunk = Trunk(start)
        self.last = last_stage(start)
        dilate(self.last)
        reach, width = config.dilation, config.width
        layers: list[nn.Module] = []
        for before in (self.trunk.last_channels, width):
            conv = nn.Conv2d(before, width, kernel_size=3, padding=reach, dilation=reach, bias=False)
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.head = nn.Sequential(*layers, nn.Conv2d(width, classes, kernel_size=1))

    def pretrained(self) -> list[nn.Module]:
        """The parts that the encoder brought along."""
        return [self.trunk, self.last]

    def logits(self, images: Tensor) -> Tensor:
        """(B, classes, H, W) of images (B, 3, H, W) in [0, 1]."""
        coarse = self.head(self.last(self.trunk(images))).float()
        return F.interpolate(coarse, images.shape[-2:], mode="bilinear", align_corners=False)

    def forward(self, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """The loss over all pixels that are not void, those of all processes, and METRICS.

        Images (B, 3, H, W) in [0, 1], masks int64 (B, H, W).
        """
        logits = self.logits(images)
        counted = masks != VOID
        each = F.cross_entropy(logits, torch.where(counted, masks, 0), reduction="none")
        loss = mean(each.flatten(), counted.flatten())
        right = mean((logits.argmax(dim=1) == masks).float().flatten(), counted.flatten())
        return loss, torch.stack([loss.detach(), right])


def scale_crop_mirror(
    images: Tensor, masks: Tensor, sizes: Tensor, scale: tuple[float, float], side: int
) -> tuple[Tensor, Tensor]:
    """Scales every image at random, cuts a square out of it at a random place, and mirrors half of them.

    What the square shows beyond the image is black, and void in the mask.

    Args:
        images: uint8 (B, 3, S, S); an image fills the upper left of its canvas.
        masks: uint8 (B, S, S)
        sizes: float (B, 2) height and width of every image.
        scale: range of the factor.
        side: of the square, in pixels of the scaled image.

    Returns:
        float (B, 3, side, side) in [0, 1], int64 (B, side, side)
    """
    b, _, canvas, _ = images.shape
    low, high = scale
    number, own = rows_to_draw(b)
    random = torch.rand(4, number, device=images.device)[:, own]
    factor = (low + (high - low) * random[0])[:, None]
    # A square that is larger than the image is placed around it at random, by the same formula.
    corner = random[1:3].T * (factor * sizes - side)  # (B, 2) top and left, in the scaled image
    step = torch.arange(side, device=images.device) + 0.5
    rows = (corner[:, :1] + step) / factor  # (B, side), in the image
    columns = (corner[:, 1:] + step) / factor
    columns = torch.where(random[3, :, None] < 0.5, columns.flip(1), columns)

    inside = (_within(rows, sizes[:, :1])[:, :, None]) & (_within(columns, sizes[:, 1:])[:, None, :])
    nearest = masks[
        torch.arange(b, device=images.device)[:, None, None],
        rows.long().clamp(0, canvas - 1)[:, :, None],
        columns.long().clamp(0, canvas - 1)[:, None, :],
    ]
    # grid_sample counts from -1 to 1, across first; places beyond the image take its border before they are made black.
    across, down = (
        torch.minimum(place.clamp(min=0.5), length - 0.5) * (2 / canvas) - 1
        for place, length in ((columns, sizes[:, 1:]), (rows, sizes[:, :1]))
    )
    grid = torch.stack([across[:, None, :].expand(-1, side, -1), down[:, :, None].expand(-1, -1, side)], dim=-1)
    cut = F.grid_sample(images.float() / 255, grid, mode="bilinear", align_corners=False)
    return cut * inside[:, None], torch.where(inside, nearest, VOID).long()


def _within(place: Tensor, length: Tensor) -> Tensor:
    return (place >= 0) & (place < length)
