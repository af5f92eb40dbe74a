"""Operations on batches of images in [0, 1], with different parameters for every image. (B, 3, H, W) -> the same.

All are plain tensor arithmetic: no loop over images, no host synchronisation on a GPU, and parity with
`torchvision.transforms.v2.functional` for the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.compiling import one_operation

GREY = (0.2989, 0.587, 0.114)  # how much red, green and blue count
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # the operations that an order names

MOST_TAPS = 4  # pixels a side that a pixel of a crop may rest on for these to be read one by one

Planes: TypeAlias = tuple[Tensor, ...]  # red, green and blue, (B, H, W) each


def crop_and_resize(images: Tensor, crop: Tensor, mirrored: Tensor, size: int) -> Tensor:
    """Cuts a rectangle out of every image, mirrors it if asked to, and resamples it bilinearly (antialiased).

    Bilinear resampling of an axis-aligned rectangle is a product with one small matrix from each side; pixels beyond
    the rectangle have no weight, exactly as if it had been cut out first.

    Args:
        images: (B, C, H, W), float, or uint8, which are taken as parts of 255.
        crop: (B, 4) top, left, height, width in pixels of `images`; need not be whole numbers.
        mirrored: (B,) bool.
        size: side of the result.

    Returns:
        (B, C, size, size)
    """
    top, left, height, width = crop.unbind(-1)
    b, channels, h, w = images.shape
    if not on_cpu(images) and max(h, w) <= MOST_TAPS / 2 * size:
        return _crop_by_taps(images, crop, mirrored, size)
    rows = _resampling(top, height, torch.zeros_like(mirrored), h, size)  # (B, size, H)
    columns = _resampling(left, width, mirrored, w, size)  # (B, size, W)
    if images.dtype == torch.uint8:
        images, columns = images.float(), columns / 255
    # Channels go inside of rows: then either product is one matrix product per image.
    narrow = images.transpose(1, 2).reshape(b, h * channels, w).bmm(columns.mT)  # (B, H C, size)
    return rows.bmm(narrow.view(b, h, channels * size)).view(b, size, channels, size).transpose(1, 2)


@one_operation("(Tensor images, Tensor crop, Tensor mirrored, int size) -> Tensor")
def _crop_by_taps(images: Tensor, crop: Tensor, mirrored: Tensor, size: int) -> Tensor:
    """The same, pixel by pixel out of the few that it rests on: compiled, a single kernel."""
    top, left, height, width = (side[:, None, None] for side in crop.unbind(-1))
    b, channels, h, w = images.shape
    rows, vertical = _taps(top, height, torch.zeros_like(mirrored), h, size)  # (B, size, taps)
    columns, horizontal = _taps(left, width, mirrored, w, size)
    image = torch.arange(b, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    total = images.new_zeros((), dtype=crop.dtype)
    for i in range(rows.shape[-1]):
        for j in range(columns.shape[-1]):
            value = images[image, channel, rows[:, None, :, None, i], columns[:, None, None, :, j]]
            total = total + value * (vertical[:, None, :, None, i] * horizontal[:, None, None, :, j])
    return total / 255 if images.dtype == torch.uint8 else total


def _taps(start: Tensor, length: Tensor, backwards: Tensor, source: int, size: int) -> tuple[Tensor, Tensor]:
    """Which of `source` pixels each of `size` pixels rests on, and with which weights. (B, size, taps) each"""
    target = (torch.arange(size, device=start.device, dtype=start.dtype) + 0.5) / size
    target = torch.where(backwards[:, None], 1 - target, target)  # (B, size)
    centre = start + target[..., None] * length
    support = (length / size).clamp(min=1)
    taps = torch.arange(math.ceil(2 * max(1, source / size)), device=start.device)
    index = (centre - support + 0.5).floor() + taps  # (B, size, taps)
    pixel = index + 0.5
    inside = (pixel - (start + length / 2)).abs() < _reach(length)
    weight = (1 - (pixel - centre).abs() / support).clamp(min=0) * inside
    return index.clamp(0, source - 1).long(), weight / weight.sum(dim=-1, keepdim=True)


def _resampling(start: Tensor, length: Tensor, backwards: Tensor, source: int, size: int) -> Tensor:
    """The matrices that resample [start, start + length) of `source` pixels to `size` pixels. (B, size, source)"""
    start, length = start[:, None], length[:, None]
    target = (torch.arange(size, device=start.device, dtype=start.dtype) + 0.5) / size
    target = torch.where(backwards[:, None], 1 - target, target)  # (B, size)
    centre = (start + target * length).unsqueeze(-1)  # (B, size, 1)
    support = (length / size).clamp(min=1).unsqueeze(-1)  # a triangle this wide: antialiased when shrinking
    pixel = torch.arange(source, device=start.device, dtype=start.dtype) + 0.5
    inside = (pixel - (start + length / 2)).abs() < _reach(length)  # (B, source)
    weight = (1 - (pixel - centre).abs() / support).clamp(min=0) * inside.unsqueeze(1)
    return weight / weight.sum(dim=-1, keepdim=True)


def _reach(length: Tensor) -> Tensor:
    """How far from a rectangle's middle pixels are that it covers, even if only in part, as where images are squashed.

    One that only touches it does not count, but for a rectangle of next to nothing there is always a pixel.
    """
    return (length / 2).clamp(min=0.002) + 0.499


def to_grey(images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, H, W)"""
    return _grey(*images.unbind(1)).unsqueeze(1)


