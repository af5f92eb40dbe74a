"""The colour action: by hand, against pixels, and in the manipulation model beside the spatial one."""

import math
import pickle

import pytest
import torch
from torch import Tensor, nn

import stec
from stec import UserError, pixels
from stec.actions import REPRESENTATIONS, EfferenceCopy, Glimpse, colour, egocentric, representation
from stec.config import ManipulationConfig, load
from stec.functional import component_mean
from stec.manipulation import Manipulation
from stec.views import Views

NAMES = ("brightness", "contrast", "saturation", "hue", "grey", "blur", "solarize")
DIM, PAIRS = 5, 16
ALL = {"blur": 0.5, "solarize": 0.3, "grey": 0.4}  # views in which every colour changes


def glimpse(
    factors: tuple[float, ...] = (1, 1, 1, 0), grey: bool = False, blur: float = 0.0, solarized: bool = False
) -> Glimpse:
    """Of a whole image of 8 x 8 pixels."""
    return Glimpse(
        crop=torch.tensor([[0.0, 0.0, 8.0, 8.0]]),
        source=torch.tensor([[8.0, 8.0]]),
        mirrored=torch.tensor([False]),
        colour=torch.tensor([factors], dtype=torch.float32),
        order=torch.arange(4)[None],
        grey=torch.tensor([grey]),
        blur=torch.tensor([blur]),
        solarized=torch.tensor([solarized]),
    )


def drawn(pairs: int = PAIRS, seed: int = 0, **settings: float) -> EfferenceCopy:
    torch.manual_seed(seed)
    views, sizes = Views(size=96, jitter=(0.8, 0.2), **(ALL | settings)), torch.full((pairs, 2), 96.0)
    return EfferenceCopy(views.sample(sizes), views.sample(sizes))


def action_between(first: Glimpse, second: Glimpse) -> dict[str, float]:
    return dict(zip(NAMES, colour(EfferenceCopy(first, second))[0].tolist(), strict=True))


def test_worked_example() -> None:
    first = glimpse((0.5, 1.25, 0.8, -0.1), grey=True, blur=0.75, solarized=False)
    second = glimpse((1.5, 1.0, 1.6, 0.15), grey=False, blur=0.25, solarized=True)
    assert action_between(first, second) == pytest.approx(
        {
            "brightness": math.log(3),
            "contrast": -math.log(1.25),
            "saturation": math.log(2),
            "hue": 0.25,
            "grey": -1,
            "blur": -0.5,
            "solarize": 1,
        },
        rel=1e-6,
    )


@pytest.mark.parametrize(("before", "after", "turn"), [(-0.4, 0.4, -0.2), (0.4, -0.4, 0.2), (-0.25, 0.25, -0.5)])
def test_hue_takes_the_shorter_way_round(before: float, after: float, turn: float) -> None:
    action = action_between(glimpse((1, 1, 1, before)), glimpse((1, 1, 1, after)))
    assert action["hue"] == pytest.approx(turn, rel=1e-6)


def test_a_view_without_any_light_is_still_finite() -> None:
    action = action_between(glimpse((0, 0, 0, 0)), glimpse((2, 2, 2, 0)))
    assert action["brightness"] == action["saturation"] == pytest.approx(math.log(2 / 0.05))


def test_the_way_back_is_the_negative_and_staying_is_zero() -> None:
    copy = drawn(4000)
    assert torch.equal(colour(copy.reversed())[:, 3:], -colour(copy)[:, 3:])
    torch.testing.assert_close(colour(copy.reversed()), -colour(copy), rtol=0, atol=1e-6)
    for view in copy:
        assert not colour(EfferenceCopy(view, view)).any()


def test_every_component_varies_when_everything_is_on_and_fills_its_bins() -> None:
    known = REPRESENTATIONS["colour"]
    assert known.components == NAMES
    for jitter in ((0.4, 0.1), (0.8, 0.2)):  # CIFAR, ImageNet
        torch.manual_seed(0)
        views, sizes = Views(size=96, jitter=jitter, **ALL), torch.full((20_000, 2), 96.0)
        codes = stec.Bins.uniform(6, known.low, known.high)(
            known(EfferenceCopy(views.sample(sizes), views.sample(sizes)))
        )
        for name, values in zip(NAMES, codes.unbind(1), strict=True):
            filled = {0, 3, 5} if name in ("grey", "solarize") else set(range(6))
            assert set(values.unique().tolist()) == filled, name


# --- what the numbers do to pixels ------------------------------------------------------------------------------------


def picture() -> Tensor:
    """In the middle of the range, so that nothing is clipped. (1, 3, 8, 8)"""
    torch.manual_seed(0)
    return 0.45 + 0.1 * torch.rand(1, 3, 8, 8)


def look(image: Tensor, first: Glimpse, second: Glimpse) -> tuple[Tensor, Tensor, dict[str, float]]:
    views = Views(size=8, grey=0.5, solarize=0.5)
    return views.render(image, first), views.render(image, second), action_between(first, second)


