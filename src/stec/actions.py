"""Actions: what an observer does between two views, written as numbers an inverse model can infer.

Coordinates are those of a canvas: [-1, 1] x [-1, 1], x to the right, y down, the outer edges of the outer pixels at
+-1 (`align_corners=False`). An affine map is a (..., 2, 3) tensor [[a, b, x], [c, d, y]].

Paper: section 3.1 and appendix "Same-object manipulations". Where its text, its formulas and its public code disagree,
each reading has its own name here: `egocentric` (the words), `paper` (the formula), `official` (the code).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stec.errors import UserError, nearest

FAINTEST = 0.05  # factor of brightness, contrast or saturation below which there is nothing left to compare


class Glimpse(NamedTuple):
    """What was done to each image of a batch to make one view of it. All tensors share the leading dimension B."""

    crop: Tensor  # (B, 4) top, left, height, width in pixels of the source image
    source: Tensor  # (B, 2) height, width of the source image
    mirrored: Tensor  # (B,) bool
    colour: Tensor  # (B, 4) factors of brightness, contrast, saturation (1: unchanged); hue offset (0: unchanged)
    order: Tensor  # (B, 4) in which order the four colour operations were applied
    grey: Tensor  # (B,) bool
    blur: Tensor  # (B,) standard deviation in pixels of the view, 0 if not blurred
    solarized: Tensor  # (B,) bool

    def rows(self, index: int | slice | Tensor) -> Glimpse:
        """The glimpses of some of the images."""
        return Glimpse(*(value[index] for value in self))


class EfferenceCopy(NamedTuple):
    """The copy of the motor command: how x and x' were made from the same images."""

    first: Glimpse
    second: Glimpse

    def reversed(self) -> EfferenceCopy:
        """The copy of the way back, from x' to x."""
        return EfferenceCopy(self.second, self.first)


# --- affine algebra ---------------------------------------------------------------------------------------------------


def view_matrix(glimpse: Glimpse) -> Tensor:
    """M_x: maps a point on the view's canvas to the source image. (B, 2, 3)"""
    top, left, height, width = glimpse.crop.unbind(-1)
    source_height, source_width = glimpse.source.unbind(-1)
    w, h = width / source_width, height / source_height
    flip = torch.where(glimpse.mirrored, -1.0, 1.0).to(w.dtype)
    zero = torch.zeros_like(w)
    x, y = w - 1 + 2 * left / source_width, h - 1 + 2 * top / source_height
    return torch.stack([flip * w, zero, x, zero, h, y], dim=-1).unflatten(-1, (2, 3))


def compose(outer: Tensor, inner: Tensor) -> Tensor:
    """The affine map that applies `inner`, then `outer`. (..., 2, 3)"""
    # Sums of products instead of `@`, which autocast and TensorFloat32 would round to a few digits.
    product = (outer[..., :2, None] * inner[..., None, :, :]).sum(dim=-2)
    return torch.cat([product[..., :2], product[..., 2:] + outer[..., 2:]], dim=-1)


def invert(affine: Tensor) -> Tensor:
    """The inverse affine map. (..., 2, 3)"""
    (a, b, x), (c, d, y) = (row.unbind(-1) for row in affine.unbind(-2))
    determinant = a * d - b * c
    inverse = [d, -b, b * y - d * x, -c, a, c * x - a * y]
    return (torch.stack(inverse, dim=-1) / determinant[..., None]).unflatten(-1, (2, 3))


