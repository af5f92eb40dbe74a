import math

import numpy as np
import pytest
import torch

from stec.transfer.metrics import (
    Boxes,
    area_precision,
    coco_precision,
    confusion,
    eleven_precision,
    intersection_over_union,
    voc_precision,
)
from stec.transfer.scenes import VOID


def boxes(*rows, difficult=()):
    """Rows of left, top, right, bottom, label, score."""
    values = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    hard = torch.tensor([i in difficult for i in range(len(values))], dtype=torch.bool)
    return Boxes(values[:, :4], values[:, 4].long(), values[:, 5], hard)


def nothing():
    return boxes()


def test_average_precision_of_a_hand_worked_example():
    # Three objects. Best first: right, wrong, right, wrong (found twice); one object is missed.
    marked = [boxes((0, 0, 10, 10, 1, 1), (20, 0, 30, 10, 1, 1)), boxes((0, 0, 10, 10, 1, 1))]
    found = [
        boxes((0, 0, 10, 9, 1, 0.9), (50, 50, 60, 60, 1, 0.8), (0, 0, 10, 10, 1, 0.3)),
        boxes((1, 0, 10, 10, 1, 0.6)),
    ]
    # Recall 1/3, 1/3, 2/3, 2/3; precision 1, 1/2, 2/3, 1/2.
    area = 1 / 3 * 1 + 1 / 3 * 2 / 3
    eleven = (4 * 1 + 3 * 2 / 3 + 4 * 0) / 11  # recalls 0 to 0.3, 0.4 to 0.6, 0.7 to 1
    precision = voc_precision(found, marked, classes=1)
    assert float(precision.area[0]) == pytest.approx(100 * area)
    assert float(precision.eleven[0]) == pytest.approx(100 * eleven)


def test_an_object_is_found_once_and_by_more_than_half():
    marked = [boxes((0, 0, 10, 10, 1, 1))]
    half = [boxes((0, 0, 10, 5, 1, 0.9))]  # overlaps by exactly a half
    assert voc_precision(half, marked, 1).area[0] == 0
    more = [boxes((0, 0, 10, 5.1, 1, 0.9))]
    assert voc_precision(more, marked, 1).area[0] == 100


def test_difficult_objects_count_neither_way():
    marked = [boxes((0, 0, 10, 10, 1, 1), (20, 0, 30, 10, 1, 1), difficult=[1])]
    found = [boxes((20, 0, 30, 10, 1, 0.9), (0, 0, 10, 10, 1, 0.8))]
    assert voc_precision(found, marked, 1).area[0] == 100
    unfound = [boxes((0, 0, 10, 10, 1, 0.8))]
    assert voc_precision(unfound, marked, 1).area[0] == 100


def test_classes_are_apart_and_absent_ones_have_no_value():
    marked = [boxes((0, 0, 10, 10, 1, 1), (20, 0, 30, 10, 2, 1)), nothing()]
    found = [boxes((0, 0, 10, 10, 2, 0.9), (20, 0, 30, 10, 2, 0.8)), boxes((0, 0, 5, 5, 3, 0.7))]
    area = voc_precision(found, marked, 3).area
    assert area[:2].tolist() == [0, 50]
    assert math.isnan(area[2])


def test_nothing_found_is_zero():
    marked = [boxes((0, 0, 10, 10, 1, 1))]
    precision = voc_precision([nothing()], marked, 1)
    assert (float(precision.area[0]), float(precision.eleven[0])) == (0, 0)


def slow_area(recall, precision):
    """The integral over recall of the best precision at that recall or beyond, in a thousand small steps."""
    points = (np.arange(100_000) + 0.5) / 100_000
    best = [max((p for r, p in zip(recall, precision, strict=True) if r >= point), default=0) for point in points[::50]]
    return float(np.mean(best))


def test_area_is_the_integral_of_the_best_precision_to_come():
    right = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0, 1], dtype=torch.float64)
    hits = right.cumsum(0)
    recall, precision = hits / 7, hits / torch.arange(1, 10)
    assert area_precision(recall, precision) == pytest.approx(slow_area(recall.tolist(), precision.tolist()), abs=1e-3)
    assert eleven_precision(recall, precision) == pytest.approx(area_precision(recall, precision), abs=0.06)


