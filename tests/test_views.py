"""Views against torchvision: the same distributions of actions, and the same pixels for the same action."""

import itertools
import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torchvision.transforms.v2.functional as V
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torchvision.transforms.v2 import RandomResizedCrop

from stec import pixels
from stec.actions import Glimpse, representation
from stec.errors import UserError
from stec.views import Views

BYTE = 1 / 255
DRAWS = 20_000
EVERYTHING = Views(size=32, jitter=(0.8, 0.2), blur=0.5, solarize=0.2)


def sizes(height: int, width: int, n: int) -> Tensor:
    return torch.tensor([[float(height), float(width)]]).repeat(n, 1)


@cache
def our_crops(height: int, width: int) -> Tensor:
    torch.manual_seed(1)
    return Views().sample(sizes(height, width, DRAWS)).crop.double()


def torchvision_crop(transform: RandomResizedCrop, image: Tensor) -> list[int]:
    drawn = transform.make_params([image])
    return [drawn["top"], drawn["left"], drawn["height"], drawn["width"]]


@cache
def their_crops(height: int, width: int) -> Tensor:
    torch.manual_seed(2)
    transform, image = RandomResizedCrop(32), torch.empty(3, height, width)
    return torch.tensor([torchvision_crop(transform, image) for _ in range(DRAWS)], dtype=torch.float64)


STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "top": lambda crop: crop[:, 0],
    "left": lambda crop: crop[:, 1],
    "area": lambda crop: crop[:, 2] * crop[:, 3],
    "aspect": lambda crop: crop[:, 3] / crop[:, 2],
}


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (96, 96), (60, 200)])
def test_crops_are_distributed_as_torchvision_draws_them(height: int, width: int, statistic: str) -> None:
    """Kolmogorov-Smirnov on 20,000 draws of each; 60 x 200 is long enough for the fallback to happen."""
    ours, theirs = (STATISTICS[statistic](draw(height, width)) for draw in (our_crops, their_crops))
    assert stats.ks_2samp(ours.numpy(), theirs.numpy()).pvalue > 0.001


@pytest.mark.parametrize(
    ("height", "width", "central"),
    # full height and 4 / 3 of it wide, or full width and 4 / 3 of it high, in the middle (rounded down)
    [(60, 200, (0, 60, 60, 80)), (20, 200, (0, 86, 20, 27)), (200, 20, (86, 0, 27, 20))],
)
def test_the_fallback_happens_as_often_as_in_torchvision(height: int, width: int, central: tuple[int, ...]) -> None:
    wanted = torch.tensor(central)
    ours, theirs = (int((draw(height, width) == wanted).all(dim=1).sum()) for draw in (our_crops, their_crops))
    assert ours > 500
    assert stats.fisher_exact([[ours, DRAWS - ours], [theirs, DRAWS - theirs]]).pvalue > 0.001


@pytest.mark.parametrize(("height", "width"), [(32, 32), (96, 96), (60, 200)])
def test_crops_are_whole_pixels_inside_the_image(height: int, width: int) -> None:
    crop = our_crops(height, width)
    assert torch.equal(crop, crop.round())
    assert (crop[:, :2] >= 0).all()
    assert (crop[:, 2:] >= 1).all()
    assert (crop[:, 0] + crop[:, 2]).max() == height
    assert (crop[:, 1] + crop[:, 3]).max() == width


def test_images_of_different_sizes_in_one_batch() -> None:
    """Each crop obeys its own image."""
    torch.manual_seed(3)
    mixed = torch.cat([sizes(32, 32, 500), sizes(60, 200, 500), sizes(200, 20, 500)])
    crop = Views().sample(mixed).crop
    assert (crop[:, :2] + crop[:, 2:] <= mixed).all()
    for rows, (height, width) in zip(crop.split(500), [(32, 32), (60, 200), (200, 20)], strict=True):
        assert rows[:, 2].max() > 0.8 * min(height, width)
    # 200 x 20, mostly the fallback: 20 wide, round(20 / (3 / 4)) = 27 high, (200 - 27) // 2 = 86 from the top
    assert crop[1000:].mode(dim=0).values.tolist() == [86, 0, 27, 20]


