"""From an action back to the place of x' on the canvas of x, for every representation that has one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stec.actions import REPRESENTATIONS, Glimpse, compose, invert, view_matrix


def place(name: str, action: Tensor, first: Glimpse) -> Tensor | None:
    """The egocentric action that this one amounts to, given how x was made. (B, C) -> (B, 2, 3)

    Args:
        name: of the representation; names joined by `+` stand for their components one after the other.
        action: all its components, true or inferred.
        first: how x was made.

    Returns:
        None for an action without a place, such as a colour.
    """
    start = 0
    for part in name.split("+"):
        end = start + len(REPRESENTATIONS[part].components)
        if part in _PLACES:
            return _PLACES[part](action[:, start:end], first)
        start = end
    return None


def _egocentric(action: Tensor, first: Glimpse) -> Tensor:
    return action.unflatten(1, (2, 3))


def _paper(action: Tensor, first: Glimpse) -> Tensor:
    matrix = view_matrix(first)
    return compose(invert(matrix), compose(action.unflatten(1, (2, 3)), matrix))


def _official(action: Tensor, first: Glimpse) -> Tensor:
    matrix = view_matrix(first)
    almost_inverse = torch.cat([invert(matrix)[..., :2], -matrix[..., 2:]], dim=-1)
    return compose(invert(matrix), compose(action.unflatten(1, (2, 3)), invert(almost_inverse)))


def _allocentric(action: Tensor, first: Glimpse) -> Tensor:
    left, top, width, height, mirror = action.unbind(1)
    crop = first.crop + torch.stack([top, left, height, width], dim=1) * first.source.repeat(1, 2)
    second = first._replace(crop=crop, mirrored=first.mirrored ^ (mirror > 0.5))
    return compose(invert(view_matrix(first)), view_matrix(second))


_PLACES: dict[str, Callable[[Tensor, Glimpse], Tensor]] = {
    "egocentric": _egocentric,
    "paper": _paper,
    "official": _official,
    "allocentric": _allocentric,
}