def recolour(images: Tensor, colour: Tensor, order: Tensor, grey: Tensor | None = None) -> Tensor:
    """Brightness, contrast, saturation and hue, in an order of its own for every image; then some lose all colour.

    Args:
        images: (B, 3, H, W)
        colour: (B, 4) the factors of brightness, contrast and saturation, and the hue offset in turns.
        order: (B, 4) a permutation of 0 (brightness), 1 (contrast), 2 (saturation), 3 (hue).
        grey: (B,) bool, which images lose their colour; none if left out.
    """
    if not on_cpu(images):
        return _recolour_all(images, colour, order, grey)
    # Hue costs more than the rest together: on a CPU, images that have it in the same place go together.
    changed = (colour[:, :3] != 1).any(dim=1) | (colour[:, 3] != 0)
    place = torch.where(changed, (order == HUE).int().argmax(dim=1), -1)
    result = images.clone()
    for hue_slot in range(4):
        rows = (place == hue_slot).nonzero().squeeze(1)
        planes: Planes = images[rows].unbind(1)
        for slot in range(4):
            operation, amount = _operation(colour[rows], order[rows], slot)
            planes = _turn_hue(planes, amount) if slot == hue_slot else _blend(planes, amount, operation)
        result[rows] = torch.stack(planes, dim=1)
    if grey is not None:
        rows = grey.nonzero().squeeze(1)
        result[rows] = to_grey(result[rows]).expand(-1, 3, -1, -1)
    return result


@one_operation("(Tensor images, Tensor colour, Tensor order, Tensor? grey) -> Tensor")
def _recolour_all(images: Tensor, colour: Tensor, order: Tensor, grey: Tensor | None) -> Tensor:
    """All images at once: two blends, hue, two blends; contrast; two blends, hue, two blends.

    An image's brightness and saturation are among the blends, and its hue is one of the two, wherever its order has
    them; whatever is left does nothing. Hue, which costs most, is computed twice instead of once per slot. Pixels need
    to know of each other once, for the mean grey that contrast keeps: compiled, one kernel finds it and another does
    all the rest.
    """
    operations = torch.arange(4, device=order.device)
    place = ((order[:, :, None] == operations) * operations[:, None]).sum(dim=1)  # of every operation, (B, 4)
    contrast, offset = colour[:, CONTRAST, None, None], colour[:, HUE, None, None]
    late_hue = place[:, HUE] > place[:, CONTRAST]
    factors, greys = _blends(place, colour)

    def stage(planes: Planes, late: bool) -> Planes:
        half = range(4, 8) if late else range(4)
        for blend in half[:2]:
            planes = _scale(planes, factors[blend], _grey(*planes) * greys[blend])
        planes = _choose(late_hue == late, _turn_hue(planes, offset), planes)
        for blend in half[2:]:
            planes = _scale(planes, factors[blend], _grey(*planes) * greys[blend])
        return planes

    planes = stage(images.unbind(1), late=False)
    mean = _grey(*planes).mean(dim=(-2, -1), keepdim=True)
    planes = stage(_scale(planes, contrast, mean * (1 - contrast)), late=True)
    if grey is not None:
        planes = _choose(grey, (_grey(*planes),) * 3, planes)
    return torch.stack(planes, dim=1)