def test_brightness_leads_from_x_to_x_prime() -> None:
    first, second, action = look(picture(), glimpse((0.7, 1, 1, 0)), glimpse((1.3, 1, 1, 0)))
    torch.testing.assert_close(second, first * math.exp(action["brightness"]))


def test_contrast_leads_from_x_to_x_prime() -> None:
    first, second, action = look(picture(), glimpse((1, 0.7, 1, 0)), glimpse((1, 1.3, 1, 0)))
    mean = pixels.to_grey(first).mean()
    torch.testing.assert_close(second, mean + (first - mean) * math.exp(action["contrast"]), rtol=0, atol=1e-4)


def test_saturation_leads_from_x_to_x_prime() -> None:
    first, second, action = look(picture(), glimpse((1, 1, 0.7, 0)), glimpse((1, 1, 1.3, 0)))
    grey = pixels.to_grey(first)
    torch.testing.assert_close(second, grey + (first - grey) * math.exp(action["saturation"]), rtol=0, atol=1e-4)


def test_hue_leads_from_x_to_x_prime() -> None:
    first, second, action = look(picture(), glimpse((1, 1, 1, 0.4)), glimpse((1, 1, 1, -0.3)))
    torch.testing.assert_close(second, pixels.shift_hue(first, torch.tensor([action["hue"]])), rtol=0, atol=1e-5)


def test_grey_and_solarize_are_gained_or_lost() -> None:
    first, second, action = look(picture(), glimpse(), glimpse(grey=True))
    assert action["grey"] == 1
    torch.testing.assert_close(second, pixels.to_grey(first).expand_as(first))
    first, second, action = look(picture(), glimpse(solarized=True), glimpse())
    assert action["solarize"] == -1
    torch.testing.assert_close(first, pixels.solarize(second))


# --- joined actions ---------------------------------------------------------------------------------------------------


def test_joined_names_give_their_components_in_that_order() -> None:
    copy = drawn()
    joined = representation("egocentric+colour")
    assert joined.components == (*REPRESENTATIONS["egocentric"].components, *NAMES)
    assert torch.equal(joined(copy), torch.cat([egocentric(copy).flatten(1), colour(copy)], dim=1))
    swapped = representation("colour+egocentric")
    assert torch.equal(swapped(copy), joined(copy).roll(7, dims=1))
    assert swapped.low == (*REPRESENTATIONS["colour"].low, *REPRESENTATIONS["egocentric"].low)


def test_a_model_of_joined_actions_can_be_pickled() -> None:
    """As `torch.save` of a module does, and whatever starts further processes with one."""
    model = Manipulation(DIM, ManipulationConfig(action="egocentric+colour", hidden=4)).eval()
    again, copy, features = pickle.loads(pickle.dumps(model)), drawn(), torch.randn(2, PAIRS, DIM)
    assert torch.equal(again(*features, copy).loss, model(*features, copy).loss)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("egocentric+color", "egocentric+color: did you mean 'colour'"),
        ("egocentrik+colour", "did you mean 'egocentric'"),
        ("egocentric+", "choose from allocentric, colour"),
        ("colour+egocentric+colour", "names an action twice"),
    ],
)
def test_wrong_names_are_refused(name: str, message: str) -> None:
    for attempt in (
        lambda: load("default", [f"manipulation.action={name}"]),
        lambda: stec.create("stec", encoder="resnet-small", manipulation={"action": name}),
    ):
        with pytest.raises(UserError) as caught:
            attempt()
        assert message in str(caught.value)


def test_an_unknown_part_names_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown action 'color': did you mean 'colour'"):
        representation("egocentric+color")


# --- the manipulation model -------------------------------------------------------------------------------------------


def features() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(PAIRS, DIM), torch.randn(PAIRS, DIM)


@pytest.mark.parametrize("readout", ["classification", "regression"])
def test_solarized_pairs_are_left_out_of_the_spatial_components_alone(readout: str) -> None:
    """Against a loop: every component is averaged over its own pairs, then all components alike."""
    config = ManipulationConfig(action="egocentric+colour", readout=readout, hidden=16)
    model, copy, (first, second) = Manipulation(DIM, config).eval(), drawn(), features()
    predicted, action = model.predict(first, second), model.action(copy)
    codes = model.bins(action)
    solarized = (copy.first.solarized | copy.second.solarized).tolist()
    assert 0 < sum(solarized) < PAIRS
    losses, right = [], []
    for component in range(13):
        pairs = [pair for pair in range(PAIRS) if component >= 6 or not solarized[pair]]
        if readout == "classification":
            scores = predicted[:, component].log_softmax(dim=1)
            terms = [-scores[pair, codes[pair, component]].item() for pair in pairs]
            guess = scores.argmax(dim=1)
        else:
            terms = [(predicted[pair, component] - action[pair, component]).item() ** 2 for pair in pairs]
            guess = model.bins(predicted)[:, component]
        losses.append(sum(terms) / len(terms))
        if component not in (1, 3):  # always 0
            right.append(sum((guess[pair] == codes[pair, component]).item() for pair in pairs) / len(pairs))
    output = model(first, second, copy)
    assert output.loss.item() == pytest.approx(sum(losses) / 13, rel=1e-5)
    assert output.accuracy.item() == pytest.approx(sum(right) / 11, rel=1e-5)