@given(st.integers(8, 400), st.floats(1.5, 20), st.sampled_from(["wide", "high", "square"]))
@settings(max_examples=200, deadline=None)
def test_fallback_crops_equal_those_of_torchvision(short: int, stretch: float, shape: str) -> None:
    """No rectangle with the whole area of a long image has an aspect in range: all that is left is the fallback."""
    long = round(short * stretch)
    height, width = {"wide": (short, long), "high": (long, short), "square": (short, short)}[shape]
    expected = torchvision_crop(RandomResizedCrop(32, scale=(1.0, 1.0)), torch.empty(3, height, width))
    crop = Views(area=(1.0, 1.0)).sample(sizes(height, width, 4)).crop
    assert crop.tolist() == [expected] * 4


@cache
def glimpses() -> Glimpse:
    torch.manual_seed(5)
    return EVERYTHING.sample(sizes(32, 32, 100_000))


def near(count: Tensor | int, probability: float, n: int) -> bool:
    """Within five standard deviations of a binomial count."""
    return abs(int(count) - n * probability) < 5 * math.sqrt(n * probability * (1 - probability))


def test_probabilities() -> None:
    drawn = glimpses()
    jittered = (drawn.colour != torch.tensor([1.0, 1, 1, 0])).any(dim=1)
    counts = {"mirrored": (drawn.mirrored, 0.5), "jittered": (jittered, 0.8), "grey": (drawn.grey, 0.2)}
    counts |= {"blurred": (drawn.blur > 0, 0.5), "solarized": (drawn.solarized, 0.2)}
    for name, (happened, probability) in counts.items():
        assert near(happened.sum(), probability, 100_000), name
    for (a, (x, p)), (b, (y, q)) in itertools.combinations(counts.items(), 2):
        assert near((x & y).sum(), p * q, 100_000), f"{a} and {b} should be independent"


@pytest.mark.parametrize("name", ["mirror", "jitter_probability", "grey", "blur", "solarize"])
@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_never_and_always(name: str, probability: float) -> None:
    drawn = Views(**{name: probability}).sample(sizes(32, 32, 500))
    happened = {
        "mirror": drawn.mirrored,
        "jitter_probability": (drawn.colour != torch.tensor([1.0, 1, 1, 0])).any(dim=1),
        "grey": drawn.grey,
        "blur": drawn.blur > 0,
        "solarize": drawn.solarized,
    }[name]
    assert happened.float().mean() == probability


@pytest.mark.parametrize(("factor", "low", "high"), [(0, 0.2, 1.8), (1, 0.2, 1.8), (2, 0.2, 1.8), (3, -0.2, 0.2)])
def test_colour_factors_are_uniform_over_their_range(factor: int, low: float, high: float) -> None:
    drawn = glimpses().colour
    values = drawn[(drawn != torch.tensor([1.0, 1, 1, 0])).any(dim=1), factor].double()
    assert values.min() >= low - 1e-6
    assert values.max() <= high + 1e-6
    assert stats.kstest(values.numpy(), stats.uniform(low, high - low).cdf).pvalue > 0.001


@pytest.mark.parametrize(("size", "kernel"), [(32, 3), (64, 7), (96, 9), (224, 23)])
def test_blur_scales_with_the_view(size: int, kernel: int) -> None:
    """Sigma is uniform on 0.1-2.0 at 224 pixels; the kernel is a tenth of the side, made odd."""
    torch.manual_seed(6)
    views = Views(size=size, blur=1.0)
    sigma = views.sample(sizes(32, 32, 10_000)).blur.double()
    assert stats.kstest((sigma * 224 / size).numpy(), stats.uniform(0.1, 1.9).cdf).pvalue > 0.001
    assert views.kernel == kernel


@pytest.mark.parametrize("size", [4, 8, 16, 19, 20])
def test_a_blur_is_told_of_where_it_can_be_seen(size: int) -> None:
    """A kernel of one pixel leaves a view as it is, and there is nothing that psi could infer."""
    views = Views(size=size, jitter_probability=0, grey=0, blur=1.0)
    told = views.sample(sizes(size, size, 64))
    told = told._replace(blur=torch.where(told.blur > 0, 2.0, 0.0))  # as strong as they get
    images = torch.rand(64, 3, size, size)
    sharp = views.render(images, told._replace(blur=torch.zeros(64)))
    seen = (views.render(images, told) - sharp).abs().amax(dim=(1, 2, 3)) > 1e-6
    assert torch.equal(told.blur > 0, seen)
    assert ("blur" in views.constant_components()) == (not seen.any())