def random_images(seed, images=30, classes=3):
    generator = np.random.default_rng(seed)
    marked, found = [], []
    for _ in range(images):
        corners = generator.uniform(0, 50, (4, 2))
        truth = np.concatenate([corners, corners + generator.uniform(8, 30, (4, 2))], axis=1)
        labels = generator.integers(1, classes + 1, 4)
        marked.append(boxes(*[(*box, label, 1) for box, label in zip(truth, labels, strict=True)]))
        moved = truth + generator.normal(0, 2.0, (4, 4))
        confused = np.where(generator.random(4) < 0.7, labels, generator.integers(1, classes + 1, 4))
        rows = [(*b, label, s) for b, label, s in zip(moved, confused, generator.random(4), strict=True)]
        found.append(boxes(*rows))
    return found, marked


def test_ap50_is_near_that_of_coco():
    """COCO takes the mean at 101 recalls of the same curve; at 30 images a class the two differ by little."""
    pytest.importorskip("pycocotools")
    from torchmetrics.detection import MeanAveragePrecision

    found, marked = random_images(0)
    metric = MeanAveragePrecision(class_metrics=True, iou_thresholds=[0.5])
    metric.update(
        [{"boxes": f.boxes, "labels": f.labels, "scores": f.scores} for f in found],
        [{"boxes": m.boxes, "labels": m.labels} for m in marked],
    )
    theirs = 100 * metric.compute()["map_per_class"]
    torch.testing.assert_close(voc_precision(found, marked, 3).area.float(), theirs, atol=1.0, rtol=0)


def test_coco_precision_of_perfect_boxes_and_of_absent_classes():
    pytest.importorskip("pycocotools")
    marked = [boxes((0, 0, 10, 10, 1, 1), (20, 0, 30, 10, 3, 1))]
    values = coco_precision(marked, marked, classes=3)
    assert values["ap"] == pytest.approx(100)
    assert values["ap75"] == pytest.approx(100)
    assert values["ap_by_class"][::2] == pytest.approx([100, 100])
    assert math.isnan(values["ap_by_class"][1])


@pytest.mark.parametrize("rows", [[], [(0, 0, 10, 10, 1, 1)]])
def test_coco_precision_has_no_value_where_no_object_counts(rows):
    pytest.importorskip("pycocotools")
    marked = [boxes(*rows, difficult=[0])]
    values = coco_precision([boxes((0, 0, 10, 10, 1, 1))], marked, classes=2)
    assert all(math.isnan(value) for value in (values["ap"], values["ap75"], *values["ap_by_class"]))


def test_coco_precision_by_class_has_the_mean_of_all():
    pytest.importorskip("pycocotools")
    found, marked = random_images(1)
    values = coco_precision(found, marked, classes=3)
    assert 0 < values["ap75"] < values["ap"] < 100
    assert np.mean(values["ap_by_class"]) == pytest.approx(values["ap"])
    assert np.mean(values["ap75_by_class"]) == pytest.approx(values["ap75"])
    ours = voc_precision(found, marked, 3, overlap=0.75).area.tolist()
    assert values["ap75_by_class"] == pytest.approx(ours, abs=1.5)


def test_intersection_over_union_of_a_hand_worked_example():
    masks = torch.tensor([[0, 0, 1, 1], [0, 2, 2, VOID]])
    guesses = torch.tensor([[0, 1, 1, 1], [0, 2, 0, 1]])
    counts = confusion(guesses, masks, 4)
    assert counts.tolist() == [[2, 1, 0, 0], [0, 2, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    each = intersection_over_union(counts)
    assert each[:3].tolist() == pytest.approx([100 * 2 / 4, 100 * 2 / 3, 100 * 1 / 2])
    assert math.isnan(each[3])


def test_intersection_over_union_is_torchmetrics():
    from torchmetrics.functional.classification import multiclass_jaccard_index

    generator = torch.Generator().manual_seed(0)
    masks, guesses = torch.randint(5, (2, 3, 20, 20), generator=generator)
    masks[:, :3] = VOID
    each = intersection_over_union(confusion(guesses, masks, 5))
    theirs = multiclass_jaccard_index(guesses, masks, 5, average="none", ignore_index=VOID)
    torch.testing.assert_close(each.float(), 100 * theirs)
