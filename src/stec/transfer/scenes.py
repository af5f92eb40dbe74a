"""Images with what is in them: boxes of objects, or a class for every pixel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stec.data import shapes
from stec.data.residence import is_resident
from stec.errors import UserError
from stec.transfer.config import ScenesConfig

VOID = 255  # pixels that count for nothing
BACKGROUND = "background"  # class 0


class Scene(NamedTuple):
    """One image, as it is read."""

    pixels: np.ndarray  # uint8 (h, w, 3), at most S x S
    boxes: np.ndarray  # float32 (n, 4) left, top, right, bottom; empty if masks are asked for
    labels: np.ndarray  # int64 (n,) from 1
    difficult: np.ndarray  # bool (n,): found or not, it does not count
    mask: np.ndarray | None  # uint8 (h, w)


@dataclass(frozen=True)
class Scenes:
    """N images, each in the upper left of a canvas of S x S; the rest of it is black, and void."""

    images: Tensor  # uint8 (N, 3, S, S), on the device or in main memory
    sizes: Tensor  # int64 (N, 2), cpu: height and width
    boxes: Tensor  # float32 (N, M, 4); beyond an image's count, zeros
    labels: Tensor  # int64 (N, M) from 1
    difficult: Tensor  # bool (N, M)
    counts: Tensor  # int64 (N,), cpu
    masks: Tensor | None  # uint8 (N, S, S)

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: Tensor, device: torch.device) -> Scenes:
        """Some of them, on the device; sizes and counts stay where they are."""
        here = rows.to(self.images.device)
        images, boxes, labels, difficult = (
            values[here].to(device, non_blocking=True)
            for values in (self.images, self.boxes, self.labels, self.difficult)
        )
        masks = None if self.masks is None else self.masks[here].to(device, non_blocking=True)
        return Scenes(images, self.sizes[rows], boxes, labels, difficult, self.counts[rows], masks)

    def batches(self, order: Tensor, size: int, device: torch.device) -> Iterator[Scenes]:
        """Those that `order` (int64, cpu) names, `size` at a time, the last ones too."""
        for rows in order.split(size):
            yield self.take(rows, device)

    def shapes(self) -> list[tuple[int, int]]:
        """Height and width of every image."""
        return [(int(h), int(w)) for h, w in self.sizes.tolist()]


@dataclass(frozen=True)
class SceneSet:
    """Scenes to train and to test on."""

    name: str
    train: Scenes
    test: Scenes
    classes: tuple[str, ...]  # the background first
    fingerprint: str
    skipped: tuple[str, ...]  # images that were left out, as they or their annotations are broken
    notes: tuple[str, ...]  # what else was found


def load_scenes(config: ScenesConfig, task: str, device: torch.device) -> SceneSet:
    """The scenes that a config names, with boxes for detection and masks for segmentation."""
    if config.source == "shapes":
        number = config.train_images + config.test_images
        home = _home(config, number, device, task)
        train, test = (
            _draw(split, number, config, task, home)
            for split, number in (("train", config.train_images), ("test", config.test_images))
        )
        name = f"shapes, {config.objects} in each image"
        return SceneSet(name, train, test, (BACKGROUND, *shapes.CLASSES), _fingerprint(train, test), (), ())

    from stec.transfer.voc import CLASSES, open_sets, read_scenes

    classes = config.classes or CLASSES
    entries = open_sets(Path(config.root or ""), config.train, config.test, task)
    home = _home(config, sum(map(len, entries)), device, task)
    found = [read_scenes(part, classes, config.size, task, config.workers) for part in entries]
    if not any(map(_shows_something, found[0].scenes)):
        sets, first = ", ".join(config.train), entries[0][0].annotation
        what = "object" if task == "detection" else f"pixel of a class (1 to {len(classes)}; {VOID} is void)"
        raise UserError(f"{sets}: no {what} in any of its {len(entries[0]):,} annotations, such as {first}")
    train, test = (pack(part.scenes, config.size, home) for part in found)
    both = len({entry.image for entry in entries[0]}.intersection(entry.image for entry in entries[1]))
    notes = [f"{both:,} images to test are among those to train on"] if both else []
    return SceneSet(
        name=f"{', '.join(config.train)} -> {', '.join(config.test)}",
        train=train,
        test=test,
        classes=(BACKGROUND, *classes),
        fingerprint=_fingerprint(train, test),
        skipped=tuple(name for part in found for name in part.skipped),
        notes=(*(note for part in found for note in part.notes), *notes),
    )


def _shows_something(scene: Scene) -> bool:
    """Whether there is more than background in a scene."""
    return len(scene.boxes) > 0 if scene.mask is None else bool(((scene.mask > 0) & (scene.mask != VOID)).any())


def _home(config: ScenesConfig, number: int, device: torch.device, task: str) -> torch.device:
    """Where images are kept."""
    needed = number * config.size**2 * (4 if task == "segmentation" else 3)
    return device if is_resident(config.resident, needed, device) else torch.device("cpu")


def _draw(split: str, number: int, config: ScenesConfig, task: str, home: torch.device) -> Scenes:
    """Built-in scenes. An object that others hide has no box."""
    drawn = shapes.render(number, config.size, split=split, objects=config.objects)
    sizes = torch.full((number, 2), config.size)
    visible = (drawn.boxes[..., 2:] > drawn.boxes[..., :2]).all(dim=-1)
    order = (~visible).int().argsort(dim=1, stable=True)  # those with a box first
    boxes = drawn.boxes.gather(1, order[..., None].expand(-1, -1, 4))
    labels = ((drawn.labels + 1) * visible).gather(1, order)
    masks = None
    if task == "segmentation":
        classes = torch.zeros(number, config.size, config.size, dtype=torch.uint8)
        for k in range(config.objects):
            classes = torch.where(drawn.masks[:, k], (drawn.labels[:, k, None, None] + 1).byte(), classes)
        masks = classes.to(home)
    boxes, labels, difficult = (values.to(home) for values in (boxes, labels, torch.zeros_like(visible)))
    return Scenes(drawn.images.to(home), sizes, boxes, labels, difficult, visible.sum(dim=1), masks)


def pack(scenes: Sequence[Scene], side: int, home: torch.device) -> Scenes:
    """Scenes on canvases, all in one place."""
    number, most = len(scenes), max(1, *(len(scene.boxes) for scene in scenes))
    masked = scenes[0].mask is not None
    images = torch.zeros(number, 3, side, side, dtype=torch.uint8, device=home)
    masks = torch.full((number, side, side), VOID, dtype=torch.uint8, device=home) if masked else None
    sizes, counts = torch.zeros(number, 2, dtype=torch.int64), torch.zeros(number, dtype=torch.int64)
    boxes, labels = torch.zeros(number, most, 4), torch.zeros(number, most, dtype=torch.int64)
    difficult = torch.zeros(number, most, dtype=torch.bool)
    for i, scene in enumerate(scenes):
        (h, w), n = scene.pixels.shape[:2], len(scene.boxes)
        images[i, :, :h, :w] = torch.from_numpy(scene.pixels).permute(2, 0, 1)
        sizes[i], counts[i] = torch.tensor([h, w]), n
        boxes[i, :n], labels[i, :n] = torch.from_numpy(scene.boxes), torch.from_numpy(scene.labels)
        difficult[i, :n] = torch.from_numpy(scene.difficult)
        if masks is not None and scene.mask is not None:
            masks[i, :h, :w] = torch.from_numpy(scene.mask)
    return Scenes(images, sizes, boxes.to(home), labels.to(home), difficult.to(home), counts, masks)


def _fingerprint(*parts: Scenes) -> str:
    """Of all pixels and annotations."""
    digest = hashlib.sha256()
    for part in parts:
        annotations = (part.sizes, part.boxes, part.labels, part.difficult, part.counts)
        for values in (part.images, *annotations, *(() if part.masks is None else (part.masks,))):
            for some in values.split(1024):
                digest.update(some.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
