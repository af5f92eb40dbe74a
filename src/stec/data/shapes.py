"""Pictures of simple forms, drawn from a seed: a data set that needs no files.

Each image shows objects of ten forms at a random place, size and angle. All share one palette with small
variations and lie on a plain noisy ground: only form tells the classes apart, and colour tells no two images
apart. With free colours or textures, telling images apart would teach nothing of form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stec.data.forms import FORMS

CLASSES = tuple(FORMS)

_SPLITS = ("train", "test")
_CHUNK = 256  # images that share a random stream; never change it, the images would change with it
_GROUND = (0.31, 0.37, 0.44)  # red, green, blue from 0 to 1
_OBJECT = (0.87, 0.66, 0.38)
_COLOUR_SHIFT = 0.012  # standard deviation per image and channel
_NOISE = 0.04  # standard deviation per pixel and channel
_RADIUS = (0.22, 0.40)  # of the circle around an object alone in its image, relative to the image's side


@dataclass(frozen=True)
class Shapes:
    """N images of K objects each; a later object lies on top of an earlier one."""

    images: Tensor  # uint8 (N, 3, S, S)
    labels: Tensor  # int64 (N, K): index into CLASSES
    boxes: Tensor  # float32 (N, K, 4): left, top, right, bottom of the visible part, in pixels; zeros if none
    masks: Tensor  # bool (N, K, S, S): pixels whose centre lies in the visible part


@dataclass(frozen=True)
class _Layout:
    """What is where in n scenes: drawn before any pixel, so the same at every size. Arrays are (n, K)."""

    labels: np.ndarray
    x: np.ndarray  # of the centre, from 0 to 1
    y: np.ndarray
    radius: np.ndarray
    cosine: np.ndarray  # of the angle
    sine: np.ndarray
    ground: np.ndarray  # (n, 3)
    colours: np.ndarray  # (n, K, 3)


def render(number: int, size: int, seed: int = 0, split: str = "train", objects: int = 1) -> Shapes:
    """The first `number` scenes of a split, `size` pixels wide and high, each with this many objects.

    A scene depends on the seed, the split and its index alone. Scene i has an object of class i mod 10 at the
    bottom; the classes of further objects are random, and objects are smaller where there are more of them.
    """
    parts = list(chunks(number, size, seed, split, objects))
    return Shapes(
        images=torch.cat([part.images for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        boxes=torch.cat([part.boxes for part in parts]),
        masks=torch.cat([part.masks for part in parts]),
    )


def chunks(number: int, size: int, seed: int = 0, split: str = "train", objects: int = 1) -> Iterator[Shapes]:
    """The scenes of `render`, a few hundred at a time."""
    if split not in _SPLITS:
        raise ValueError(f"split '{split}': choose from {', '.join(_SPLITS)}")
    for start in range(0, number, _CHUNK):
        # A stream per chunk, so that neither the number of images nor the order of drawing changes an image.
        key = np.random.SeedSequence([seed, _SPLITS.index(split), start // _CHUNK])
        random = np.random.Generator(np.random.Philox(key))
        layout = _draw_layout(random, objects)
        yield _paint(layout, random, min(_CHUNK, number - start), start, size)


def _draw_layout(random: np.random.Generator, objects: int) -> _Layout:
    """A whole chunk of scenes."""
    shape = (_CHUNK, objects)
    low, high = (bound / np.sqrt(objects) for bound in _RADIUS)
    radius = random.uniform(low, high, shape)
    angle = random.uniform(0, 2 * np.pi, shape)
    return _Layout(
        labels=random.integers(0, len(CLASSES), shape),
        x=radius + random.random(shape) * (1 - 2 * radius),  # the whole object is inside the image
        y=radius + random.random(shape) * (1 - 2 * radius),
        radius=radius,
        cosine=np.cos(angle),
        sine=np.sin(angle),
        ground=np.asarray(_GROUND) + random.normal(0, _COLOUR_SHIFT, (_CHUNK, 3)),
        colours=np.asarray(_OBJECT) + random.normal(0, _COLOUR_SHIFT, (*shape, 3)),
    )


def _paint(layout: _Layout, random: np.random.Generator, number: int, start: int, size: int) -> Shapes:
    """The first `number` scenes of a layout; the first of them is scene `start` of its split."""
    objects = layout.labels.shape[1]
    labels = layout.labels[:number].copy()
    labels[:, 0] = (start + np.arange(number)) % len(CLASSES)
    canvas = np.empty((number, 3, size, size), np.float32)
    canvas[:] = layout.ground[:number, :, None, None]
    masks = np.zeros((number, objects, size, size), bool)
    for k in range(objects):
        distance = _distances(layout, labels[:, k], k, size)  # (n, S, S)
        masks[:, k] = distance < 0
        masks[:, :k] &= ~masks[:, k : k + 1]
        cover = np.clip(0.5 - distance, 0, 1)[:, None]  # share of a pixel's area, near a straight edge
        colour = layout.colours[:number, k, :, None, None].astype(np.float32)
        canvas += cover * (colour - canvas)
    canvas += np.float32(_NOISE) * random.standard_normal(canvas.shape, np.float32)
    images = np.clip(canvas * 255 + 0.5, 0, 255).astype(np.uint8)
    visible = torch.from_numpy(masks)
    return Shapes(torch.from_numpy(images), torch.from_numpy(labels), boxes_of(visible), visible)


def _distances(layout: _Layout, labels: np.ndarray, k: int, size: int) -> np.ndarray:
    """Signed distance in pixels of each pixel's centre from the outline of object k: (n, S, S)."""
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    distances = np.empty((len(labels), size, size), np.float32)
    for label, form in enumerate(FORMS.values()):
        chosen = np.flatnonzero(labels == label)
        radius, cosine, sine, x, y = (
            values[chosen, k, None, None].astype(np.float32)
            for values in (layout.radius, layout.cosine, layout.sine, layout.x, layout.y)
        )
        across, down = (centres[None, None, :] - x) / radius, (centres[None, :, None] - y) / radius
        turned = cosine * across + sine * down, cosine * down - sine * across
        distances[chosen] = form(*turned) * (radius * size)
    return distances


def boxes_of(masks: Tensor) -> Tensor:
    """The tight box around each mask, (..., S, S) -> (..., 4): left, top, right, bottom; zeros if empty."""
    ends = []
    for axis in (-2, -1):
        filled = masks.any(axis)  # columns, then rows
        first = filled.int().argmax(-1)
        last = filled.shape[-1] - filled.flip(-1).int().argmax(-1)
        ends.append((first, torch.where(filled.any(-1), last, 0)))
    (left, right), (top, bottom) = ends
    return torch.stack([left, top, right, bottom], -1).float()