def test_solarizing_is_inferred_when_every_view_is_solarized_at_random() -> None:
    """Were its pairs left out, the model would never see it happen."""
    copy = drawn(200, solarize=0.5)
    model = Manipulation(DIM, ManipulationConfig(action="colour", hidden=16))
    torch.manual_seed(0)
    first, second = (view.solarized.float()[:, None].expand(-1, DIM) for view in copy)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(50):
        optimizer.zero_grad()
        model(first, second, copy).loss.backward()
        optimizer.step()
    guess = model.predict(first, second).argmax(dim=2)[:, -1]
    assert torch.equal(guess, model.bins(model.action(copy))[:, -1])


def test_component_mean_by_hand() -> None:
    values = torch.tensor([[1.0, 10.0, 5.0], [3.0, 20.0, 6.0]])
    valid = torch.tensor([[True, True, False], [True, False, False]])
    assert component_mean(values, valid).item() == pytest.approx((2 + 10 + 0) / 3)
    assert component_mean(values, torch.tensor([False, True])).item() == pytest.approx(29 / 3)
    assert component_mean(values).item() == pytest.approx(45 / 6)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, ["brightness", "contrast", "saturation", "hue", "grey"]),  # CIFAR: neither blur nor solarize
        ({"jitter": (0.4, 0.0)}, ["brightness", "contrast", "saturation", "grey"]),
        ({"jitter": (0.0, 0.1), "grey": 0.0}, ["hue"]),
        ({"jitter_probability": 0.0, "grey": 1.0, "blur": 1.0}, ["blur"]),
        ({"grey": 0.0, "solarize": 0.2}, ["brightness", "contrast", "saturation", "hue", "solarize"]),
    ],
)
def test_colours_that_the_views_never_change_are_not_informative(settings: dict, left: list[str]) -> None:
    views = Views(**settings)
    model = Manipulation(DIM, ManipulationConfig(action="colour", components="informative", hidden=4), views)
    assert model.components == left
    everything = Manipulation(DIM, ManipulationConfig(action="colour", hidden=4), views)
    assert everything.components == list(NAMES)
    assert [NAMES[i] for i in everything.informative.tolist()] == left
    joined = ManipulationConfig(action="egocentric+colour", components="informative", hidden=4)
    assert Manipulation(DIM, joined, views).components == ["xx", "x", "yy", "y", *left]
    assert Manipulation(DIM, joined).components == ["xx", "x", "yy", "y", *NAMES]  # nothing is known about the views


@pytest.mark.parametrize("components", ["all", "informative"])
def test_nothing_to_infer_is_refused(components: str) -> None:
    config = ManipulationConfig(action="colour", components=components)
    with pytest.raises(UserError, match=r"manipulation\.action=colour: the views never change any of it"):
        Manipulation(DIM, config, Views(jitter_probability=0.0, grey=0.0))


def test_quantile_bins_of_colours_are_filled_equally() -> None:
    config = ManipulationConfig(action="egocentric+colour", bins="quantile", hidden=4)
    views = Views(size=96, jitter_probability=1.0, blur=1.0)
    model, sizes = Manipulation(DIM, config, views), torch.full((20_000, 2), 1024.0)
    torch.manual_seed(3)
    codes = model.bins(model.action(EfferenceCopy(views.sample(sizes), views.sample(sizes))))
    for name in ("x", "brightness", "contrast", "saturation", "hue", "blur"):
        share = codes[:, model.components.index(name)].bincount(minlength=6) / 20_000
        assert (share - 1 / 6).abs().max() < 0.015, name


def test_outputs_of_psi() -> None:
    for action, outputs in (("colour", 42), ("egocentric+colour", 78), ("allocentric+colour", 72)):
        psi = Manipulation(DIM, ManipulationConfig(action=action)).psi
        assert isinstance(psi[-1], nn.Linear)
        assert psi[-1].out_features == outputs


@pytest.mark.parametrize(
    "words",
    [
        ("manipulation.action=egocentric+colour",),
        ("manipulation.action=colour", "manipulation.components=informative"),
        (
            "manipulation.action=allocentric+colour",
            "manipulation.bins=quantile",
            "views.solarize=0.3",
            "views.blur=0.5",
        ),
    ],
)
def test_runs_with_colour_learn_to_infer_it(train, words) -> None:
    folder, _ = train("run", "epochs=6", *words)
    first, last = folder.metrics()[0], folder.metrics()[-1]
    assert last["manipulation"] < first["manipulation"]
    assert 0 < last["manipulation_accuracy"] < 1
