"""The geometry of actions, against pixels, against arithmetic in pixels of the source image, and by hand."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from stec.actions import (
    REPRESENTATIONS,
    Bins,
    EfferenceCopy,
    Glimpse,
    allocentric,
    compose,
    egocentric,
    invert,
    official,
    paper,
    quadrilateral,
    representation,
    view_matrix,
    warp,
)
from stec.errors import UserError
from stec.views import Views

SIDE = 64
BYTE = 1 / 255


def glimpse(crop: Tensor, source: Tensor, mirrored: Tensor) -> Glimpse:
    n = len(crop)
    return Glimpse(
        crop=crop,
        source=source,
        mirrored=mirrored,
        colour=torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(n, 1),
        order=torch.arange(4).repeat(n, 1),
        grey=torch.zeros(n, dtype=torch.bool),
        blur=torch.zeros(n),
        solarized=torch.zeros(n, dtype=torch.bool),
    )


def single(crop: tuple[float, ...], mirrored: bool, source: tuple[float, float] = (32, 32)) -> Glimpse:
    return glimpse(
        torch.tensor([crop], dtype=torch.float64),
        torch.tensor([source], dtype=torch.float64),
        torch.tensor([mirrored]),
    )


def random_copy(n: int, seed: int, side: int = SIDE) -> EfferenceCopy:
    """Crops and mirrorings as training draws them, in float64."""
    torch.manual_seed(seed)
    views, sizes = Views(size=side), torch.full((n, 2), float(side))

    def draw() -> Glimpse:
        drawn = views.sample(sizes)
        return drawn._replace(crop=drawn.crop.double(), source=drawn.source.double())

    return EfferenceCopy(draw(), draw())


def smooth_images(n: int, side: int) -> Tensor:
    """Sums of three waves of at most two periods per side. (n, 3, side, side) in [0, 1]"""
    t = (torch.arange(side) + 0.5) / side
    frequency, phase = 4 * torch.rand(n, 3, 3, 2) - 2, 2 * math.pi * torch.rand(n, 3, 3)
    angle = frequency[..., :1, None] * t[:, None] + frequency[..., 1:, None] * t
    return 0.5 + 0.5 * (2 * math.pi * angle + phase[..., None, None]).sin().mean(dim=2)


# The example worked by hand: 32 x 32; x from (4, 8), 16 high, 12 wide; x' from (10, 2), 20 high, 24 wide, mirrored.
WORKED = EfferenceCopy(single((4, 8, 16, 12), mirrored=False), single((10, 2, 20, 24), mirrored=True))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # M_x = (3/8, 0, -1/8; 0, 1/2, -1/4), M_x' = (-3/4, 0, -1/8; 0, 5/8, 1/4)
        ("egocentric", [-2, 0, 0, 0, 1.25, 1]),
        ("paper", [-2, 0, -0.375, 0, 1.25, 0.5625]),
        ("official", [-2, 0, -0.21875, 0, 1.25, 0.40625]),
        # left 2 - 8, top 10 - 4, width 24 - 12, height 20 - 16, all over 32; one of the two is mirrored
        ("allocentric", [-6 / 32, 6 / 32, 12 / 32, 4 / 32, 1]),
    ],
)
def test_worked_example(name: str, expected: list[float]) -> None:
    assert representation(name)(WORKED)[0].tolist() == expected


def test_codes_of_the_worked_example() -> None:
    """Lengths go from -1 to 1 in six bins, and mirroring from 0 to 1."""
    known = representation("allocentric")
    bins = Bins.uniform(6, known.low, known.high)
    assert bins(known(WORKED))[0].tolist() == [2, 3, 4, 3, 5]
    assert bins(known(EfferenceCopy(WORKED.first, WORKED.first)))[0].tolist() == [3, 3, 3, 3, 0]


@pytest.mark.parametrize(
    ("mirrored", "left_edge_x", "right_edge_x"),
    # 10 x 40 image, crop 20 wide from 5: columns 5 and 25 of 40 lie at 2 * 5 / 40 - 1 and 2 * 25 / 40 - 1.
    [(False, -0.75, 0.25), (True, 0.25, -0.75)],
)
def test_view_matrix_maps_canvas_corners_to_crop_corners(
    mirrored: bool, left_edge_x: float, right_edge_x: float
) -> None:
    matrix = view_matrix(single((2, 5, 4, 20), mirrored, source=(10, 40)))
    top_y, bottom_y = -0.6, 0.2  # rows 2 and 6 of 10
    expected = [[left_edge_x, top_y], [right_edge_x, top_y], [right_edge_x, bottom_y], [left_edge_x, bottom_y]]
    torch.testing.assert_close(quadrilateral(matrix)[0], torch.tensor(expected, dtype=torch.float64))


def test_quadrilateral_of_the_worked_example() -> None:
    # (-2 x, 1.25 y + 1) at the corners (-1, -1), (1, -1), (1, 1), (-1, 1)
    assert quadrilateral(egocentric(WORKED))[0].tolist() == [[2, -0.25], [-2, -0.25], [-2, 2.25], [2, 2.25]]


def test_egocentric_agrees_with_arithmetic_in_pixels() -> None:
    """A point of x' is followed to its pixel in the source image and from there onto the canvas of x."""
    copy = random_copy(2000, seed=1)
    corners = quadrilateral(egocentric(copy))
    canvas = [(-1, -1), (1, -1), (1, 1), (-1, 1)]

    def numbers(view: Glimpse, row: int) -> tuple[float, float, float, float, bool]:
        return (*view.crop[row].tolist(), bool(view.mirrored[row]))

    for row in range(0, 2000, 10):
        top, left, height, width, mirrored = numbers(copy.first, row)
        top2, left2, height2, width2, mirrored2 = numbers(copy.second, row)
        for corner, (x, y) in enumerate(canvas):
            share = (1 - x) / 2 if mirrored2 else (1 + x) / 2
            column, line = left2 + share * width2, top2 + (1 + y) / 2 * height2
            seen_x = 2 * (column - left) / width - 1
            expected = (-seen_x if mirrored else seen_x, 2 * (line - top) / height - 1)
            assert corners[row, corner].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("first_mirrored", [False, True])