def _blends(place: Tensor, colour: Tensor) -> tuple[Planes, Planes]:
    """What the eight blends of `_recolour_all` are for every image: factors of its pixels and of their grey.

    Brightness and saturation are in one of four stages, before or after contrast and before or after hue, and in the
    second place of their stage if it has both and the other comes first.
    """

    def position(operation: int, other: int) -> Tensor:
        mine, its = (_stage(place, which) for which in (operation, other))
        return (2 * mine + ((mine == its) & (place[:, operation] > place[:, other])))[:, None]

    slots = torch.arange(8, device=place.device)
    bright = position(BRIGHTNESS, SATURATION) == slots  # (B, 8)
    saturated = position(SATURATION, BRIGHTNESS) == slots
    factor, saturation = colour[:, BRIGHTNESS, None], colour[:, SATURATION, None]
    factors = torch.where(bright, factor, torch.where(saturated, saturation, 1.0))
    greys = saturated * (1 - saturation)
    return factors[:, :, None, None].unbind(1), greys[:, :, None, None].unbind(1)


def _stage(place: Tensor, operation: int) -> Tensor:
    late, after_hue = (place[:, operation] > place[:, which] for which in (CONTRAST, HUE))
    return 2 * late + after_hue


def _operation(colour: Tensor, order: Tensor, slot: int) -> tuple[Tensor, Tensor]:
    """Which operation an image has in that slot, and how much of it. (B, 1, 1) each"""
    operation = order[:, slot, None]
    return operation[:, :, None], colour.gather(1, operation)[:, :, None]


def _choose(mask: Tensor, chosen: Planes, otherwise: Planes) -> Planes:
    mask = mask.view(-1, 1, 1)
    red, green, blue = (torch.where(mask, a, b) for a, b in zip(chosen, otherwise, strict=True))
    return red, green, blue


def _grey(red: Tensor, green: Tensor, blue: Tensor) -> Tensor:
    return GREY[0] * red + GREY[1] * green + GREY[2] * blue


def _blend(planes: Planes, factor: Tensor, operation: Tensor) -> Planes:
    """Scales the distance to black (brightness), to the image's mean grey (contrast), to the pixel's (saturation)."""
    grey = _grey(*planes)
    mean = grey.mean(dim=(-2, -1), keepdim=True)
    anchor = torch.where(operation == CONTRAST, mean, grey) * ((1 - factor) * (operation != BRIGHTNESS))
    return _scale(planes, factor, anchor)


def _scale(planes: Planes, factor: Tensor, anchor: Tensor) -> Planes:
    red, green, blue = planes
    return (
        torch.addcmul(anchor, red, factor).clamp_(0, 1),
        torch.addcmul(anchor, green, factor).clamp_(0, 1),
        torch.addcmul(anchor, blue, factor).clamp_(0, 1),
    )


def shift_hue(images: Tensor, offset: Tensor) -> Tensor:
    """Adds to the hue in HSV space, modulo one turn. (B, 3, H, W), (B,) -> (B, 3, H, W)"""
    return torch.stack(_turn_hue(images.unbind(1), offset[:, None, None]), dim=1)


