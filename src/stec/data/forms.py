"""Ten forms as signed distance functions: negative inside, zero on the outline, positive outside.

Every form fits into the unit circle around the origin. A function takes the coordinates `x` and `y` of any
number of points and returns their distances, in the same shape. Only sums, products, quotients, roots and
comparisons are used: every machine rounds these the same way, so that it draws the same images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _length(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sqrt(x * x + y * y)


def _box(x: np.ndarray, y: np.ndarray, half_width: float, half_height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _polygon(x: np.ndarray, y: np.ndarray, corners: Sequence[tuple[float, float]]) -> np.ndarray:
    """Distance to the nearest edge; a point is inside if a ray from it crosses an odd number of edges."""
    nearest = np.full_like(x, np.inf)
    inside = np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
        edge_x, edge_y = bx - ax, by - ay
        from_x, from_y = x - ax, y - ay
        along = (from_x * edge_x + from_y * edge_y) * (1 / (edge_x**2 + edge_y**2))
        along = np.minimum(np.maximum(along, 0), 1)
        off_x, off_y = from_x - along * edge_x, from_y - along * edge_y
        nearest = np.minimum(nearest, off_x * off_x + off_y * off_y)
        if edge_y != 0:
            inside ^= ((y < ay) != (y < by)) & (from_x < from_y * (edge_x / edge_y))
    return np.where(inside, -1, 1).astype(x.dtype) * np.sqrt(nearest)


def _on_circle(radii: Sequence[float]) -> list[tuple[float, float]]:
    """Corners at equal angles around the origin, at these distances from it."""
    angles = [2 * math.pi * i / len(radii) for i in range(len(radii))]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


_TRIANGLE = _on_circle([0.98] * 3)
_STAR = _on_circle([1.0, 0.42] * 5)
_HOURGLASS = [(-0.62, -0.78), (0.62, -0.78), (0.1, 0.0), (0.62, 0.78), (-0.62, 0.78), (-0.1, 0.0)]


def _disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _length(x, y) - 0.8


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _box(x, y, 0.69, 0.69)


def _triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _polygon(x, y, _TRIANGLE)


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _polygon(x, y, _STAR)


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(_length(x, y) - 0.95, 0.78 - _length(x - 0.5, y))


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(_length(x, y) - 0.7) - 0.2


def _cross(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.minimum(_box(x, y, 0.94, 0.27), _box(x, y, 0.27, 0.94))


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A square with a half disc on each of two neighbouring sides."""
    x, y = x + 0.13, y + 0.13
    discs = np.minimum(_length(x - 0.54, y), _length(x, y - 0.54)) - 0.54
    return np.minimum(_box(x, y, 0.54, 0.54), discs)


def _bar(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _box(x, y, 0.96, 0.24)


def _hourglass(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _polygon(x, y, _HOURGLASS)


FORMS: dict[str, Distance] = {
    "disc": _disc,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "crescent": _crescent,
    "ring": _ring,
    "cross": _cross,
    "heart": _heart,
    "bar": _bar,
    "hourglass": _hourglass,
}