def test_all_24_orders_of_colour_operations_are_equally_likely() -> None:
    orders = glimpses().order
    assert torch.equal(orders.sort(dim=1).values, torch.arange(4).expand_as(orders))
    codes = (orders * torch.tensor([64, 16, 4, 1])).sum(dim=1).unique(return_counts=True)[1]
    assert len(codes) == 24
    assert stats.chisquare(codes.numpy()).pvalue > 0.001


def test_the_two_views_of_an_image_and_neighbours_are_independent() -> None:
    torch.manual_seed(7)
    n = 4000
    views = Views(size=20, blur=0.5, solarize=0.5)
    copy = views(torch.rand(n, 3, 16, 16)).copy

    def numbers(view: Glimpse) -> Tensor:
        values = [view.crop, view.mirrored[:, None], view.colour, view.order, view.grey[:, None]]
        values += [view.blur[:, None], view.solarized[:, None]]
        table = torch.cat([value.double() for value in values], dim=1)  # (n, 16)
        return (table - table.mean(dim=0)) / table.std(dim=0)

    first, second = numbers(copy.first), numbers(copy.second)
    assert (first.T @ second / n).abs().max() < 5 / math.sqrt(n)
    assert (first[1:].T @ first[:-1] / n).abs().max() < 5 / math.sqrt(n)


def by_torchvision(views: Views, images: Tensor, glimpse: Glimpse) -> Tensor:
    """One image after the other through torchvision's functions, with the parameters of the glimpse."""
    adjust = [V.adjust_brightness, V.adjust_contrast, V.adjust_saturation, V.adjust_hue]
    results = []
    for row, image in enumerate(images):
        crop = [int(value) for value in glimpse.crop[row]]
        view = V.resized_crop(image, *crop, size=[views.size, views.size], antialias=True)
        if glimpse.mirrored[row]:
            view = V.horizontal_flip(view)
        for operation in glimpse.order[row].tolist():
            view = adjust[operation](view, float(glimpse.colour[row, operation]))
        if glimpse.grey[row]:
            view = V.rgb_to_grayscale(view, num_output_channels=3)
        if glimpse.blur[row] > 0:
            view = V.gaussian_blur(view, [views.kernel] * 2, [float(glimpse.blur[row])] * 2)
        if glimpse.solarized[row]:
            view = V.solarize(view, threshold=0.5)
        results.append(view)
    return torch.stack(results)


@pytest.mark.parametrize(("height", "width"), [(40, 40), (30, 60)])
def test_whole_views_equal_those_of_torchvision(height: int, width: int) -> None:
    """Crop, mirror, jitter, grey, blur, solarize, in this order. Solarizing flips at a threshold: there, skip."""
    torch.manual_seed(8)
    images = torch.rand(150, 3, height, width)
    views = Views(size=32, jitter=(0.8, 0.2), blur=0.5, solarize=0.5)
    batch = views(images)
    for seen, glimpse in zip((batch.first, batch.second), batch.copy, strict=True):
        expected = by_torchvision(views, images, glimpse)
        before = by_torchvision(views, images, glimpse._replace(solarized=torch.zeros(150, dtype=torch.bool)))
        at_threshold = glimpse.solarized[:, None, None, None] & ((before - 0.5).abs() < 1e-4)
        assert at_threshold.float().mean() < 1e-3
        assert ((seen - expected).abs() * ~at_threshold).max() < 1e-4