def _turn_hue(planes: Planes, offset: Tensor) -> Planes:
    red, green, blue = planes
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    is_red, is_green = value == red, value == green
    difference = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sector = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0)).to(value.dtype)
    hue = difference / chroma.clamp(min=1e-12) + sector + 6 * offset  # in sixths of a turn
    hue = hue - 6 * (hue / 6).floor()  # from 0 to 6

    # How far each channel is from its peak, where it is on a plateau two sixths wide.
    below = (2 - (hue - 3).abs(), (hue - 2).abs() - 1, (hue - 4).abs() - 1)
    red, green, blue = (torch.addcmul(value, chroma, b.clamp_(0, 1), value=-1) for b in below)
    return red, green, blue


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blurs every image with its own standard deviation, reflecting at the borders; sigma 0 leaves it as it is.

    Both passes are products with a band matrix: the Gaussian around each pixel, its tails folded back at the borders.
    """
    if not on_cpu(images):
        return _blur_by_taps(images, sigma, kernel)
    columns = _blurring(images.shape[-1], sigma, kernel)
    rows = columns if images.shape[-2] == images.shape[-1] else _blurring(images.shape[-2], sigma, kernel)
    return rows.unsqueeze(1) @ images @ columns.mT.unsqueeze(1)


@one_operation("(Tensor images, Tensor sigma, int kernel) -> Tensor")
def _blur_by_taps(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """The same as a weighted sum of shifted images, first along rows, then along columns: compiled, two kernels."""
    radius = kernel // 2
    distance = torch.arange(-radius, radius + 1, device=sigma.device)
    sharp = sigma[:, None] <= 0
    weight = torch.exp(-0.5 * (distance / torch.where(sharp, 1.0, sigma[:, None])) ** 2)
    weight = torch.where(sharp, (distance == 0).to(sigma.dtype), weight / weight.sum(dim=1, keepdim=True))
    for pad, axis in (((radius, radius, 0, 0), 3), ((0, 0, radius, radius), 2)):
        padded, side = F.pad(images, pad, mode="reflect"), images.shape[axis]
        images = sum(padded.narrow(axis, k, side) * weight[:, k, None, None, None] for k in range(kernel))  # type: ignore[assignment]
    return images


def _blurring(side: int, sigma: Tensor, kernel: int) -> Tensor:
    """(B, side, side)"""
    i = torch.arange(side, device=sigma.device)
    radius = kernel // 2
    sharp = sigma[:, None, None] <= 0
    precision = 0.5 / torch.where(sharp, 1.0, sigma[:, None, None]) ** 2

    def tap(distance: Tensor) -> Tensor:
        weight = torch.exp(-(distance.to(sigma.dtype) ** 2) * precision)
        return weight * (distance.abs() <= radius)

    here, there = i[:, None], i[None, :]
    before = tap(here + there) * (there > 0)  # what lies left of the first pixel, folded at its centre
    after = tap(2 * (side - 1) - here - there) * (there < side - 1)
    weight = tap(here - there) + before + after
    weight = weight / weight.sum(dim=-1, keepdim=True)
    return torch.where(sharp, torch.eye(side, device=sigma.device, dtype=sigma.dtype), weight)


def solarize(images: Tensor) -> Tensor:
    """Inverts what is at least half bright."""
    return torch.where(images >= 0.5, 1 - images, images)


def apply_where(mask: Tensor, operation: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """`operation(images, *parameters)` for the images in `mask`, the others as they are.

    On a GPU all images are computed and the right ones chosen, without waiting for the mask. On a CPU computing is
    dear and waiting free: only the images in the mask are touched.
    """
    if on_cpu(images):
        rows = mask.nonzero().squeeze(1)
        return images.index_copy(0, rows, operation(images[rows], *(p[rows] for p in parameters)))
    return torch.where(mask[:, None, None, None], operation(images, *parameters), images)


def on_cpu(images: Tensor) -> bool:
    """Whether only what is needed should be computed, rather than everything without waiting."""
    return images.device.type == "cpu" and not torch.compiler.is_compiling()