@pytest.mark.parametrize("second_mirrored", [False, True])
def test_warping_x_by_the_action_reproduces_x_prime(first_mirrored: bool, second_mirrored: bool) -> None:
    """Every pair with at least 2 % overlap: mean error below 2/255 there. The other readings are far off."""
    torch.manual_seed(10 + 2 * first_mirrored + second_mirrored)
    n = 500
    images = smooth_images(n, SIDE)
    views = Views(size=SIDE, jitter_probability=0, grey=0)
    sizes = torch.full((n, 2), float(SIDE))
    first = views.sample(sizes)._replace(mirrored=torch.full((n,), first_mirrored))
    second = views.sample(sizes)._replace(mirrored=torch.full((n,), second_mirrored))
    copy = EfferenceCopy(first, second)
    x, x_prime = views.render(images, first), views.render(images, second)

    def errors(action: Tensor) -> Tensor:
        warped, inside = warp(x, action)
        overlap = inside.sum(dim=(1, 2, 3))
        total = ((warped - x_prime).abs().mean(dim=1, keepdim=True) * inside).sum(dim=(1, 2, 3))
        return (total / overlap)[overlap >= 0.02 * SIDE * SIDE]

    right = errors(egocentric(copy))
    assert len(right) > 0.9 * n
    assert right.max() < 2 * BYTE
    for wrong in (paper(copy), official(copy), egocentric(copy.reversed())):
        assert errors(wrong).mean() > 10 * BYTE


def test_warp_marks_what_lies_inside_x() -> None:
    # x' = the left half of x and as much again beyond it: canvas of x from -2 to 0, so the right half is inside.
    action = torch.tensor([[[1.0, 0, -1], [0, 1, 0]]])
    _, inside = warp(torch.rand(1, 3, 8, 8), action)
    assert inside.shape == (1, 1, 8, 8)
    assert not inside[..., :4].any()
    assert inside[..., 4:].all()


def test_warping_is_exact_under_autocast() -> None:
    """In a loop of one's own that trains in bfloat16; rounded places were up to a pixel off."""
    copy, view = random_copy(5, seed=8), torch.rand(5, 3, 224, 224)
    action = egocentric(copy).float()
    expected = warp(view, action)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        warped, inside = warp(view, action)
    assert torch.equal(warped, expected[0])
    assert torch.equal(inside, expected[1])