def test_bytes_and_floats_give_the_same_views() -> None:
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    glimpse = EVERYTHING.sample(sizes(32, 32, 64))
    from_bytes, from_floats = (EVERYTHING.render(x, glimpse) for x in (images, images.float() / 255))
    assert from_bytes.dtype == torch.float32
    at_threshold = glimpse.solarized[:, None, None, None] & ((from_floats - 0.5).abs() < 1e-4)
    assert ((from_bytes - from_floats).abs() * ~at_threshold).max() < 1e-5


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_views_are_the_same_whatever_the_default_precision_of_tensors(default: torch.dtype) -> None:
    images = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)

    def seen() -> list[torch.Tensor]:
        torch.manual_seed(0)
        batch = EVERYTHING(images)
        return [batch.images, *batch.copy.first, *batch.copy.second, EVERYTHING.plain(images)]

    expected = seen()
    torch.set_default_dtype(default)
    try:
        found = seen()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_views_stay_between_0_and_1_and_leave_the_images_alone() -> None:
    torch.manual_seed(9)
    images = torch.rand(200, 3, 32, 32).round()
    before = images.clone()
    seen = EVERYTHING(images).images
    assert torch.equal(images, before)
    assert seen.shape == (400, 3, 32, 32)
    assert seen.min() >= -1e-6
    assert seen.max() <= 1 + 1e-6


def test_mixed_precision_changes_no_pixel() -> None:
    """As in a training step of Lightning, within which views are made."""
    images, views = torch.rand(8, 3, 40, 50), Views(size=16, blur=0.5, small=1, small_size=8, turn=True)
    torch.manual_seed(0)
    wanted, plain = views(images), views.plain(images)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        made = views(images)
        assert torch.equal(views.plain(images), plain)
    assert torch.equal(made.images, wanted.images)
    assert torch.equal(made.turned.images, wanted.turned.images)
    assert torch.equal(made.small.images, wanted.small.images)


def test_the_same_seed_gives_the_same_views() -> None:
    images = torch.rand(16, 3, 32, 32)
    batches = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        batches.append(EVERYTHING(images).images)
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def smooth_images(n: int, height: int, width: int) -> Tensor:
    """Sums of three waves of at most one period per side. (n, 3, height, width) in [0, 1]"""
    y, x = ((torch.arange(side) + 0.5) / side for side in (height, width))
    frequency, phase = 2 * torch.rand(n, 3, 3, 2) - 1, 2 * math.pi * torch.rand(n, 3, 3)
    angle = frequency[..., :1, None] * y[:, None] + frequency[..., 1:, None] * x
    return 0.5 + 0.5 * (2 * math.pi * angle + phase[..., None, None]).sin().mean(dim=2)


@pytest.mark.parametrize(("height", "width"), [(90, 150), (150, 90), (60, 200)])
def test_views_of_squashed_images_equal_those_of_the_unsquashed(height: int, width: int) -> None:
    """Through 64 x 64 and directly from height x width: within 2/255, but for the outermost rows and columns.

    There, the half-pixel rim of the crop, where bilinear resampling has no neighbour, is that of coarser pixels.
    """
    torch.manual_seed(10)
    n = 150
    images = smooth_images(n, height, width)
    views = Views(size=48, jitter_probability=0, grey=0)
    batch = views(V.resize(images, [64, 64], antialias=True), sizes=sizes(height, width, n))
    for seen, glimpse in zip((batch.first, batch.second), batch.copy, strict=True):
        assert (glimpse.crop[:, :2] + glimpse.crop[:, 2:] <= torch.tensor([height, width])).all()
        error = (seen - by_torchvision(views, images, glimpse)).abs()
        assert error.mean(dim=(1, 2, 3)).max() < 2 * BYTE
        # one squashed pixel from the edge of the crop, in pixels of the view
        rim = (torch.tensor([height, width]) / 64 / glimpse.crop[:, 2:] * 48).ceil().int().tolist()
        for view, (rows, columns) in zip(error, rim, strict=True):
            assert view[:, rows : 48 - rows, columns : 48 - columns].max() < 2 * BYTE