def warp(view: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Acts on pixels: what x' shows, taken from x.

    Args:
        view: (B, C, H, W), x.
        action: (B, 2, 3), egocentric.

    Returns:
        The warped view (B, C, H, W), and where it lies inside x, (B, 1, H, W) bool.
    """
    with torch.autocast(view.device.type, enabled=False):  # it would round places to bfloat16, by up to a pixel at 224
        grid = F.affine_grid(action.to(view.dtype), list(view.shape), align_corners=False)
        warped = F.grid_sample(view, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return warped, (grid.abs() <= 1).all(dim=-1).unsqueeze(1)


def quadrilateral(action: Tensor) -> Tensor:
    """The corners of x' on the canvas of x, from its top left clockwise as x' sees it. (B, 4, 2) of x, y"""
    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]], dtype=action.dtype, device=action.device)
    linear, translation = action[:, None, :, :2], action[:, None, :, 2]
    return (linear * corners[:, None, :]).sum(dim=-1) + translation


# --- action representations -------------------------------------------------------------------------------------------


def egocentric(copy: EfferenceCopy) -> Tensor:
    """M_x^-1 M_x': where the pixels of x' lie on the canvas of x. (B, 2, 3)

    What the paper describes in words. It depends on nothing but the two views: sliding both crops over the image
    together leaves it unchanged.
    """
    return compose(invert(view_matrix(copy.first)), view_matrix(copy.second))


def paper(copy: EfferenceCopy) -> Tensor:
    """M_x' M_x^-1, the paper's formula. (B, 2, 3)"""
    return compose(view_matrix(copy.second), invert(view_matrix(copy.first)))


def official(copy: EfferenceCopy) -> Tensor:
    """M_x' times an "inverse" of M_x whose translation is merely negated, as in the authors' code. (B, 2, 3)"""
    first = view_matrix(copy.first)
    almost_inverse = torch.cat([invert(first)[..., :2], -first[..., 2:]], dim=-1)
    return compose(view_matrix(copy.second), almost_inverse)


def allocentric(copy: EfferenceCopy) -> Tensor:
    """Differences in the frame of the source image: left, top, width, height, and whether mirroring differs. (B, 5)

    Lengths are relative to the source image. Lee et al. 2021 (AugSelf); the paper's ablation.
    """
    scale = torch.cat([copy.first.source, copy.first.source], dim=-1)
    top, left, height, width = ((copy.second.crop - copy.first.crop) / scale).unbind(-1)
    mirror = (copy.first.mirrored ^ copy.second.mirrored).to(top.dtype)
    return torch.stack([left, top, width, height, mirror], dim=-1)


def colour(copy: EfferenceCopy) -> Tensor:
    """What changes in the look of things: zero if nothing does, and the way back is the negative. (B, 7)

    Logarithms of the quotients of brightness, contrast and saturation; the difference in hue in turns, from -0.5 up to
    0.5; whether grey is gained (1), kept (0) or lost (-1); the difference of the blurs in pixels of the view; and the
    same as for grey for solarizing. The paper has no such actions.
    """
    first, second = copy
    factors = [view.colour[:, :3].clamp(min=FAINTEST) for view in copy]
    quotients = (factors[1] / factors[0]).log()
    hue = second.colour[:, 3] - first.colour[:, 3]
    hue = hue - (hue + 0.5).floor()
    grey, solarize = (
        after.to(hue.dtype) - before.to(hue.dtype)
        for before, after in ((first.grey, second.grey), (first.solarized, second.solarized))
    )
    return torch.cat([quotients, torch.stack([hue, grey, second.blur - first.blur, solarize], dim=1)], dim=1)


@dataclass(frozen=True)
class Representation:
    """An action representation: a function of the efference copy, and what is known about its components."""

    function: Callable[[EfferenceCopy], Tensor]  # -> (B, C) or (B, 2, 3), which has C = 6
    components: tuple[str, ...]
    low: tuple[float, ...]  # limits of the uniform bins
    high: tuple[float, ...]
    informative: tuple[bool, ...]  # False: the same for every pair of views
    unsolarized: tuple[bool, ...]  # True: inferred only from pairs in which neither view is solarized

    def __call__(self, copy: EfferenceCopy) -> Tensor:
        """The action as a plain vector. (B, C)"""
        return self.function(copy).flatten(1)


def _affine(function: Callable[[EfferenceCopy], Tensor]) -> Representation:
    return Representation(
        function,
        components=("xx", "xy", "x", "yx", "yy", "y"),
        low=(-2.0, -2.0, -0.5, -2.0, -2.0, -0.5),
        high=(2.0, 2.0, 0.5, 2.0, 2.0, 0.5),
        informative=(True, False, True, False, True, True),
        unsolarized=(True,) * 6,
    )


REPRESENTATIONS: dict[str, Representation] = {
    "egocentric": _affine(egocentric),
    "paper": _affine(paper),
    "official": _affine(official),
    "allocentric": Representation(
        allocentric,
        components=("left", "top", "width", "height", "mirror"),
        low=(-1.0, -1.0, -1.0, -1.0, 0.0),
        high=(1.0, 1.0, 1.0, 1.0, 1.0),
        informative=(True,) * 5,
        unsolarized=(True,) * 5,
    ),
    # The strongest quotient is log(1.4 / 0.6) = 0.85 with a jitter of 0.4, and log(1.8 / 0.2) = 2.2 with 0.8; the
    # largest turn of hue 0.2 with a jitter of 0.1, and 0.4 with 0.2. The limits let either jitter fill all bins.
    "colour": Representation(
        colour,
        components=("brightness", "contrast", "saturation", "hue", "grey", "blur", "solarize"),
        low=(-1.0, -1.0, -1.0, -0.2, -1.0, -1.0, -1.0),
        high=(1.0, 1.0, 1.0, 0.2, 1.0, 1.0, 1.0),
        informative=(True,) * 7,
        unsolarized=(False,) * 7,
    ),
}


def representation(name: str) -> Representation:
    """The representation of that name; names joined by `+` give their components one after the other."""
    parts = []
    for part in name.split("+"):
        if part not in REPRESENTATIONS:
            raise UserError(f"unknown action '{part}': {nearest(part, REPRESENTATIONS)}")
        parts.append(REPRESENTATIONS[part])
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: Sequence[Representation]) -> Representation:
    return Representation(
        partial(_side_by_side, parts),  # and no inner function, which pickle could not name
        components=tuple(value for part in parts for value in part.components),
        low=tuple(value for part in parts for value in part.low),
        high=tuple(value for part in parts for value in part.high),
        informative=tuple(value for part in parts for value in part.informative),
        unsolarized=tuple(value for part in parts for value in part.unsolarized),
    )


def _side_by_side(parts: Sequence[Representation], copy: EfferenceCopy) -> Tensor:
    return torch.cat([part(copy) for part in parts], dim=1)


# --- categorical codes ------------------------------------------------------------------------------------------------


class Bins(nn.Module):
    """Turns every component of an action into one of K categories.

    Category k holds the values from edge k up to, but not including, edge k + 1; the first and the last are open.
    """

    edges: Tensor  # (C, K - 1), inner edges in ascending order

    def __init__(self, edges: Tensor) -> None:
        super().__init__()
        self.register_buffer("edges", edges)

    @classmethod
    def uniform(cls, k: int = 6, low: Sequence[float] | None = None, high: Sequence[float] | None = None) -> Bins:
        """K equal bins between fixed limits: clamp(floor(K (a - low) / (high - low)), 0, K - 1).

        The limits are the paper's unless given: +-2 for the linear entries of an affine map, +-0.5 for translations.
        """
        affine = REPRESENTATIONS["egocentric"]
        lows = torch.tensor(affine.low if low is None else low, dtype=torch.float64)[:, None]
        highs = torch.tensor(affine.high if high is None else high, dtype=torch.float64)[:, None]
        steps = torch.arange(1, k, dtype=torch.float64) / k
        return cls((lows + (highs - lows) * steps).float())

    @classmethod
    def quantile(cls, actions: Tensor, k: int = 6) -> Bins:
        """K bins that sampled actions (N, C) fill equally, as far as the values of a component allow."""
        levels = torch.arange(1, k, dtype=torch.float64, device=actions.device) / k
        return cls(torch.quantile(actions.flatten(1).double(), levels, dim=0).mT.float().contiguous())

    @property
    def k(self) -> int:
        """How many categories a component has."""
        return self.edges.shape[1] + 1

    def forward(self, action: Tensor) -> Tensor:
        """(B, C) or (B, 2, 3) actions -> (B, C) integer codes from 0 to K - 1."""
        return (action.flatten(1).unsqueeze(-1) >= self.edges).sum(dim=-1)
