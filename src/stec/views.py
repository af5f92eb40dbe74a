"""Views: acting on images, in batches on the device that trains, and keeping a copy of every action.

Paper, appendix "Input transformations": random crop -> mirror -> colour jitter -> grey -> blur -> solarize.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stec import pixels
from stec.actions import EfferenceCopy, Glimpse
from stec.config import Config, ViewsConfig
from stec.errors import UserError
from stec.limits import check_values
from stec.turn import Turned, show_turned

CPU_PIXELS = 192 * 32 * 32  # that a CPU works on at a time: more would leave its cache, and have memory given back
TRIES = 10  # to find a crop that fits, as in torchvision
BLUR_SIGMA = (0.1, 2.0)  # at a side of 224 pixels, scaled with it


class SmallViews(NamedTuple):
    """Further, smaller views of each image of a batch, n of each, and how they were made."""

    images: Tensor  # (nB, 3, s, s) in [0, 1]: the first of every image, then the second of every image, ...
    glimpse: Glimpse  # nB rows


class ViewBatch(NamedTuple):
    """Two views of each image of a batch, and the copy of what was done."""

    images: Tensor  # (2B, 3, S, S) in [0, 1]: all first views, then all second ones
    copy: EfferenceCopy
    turned: Turned | None = None  # a third view of half the side, in all four turns or some of them
    small: SmallViews | None = None

    def channels_last(self) -> ViewBatch:
        """The same, in the memory layout that convolutions on a GPU prefer."""
        images = self.images.contiguous(memory_format=torch.channels_last)
        turned = None if self.turned is None else self.turned.channels_last()
        small = self.small
        if small is not None:
            small = SmallViews(small.images.contiguous(memory_format=torch.channels_last), small.glimpse)
        return ViewBatch(images, self.copy, turned, small)

    @property
    def first(self) -> Tensor:
        """x, (B, 3, S, S)"""
        return self.images[: len(self.images) // 2]

    @property
    def second(self) -> Tensor:
        """x', (B, 3, S, S)"""
        return self.images[len(self.images) // 2 :]

    def pairs(self) -> EfferenceCopy:
        """The copies of all actions: x -> x', and from every small view to x and to x', in the order of `pair_up`."""
        return self.copy if self.small is None else _pair_copies(self.copy, self.small.glimpse)


def pair_up(first: Tensor, second: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (B, ...) of x and of x', and (nB, ...) of small views -> the pairs of them, ((1 + 2n)B, ...) each.

    The pairs (x, x'), then those of every small view with x, then those with x'.
    """
    number = len(small) // len(first)
    return torch.cat([first, small, small]), torch.cat([second, *[first] * number, *[second] * number])


def _pair_copies(copy: EfferenceCopy, small: Glimpse) -> EfferenceCopy:
    first, second = zip(*(pair_up(*field) for field in zip(*copy, small, strict=True)), strict=True)
    return EfferenceCopy(Glimpse(*first), Glimpse(*second))


class Views(nn.Module):
    """Makes two random views of every image and reports how.

    Args:
        size: side of a view in pixels.
        area: range of the crop's area relative to the image.
        aspect: range of the crop's width over height, drawn log-uniformly.
        mirror: probability of mirroring left and right.
        jitter: (u, v): factors of brightness, contrast and saturation from [1 - u, 1 + u], hue offset from [-v, v].
        jitter_probability: probability that a view's colours are jittered.
        grey: probability of losing all colour.
        blur: probability of a Gaussian blur (a kernel of 10 % of the side, which blurs no view below 20 pixels).
        solarize: probability of inverting what is at least half bright.
        test_crop: side of the central square that `plain` keeps, relative to the shorter side of the image.
        small: how many small views to make besides (`ViewBatch.small`), drawn like the others but for size and area.
        small_size: side of a small view in pixels.
        small_area: range of its crop's area.
        turns: in how many of the four turns the third view of an image is shown: 4, 2 or 1.
        turn: also make a third view of half the side, drawn like the others, and turn it (`ViewBatch.turned`).

    Examples:
        >>> views = Views(size=32)
        >>> batch = views(torch.zeros(8, 3, 32, 32, dtype=torch.uint8))
        >>> batch.first.shape, batch.copy.first.crop.shape
        (torch.Size([8, 3, 32, 32]), torch.Size([8, 4]))
    """

    def __init__(
        self,
        size: int = 32,
        area: tuple[float, float] = (0.08, 1.0),
        aspect: tuple[float, float] = (3 / 4, 4 / 3),
        mirror: float = 0.5,
        jitter: tuple[float, float] = (0.4, 0.1),
        jitter_probability: float = 0.8,
        grey: float = 0.2,
        blur: float = 0.0,
        solarize: float = 0.0,
        test_crop: float = 1.0,
        small: int = 0,
        small_size: int = 16,
        small_area: tuple[float, float] = (0.08, 0.25),
        turns: int = 4,
        turn: bool = False,
    ) -> None:
        super().__init__()
        given = ViewsConfig(
            area=area, aspect=aspect, mirror=mirror, jitter=jitter, jitter_probability=jitter_probability, grey=grey,
            blur=blur, solarize=solarize, test_crop=test_crop, small=small, small_area=small_area, turns=turns,
        )  # fmt: skip
        check_values(Config(views=given))
        if size < 1:  # other than in a config, as the third view of 4 pixels has 2
            raise UserError(f"views.size={size}: must be at least 1")
        self.size, self.area, self.aspect, self.mirror = size, area, aspect, mirror
        self.jitter, self.jitter_probability = jitter, jitter_probability
        self.kernel = int(0.1 * size) // 2 * 2 + 1
        self.grey, self.solarize = grey, solarize
        self.blur = blur if self.kernel > 1 else 0.0  # below 20 pixels there is none to be inferred
        self.test_crop = test_crop
        self.small = small
        shared = (aspect, mirror, jitter, jitter_probability, grey, blur, solarize)
        self.small_views = Views(small_size, small_area, *shared) if small else None
        self.turns = turns
        self.third_view = Views(size // 2, area, *shared) if turn else None
        self._share: tuple[int, int, int] | None = None

    def draw_for_all(self, rows: Sequence[int], rank: int) -> None:
        """From now on, every batch is that of one process, and the actions are those that a single one would draw.

        With the same seed in all processes, each draws the numbers for the images of all, and uses its own: what is
        done to an image does not depend on how many processes there are.

        Args:
            rows: how many images of a batch each process has, one process below the other.
            rank: which of them this is.
        """
        start = sum(rows[:rank])
        for views in (self, self.third_view, self.small_views):
            if views is not None:
                views._share = (start, start + rows[rank], sum(rows))

    def _uniform(self, number: int, device: torch.device, *shape: int) -> Tensor:
        """Random numbers from 0 to 1 for so many views. (number, *shape)"""
        if self._share is None:
            return torch.rand(number, *shape, device=device, dtype=torch.float32)
        start, stop, total = self._share
        views_of_each = number // (stop - start)
        drawn = torch.rand(views_of_each, total, *shape, device=device, dtype=torch.float32)
        return drawn[:, start:stop].flatten(0, 1)

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> ViewBatch:
        """Acts twice on every image.

        Args:
            images: (B, 3, H, W), uint8, or float in [0, 1].
            sizes: (B, 2) true height and width of images that were squashed to H x W; theirs if left out. Crops are
                drawn in the true proportions.
        """
        sizes = _sizes(images, sizes)
        glimpse = self.sample(torch.cat([sizes, sizes]))
        copy = EfferenceCopy(glimpse.rows(slice(len(images))), glimpse.rows(slice(len(images), None)))
        views = self.render(torch.cat([images, images]), glimpse)
        # Drawn last: the two views are the same whether or not there are more.
        turned = small = None
        if self.third_view is not None:
            first = self._share[0] if self._share else 0
            turned = show_turned(self.third_view.render(images, self.third_view.sample(sizes)), self.turns, first)
        if self.small_views is not None:
            glimpse = self.small_views.sample(sizes.repeat(self.small, 1))
            small = SmallViews(self.small_views.render(images.repeat(self.small, 1, 1, 1), glimpse), glimpse)
        return ViewBatch(views, copy, turned, small)

    def sample_pairs(self, sizes: Tensor) -> EfferenceCopy:
        """Draws actions as `ViewBatch.pairs` has them, given the images' heights and widths (N, 2)."""
        copy = EfferenceCopy(self.sample(sizes), self.sample(sizes))
        if self.small_views is None:
            return copy
        return _pair_copies(copy, self.small_views.sample(sizes.repeat(self.small, 1)))

    def constant_components(self) -> set[str]:
        """The components of actions that are the same for all pairs of these views, or always hidden by solarizing."""
        u, v = (self.jitter_probability * strength for strength in self.jitter)
        varies = {"brightness": u > 0, "contrast": u > 0, "saturation": u > 0, "hue": v > 0}
        varies |= {"grey": 0 < self.grey < 1, "blur": self.blur > 0, "solarize": 0 < self.solarize < 1}
        areas = {*self.area, *(self.small_views.area if self.small_views is not None else ())}
        place = areas != {1.0}
        size = len(areas) > 1 or (place and self.aspect[0] < self.aspect[1])
        mirror = 0 < self.mirror < 1
        spatial = {"left": place, "top": place, "width": size, "height": size, "mirror": mirror}
        spatial |= {"x": place, "y": place, "xx": size or mirror, "yy": size}
        varies |= {name: does and self.solarize < 1 for name, does in spatial.items()}
        return {name for name, does in varies.items() if not does}

    def sample(self, sizes: Tensor) -> Glimpse:
        """Draws an action for every image, given their heights and widths (N, 2)."""
        uniform = partial(self._uniform, len(sizes), sizes.device)

        def chance(probability: float) -> Tensor:
            return uniform() < probability

        u, v = self.jitter
        change = (2 * uniform(4) - 1) * chance(self.jitter_probability)[:, None]
        colour = torch.cat([1 + u * change[:, :3], v * change[:, 3:]], dim=1)
        low, high = (sigma * self.size / 224 for sigma in BLUR_SIGMA)
        sigma = low + (high - low) * uniform()
        return Glimpse(
            crop=_sample_crops(sizes, self.area, self.aspect, uniform),
            source=sizes,
            mirrored=chance(self.mirror),
            colour=colour,
            order=uniform(4).argsort(dim=1),
            grey=chance(self.grey),
            blur=torch.where(chance(self.blur), sigma, 0.0),
            solarized=chance(self.solarize),
        )

    def render(self, images: Tensor, glimpse: Glimpse) -> Tensor:
        """Carries out the actions: (N, 3, H, W) images -> (N, 3, S, S) views in [0, 1], in float32."""
        with torch.autocast(images.device.type, enabled=False):  # it would round pixels to bfloat16
            if not pixels.on_cpu(images):
                return self._render(images, glimpse)
            step = max(1, CPU_PIXELS // self.size**2)
            rows = [slice(start, start + step) for start in range(0, len(images), step)]
            return torch.cat([self._render(images[some], glimpse.rows(some)) for some in rows])

    def _render(self, images: Tensor, glimpse: Glimpse) -> Tensor:
        views = self._look(images, glimpse.crop, glimpse.source, glimpse.mirrored)
        if self.jitter_probability > 0 or self.grey > 0:
            channels = views.shape[1]
            if channels != 3:
                raise UserError(f"images of {channels} channel(s) have no colours to change: expected (B, 3, H, W)")
            views = pixels.recolour(views, glimpse.colour, glimpse.order, glimpse.grey)
        if self.blur > 0:
            blurred = glimpse.blur > 0
            views = pixels.apply_where(
                blurred, lambda x, sigma: pixels.gaussian_blur(x, sigma, self.kernel), views, glimpse.blur
            )
        if self.solarize > 0:
            views = pixels.apply_where(glimpse.solarized, pixels.solarize, views)
        return views

    def plain(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """The unaugmented view for evaluation: the central square. (B, 3, H, W) -> (B, 3, S, S) in [0, 1]"""
        sizes = _sizes(images, sizes)
        side = sizes.amin(dim=1, keepdim=True) * self.test_crop
        crop = torch.cat([(sizes - side) / 2, side, side], dim=1)
        mirrored = torch.zeros(len(images), dtype=torch.bool, device=images.device)
        with torch.autocast(images.device.type, enabled=False):
            return self._look(images, crop, sizes, mirrored)

    def _look(self, images: Tensor, crop: Tensor, source: Tensor, mirrored: Tensor) -> Tensor:
        if images.dtype != torch.uint8:
            if not images.is_floating_point():
                raise UserError(
                    f"images are {str(images.dtype).removeprefix('torch.')}, expected uint8, or float in [0, 1]"
                )
            images = images.to(crop.dtype)
        top, left, height, width = crop.unbind(1)
        vertical, horizontal = images.shape[-2] / source[:, 0], images.shape[-1] / source[:, 1]
        stored = torch.stack([top * vertical, left * horizontal, height * vertical, width * horizontal], dim=1)
        return pixels.crop_and_resize(images, stored, mirrored, self.size)


def _sizes(images: Tensor, sizes: Tensor | None) -> Tensor:
    if images.ndim != 4:
        raise UserError(f"images are {tuple(images.shape)}, expected (B, 3, H, W)")
    if sizes is not None:
        return sizes.float()
    whole = partial(torch.full, (len(images),), dtype=torch.float32, device=images.device)
    return torch.stack([whole(float(side)) for side in images.shape[-2:]], dim=1)


def _sample_crops(
    sizes: Tensor, area: tuple[float, float], aspect: tuple[float, float], uniform: Callable[..., Tensor]
) -> Tensor:
    """Rectangles as torchvision's `RandomResizedCrop` draws them. (N, 2) heights, widths -> (N, 4)"""
    H, W = sizes[:, :1], sizes[:, 1:]  # (N, 1)
    wanted = H * W * (area[0] + (area[1] - area[0]) * uniform(TRIES))
    low, high = math.log(aspect[0]), math.log(aspect[1])
    ratio = torch.exp(low + (high - low) * uniform(TRIES))
    width, height = (wanted * ratio).sqrt().round(), (wanted / ratio).sqrt().round()
    fits = (width > 0) & (width <= W) & (height > 0) & (height <= H)
    chosen = fits.int().argmax(dim=1, keepdim=True)  # the first try that fits
    height, width = height.gather(1, chosen), width.gather(1, chosen)
    top = (uniform(1) * (H - height + 1)).floor().clamp(max=H - height)
    left = (uniform(1) * (W - width + 1)).floor().clamp(max=W - width)

    # None fits (long, thin images): the largest central crop whose aspect is in range.
    whole_width = torch.minimum(W, (H * aspect[1]).round())
    whole_height = torch.minimum(H, (W / aspect[0]).round())
    centre = [((H - whole_height) / 2).floor(), ((W - whole_width) / 2).floor(), whole_height, whole_width]
    crop = torch.cat([top, left, height, width], dim=1)
    return torch.where(fits.any(dim=1, keepdim=True), crop, torch.cat(centre, dim=1))