@pytest.mark.parametrize("device", ["cpu", "as on a gpu"])
def test_a_crop_of_next_to_nothing_is_seen(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a line of 40,000 pixels kept as 32, a square is 1 / 1250 of a pixel. One NaN would end a run."""
    monkeypatch.setattr(pixels, "on_cpu", lambda images: device == "cpu")
    images = torch.randint(0, 256, (20, 3, 32, 32), dtype=torch.uint8)
    for shape in ((1, 40_000), (60_000, 1)):
        seen = Views(size=32, jitter_probability=0, grey=0)
        for views in (seen(images, sizes(*shape, 20)).images, seen.plain(images, sizes(*shape, 20))):
            assert views.isfinite().all()
            assert views.max() <= 1 + 1e-6


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mirror": 0.0},
        {"mirror": 1.0, "area": (1.0, 1.0)},
        {"area": (1.0, 1.0)},
        {"area": (0.5, 0.5)},
        {"area": (0.5, 0.5), "aspect": (1.0, 1.0), "mirror": 0.0},
        {"area": (1.0, 1.0), "mirror": 0.0, "small": 1},
        {"area": (1.0, 1.0), "mirror": 0.0, "small": 1, "small_area": (1.0, 1.0)},
        {"jitter": (0.4, 0.0), "grey": 1.0},
        {"jitter_probability": 0.0, "blur": 0.5, "solarize": 1.0},
    ],
)
def test_constant_components_are_those_that_never_change(changes: dict) -> None:
    """Of the pairs in which the component counts."""
    views = Views(**{"blur": 0.5, "solarize": 0.2} | changes)
    torch.manual_seed(13)
    copy = views.sample_pairs(sizes(40, 40, 500))
    constant = set()
    for name in ("egocentric", "allocentric", "colour"):
        action = representation(name)
        values = action(copy)
        for i, component in enumerate(action.components):
            hidden = (copy.first.solarized | copy.second.solarized) & action.unsolarized[i]
            if len(values[~hidden, i].mul(1e4).round().unique()) <= 1 and action.informative[i]:
                constant.add(component)
    assert views.constant_components() == constant


@pytest.mark.parametrize("shape", [(3, 8, 8), (4, 1, 8, 8), (4, 4, 8, 8), (4, 8, 8, 3)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"expected \(B, 3, H, W\)"):
        Views(size=8)(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"area": (8, 100)}, r"views.area=\(8, 100\): a crop is at most the whole image"),
        ({"area": 0.5}, "views.area=0.5: needs two numbers"),
        ({"aspect": (0, 1)}, "needs 0 < low"),
        ({"jitter": (2.0, 0.1)}, "needs u from 0 to 1"),
        ({"mirror": 50}, "views.mirror=50: is a probability"),
        ({"small": 1, "small_area": (5, 25)}, "views.small_area"),
        ({"size": 0}, "views.size=0: must be at least 1"),
        ({"size": 1, "turn": True}, "views.size=0"),
        ({"small": 1, "small_size": -4}, "views.size=-4"),
    ],
)
def test_settings_that_make_no_sense_are_refused_as_in_a_recipe(setting: dict, message: str) -> None:
    """An area in percent, of which no crop fits, would leave whole images."""
    with pytest.raises(UserError, match=message):
        Views(**setting)


def test_images_whose_colours_stay_may_have_any_number_of_channels() -> None:
    views = Views(size=8, jitter_probability=0, grey=0, blur=0.5, solarize=0.5)
    assert views(torch.rand(4, 1, 9, 9)).images.shape == (8, 1, 8, 8)


def test_plain_views_are_the_central_square() -> None:
    torch.manual_seed(11)
    images = torch.rand(4, 3, 40, 60)
    # torchvision: the central 40 x 40, and with test_crop 0.8 the central 32 x 32
    whole, inner = Views(size=32).plain(images), Views(size=32, test_crop=0.8).plain(images)
    torch.testing.assert_close(whole, V.resize(V.center_crop(images, [40, 40]), [32, 32]), atol=1e-5, rtol=0)
    torch.testing.assert_close(inner, V.center_crop(images, [32, 32]), atol=1e-5, rtol=0)


def test_plain_views_of_an_image_of_the_right_size_are_the_image() -> None:
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(Views(size=32).plain(images), images / 255, atol=1e-6, rtol=0)


def test_plain_views_of_squashed_images_have_true_proportions() -> None:
    torch.manual_seed(12)
    images = smooth_images(20, 60, 120)
    squashed = V.resize(images, [96, 96], antialias=True)
    expected = V.resize(V.center_crop(images, [60, 60]), [32, 32], antialias=True)
    seen = Views(size=32).plain(squashed, sizes(60, 120, 20))
    assert (seen - expected).abs().mean() < 2 * BYTE