def dot(row: float, column: float, side: int) -> Tensor:
    """A small bright blob. (1, 1, side, side)"""
    t = torch.arange(side, dtype=torch.float64) + 0.5
    return torch.exp(-((t[:, None] - row) ** 2 + (t - column) ** 2) / (2 * 2.0**2))[None, None]


def centroid(view: Tensor) -> Tensor:
    """Canvas coordinates x, y of the brightness in (1, 1, S, S). (2,)"""
    t = 2 * (torch.arange(view.shape[-1], dtype=view.dtype) + 0.5) / view.shape[-1] - 1
    brightness = view[0, 0] / view.sum()
    return torch.stack([(brightness.sum(dim=0) * t).sum(), (brightness.sum(dim=1) * t).sum()])


@given(
    crops=st.tuples(
        *[st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(76, 108)] * 2) for _ in range(2)],
    ),
    mirrored=st.tuples(st.booleans(), st.booleans()),
    place=st.tuples(st.floats(50, 66), st.floats(50, 66)),
)
@settings(max_examples=60, deadline=None)
def test_a_dot_in_x_appears_in_x_prime_where_the_inverse_action_says(
    crops: tuple[tuple[int, ...], ...], mirrored: tuple[bool, bool], place: tuple[float, float]
) -> None:
    """The dot's place is measured in the pixels of both views."""
    copy = EfferenceCopy(*(single(crop, flip, (128, 128)) for crop, flip in zip(crops, mirrored, strict=True)))
    image, views = dot(*place, side=128), Views(size=128, jitter_probability=0, grey=0)
    in_x, in_x_prime = (centroid(views.render(image, view)) for view in copy)
    inverse = invert(egocentric(copy))[0]
    torch.testing.assert_close(inverse[:, :2] @ in_x + inverse[:, 2], in_x_prime, atol=1e-3, rtol=0)


@pytest.mark.parametrize("corner", range(4))
@pytest.mark.parametrize("mirrored", [(False, False), (True, False), (False, True), (True, True)])
def test_quadrilateral_corners_are_seen_in_x(corner: int, mirrored: tuple[bool, bool]) -> None:
    """A dot painted on a corner of the crop of x' is seen in x at that corner of the quadrilateral."""
    first, second = single((8, 4, 100, 112), mirrored[0], (128, 128)), single((40, 30, 44, 56), mirrored[1], (128, 128))
    left, right = (86, 30) if mirrored[1] else (30, 86)  # columns at the left and the right of x'
    row, column = [(40, left), (40, right), (84, right), (84, left)][corner]
    seen = centroid(Views(size=128, jitter_probability=0, grey=0).render(dot(row, column, 128), first))
    expected = quadrilateral(egocentric(EfferenceCopy(first, second)))[0, corner]
    torch.testing.assert_close(seen, expected, atol=1e-3, rtol=0)


entries = st.floats(-3, 3, allow_nan=False, width=32)
affine_maps = st.lists(entries, min_size=6, max_size=6).map(
    lambda values: torch.tensor(values, dtype=torch.float64).view(1, 2, 3)
)


def homogeneous(affine: Tensor) -> Tensor:
    return torch.cat([affine, torch.tensor([[[0.0, 0, 1]]], dtype=affine.dtype).expand(len(affine), 1, 3)], dim=1)


@given(affine_maps, affine_maps, affine_maps)
def test_composition_is_the_product_of_homogeneous_matrices_and_associative(a: Tensor, b: Tensor, c: Tensor) -> None:
    torch.testing.assert_close(homogeneous(compose(a, b)), homogeneous(a) @ homogeneous(b))
    torch.testing.assert_close(compose(compose(a, b), c), compose(a, compose(b, c)))


@given(affine_maps)
def test_invert_is_the_inverse_homogeneous_matrix(a: Tensor) -> None:
    assume(abs(float(torch.linalg.det(a[0, :, :2]))) > 1e-2)
    torch.testing.assert_close(homogeneous(invert(a)), torch.linalg.inv(homogeneous(a)), rtol=1e-8, atol=1e-8)
    identity = torch.eye(3, dtype=a.dtype)[None]
    torch.testing.assert_close(homogeneous(compose(a, invert(a))), identity, rtol=0, atol=1e-9)
    torch.testing.assert_close(homogeneous(compose(invert(a), a)), identity, rtol=0, atol=1e-9)


