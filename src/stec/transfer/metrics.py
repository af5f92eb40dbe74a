"""How good are boxes and masks: average precision and intersection over union."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou

from stec.transfer.scenes import VOID


class Boxes(NamedTuple):
    """The boxes of one image: as somebody marked them, or as they were found. On the CPU."""

    boxes: Tensor  # float (n, 4) left, top, right, bottom
    labels: Tensor  # int64 (n,) from 1
    scores: Tensor  # float (n,), of what was found
    difficult: Tensor  # bool (n,), of what was marked


class Precision(NamedTuple):
    """Average precision in percent; NaN for a class that no image has."""

    area: Tensor  # (classes,): the area under the curve, VOC's measure since 2010
    eleven: Tensor  # (classes,): the mean at eleven recalls, VOC's measure until 2007


def voc_precision(found: Sequence[Boxes], marked: Sequence[Boxes], classes: int, overlap: float = 0.5) -> Precision:
    """VOC's average precision of classes 1 ... `classes`, one entry of `found` and `marked` for each image.

    What was found is taken best first. It is right if it overlaps one marked box of its class by more than `overlap`,
    the one that it overlaps most, and that was not found before; if that box is difficult, it counts neither way.
    """
    values = [_class_precision(found, marked, label, overlap) for label in range(1, classes + 1)]
    area, eleven = zip(*values, strict=True)
    return Precision(torch.tensor(area), torch.tensor(eleven))


def _class_precision(
    found: Sequence[Boxes], marked: Sequence[Boxes], label: int, overlap: float
) -> tuple[float, float]:
    scores, rights, counted = [], [], []
    total = 0
    for guess, truth in zip(found, marked, strict=True):
        target, chosen = truth.labels == label, guess.labels == label
        total += int((target & ~truth.difficult).sum())
        right, counts = _match(guess.boxes[chosen], guess.scores[chosen], truth, target, overlap)
        scores.append(guess.scores[chosen])
        rights.append(right)
        counted.append(counts)
    if not total:
        return float("nan"), float("nan")
    counts = torch.cat(counted)
    score, right = torch.cat(scores)[counts], torch.cat(rights)[counts].double()
    right = right[score.argsort(descending=True, stable=True)]
    hits = right.cumsum(0)
    recall, precision = hits / total, hits / torch.arange(1, len(right) + 1)
    return 100 * area_precision(recall, precision), 100 * eleven_precision(recall, precision)


def _match(boxes: Tensor, scores: Tensor, truth: Boxes, target: Tensor, overlap: float) -> tuple[Tensor, Tensor]:
    """Which of the found boxes are right, and which count."""
    right, counts = torch.zeros(len(boxes), dtype=torch.bool), torch.ones(len(boxes), dtype=torch.bool)
    if not len(boxes) or not target.any():
        return right, counts
    best, which = box_iou(boxes, truth.boxes[target]).max(dim=1)
    difficult = truth.difficult[target]
    used = torch.zeros(len(difficult), dtype=torch.bool)
    for i in scores.argsort(descending=True, stable=True).tolist():
        j = int(which[i])
        if best[i] <= overlap:
            continue
        if difficult[j]:
            counts[i] = False
        elif not used[j]:
            right[i] = used[j] = True
    return right, counts


def area_precision(recall: Tensor, precision: Tensor) -> float:
    """The area under the precision at each recall, or at any higher one. (n,), (n,), best guess first"""
    start, end = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    recall = torch.cat([start, recall.double(), end])
    precision = torch.cat([precision.double(), start])
    envelope = precision.flip(0).cummax(0).values.flip(0)
    return float((recall.diff() * envelope).sum())


def eleven_precision(recall: Tensor, precision: Tensor) -> float:
    """The mean of the best precision at a recall of at least 0, 0.1, ... 1."""
    best = [precision[recall >= step / 10 - 1e-12] for step in range(11)]
    return sum(float(values.max()) if len(values) else 0.0 for values in best) / 11


def coco_precision(found: Sequence[Boxes], marked: Sequence[Boxes], classes: int) -> dict[str, Any] | None:
    """COCO's `ap` (overlaps 0.5 to 0.95) and `ap75`, in percent, and of each class; by torchmetrics, None without it.

    A difficult object is what COCO calls a crowd: what lies on it does not count.
    """
    try:
        from torchmetrics.detection import MeanAveragePrecision

        metric = MeanAveragePrecision(extended_summary=True, sync_on_compute=False)  # one process has all
    except ImportError:  # torchmetrics or pycocotools
        return None
    metric.warn_on_many_detections = False
    metric.update(
        [{"boxes": f.boxes.float(), "labels": f.labels, "scores": f.scores.float()} for f in found],
        [{"boxes": m.boxes.float(), "labels": m.labels, "iscrowd": m.difficult.long()} for m in marked],
    )
    values = metric.compute()
    # -1 is torchmetrics' word for no value.
    ap, ap75 = (float("nan") if value < 0 else 100 * float(value) for value in (values["map"], values["map_75"]))
    # (overlaps, recalls, classes, areas, limits): of all areas, at most 100 boxes; -1 for a class that no image has.
    precision = values["precision"][..., 0, -1].mean(dim=1)
    each = torch.full((len(precision), classes), float("nan"))
    each[:, values["classes"].reshape(-1).long() - 1] = torch.where(precision < 0, float("nan"), precision).float()
    return {
        "ap": ap,
        "ap75": ap75,
        "ap_by_class": (100 * each.mean(dim=0)).tolist(),
        "ap75_by_class": (100 * each[5]).tolist(),  # overlaps are 0.5, 0.55, ...
    }


def confusion(guesses: Tensor, masks: Tensor, classes: int) -> Tensor:
    """How many pixels of every class (row) were taken for which (column); void ones count nowhere. int64 (K, K)"""
    counted = masks != VOID
    pairs = masks[counted].long() * classes + guesses[counted].long()
    return pairs.bincount(minlength=classes**2).view(classes, classes)


def intersection_over_union(confusion: Tensor) -> Tensor:
    """Of every class, in percent; NaN for one that is neither there nor seen. (K, K) -> (K,)"""
    right = confusion.diagonal().double()
    return 100 * right / (confusion.sum(0) + confusion.sum(1) - confusion.diagonal()).double()
