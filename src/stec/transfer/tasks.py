"""Detection and segmentation as tasks of the one loop: batches, augmentation, optimizer, and how good it got."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stec.engine import Task
from stec.optim import LARS, parameter_groups, set_apart, warmup_steps_down
from stec.processes import rows_to_draw
from stec.transfer import detection, segmentation
from stec.transfer.config import TransferConfig
from stec.transfer.metrics import (
    Boxes,
    coco_precision,
    confusion,
    intersection_over_union,
    voc_precision,
)
from stec.transfer.scenes import Scenes, SceneSet
from stec.transfer.trunks import Start


class TransferTask(Task):
    """What both share.

    Args:
        config: of the whole transfer.
        scenes: to train and to test on.
        module: the network.
        pretrained: the parts of it that begin with pretrained weights.
        device: that trains.
    """

    def __init__(
        self,
        config: TransferConfig,
        scenes: SceneSet,
        module: nn.Module,
        pretrained: list[nn.Module],
        device: torch.device,
    ) -> None:
        self.config, self.scenes, self.module, self.device = config, scenes, module, device
        module.to(memory_format=torch.channels_last)
        self.pretrained = pretrained
        self.items = len(scenes.train)
        self.fingerprint = scenes.fingerprint
        self.units = config.batch_size
        self.warmup = round(config.optimizer.warmup_epochs * (self.items // config.batch_size))

    def optimizer(self, rate: Tensor) -> Optimizer:
        """Plain SGD; pretrained weights at a rate of their own."""
        settings = self.config.optimizer
        groups = parameter_groups(self.module, settings.weight_decay, trust=0.0)
        groups = set_apart(groups, self.pretrained, factor=settings.pretrained)
        return LARS(groups, lr=rate, momentum=settings.momentum)

    def rate(self, step: int, steps: int) -> float:
        """Up, level, and down by steps."""
        settings = self.config.optimizer
        return settings.rate * warmup_steps_down(step, steps, self.warmup, settings.drops)

    @abstractmethod
    def evaluate(self) -> dict[str, Any]:
        """Numbers for the summary, from all test images; the module is in evaluation mode."""

    @abstractmethod
    def predict(self, scenes: Scenes) -> Any:
        """What is found in some scenes: boxes, or the class of every pixel."""

    def tests(self) -> Iterator[Scenes]:
        """All test images, in batches on the device."""
        order = torch.arange(len(self.scenes.test))
        yield from self.scenes.test.batches(order, self.config.batch_size, self.device)


class Detection(TransferTask):
    """Faster R-CNN."""

    metrics = detection.METRICS
    static = False  # every image has its own number of proposals

    def __init__(self, config: TransferConfig, start: Start, scenes: SceneSet, device: torch.device) -> None:
        module = detection.Detector(start, len(scenes.classes), config.detection)
        super().__init__(config, scenes, module, module.pretrained() if start.pretrained else [], device)
        self.detector = module

    def batches(self, share: Tensor, size: int) -> Iterator[tuple[Any, ...]]:
        """Canvases, boxes, labels; sizes and numbers of boxes, on the host, as torchvision loops over images there."""
        for some in self.scenes.train.batches(share, size, self.device):
            yield some.images, some.boxes, some.labels, some.sizes, some.counts.tolist()

    def prepare(
        self, images: Tensor, boxes: Tensor, labels: Tensor, sizes: Tensor, counts: list[int]
    ) -> tuple[Tensor, detection.Targets]:
        """Mirrors half of the images, and scales all to one of the sides."""
        there = sizes.to(images.device, non_blocking=True)
        number, own = rows_to_draw(len(images))
        mirrored = torch.rand(number, device=images.device)[own] < 0.5
        images, boxes = detection.mirror(images, boxes, there, mirrored)
        sides = self.config.detection.sides or (self.config.data.size,)
        side = sides[int(torch.randint(len(sides), ()))]
        factor = side / self.config.data.size
        shapes = [(round(h * factor), round(w * factor)) for h, w in sizes.tolist()]
        return detection.resize(images, side), detection.Targets(boxes * factor, labels, shapes, counts)

    def predict(self, scenes: Scenes) -> list[Boxes]:
        """What is found in some scenes; boxes in pixels of their canvases."""
        side = self.config.detection.test_side or self.config.data.size
        factor = side / self.config.data.size
        shapes = [(round(h * factor), round(w * factor)) for h, w in scenes.shapes()]
        found = self.detector.detect(detection.resize(scenes.images, side), shapes)
        keys = ("boxes", "labels", "scores")
        boxes = [[image[key].cpu() for key in keys] for image in found]
        return [Boxes(b / factor, c, s, torch.zeros(len(b), dtype=torch.bool)) for b, c, s in boxes]

    def evaluate(self) -> dict[str, Any]:
        """VOC's AP50, and COCO's measures where torchmetrics is installed."""
        found: list[Boxes] = []
        marked: list[Boxes] = []
        for scenes in self.tests():
            found += self.predict(scenes)
            marked += marked_boxes(scenes)
        names = self.scenes.classes[1:]
        voc = voc_precision(found, marked, len(names))
        coco = coco_precision(found, marked, len(names)) or {}
        return {
            "ap50": _rounded(voc.area.nanmean()),
            "ap50_11": _rounded(voc.eleven.nanmean()),
            "ap": _rounded(coco.get("ap")),
            "ap75": _rounded(coco.get("ap75")),
            "ap50_by_class": dict(zip(names, map(_rounded, voc.area.tolist()), strict=True)),
            **{
                key: dict(zip(names, map(_rounded, coco.get(key, ())), strict=False))
                for key in ("ap_by_class", "ap75_by_class")
            },
        }


class Segmentation(TransferTask):
    """FCN-16s."""

    metrics = segmentation.METRICS

    def __init__(self, config: TransferConfig, start: Start, scenes: SceneSet, device: torch.device) -> None:
        module = segmentation.Segmenter(start, len(scenes.classes), config.segmentation)
        super().__init__(config, scenes, module, module.pretrained() if start.pretrained else [], device)
        self.segmenter = module

    def batches(self, share: Tensor, size: int) -> Iterator[tuple[Any, ...]]:
        """Canvases, masks, sizes."""
        for some in self.scenes.train.batches(share, size, self.device):
            yield some.images, some.masks, some.sizes.to(self.device, torch.float32, non_blocking=True)

    def prepare(self, images: Tensor, masks: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Scales, crops and mirrors at random."""
        settings = self.config.segmentation
        return segmentation.scale_crop_mirror(images, masks, sizes, settings.scale, settings.side)

    def predict(self, scenes: Scenes) -> Tensor:
        """The class of every pixel of some scenes. (B, S, S)"""
        return self.segmenter.logits(scenes.images.float() / 255).argmax(dim=1)

    def evaluate(self) -> dict[str, Any]:
        """Mean intersection over union, pixels right."""
        names = self.scenes.classes
        counts = torch.zeros(len(names), len(names), dtype=torch.int64, device=self.device)
        for scenes in self.tests():
            assert scenes.masks is not None
            counts += confusion(self.predict(scenes), scenes.masks, len(names))
        each = intersection_over_union(counts.cpu())
        return {
            "miou": _rounded(each.nanmean()),
            "pixel_accuracy": _rounded(100 * counts.diagonal().sum() / counts.sum()),
            "iou_by_class": dict(zip(names, map(_rounded, each.tolist()), strict=True)),
        }


def marked_boxes(scenes: Scenes) -> list[Boxes]:
    """What somebody marked in some scenes."""
    parts = (scenes.boxes.cpu(), scenes.labels.cpu(), scenes.difficult.cpu(), scenes.counts.tolist())
    return [Boxes(b[:n], c[:n], torch.ones(n), d[:n]) for b, c, d, n in zip(*parts, strict=True)]


def _rounded(value: Any) -> float | None:
    """Two digits; None where there is no value."""
    return None if value is None or math.isnan(value) else round(float(value), 2)