@pytest.mark.parametrize("action", [egocentric, paper])
def test_there_and_back_is_the_identity(action) -> None:
    copy = random_copy(5000, seed=2)
    identity = torch.eye(2, 3, dtype=torch.float64).expand(5000, 2, 3)
    there, back = action(copy), action(copy.reversed())
    torch.testing.assert_close(compose(there, back), identity, atol=1e-12, rtol=0)
    torch.testing.assert_close(compose(back, there), identity, atol=1e-12, rtol=0)


def test_official_is_not_undone_by_the_way_back() -> None:
    """Its translation is merely negated, which is why it has a name of its own."""
    copy = random_copy(1000, seed=3)
    round_trip = compose(official(copy), official(copy.reversed()))
    assert (round_trip - torch.eye(2, 3, dtype=torch.float64)).abs().amax(dim=(1, 2)).median() > 0.1


def test_sliding_both_crops_changes_only_readings_that_depend_on_the_source() -> None:
    copy = random_copy(5000, seed=4)
    torch.manual_seed(4)
    offset = torch.cat([torch.rand(5000, 2, dtype=torch.float64) * 40 - 20, torch.zeros(5000, 2)], dim=1)
    slid = EfferenceCopy(*(view._replace(crop=view.crop + offset) for view in copy))
    torch.testing.assert_close(egocentric(slid), egocentric(copy), atol=1e-12, rtol=0)
    torch.testing.assert_close(allocentric(slid), allocentric(copy), atol=1e-12, rtol=0)
    for reading in (paper, official):
        change = (reading(slid) - reading(copy)).abs()
        assert change[..., 2].amax(dim=1).median() > 0.1  # the translation
        assert change[..., :2].max() < 1e-12


def test_which_way_round_the_source_is_changes_only_readings_that_depend_on_it() -> None:
    """The same two views can be had of the mirrored source: what changes with it, no observer can infer from them."""
    copy = random_copy(5000, seed=4)

    def of_mirrored_source(view: Glimpse) -> Glimpse:
        top, left, height, width = view.crop.unbind(1)
        crop = torch.stack([top, view.source[:, 1] - left - width, height, width], dim=1)
        return view._replace(crop=crop, mirrored=~view.mirrored)

    turned = EfferenceCopy(*map(of_mirrored_source, copy))
    torch.testing.assert_close(egocentric(turned), egocentric(copy), atol=1e-12, rtol=0)
    codes = Bins.uniform()
    for reading, changed in ((paper, 0.98), (official, 0.80)):
        share = (codes(reading(turned)) != codes(reading(copy))).double().mean(dim=0)
        assert share[2] == pytest.approx(changed, abs=0.03)  # the horizontal translation
        assert share[[0, 1, 3, 4, 5]].max() == 0


@given(
    st.tuples(*[st.integers(0, 30)] * 2, *[st.integers(1, 60)] * 2),
    st.tuples(*[st.integers(0, 30)] * 2, *[st.integers(1, 60)] * 2),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(60, 300), st.integers(60, 300)),
)
def test_egocentric_does_not_depend_on_the_size_of_the_source(first, second, flip, flip2, source) -> None:
    """It relates two views; how much more image there is around them is nobody's business."""
    here = EfferenceCopy(single(first, flip, (90, 90)), single(second, flip2, (90, 90)))
    there = EfferenceCopy(single(first, flip, source), single(second, flip2, source))
    torch.testing.assert_close(egocentric(here), egocentric(there), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["egocentric", "paper", "official"])
def test_uninformative_components_are_always_zero_and_the_others_vary(name: str) -> None:
    action, known = REPRESENTATIONS[name](random_copy(1000, seed=5)), REPRESENTATIONS[name]
    for values, informative in zip(action.unbind(1), known.informative, strict=True):
        assert bool(values.std() > 0.1) == informative
        assert bool((values == 0).all()) != informative


