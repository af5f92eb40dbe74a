"""The manipulation model against loops over pairs and components, and `stec.create`, which joins it to the rest."""

import math

import pytest
import torch
from torch import Tensor, nn

import stec
from stec.actions import REPRESENTATIONS, Bins, EfferenceCopy
from stec.config import IdentityConfig, ManipulationConfig
from stec.errors import UserError
from stec.manipulation import Manipulation
from stec.views import Views

DIM, PAIRS = 5, 12
LOW_HIGH = 2 * [(-2.0, 2.0), (-2.0, 2.0), (-0.5, 0.5)]  # of the six affine components, from the paper


def copy_of(pairs: int = PAIRS, solarize: float = 0.5, seed: int = 0) -> EfferenceCopy:
    torch.manual_seed(seed)
    views, sizes = Views(solarize=solarize), torch.full((pairs, 2), 32.0)
    return EfferenceCopy(views.sample(sizes), views.sample(sizes))


def features(pairs: int = PAIRS, seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(pairs, DIM, requires_grad=True), torch.randn(pairs, DIM, requires_grad=True)


def valid_pairs(copy: EfferenceCopy) -> list[int]:
    solarized = zip(copy.first.solarized.tolist(), copy.second.solarized.tolist(), strict=True)
    return [pair for pair, (first, second) in enumerate(solarized) if not first and not second]


def code(value: float, component: int, k: int) -> int:
    low, high = LOW_HIGH[component]
    return min(max(math.floor(k * (value - low) / (high - low)), 0), k - 1)


def affine_action(name: str, copy: EfferenceCopy) -> list[list[float]]:
    """The reading of the 3 x 3 matrices by numpy-style algebra. PAIRS lists of 6"""
    rows = []
    for pair in range(len(copy.first.crop)):
        matrices = []
        for view in copy:
            (top, left, height, width), (h, w) = view.crop[pair].double().tolist(), view.source[pair].tolist()
            flip = -1 if view.mirrored[pair] else 1
            x, y = width / w - 1 + 2 * left / w, height / h - 1 + 2 * top / h
            matrices.append(torch.tensor([[flip * width / w, 0, x], [0, height / h, y], [0, 0, 1]]).double())
        first, second = matrices
        action = first.inverse() @ second if name == "egocentric" else second @ first.inverse()
        rows.append(action[:2].flatten().tolist())
    return rows


@pytest.mark.parametrize("name", ["egocentric", "paper"])
@pytest.mark.parametrize("k", [2, 6, 9])
def test_classification_equals_the_loop(name: str, k: int) -> None:
    """Mean over components of -log softmax at the code, mean over pairs neither of which is solarized."""
    model = Manipulation(DIM, ManipulationConfig(action=name, k=k, hidden=16)).eval()
    copy, (first, second) = copy_of(), features()
    logits = model.psi(torch.cat([first, second], dim=1)).tolist()  # component by component, K each
    pairs, losses, right = valid_pairs(copy), [], []
    assert 0 < len(pairs) < PAIRS
    for pair in pairs:
        terms = []
        for component, value in enumerate(affine_action(name, copy)[pair]):
            scores = logits[pair][component * k : (component + 1) * k]
            truth = code(value, component, k)
            terms.append(math.log(sum(math.exp(score) for score in scores)) - scores[truth])
            if component in (0, 2, 4, 5):  # the other two are always 0 and would flatter
                right.append(scores.index(max(scores)) == truth)
        losses.append(sum(terms) / 6)
    output = model(first, second, copy)
    assert output.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert output.accuracy.item() == pytest.approx(sum(right) / len(right), rel=1e-5)
    assert not output.accuracy.requires_grad


def test_regression_equals_the_loop() -> None:
    model = Manipulation(DIM, ManipulationConfig(readout="regression", hidden=16)).eval()
    copy, (first, second) = copy_of(), features()
    predicted, actions = model.psi(torch.cat([first, second], dim=1)).tolist(), affine_action("egocentric", copy)
    losses, right = [], []
    for pair in valid_pairs(copy):
        errors = [p - a for p, a in zip(predicted[pair], actions[pair], strict=True)]
        losses.append(sum(error**2 for error in errors) / 6)
        for component in (0, 2, 4, 5):
            guess = code(predicted[pair][component], component, 6)
            right.append(guess == code(actions[pair][component], component, 6))
    output = model(first, second, copy)
    assert output.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert output.accuracy.item() == pytest.approx(sum(right) / len(right), rel=1e-5)


@pytest.mark.parametrize("readout", ["classification", "regression"])
def test_a_batch_of_solarized_pairs_contributes_nothing(readout: str) -> None:
    model = Manipulation(DIM, ManipulationConfig(readout=readout, hidden=16))
    first, second = features()
    output = model(first, second, copy_of(solarize=1.0))
    output.loss.backward()
    assert output.loss.item() == 0
    assert output.accuracy.item() == 0
    for tensor in (first, second, *model.parameters()):
        assert torch.equal(tensor.grad, torch.zeros_like(tensor))


@pytest.mark.parametrize("action", ["egocentric", "paper", "official", "allocentric"])
def test_places_are_inferred_where_neither_view_is_solarized(action: str) -> None:
    valid = Manipulation(DIM, ManipulationConfig(action=action, hidden=4)).valid_pairs(copy := copy_of())
    assert valid.shape == (PAIRS,)
    assert valid.nonzero().squeeze(1).tolist() == valid_pairs(copy)


def test_solarized_pairs_have_no_influence() -> None:
    model = Manipulation(DIM, ManipulationConfig(hidden=16)).eval()
    copy, (first, second) = copy_of(), features()
    valid = valid_pairs(copy)
    fewer = EfferenceCopy(*(view.rows(torch.tensor(valid)) for view in copy))
    whole, part = model(first, second, copy), model(first[valid], second[valid], fewer)
    torch.testing.assert_close(whole.loss, part.loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(whole.accuracy, part.accuracy, rtol=1e-6, atol=1e-6)


def linear_sizes(model: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize(
    ("settings", "outputs"),
    [
        ({}, 36),  # the paper: 6 components of 6 bins
        ({"k": 9}, 54),
        ({"components": "informative"}, 24),  # scale and translation in x and y
        ({"components": "informative", "k": 5}, 20),
        ({"readout": "regression"}, 6),
        ({"readout": "regression", "components": "informative"}, 4),
        ({"action": "allocentric"}, 30),
        ({"action": "allocentric", "components": "informative"}, 30),
        ({"action": "allocentric", "readout": "regression"}, 5),
    ],
)
def test_outputs_of_psi(settings: dict, outputs: int) -> None:
    model = Manipulation(DIM, ManipulationConfig(**settings))
    assert linear_sizes(model) == [(2 * DIM, 512), (512, outputs)]
    first, second = features()
    assert model.predict(first, second).numel() == PAIRS * outputs
    assert model(first, second, copy_of()).loss.isfinite()


def test_informative_components_are_those_of_the_whole_action() -> None:
    copy = copy_of()
    action = Manipulation(DIM, ManipulationConfig(components="informative", hidden=4)).action(copy)
    expected = torch.tensor(affine_action("egocentric", copy))[:, [0, 2, 4, 5]]
    torch.testing.assert_close(action, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("components", ["all", "informative"])
@pytest.mark.parametrize("bins", ["uniform", "quantile"])
@pytest.mark.parametrize("action", REPRESENTATIONS)
def test_an_oracle_is_always_right(action: str, bins: str, components: str) -> None:
    config = ManipulationConfig(action=action, bins=bins, components=components, hidden=4)
    model, copy = Manipulation(DIM, config, Views()), copy_of()
    truth = nn.functional.one_hot(model.bins(model.action(copy)), 6).float()

    class Oracle(nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.sign = sign

        def forward(self, _: Tensor) -> Tensor:
            return self.sign * 100 * truth.flatten(1)

    model.psi = Oracle(1)
    assert model(*features(), copy).accuracy.item() == 1
    assert model(*features(), copy).loss.item() < 1e-6
    model.psi = Oracle(-1)
    assert model(*features(), copy).accuracy.item() == 0
    assert model(*features(), copy).loss.item() > 50


def test_a_regression_that_returns_the_action_is_always_right() -> None:
    model, copy = Manipulation(DIM, ManipulationConfig(readout="regression", hidden=4)), copy_of()
    action = model.action(copy)
    model.psi = nn.Module()
    model.psi.forward = lambda _: action
    output = model(*features(), copy)
    assert output.accuracy.item() == 1
    assert output.loss.item() == 0


def test_psi_reads_x_before_x_prime() -> None:
    model, (first, second) = Manipulation(DIM, ManipulationConfig(hidden=16)).eval(), features()
    assert not torch.allclose(model.predict(first, second), model.predict(second, first))


# --- quantile bins ----------------------------------------------------------------------------------------------------

QUANTILE = ManipulationConfig(bins="quantile", hidden=4)


def test_quantile_bins_need_views() -> None:
    with pytest.raises(UserError, match="quantile"):
        Manipulation(DIM, QUANTILE)


def test_quantile_bins_are_deterministic_and_leave_the_random_state_alone() -> None:
    edges = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = Manipulation(DIM, QUANTILE, Views())
        after = torch.rand(3)
        edges.append(model.bins.edges)
        torch.manual_seed(seed)
        nn.Linear(2 * DIM, 4, bias=False), nn.Linear(4, 36)  # the only draws that may be made
        assert torch.equal(after, torch.rand(3))
    assert torch.equal(*edges)


def test_quantile_bins_leave_the_random_state_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` seeds every GPU too, for good: all runs would then draw the same views there."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    Manipulation(DIM, QUANTILE, Views())
    assert seeded == []


@pytest.mark.parametrize("action", ["egocentric", "paper", "official", "allocentric"])
def test_quantile_bins_are_filled_equally_by_the_views_they_were_fitted_on(action: str) -> None:
    views = Views(area=(0.2, 0.9))
    config = ManipulationConfig(action=action, bins="quantile", k=8, hidden=4)
    model, n = Manipulation(DIM, config, views), 50_000
    torch.manual_seed(3)
    sizes = torch.full((n, 2), 1024.0)
    codes = model.bins(model.action(EfferenceCopy(views.sample(sizes), views.sample(sizes))))
    for component, name in enumerate(model.components):
        if name not in ("xy", "yx", "mirror"):  # not continuous
            share = codes[:, component].bincount(minlength=8) / n
            assert len(share) == 8
            assert (share - 1 / 8).abs().max() < 0.012, name  # 5 standard errors of the difference


# --- stec.create ------------------------------------------------------------------------------------------------------


class TinyEncoder(nn.Module):
    dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images).mean(dim=(-2, -1))


def tiny_batch(seed: int = 0) -> stec.ViewBatch:
    torch.manual_seed(seed)
    return Views(size=16, solarize=0.2, turn=True)(torch.rand(8, 3, 20, 20))


def build(name: str, seed: int = 0, **settings) -> stec.Method:
    torch.manual_seed(seed)
    return stec.create(name, encoder=TinyEncoder(), **settings)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown method 'simclear': did you mean 'simclr'"):
        stec.create("simclear", encoder=TinyEncoder())
    with pytest.raises(UserError, match="did you mean 'temperature'"):
        build("stec", identity={"temprature": 0.2})
    with pytest.raises(UserError, match="did you mean 'readout'"):
        build("stec", manipulation={"redout": "regression"})
    with pytest.raises(UserError, match="did you mean 'allocentric'"):
        build("stec", manipulation={"action": "alocentric"})


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("readout", "clasification", "classification"),
        ("bins", "quantiles", "quantile"),
        ("components", "informativ", "informative"),
    ],
)
def test_unknown_values_are_refused_with_those_that_are_known(key: str, value: str, meant: str) -> None:
    """A misspelt readout must not silently become another one."""
    with pytest.raises(UserError, match=f"choose from .*{meant}"):
        build("stec", manipulation={key: value}, views=Views())


def test_an_encoder_without_dim_is_refused() -> None:
    with pytest.raises(UserError, match="Linear needs an integer attribute 'dim'"):
        stec.create("stec", encoder=nn.Linear(3, 3))


def test_settings_as_dict_and_as_dataclass_are_the_same() -> None:
    as_dict = build("stec", identity={"temperature": 0.2}, manipulation={"k": 4, "hidden": 8})
    as_class = build("stec", identity=IdentityConfig(temperature=0.2), manipulation=ManipulationConfig(k=4, hidden=8))
    assert torch.equal(as_dict(tiny_batch()).total, as_class(tiny_batch()).total)
    assert as_dict.identity.temperature == 0.2
    assert linear_sizes(as_dict.manipulation) == [(12, 8), (8, 24)]


@pytest.mark.parametrize("weight", [0.3, 1.0, 2.5])
def test_total_is_identity_plus_lambda_manipulation(weight: float) -> None:
    method, batch = build("stec", lambda_manip=weight).eval(), tiny_batch()
    losses = method(batch)
    features = method.encoder(batch.images)
    identity = method.identity(features, batch)
    manipulation = method.manipulation(features[:8], features[8:], batch.copy)
    assert losses.identity.item() == pytest.approx(identity.loss.item(), rel=1e-6)
    assert losses.manipulation.item() == pytest.approx(manipulation.loss.item(), rel=1e-6)
    assert losses.total.item() == pytest.approx(identity.loss.item() + weight * manipulation.loss.item(), rel=1e-6)
    assert torch.equal(losses.identity_accuracy, identity.accuracy)
    assert torch.equal(losses.manipulation_accuracy, manipulation.accuracy)
    assert torch.equal(losses.features, features)
    assert losses.total.requires_grad
    assert not losses.features.requires_grad


def gradients(method: stec.Method) -> dict[str, Tensor]:
    method(tiny_batch()).total.backward()
    return {name: p.grad for name, p in method.named_parameters() if not name.startswith("manipulation")}


def test_lambda_zero_is_simclr() -> None:
    """The same seed gives the same networks, and bitwise the same gradients."""
    plain, without = gradients(build("simclr")), gradients(build("stec", lambda_manip=0))
    assert plain.keys() == without.keys()
    assert all(torch.equal(plain[name], without[name]) for name in plain)
    trained = gradients(build("stec", lambda_manip=1))
    assert not torch.equal(trained["encoder.net.0.weight"], plain["encoder.net.0.weight"])


def test_simclr_reports_no_manipulation() -> None:
    losses = build("simclr")(tiny_batch())
    assert torch.equal(losses.total, losses.identity)
    assert losses.manipulation.item() == 0
    assert losses.manipulation_accuracy.item() == 0


def test_both_views_share_one_forward_pass() -> None:
    """Batch norms then see all 2B views at once."""
    method, seen = build("stec"), []
    method.encoder.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    method(tiny_batch())
    assert seen == [16]


def test_every_listed_method_can_be_created_and_trained() -> None:
    assert {"simclr", "stec"} <= set(stec.list_methods())
    for name in stec.list_methods():
        method = build(name)
        method(tiny_batch()).total.backward()
        method.after_step(0.5)
        assert all(p.grad is not None for p in method.encoder.parameters()), name


def test_fitted_bins_are_part_of_the_checkpoint() -> None:
    fitted = build("stec", manipulation={"bins": "quantile", "hidden": 8}, views=Views(area=(0.5, 1)))
    other = build("stec", manipulation={"bins": "quantile", "hidden": 8}, views=Views())
    assert isinstance(other.manipulation.bins, Bins)
    assert not torch.equal(fitted.manipulation.bins.edges, other.manipulation.bins.edges)
    other.load_state_dict(fitted.state_dict())
    assert torch.equal(fitted.manipulation.bins.edges, other.manipulation.bins.edges)
