"""Operations on batches of images in [0, 1], with different parameters for every image. (B, 3, H, W) -> the same.

All are plain tensor arithmetic: no loop over images, no host synchronisation on a GPU, and parity with
`torchvision.transforms.v2.functional` for the same parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

GREY = (0.2989, 0.587, 0.114)  # how much red, green and blue count


def crop_and_resize(images: Tensor, crop: Tensor, mirrored: Tensor, size: int) -> Tensor:
    """Cuts a rectangle out of every image, mirrors it if asked to, and resamples it bilinearly (antialiased).

    Bilinear resampling of an axis-aligned rectangle is a product with one small matrix from each side; pixels beyond
    the rectangle have no weight, exactly as if it had been cut out first.

    Args:
        images: (B, C, H, W) float.
        crop: (B, 4) top, left, height, width in pixels of `images`; need not be whole numbers.
        mirrored: (B,) bool.
        size: side of the result.

    Returns:
        (B, C, size, size)
    """
    top, left, height, width = crop.unbind(-1)
    b, channels, h, w = images.shape
    rows = _resampling(top, height, torch.zeros_like(mirrored), h, size)  # (B, size, H)
    columns = _resampling(left, width, mirrored, w, size)  # (B, size, W)
    narrow = images.reshape(b, channels * h, w).bmm(columns.mT).view(b, channels, h, size)
    return rows.unsqueeze(1) @ narrow


def _resampling(start: Tensor, length: Tensor, backwards: Tensor, source: int, size: int) -> Tensor:
    """The matrices that resample [start, start + length) of `source` pixels to `size` pixels. (B, size, source)"""
    start, length = start[:, None], length[:, None]
    target = (torch.arange(size, device=start.device, dtype=start.dtype) + 0.5) / size
    target = torch.where(backwards[:, None], 1 - target, target)  # (B, size)
    centre = (start + target * length).unsqueeze(-1)  # (B, size, 1)
    support = (length / size).clamp(min=1).unsqueeze(-1)  # a triangle this wide: antialiased when shrinking
    pixel = torch.arange(source, device=start.device, dtype=start.dtype) + 0.5
    # Pixels that the rectangle covers, even if only in part (which takes an image that was squashed).
    inside = (pixel - (start + length / 2)).abs() < length / 2 + 0.499  # (B, source)
    weight = (1 - (pixel - centre).abs() / support).clamp(min=0) * inside.unsqueeze(1)
    return weight / weight.sum(dim=-1, keepdim=True)


def to_grey(images: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, H, W)"""
    red, green, blue = images.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue).unsqueeze(1)


def colour_jitter(images: Tensor, colour: Tensor, order: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, in an order of its own for every image.

    Args:
        images: (B, 3, H, W)
        colour: (B, 4) the factors of brightness, contrast and saturation, and the hue offset in turns.
        order: (B, 4) a permutation of 0 (brightness), 1 (contrast), 2 (saturation), 3 (hue).
    """
    if not on_cpu(images):
        return _jitter(images, colour, order, hue_slot=None)
    # Hue costs more than the rest together: on a CPU, images that have it in the same place go together.
    changed = (colour[:, :3] != 1).any(dim=1) | (colour[:, 3] != 0)
    place = torch.where(changed, (order == 3).int().argmax(dim=1), -1)
    result = images.clone()
    for slot in range(4):
        rows = (place == slot).nonzero().squeeze(1)
        result[rows] = _jitter(images[rows], colour[rows], order[rows], slot)
    return result


def _jitter(images: Tensor, colour: Tensor, order: Tensor, hue_slot: int | None) -> Tensor:
    """The four operations; `hue_slot` says where hue comes if that is the same for all."""
    for slot in range(4):
        operation = order[:, slot]
        amount = colour.gather(1, operation[:, None]).squeeze(1)
        if hue_slot is None:
            blended, is_hue = _blend(images, amount, operation), (operation == 3)[:, None, None, None]
            images = torch.where(is_hue, shift_hue(images, amount), blended)
        else:
            images = shift_hue(images, amount) if slot == hue_slot else _blend(images, amount, operation)
    return images


def _blend(images: Tensor, factor: Tensor, operation: Tensor) -> Tensor:
    """Scales the distance to black (brightness), to the image's mean grey (contrast), to the pixel's (saturation)."""
    grey = to_grey(images)
    operation, factor = operation[:, None, None, None], factor[:, None, None, None]
    anchor = torch.where(operation == 1, grey.mean(dim=(-2, -1), keepdim=True), grey)
    anchor = anchor * ((1 - factor) * (operation != 0))
    return torch.addcmul(anchor, images, factor).clamp_(0, 1)


def shift_hue(images: Tensor, offset: Tensor) -> Tensor:
    """Adds to the hue in HSV space, modulo one turn."""
    red, green, blue = images.unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    is_red, is_green = value == red, value == green
    difference = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sector = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0))
    hue = difference / chroma.clamp(min=1e-12) + sector + 6 * offset[:, None, None]  # in sixths of a turn
    hue = hue - 6 * (hue / 6).floor()  # from 0 to 6

    # How far each channel is from its peak, where it is on a plateau two sixths wide.
    below = [2 - (hue - 3).abs(), (hue - 2).abs() - 1, (hue - 4).abs() - 1]
    return torch.stack([torch.addcmul(value, chroma, b.clamp_(0, 1), value=-1) for b in below], dim=1)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blurs every image with its own standard deviation, reflecting at the borders; sigma 0 leaves it as it is.

    Both passes are products with a band matrix: the Gaussian around each pixel, its tails folded back at the borders.
    """
    columns = _blurring(images.shape[-1], sigma, kernel)
    rows = columns if images.shape[-2] == images.shape[-1] else _blurring(images.shape[-2], sigma, kernel)
    return rows.unsqueeze(1) @ images @ columns.mT.unsqueeze(1)


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