def test_actions_are_exact_under_autocast() -> None:
    """Training runs the inverse models under bfloat16 autocast; the codes must be those of the true action."""
    copy = random_copy(5000, seed=6)
    copy = EfferenceCopy(*(view._replace(crop=view.crop.float(), source=view.source.float()) for view in copy))
    for name, known in REPRESENTATIONS.items():
        expected = known(copy)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            action = known(copy)
        torch.testing.assert_close(action, expected, rtol=1e-6, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_rows_and_reversed_select_glimpses() -> None:
    copy = random_copy(6, seed=7)
    picked = torch.tensor([4, 1])
    torch.testing.assert_close(copy.first.rows(picked).crop, copy.first.crop[[4, 1]])
    assert copy.reversed().first is copy.second
    assert copy.reversed().second is copy.first


def test_an_unknown_representation_names_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown action 'egocentirc': did you mean 'egocentric'"):
        representation("egocentirc")


# --- bins -------------------------------------------------------------------------------------------------------------

LIMITS = (2.0, 2.0, 0.5, 2.0, 2.0, 0.5)  # +- for each affine component, from the paper


def formula(value: float, k: int, limit: float) -> int:
    return min(max(math.floor(k * (value + limit) / (2 * limit)), 0), k - 1)


@given(k=st.integers(2, 12), values=st.lists(st.floats(-4, 4, width=32), min_size=6, max_size=6))
@settings(max_examples=300)
def test_uniform_bins_follow_the_formula(k: int, values: list[float]) -> None:
    for value, limit in zip(values, LIMITS, strict=True):
        position = k * (value + limit) / (2 * limit)
        assume(abs(position - round(position)) * 2 * limit / k > 1e-5 or value == 0)
    expected = [formula(value, k, limit) for value, limit in zip(values, LIMITS, strict=True)]
    bins = Bins.uniform(k)
    assert bins.k == k
    assert bins(torch.tensor([values]))[0].tolist() == expected
    assert bins(torch.tensor([values]).view(1, 2, 3))[0].tolist() == expected


@pytest.mark.parametrize(
    ("k", "value", "code"),
    [
        # an edge belongs to the bin above it: floor(k / 2) at 0, 1 at a quarter of the way with k = 4, ...
        *[(k, 0.0, k // 2) for k in range(2, 13)],
        *[(4, -1.0, 1), (4, 1.0, 3), (8, -1.5, 1), (8, 1.5, 7), (12, -1.0, 3), (12, 1.0, 9)],
        *[(6, -2.0, 0), (6, 2.0, 5), (6, -100.0, 0), (6, 100.0, 5)],  # the outer bins are open
    ],
)
def test_uniform_bins_at_edges(k: int, value: float, code: int) -> None:
    scale = torch.tensor(LIMITS) / 2  # the same edge in every component
    assert Bins.uniform(k)(value * scale[None])[0].tolist() == [code] * 6


def test_uniform_bins_take_other_limits() -> None:
    bins = Bins.uniform(4, low=(0.0, -1.0), high=(1.0, 1.0))
    assert bins(torch.tensor([[0.1, 0.1], [0.9, -0.9]])).tolist() == [[0, 2], [3, 0]]


@pytest.mark.parametrize("k", range(2, 13))
def test_bins_are_monotone_and_in_range(k: int) -> None:
    torch.manual_seed(k)
    values = (6 * torch.rand(2000, 6) - 3).sort(dim=0).values
    for bins in (Bins.uniform(k), Bins.quantile(torch.randn(5000, 6), k)):
        codes = bins(values)
        assert (codes.diff(dim=0) >= 0).all()
        assert codes.amin() == 0
        assert codes.amax() == k - 1


@pytest.mark.parametrize("k", range(2, 13))
def test_quantile_bins_are_filled_equally(k: int) -> None:
    """On the sample they were fitted on to within one per bin and edge; on fresh draws within 5 standard errors."""
    torch.manual_seed(k)
    n = 20_000
    fitted, fresh = (torch.randn(n, 3).mul(torch.tensor([1.0, 0.1, 5.0])).add(2).square() for _ in range(2))
    bins = Bins.quantile(fitted, k)
    assert bins.k == k
    error = 5 * math.sqrt(2 * n / k * (1 - 1 / k))  # the edges are estimated from as many draws
    for component in range(3):
        assert (bins(fitted)[:, component].bincount(minlength=k) - n / k).abs().max() <= 2
        assert (bins(fresh)[:, component].bincount(minlength=k) - n / k).abs().max() < error


def test_bin_edges_travel_with_the_state_dict() -> None:
    fitted = Bins.quantile(torch.randn(1000, 4), 5)
    other = Bins.quantile(torch.zeros(10, 4), 5)
    other.load_state_dict(fitted.state_dict())
    values = torch.randn(100, 4)
    assert torch.equal(other(values), fitted(values))
    assert fitted(values).amax() == 4
