"""Detection and segmentation as tasks: what they learn from, how they step, and how their scores come about."""

import dataclasses

import pytest
import torch
from torch import nn

from stec.transfer.config import load_transfer
from stec.transfer.metrics import Boxes, voc_precision
from stec.transfer.scenes import VOID, load_scenes
from stec.transfer.tasks import Detection, Segmentation
from stec.transfer.trunks import open_start

CPU = torch.device("cpu")
WORDS = ("data.train_images=24", "data.test_images=7", "batch_size=4", "data.size=32", "encoder=resnet-small")
TASKS = {"detection": Detection, "segmentation": Segmentation}


def task_of(kind, *words):
    """A task on the built-in scenes; of seven test images, the last three are an incomplete batch."""
    config = load_transfer(f"shapes-{kind}", [*WORDS, *words])
    scenes = load_scenes(config.data, kind, CPU)
    torch.manual_seed(0)
    return TASKS[kind](config, open_start("none", config.encoder), scenes, CPU)


@pytest.mark.parametrize(("words", "side"), [((), 32), (("detection.sides=[64]",), 64)])
def test_mirrored_and_scaled_boxes_lie_where_their_objects_are(words, side):
    task = task_of("detection", *words)
    count, sizes = 40, torch.tensor([[32, 32], [20, 30]]).repeat(20, 1)
    boxes = torch.tensor([[2.0, 4, 12, 14], [6, 2, 20, 10]]).repeat(20, 1)[:, None]
    images = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
    for image, (left, top, right, bottom) in zip(images, boxes[:, 0].int().tolist(), strict=True):
        image[:, top:bottom, left:right] = 255
    prepared, targets = task.prepare(images, boxes, torch.ones(count, 1).long(), sizes, [1] * count)
    assert prepared.shape == (count, 3, side, side)
    assert targets.sizes == [(round(h * side / 32), round(w * side / 32)) for h, w in sizes.tolist()]
    mirrored = 0
    for image, target, box in zip(prepared, targets.images, boxes, strict=True):
        rows, columns = (image[0] > 0.5).nonzero().unbind(1)
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert target["boxes"].tolist() == [[float(edge) for edge in seen]]
        mirrored += target["boxes"][0, 0] != box[0, 0] * side / 32
    assert 10 < mirrored < 30


def test_found_boxes_are_in_pixels_of_the_image_whatever_the_side_that_is_tested(monkeypatch):
    task = task_of("detection", "detection.test_side=64")
    scenes = dataclasses.replace(task.scenes.test, sizes=torch.tensor([[32, 21]]).repeat(7, 1))
    seen = []

    def everywhere(images, sizes):
        seen.append((images.shape[-2:], sizes))
        whole = [torch.tensor([[0.0, 0, w, h]]) for h, w in sizes]
        return [{"boxes": boxes, "labels": torch.ones(1).long(), "scores": torch.ones(1)} for boxes in whole]

    monkeypatch.setattr(task.detector, "detect", everywhere)
    assert [found.boxes.tolist() for found in task.predict(scenes)] == [[[0, 0, 21, 32]]] * 7
    assert seen == [((64, 64), [(64, 42)] * 7)]


def test_the_scores_of_detection_are_those_of_all_test_images(monkeypatch):
    """Half of the objects are found; difficult ones do not count. As COCO measures it, another function says."""
    coco = {"ap": 12.345678, "ap75": torch.nan, "ap75_by_class": [3.0] * 10}
    monkeypatch.setattr("stec.transfer.tasks.coco_precision", lambda *boxes: coco)
    task = task_of("detection")
    test = task.scenes.test
    difficult = torch.zeros_like(test.difficult)
    difficult[::2, 0] = True
    task.scenes = dataclasses.replace(task.scenes, test=dataclasses.replace(test, difficult=difficult))
    marked = [
        Boxes(test.boxes[i, :n], test.labels[i, :n], torch.ones(n), difficult[i, :n])
        for i, n in enumerate(test.counts.tolist())
    ]
    found = [Boxes(*(part[::2] for part in boxes)) for boxes in marked]
    left = iter(found)
    monkeypatch.setattr(task, "predict", lambda scenes: [next(left) for _ in range(len(scenes))])
    scores, expected = task.evaluate(), voc_precision(found, marked, len(task.scenes.classes) - 1)
    assert scores["ap50"] == pytest.approx(expected.area.nanmean().item(), abs=0.01)
    assert scores["ap50_11"] == pytest.approx(expected.eleven.nanmean().item(), abs=0.01)
    assert 0 < scores["ap50"] != scores["ap50_11"] < 100
    by_class = [torch.nan if score is None else score for score in scores["ap50_by_class"].values()]
    assert by_class == pytest.approx(expected.area.tolist(), abs=0.01, nan_ok=True)
    assert [*scores["ap50_by_class"]] == [*task.scenes.classes[1:]]
    assert (scores["ap"], scores["ap75"], scores["ap_by_class"]) == (12.35, None, {})
    assert scores["ap75_by_class"] == dict.fromkeys(task.scenes.classes[1:], 3.0)


def test_the_scores_of_segmentation_are_those_of_all_pixels(monkeypatch):
    """Of every class, what lies in the right half is called background. The last class is absent."""
    task = task_of("segmentation")
    masks = task.scenes.test.masks.long()
    masks[:, :3] = VOID
    masks[masks == len(task.scenes.classes) - 1] = 0
    task.scenes = dataclasses.replace(task.scenes, test=dataclasses.replace(task.scenes.test, masks=masks.byte()))

    def found(masks):
        return torch.where(torch.arange(32) < 16, masks.long() % VOID, 0)

    monkeypatch.setattr(task, "predict", lambda scenes: found(scenes.masks))
    scores, known, guess = task.evaluate(), masks != VOID, found(masks)
    assert scores["pixel_accuracy"] == pytest.approx(100 * (guess == masks)[known].double().mean().item(), abs=0.01)
    *present, absent = task.scenes.classes
    shares = {}
    for number, name in enumerate(present):
        ours, theirs = (guess == number) & known, (masks == number) & known
        shares[name] = 100 * float((ours & theirs).sum()) / int((ours | theirs).sum())
    assert scores["iou_by_class"] == pytest.approx(shares | {absent: None}, abs=0.01)
    assert scores["miou"] == pytest.approx(sum(shares.values()) / len(shares), abs=0.01)


def test_pixels_are_classified_as_they_were_in_training():
    """From images in [0, 1]."""
    task = task_of("segmentation")
    task.module.eval()
    scenes = task.scenes.test
    with torch.no_grad():
        expected = task.segmenter.logits(scenes.images / 255).argmax(dim=1)
        assert torch.equal(task.predict(scenes), expected)
    assert len(expected.unique()) > 1


def test_an_incomplete_batch_makes_no_step():
    task = task_of("segmentation", "data.train_images=23", "optimizer.warmup_epochs=2")
    assert task.warmup == 2 * 5
    assert task.units == 4


def test_steps_are_those_of_sgd_with_momentum_and_decay():
    words = ("optimizer.momentum=0.7", "optimizer.weight_decay=0.1")
    task, rate = task_of("segmentation", *words), torch.tensor(0.05)
    convolution = next(module for module in task.module.modules() if isinstance(module, nn.Conv2d))
    ours, theirs = convolution.weight, nn.Parameter(convolution.weight.detach().clone())
    optimizers = [task.optimizer(rate), torch.optim.SGD([theirs], 0.05, momentum=0.7, weight_decay=0.1)]
    for _ in range(3):
        ours.grad = torch.randn_like(ours)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs)
