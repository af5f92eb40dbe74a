"""The turn model: small views in all four turns, what is read from them, and E-SSL as a method."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import stec
from stec import UserError
from stec.config import TurnConfig, load
from stec.turn import Turn, show_turned
from stec.views import Views

DIM = 6


def images(n: int = 5, side: int = 40) -> Tensor:
    torch.manual_seed(0)
    return torch.randint(256, (n, 3, side, side), dtype=torch.uint8)


# --- small views ------------------------------------------------------------------------------------------------------


def test_every_turn_of_a_drawn_square_by_hand() -> None:
    square = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]
    turned = show_turned(square)
    assert turned.images.flatten(1).tolist() == [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]
    assert turned.turns.tolist() == [0, 1, 2, 3]


def test_turns_come_one_after_the_other_for_all_images() -> None:
    x = torch.rand(3, 3, 8, 8)
    images, turns = show_turned(x)
    assert images.shape == (12, 3, 8, 8)
    for quarters in range(4):
        for i in range(3):
            assert turns[3 * quarters + i] == quarters
            assert torch.equal(images[3 * quarters + i], torch.rot90(x[i], quarters, (1, 2)))


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, {(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1)}),
        (2, {(0, 0), (0, 2), (1, 1), (1, 3), (2, 0), (2, 2), (3, 1), (3, 3), (4, 0), (4, 2), (5, 1), (5, 3)}),
    ],
)
def test_fewer_turns_are_shared_out_by_the_place_in_the_batch(number: int, expected: set, first: int) -> None:
    """Pairs of places and quarters, by hand. A process whose images begin at `first` shows them as one that has all."""
    x = torch.rand(6, 3, 4, 4)
    images, turns = show_turned(x[first:], number, first)
    found = [
        (place, quarters)
        for image, quarters in zip(images, turns.tolist(), strict=True)
        for place in range(6)
        if torch.equal(image, x[place].rot90(quarters, (1, 2)))
    ]
    assert len(found) == len(set(found))
    assert set(found) == {(place, quarters) for place, quarters in expected if place >= first}


def test_views_make_small_turned_views_when_asked() -> None:
    assert Views(size=32)(images()).turned is None
    turned = Views(size=32, turn=True)(images()).turned.images
    assert turned.shape == (20, 3, 16, 16)
    assert 0 <= turned.min() < turned.max() <= 1
    upright = turned[:5]
    assert all(torch.equal(turned[5 * k : 5 * k + 5], upright.rot90(k, (2, 3))) for k in range(4))


def test_small_views_are_views_of_half_the_side() -> None:
    settings = {"area": (0.3, 0.6), "jitter": (0.8, 0.2), "blur": 0.5, "solarize": 0.2, "grey": 0.4}
    views, source = Views(size=48, turn=True, **settings), images()
    half = Views(size=24, **settings)
    torch.manual_seed(1)
    views.sample(torch.full((10, 2), 40.0))  # the two views come first
    expected = half.render(source, half.sample(torch.full((5, 2), 40.0)))
    torch.manual_seed(1)
    assert torch.equal(views(source).turned.images[:5], expected)


def test_the_two_views_are_the_same_with_and_without_the_third() -> None:
    batches = []
    for turn in (False, True):
        torch.manual_seed(2)
        batches.append(Views(turn=turn)(images()))
    assert torch.equal(batches[0].images, batches[1].images)
    assert torch.equal(batches[0].copy.second.crop, batches[1].copy.second.crop)


def test_channels_last_changes_the_layout_alone() -> None:
    for turn in (False, True):
        batch = Views(turn=turn)(images())
        laid = batch.channels_last()
        pairs = [(batch.images, laid.images), *([(batch.turned.images, laid.turned.images)] if turn else [])]
        for before, after in pairs:
            assert torch.equal(before, after)
            assert after.is_contiguous(memory_format=torch.channels_last)
        assert (laid.turned is None) == (not turn)
        assert torch.equal(laid.first, batch.first)
        assert torch.equal(laid.second, batch.second)


# --- the model --------------------------------------------------------------------------------------------------------


def test_loss_and_accuracy_equal_a_loop() -> None:
    torch.manual_seed(0)
    model, features, n = Turn(DIM, TurnConfig(hidden=8)), torch.randn(28, DIM), 7
    turns = torch.arange(4).repeat_interleave(n)
    logits = model.predictor(features).tolist()
    losses, right = [], []
    for turn in range(4):
        for i in range(n):
            scores = logits[turn * n + i]
            losses.append(math.log(sum(math.exp(score) for score in scores)) - scores[turn])
            right.append(scores.index(max(scores)) == turn)
    output = model(features, turns)
    assert output.loss.item() == pytest.approx(sum(losses) / 28, rel=1e-5)
    assert output.accuracy.item() == pytest.approx(sum(right) / 28)
    assert output.loss.requires_grad
    assert not output.accuracy.requires_grad


def test_an_oracle_is_always_right() -> None:
    """It sees a picture that is bright in one corner, and nothing else."""
    corner = torch.zeros(6, 1, 4, 4)
    corner[:, :, 0, 0] = 1
    turned, turns = show_turned(corner)
    seen = turned[:, 0, [0, 3, 3, 0], [0, 0, 3, 3]]  # counterclockwise from the top left
    model = Turn(4, TurnConfig(hidden=4))
    model.predictor = nn.Identity()
    assert model(100 * seen, turns).accuracy.item() == 1
    assert model(100 * seen, turns).loss.item() < 1e-6
    assert model(-100 * seen, turns).accuracy.item() == 0


def test_the_perceptron_has_two_hidden_layers() -> None:
    linear = [m for m in Turn(DIM, TurnConfig()).modules() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(DIM, 2048), (2048, 2048), (2048, 4)]


# --- methods ----------------------------------------------------------------------------------------------------------


def build(name: str, **settings) -> stec.Method:
    torch.manual_seed(0)
    return stec.create(name, encoder="resnet-small", turn={"hidden": 16}, **settings)


def test_total_is_the_sum_of_all_three() -> None:
    method = build("stec", lambda_manip=0.5, lambda_turn=0.3).eval()
    batch = Views(turn=True)(images(8))
    losses = method(batch)
    turn = method.turn(method.encoder(batch.turned.images), batch.turned.turns)
    assert losses.turn.item() == pytest.approx(turn.loss.item(), rel=1e-6)
    assert torch.equal(losses.turn_accuracy, turn.accuracy)
    expected = losses.identity + 0.5 * losses.manipulation + 0.3 * losses.turn
    assert losses.total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert len(losses.features) == 16  # of the two views, for probes


def test_the_name_implies_the_weight_unless_one_is_given() -> None:
    for name in ("e-simclr", "e-simsiam"):
        assert build(name).lambda_turn == 0.8  # 0.4 beside the mean of two directions, of which ours is the sum
        assert build(name, lambda_turn=0.1).lambda_turn == 0.1
        assert build(name, lambda_turn=0).turn is None
    assert build("stec").turn is None
    assert build("stec", lambda_turn=0.4).turn is not None


def test_without_a_turn_model_nothing_is_reported() -> None:
    losses = build("simclr")(Views(turn=True)(images(8)))
    assert losses.turn.item() == losses.turn_accuracy.item() == 0
    assert torch.equal(losses.total, losses.identity)


def test_a_batch_without_small_views_is_refused() -> None:
    with pytest.raises(UserError, match=r"make the batch with Views\(turn=True\)"):
        build("e-simclr")(Views()(images(8)))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"lambda_turn=-1.*: must be at least 0"):
        build("e-simclr", lambda_turn=-1)
    with pytest.raises(UserError, match=r"views\.turns=3: choose from 4, 2, 1"):
        Views(turns=3)
    with pytest.raises(UserError, match=r"turn\.hidden=0: must be at least 1"):
        load("default", ["turn.hidden=0"])
    with pytest.raises(UserError, match="unknown setting 'hiden': did you mean 'hidden'"):
        stec.create("e-simclr", encoder="resnet-small", turn={"hiden": 3})


# --- runs -------------------------------------------------------------------------------------------------------------


def encoder_of(folder) -> dict[str, Tensor]:
    return load_file(folder.path / "encoder.safetensors")


@pytest.mark.parametrize("identity", ["simclr", "simsiam"])
def test_e_ssl_with_lambda_0_is_the_identity_model_alone(train, identity) -> None:
    words = ("epochs=2",)
    alone, _ = train("alone", f"method={identity}", *words)
    without, _ = train("without", f"method=e-{identity}", "lambda_turn=0", *words)
    turning, _ = train("turning", f"method=e-{identity}", *words)
    a, b, c = (encoder_of(folder) for folder in (alone, without, turning))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(a["conv1.weight"], c["conv1.weight"])
    assert "turn" not in without.metrics()[-1]
    assert {"turn", "turn_accuracy"} <= turning.metrics()[-1].keys()


@pytest.mark.parametrize("turns", [4, 1])
def test_a_run_learns_to_infer_the_turn_beside_the_manipulation(train, tmp_path, turns) -> None:
    """Of pictures with a bright sky; the built-in shapes lie any way round and have no turn to infer."""
    rng = np.random.default_rng(0)
    light = np.linspace(220, 40, 32)[None, :, None, None]
    pictures = (light + rng.uniform(-35, 35, (96, 32, 32, 3))).astype(np.uint8)
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}.npy", pictures)
    words = ("data.source=arrays", f"data.root={tmp_path}", "method=stec", "lambda_turn=0.8", "epochs=10")
    folder, _ = train("run", *words, f"views.turns={turns}")
    first, last = folder.metrics()[0], folder.metrics()[-1]
    assert last["turn"] < 1 < 1.3 < first["turn"]  # log 4 = 1.39 is chance
    assert last["turn_accuracy"] > 0.5
    assert last["manipulation"] < first["manipulation"]
    whole = last["identity"] + last["manipulation"] + 0.8 * last["turn"]
    assert last["loss"] == pytest.approx(whole, rel=1e-5)
    assert folder.config().lambda_turn == 0.8


def test_recipes_hold_the_published_numbers() -> None:
    for name in ("e-simclr", "e-simsiam"):
        config = load(f"cifar10-resnet18-{name}")
        assert (config.method, config.epochs, config.batch_size, config.views.area) == (name, 800, 512, (0.2, 1.0))
        assert config.lambda_turn == 2 * 0.4
        assert (config.identity.hidden, config.identity.output, config.turn.hidden) == (2048, 2048, 2048)
        assert config.optimizer.warmup_epochs == 10
    assert load("cifar10-resnet18-e-simclr").identity.temperature == 0.5
