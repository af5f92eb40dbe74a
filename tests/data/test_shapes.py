from __future__ import annotations

import numpy as np
import pytest
import torch

from stec.config import DataConfig
from stec.data import load
from stec.data.forms import FORMS
from stec.data.shapes import CLASSES, boxes_of, render


def assert_same(a, b):
    for name in ("images", "labels", "boxes", "masks"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_shapes_and_types():
    scenes = render(7, 20, objects=3)
    assert (scenes.images.shape, scenes.images.dtype) == ((7, 3, 20, 20), torch.uint8)
    assert (scenes.labels.shape, scenes.labels.dtype) == ((7, 3), torch.int64)
    assert (scenes.boxes.shape, scenes.boxes.dtype) == ((7, 3, 4), torch.float32)
    assert (scenes.masks.shape, scenes.masks.dtype) == ((7, 3, 20, 20), torch.bool)


@pytest.mark.parametrize("objects", [1, 3])
def test_fewer_images_are_a_prefix_of_more(objects):
    many, few = render(600, 16, objects=objects), render(300, 16, objects=objects)
    assert torch.equal(many.images[:300], few.images)
    assert torch.equal(many.labels[:300], few.labels)
    assert torch.equal(many.masks[:300], few.masks)


def test_same_arguments_give_same_images_whatever_the_global_seed():
    torch.manual_seed(1)
    np.random.seed(1)
    first = render(20, 16)
    torch.manual_seed(2)
    np.random.seed(2)
    assert_same(first, render(20, 16))


@pytest.mark.parametrize("change", [{"seed": 1}, {"split": "test"}])
def test_seed_and_split_have_their_own_images(change):
    a, b = render(300, 16), render(300, 16, **change)
    assert not (a.images == b.images).flatten(1).all(1).any()
    assert (a.boxes != b.boxes).any(-1).float().mean() > 0.9  # not the noise alone


def test_no_image_comes_again_later_in_a_split():
    """Images are drawn 256 at a time, and classes come again after 10: both after 1280."""
    scenes = render(1290, 16)
    assert torch.equal(scenes.labels[:10], scenes.labels[1280:])
    assert (scenes.boxes[:10] != scenes.boxes[1280:]).any(-1).float().mean() > 0.8


def test_unknown_split_is_named():
    with pytest.raises(ValueError, match="split 'validation': choose from train, test"):
        render(1, 16, split="validation")


def test_classes_are_balanced():
    assert render(50, 16).labels[:, 0].bincount().tolist() == [5] * 10
    assert len(CLASSES) == 10


@pytest.mark.parametrize("form", FORMS)
def test_a_form_fits_the_unit_circle_and_fills_a_good_part_of_it(form):
    x, y = np.meshgrid(np.linspace(-1.5, 1.5, 301), np.linspace(-1.5, 1.5, 301))
    inside = FORMS[form](x, y) < 0
    assert np.hypot(x, y)[inside].max() <= 1.001
    assert np.hypot(x, y)[inside].max() > 0.75
    assert inside.sum() * 0.01**2 > 0.2 * np.pi


@pytest.mark.parametrize("form", FORMS)
def test_distance_is_true_near_the_outline(form):
    """One pixel of antialiasing needs a slope of one across the outline, but for a few points at corners."""
    step = 1e-3
    x, y = np.meshgrid(np.linspace(-1.2, 1.2, 401), np.linspace(-1.2, 1.2, 401))
    distance = FORMS[form]
    slope = np.hypot(distance(x + step, y) - distance(x - step, y), distance(x, y + step) - distance(x, y - step)) / (
        2 * step
    )
    near = np.abs(distance(x, y)) < 0.05
    assert np.quantile(np.abs(slope[near] - 1), 0.9) < 0.02


def test_polygon_distances_of_a_triangle():
    """A corner is 0.98 from the centre, so the inscribed circle's radius is half of that."""
    x, y = np.asarray([0.0, 1.98, -0.49]), np.asarray([0.0, 0.0, 0.0])
    assert FORMS["triangle"](x, y) == pytest.approx([-0.49, 1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("size", [32, 96])
def test_objects_are_whole_and_of_a_recognisable_size(size):
    scenes = render(500, size)
    border = torch.ones(size, size, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    at_border = (scenes.masks[:, 0] & border).flatten(1).any(1).float().mean()
    assert at_border < 0.05  # a touching object's outermost pixels
    left, top, right, bottom = scenes.boxes[:, 0].unbind(-1)
    longest = torch.maximum(right - left, bottom - top) / size
    assert longest.min() > 0.25
    assert longest.max() <= 0.82
    assert scenes.masks.flatten(2).sum(-1).min() > 0.02 * size**2


@pytest.mark.parametrize("objects", [1, 4])
def test_boxes_are_tight_to_masks(objects):
    scenes = render(60, 32, objects=objects)
    for box, mask in zip(scenes.boxes.flatten(0, 1), scenes.masks.flatten(0, 1), strict=True):
        rows, columns = mask.nonzero(as_tuple=True)
        if len(rows):
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        else:
            assert box.tolist() == [0, 0, 0, 0]


def test_box_of_an_empty_mask_is_zero_and_of_a_pixel_is_one_wide():
    masks = torch.zeros(2, 5, 5, dtype=torch.bool)
    masks[1, 3, 4] = True
    assert boxes_of(masks).tolist() == [[0, 0, 0, 0], [4, 3, 5, 4]]


def test_later_objects_lie_on_top():
    scenes = render(60, 32, objects=4)
    assert scenes.masks.sum(1).max() == 1  # a pixel belongs to one object
    last, first = scenes.masks[:, -1].sum(), scenes.masks[:, 0].sum()
    assert last > first  # nothing covers the last


def test_objects_share_one_palette_on_a_plain_ground():
    scenes = render(200, 32)
    masks = scenes.masks  # (N, 1, S, S)
    pixels = scenes.images.double() / 255
    inside = (pixels * masks).sum((2, 3)) / masks.sum((2, 3))
    outside = (pixels * ~masks).sum((2, 3)) / (~masks).sum((2, 3))
    assert inside.std(0).max() < 0.06
    assert outside.std(0).max() < 0.03
    assert (inside - outside)[:, 0].min() > 0.3  # and stand out from it
    by_class = torch.stack([inside[scenes.labels[:, 0] == label].mean(0) for label in range(10)])
    assert by_class.std(0).max() < 0.04


def test_edges_are_antialiased():
    """Red is 0.31 on the ground and 0.87 on an object, with noise of 0.04: what is far from both is an edge."""
    images = render(100, 32).images[:, 0].double() / 255
    between = ((images > 0.5) & (images < 0.68)).double().mean((1, 2))
    assert between.mean() > 0.01
    assert between.max() < 0.1


def test_pixels_alone_hardly_tell_the_classes_apart():
    """Ridge regression on pixels: better than chance (10 %), far below what form allows."""
    train, test = render(1500, 24), render(500, 24, split="test")
    x, x_test = (scenes.images.flatten(1).double() / 255 for scenes in (train, test))
    centre = x.mean(0)
    targets = torch.nn.functional.one_hot(train.labels[:, 0]).double() - 0.1
    gram = (x - centre) @ (x - centre).T
    weights = torch.linalg.solve(gram + 10 * torch.eye(len(x)), targets)
    guesses = ((x_test - centre) @ (x - centre).T @ weights).argmax(1)
    accuracy = (guesses == test.labels[:, 0]).double().mean()
    assert 0.1 < accuracy < 0.35


def test_as_a_data_set():
    data = load(DataConfig(train_images=30, test_images=20, size=16), torch.device("cpu"))
    assert data.name == "shapes"
    assert data.classes == CLASSES
    assert data.size == 16
    assert data.skipped == ()
    batch = next(data.train.batches(torch.arange(30), 30))
    assert torch.equal(batch.images, render(30, 16).images)
    assert torch.equal(batch.labels, torch.arange(30) % 10)
    assert batch.sizes.tolist() == [[16, 16]] * 30
    assert data.test is not None
    assert torch.equal(next(data.test.batches(torch.arange(20), 20)).images, render(20, 16, split="test").images)
