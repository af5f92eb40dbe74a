"""Every operation on pixels against `torchvision.transforms.v2.functional` with the same parameters."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.v2.functional as V
from torch import Tensor

from stec import pixels

TIGHT = 2e-6  # float32 rounding; one level of an 8-bit image is 4e-3


@pytest.fixture(params=["as on a CPU", "as on a GPU"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of computing; the second is that of compiled code as well."""
    if request.param == "as on a GPU":
        monkeypatch.setattr(pixels, "on_cpu", lambda images: False)


def images(n: int, height: int = 24, width: int = 24, seed: int = 0) -> Tensor:
    """Noise, with an image that has flat, black, white and saturated patches in front."""
    torch.manual_seed(seed)
    noise = torch.rand(n, 3, height, width)
    patches = torch.tensor([[0.0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    noise[0, :, 0, : len(patches)] = patches.T
    return noise


def difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


ADJUST: list[Callable[[Tensor, float], Tensor]] = [
    V.adjust_brightness,
    V.adjust_contrast,
    V.adjust_saturation,
    V.adjust_hue,
]


def random_colour(n: int) -> Tensor:
    return torch.cat([2 * torch.rand(n, 3), torch.rand(n, 1) - 0.5], dim=1)


def jitter_by_torchvision(x: Tensor, colour: Tensor, order: Tensor) -> Tensor:
    results = []
    for image, amounts, sequence in zip(x, colour.tolist(), order.tolist(), strict=True):
        for operation in sequence:
            image = ADJUST[operation](image, amounts[operation])
        results.append(image)
    return torch.stack(results)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("operation", range(4), ids=["brightness", "contrast", "saturation", "hue"])
def test_single_colour_operations(operation: int) -> None:
    x = images(200, seed=operation)
    colour = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(len(x), 1)
    colour[:, operation] = random_colour(len(x))[:, operation]
    order = torch.arange(4).repeat(len(x), 1)
    expected = torch.stack([ADJUST[operation](i, a) for i, a in zip(x, colour[:, operation].tolist(), strict=True)])
    assert difference(expected, x) > 0.5  # it does something
    assert difference(pixels.recolour(x, colour, order), expected) < 5e-6


def test_hue_at_the_ends_of_its_range() -> None:
    x = images(2)
    for offset in (-0.5, 0.5):
        assert difference(pixels.shift_hue(x, torch.full((2,), offset)), V.adjust_hue(x, offset)) < 5e-6


@pytest.mark.usefixtures("path")
def test_colour_jitter_in_every_order() -> None:
    orders = torch.tensor(list(itertools.permutations(range(4))))  # (24, 4)
    x, order = images(240, seed=5), orders.repeat(10, 1)
    colour = random_colour(240)
    expected = jitter_by_torchvision(x, colour, order)
    assert difference(pixels.recolour(x, colour, order), expected) < 1e-4
    # The order matters: reversing it gives something else.
    assert difference(pixels.recolour(x, colour, order.flip(1)), expected) > 0.1


def test_neutral_jitter_changes_nothing() -> None:
    x = images(24)
    order = torch.tensor(list(itertools.permutations(range(4))))
    assert torch.equal(pixels.recolour(x, torch.tensor([[1.0, 1, 1, 0]]).repeat(24, 1), order), x)


@pytest.mark.usefixtures("path")
def test_colours_stay_between_0_and_1() -> None:
    x = images(240, seed=6)
    order = torch.rand(240, 4).argsort(dim=1)
    result = pixels.recolour(x, random_colour(240), order)
    assert result.min() >= 0
    assert result.max() <= 1


def test_grey() -> None:
    x = images(20)
    assert difference(pixels.to_grey(x), V.rgb_to_grayscale(x)) < TIGHT


def test_solarize() -> None:
    x = images(20)
    assert torch.equal(pixels.solarize(x), V.solarize(x, threshold=0.5))


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("kernel", [3, 9, 23])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (96, 96), (32, 48), (48, 32)])
def test_gaussian_blur(kernel: int, height: int, width: int) -> None:
    x = images(16, height, width)
    sigma = 0.05 + 3 * torch.rand(16)
    expected = torch.stack(
        [V.gaussian_blur(i, [kernel, kernel], [s, s]) for i, s in zip(x, sigma.tolist(), strict=True)]
    )
    assert difference(pixels.gaussian_blur(x, sigma, kernel), expected) < TIGHT


@pytest.mark.usefixtures("path")
def test_no_blur_leaves_the_image_as_it_is() -> None:
    x = images(4)
    assert torch.equal(pixels.gaussian_blur(x, torch.tensor([0.0, 1, 0, 2]), 5)[::2], x[::2])


def random_crops(n: int, height: int, width: int, smallest: int = 1) -> list[tuple[int, int, int, int]]:
    crops = []
    for _ in range(n):
        h, w = (int(torch.randint(smallest, side + 1, ())) for side in (height, width))
        crops.append((int(torch.randint(0, height - h + 1, ())), int(torch.randint(0, width - w + 1, ())), h, w))
    return crops


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("size", [8, 32, 57])  # smaller than nearly all crops, in between, larger than all
@pytest.mark.parametrize(("height", "width"), [(48, 48), (30, 50)])
def test_crop_and_resize(size: int, height: int, width: int) -> None:
    x = images(150, height, width, seed=size)
    crops = [*random_crops(146, height, width), (0, 0, height, width), (0, 0, 1, 1), (height - 1, 0, 1, width)]
    crops.append((0, width - 1, height, 1))
    mirrored = torch.rand(150) < 0.5
    expected = torch.stack(
        [V.resized_crop(i, *crop, size=[size, size], antialias=True) for i, crop in zip(x, crops, strict=True)]
    )
    expected[mirrored] = V.horizontal_flip(expected[mirrored])
    assert difference(pixels.crop_and_resize(x, torch.tensor(crops).float(), mirrored, size), expected) < 1e-5


@pytest.mark.usefixtures("path")
def test_fractional_crops_never_lose_all_their_pixels() -> None:
    """Rectangles in true pixels become fractions, even of one pixel, in a squashed image; a flat one stays flat."""
    torch.manual_seed(0)
    length = 0.01 + 3 * torch.rand(2000, 2)
    crop = torch.cat([torch.rand(2000, 2) * (8 - length), length], dim=1)
    flat = torch.full((2000, 3, 8, 8), 0.7)
    result = pixels.crop_and_resize(flat, crop, torch.rand(2000) < 0.5, 16)
    assert difference(result, torch.full_like(result, 0.7)) < TIGHT


@pytest.mark.usefixtures("path")
def test_a_fractional_crop_slides_smoothly() -> None:
    """On a ramp, the value at the centre of the crop is the ramp's value there."""
    ramp = ((torch.arange(32) + 0.5) / 32).expand(1, 3, 32, 32)
    for start in torch.linspace(3, 4, 11).tolist():
        crop = torch.tensor([[8.0, start, 16.0, 20.0]])
        seen = pixels.crop_and_resize(ramp, crop, torch.tensor([False]), 5)[0, 0, 2, 2]
        assert float(seen) == pytest.approx((start + 10) / 32, abs=2e-3)


@pytest.mark.usefixtures("path")
def test_a_pixel_that_a_crop_touches_by_rounding_has_no_part_in_it() -> None:
    """As where a crop in true pixels is told in those of a squashed image."""
    there, about = torch.tensor([[2.0, 3, 8, 9]]), torch.tensor([[2 - 1e-5, 3 - 1e-5, 8 + 2e-5, 9 + 2e-5]])
    exact, rounded = (pixels.crop_and_resize(images(1), crop, torch.tensor([False]), 24) for crop in (there, about))
    assert difference(exact, rounded) < 1e-4


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "crop": lambda x: pixels.crop_and_resize(x, torch.tensor([[2.0, 3, 9, 8]] * 6), torch.arange(6) % 2 == 0, 12),
    "jitter": lambda x: pixels.recolour(x, torch.tensor([[0.7, 1.3, 0.6, 0.1]] * 6), torch.tensor([[3, 1, 0, 2]] * 6)),
    "hue": lambda x: pixels.shift_hue(x, torch.full((6,), 0.1)),
    "grey": pixels.to_grey,
    "blur": lambda x: pixels.gaussian_blur(x, torch.full((6,), 0.8), 3),
    "solarize": pixels.solarize,
    "apply_where": lambda x: pixels.apply_where(torch.arange(6) < 3, pixels.solarize, x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_inputs_are_not_modified(name: str) -> None:
    x = images(6)
    before = x.clone()
    result = OPERATIONS[name](x)
    assert torch.equal(x, before)
    assert result.shape != x.shape or not torch.equal(result, x)


@pytest.mark.parametrize("masked", ["none", "some", "all"])
def test_apply_where_gives_the_same_on_both_paths(masked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU only the rows in the mask are computed; elsewhere all are, and chosen from."""
    x, offset = images(8, seed=3), torch.rand(8) - 0.5
    mask = {"none": torch.zeros(8), "some": torch.arange(8) % 3, "all": torch.ones(8)}[masked] > 0
    expected = torch.stack(
        [V.adjust_hue(i, o) if m else i for i, o, m in zip(x, offset.tolist(), mask.tolist(), strict=True)]
    )
    computed = []

    def operation(rows: Tensor, amount: Tensor) -> Tensor:
        computed.append(len(rows))
        return pixels.shift_hue(rows, amount)

    on_cpu = pixels.apply_where(mask, operation, x, offset)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    elsewhere = pixels.apply_where(mask, operation, x, offset)
    assert computed == [int(mask.sum()), 8]
    assert torch.equal(on_cpu, elsewhere)
    assert difference(on_cpu, expected) < 5e-6
    assert torch.equal(on_cpu[~mask], x[~mask])


def test_colour_jitter_gives_the_same_on_both_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    x, order = images(48, seed=4), torch.tensor(list(itertools.permutations(range(4)))).repeat(2, 1)
    colour = random_colour(48)
    colour[::5] = torch.tensor([1.0, 1, 1, 0])  # some are not jittered
    grey = torch.arange(48) % 7 == 0
    on_cpu = pixels.recolour(x, colour, order, grey)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    elsewhere = pixels.recolour(x, colour, order, grey)
    assert difference(elsewhere, on_cpu) < TIGHT
    expected = jitter_by_torchvision(x, colour, order)
    expected[grey] = V.rgb_to_grayscale(expected[grey], num_output_channels=3)
    assert difference(elsewhere, expected) < 1e-4


@pytest.mark.usefixtures("path")
def test_integers_are_parts_of_255() -> None:
    bytes_ = (255 * images(8)).to(torch.uint8)
    crop, mirrored = torch.tensor([[2.0, 3, 9, 8]] * 8), torch.arange(8) % 2 == 0
    floats = pixels.crop_and_resize(bytes_.float() / 255, crop, mirrored, 12)
    assert difference(pixels.crop_and_resize(bytes_, crop, mirrored, 12), floats) < TIGHT
