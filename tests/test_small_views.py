"""Multi-crop: small views, the action from each to both large ones, and what every method makes of them."""

import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from lightly.loss import BarlowTwinsLoss, VICRegLoss
from lightly.loss.swav_loss import sinkhorn
from tiny_runs import Silent
from torch import Tensor, nn

import stec
from stec import UserError
from stec.actions import EfferenceCopy, egocentric
from stec.config import load
from stec.identity import IDENTITIES, Identity, IdentityOutput
from stec.method import METHODS
from stec.run import RunFolder
from stec.views import ViewBatch, Views, pair_up

IMAGES, SMALL, TAU = 6, 3, 0.05


def noise(n: int = IMAGES, side: int = 40) -> Tensor:
    return torch.randint(256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def draw(views: Views, images: Tensor | None = None, seed: int = 1) -> ViewBatch:
    torch.manual_seed(seed)
    return views(noise() if images is None else images)


# --- views ------------------------------------------------------------------------------------------------------------


def test_small_views_have_their_own_size_and_area() -> None:
    views = Views(size=32, area=(0.5, 1.0), small=SMALL, small_size=12, small_area=(0.1, 0.2))
    batch = draw(views, noise(400, side=64))
    assert batch.images.shape == (800, 3, 32, 32)
    assert batch.small.images.shape == (SMALL * 400, 3, 12, 12)
    area = batch.small.glimpse.crop[:, 2:].prod(dim=1) / 64**2
    assert 0.09 < area.min() < 0.11  # sides are whole pixels
    assert 0.19 < area.max() < 0.21
    assert not torch.equal(batch.small.glimpse.crop[:400], batch.small.glimpse.crop[400:800])


@pytest.mark.parametrize("turn", [False, True])
def test_everything_else_is_the_same_with_and_without_small_views(turn: bool) -> None:
    without, with_small = (draw(Views(small=n, turn=turn, blur=0.5, solarize=0.2)) for n in (0, SMALL))
    assert without.small is None
    assert without.pairs() is without.copy
    assert torch.equal(without.images, with_small.images)
    assert not turn or torch.equal(without.turned.images, with_small.turned.images)
    for ours, theirs in zip(without.copy, with_small.copy, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_small_views_are_views_of_the_small_size() -> None:
    """What an independent `Views` of that size makes of the same glimpse."""
    settings = {"jitter": (0.8, 0.2), "blur": 0.5, "solarize": 0.3}
    batch = draw(Views(size=32, small=2, small_size=20, small_area=(0.1, 0.5), **settings))
    alone = Views(size=20, **settings)
    for i in range(2):
        rows = slice(i * IMAGES, (i + 1) * IMAGES)
        assert torch.equal(batch.small.images[rows], alone.render(noise(), batch.small.glimpse.rows(rows)))


def test_channels_last_changes_the_layout_alone() -> None:
    batch = draw(Views(small=SMALL))
    laid = batch.channels_last()
    assert torch.equal(batch.small.images, laid.small.images)
    assert laid.small.images.is_contiguous(memory_format=torch.channels_last)


def test_pairs_by_hand() -> None:
    first, second = torch.tensor([1, 2]), torch.tensor([11, 12])
    small = torch.tensor([101, 102, 201, 202])  # the first small view of both images, then the second
    pairs = set(zip(*(rows.tolist() for rows in pair_up(first, second, small)), strict=True))
    assert pairs == {(1, 11), (2, 12)} | {(s + i, large + i) for s in (100, 200) for large in (0, 10) for i in (1, 2)}


def smooth_images(n: int, side: int) -> Tensor:
    """Sums of three waves of at most one period per side. (n, 3, side, side) in [0, 1]"""
    t = (torch.arange(side) + 0.5) / side
    frequency, phase = 2 * torch.rand(n, 3, 3, 2) - 1, 2 * math.pi * torch.rand(n, 3, 3)
    angle = frequency[..., :1, None] * t[:, None] + frequency[..., 1:, None] * t
    return 0.5 + 0.5 * (2 * math.pi * angle + phase[..., None, None]).sin().mean(dim=2)


def test_the_actions_of_all_pairs_hold_in_pixels() -> None:
    """Where x' lies on the canvas of x, x shows what x' shows: also where x is a small view of another size."""
    torch.manual_seed(3)
    n, views = 100, Views(size=48, area=(0.3, 1.0), small=2, small_size=24, jitter_probability=0, grey=0)
    batch = views(smooth_images(n, 96))
    actions = egocentric(batch.pairs())
    assert len(actions) == 5 * n
    small = batch.small.images
    seen = [(batch.first, batch.second), *((s, x) for x in (batch.first, batch.second) for s in small.split(n))]
    compared = 0
    for (x, other), action in zip(seen, actions.split(n), strict=True):
        grid = F.affine_grid(action, [n, 3, 48, 48], align_corners=False)
        expected = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        inside = (grid.abs() <= 1 - 1 / x.shape[-1]).all(dim=-1)[:, None]
        assert ((expected - other).abs() * inside).max() < 4 / 255
        compared += int(inside.sum())
        mirrored = torch.stack([-action[:, 0], action[:, 1]], dim=1)  # a wrong action is seen
        wrong = F.grid_sample(x, F.affine_grid(mirrored, [n, 3, 48, 48], align_corners=False), align_corners=False)
        assert ((wrong - other).abs() * inside).max() > 0.2
    assert compared > 100_000


# --- losses, against loops over all pairs -----------------------------------------------------------------------------


def build(name: str, **settings) -> stec.Method:
    torch.manual_seed(0)
    identity = {"hidden": 16, "output": 8, "temperature": TAU, "alpha": 0.7, "queue": 20, "prototypes": 7}
    method = stec.create(name, "resnet-small", identity=identity, **settings)
    for parameter in method.parameters():  # no zeros, and a target that is not the online network
        parameter.data.add_(0.05 * torch.randn_like(parameter))
    return method


def unit(x: Tensor) -> Tensor:
    return x.double() / x.double().norm()


def softmax(scores: Tensor, temperature: Tensor | float) -> Tensor:
    weights = (scores.double() / temperature).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def contrast(s: Tensor, image: int, large: int, z: list[Tensor], candidates: list[Tensor], alpha: float) -> Tensor:
    """-log p(x' | s) + alpha KL(p( . | x') ; p( . | s)), for the partner x' = views[large][image]."""
    others = [unit(view[m]) for m in range(len(s)) if m != image for view in candidates]
    own, partner = unit(candidates[1 - large][image]), unit(candidates[large][image])

    def log_assignment(query: Tensor, positive: Tensor) -> Tensor:
        return torch.stack([unit(query) @ c / TAU for c in (positive, *others)]).log_softmax(0)

    ours, theirs = log_assignment(s[image], partner), log_assignment(z[large][image], own)
    return -ours[0] + alpha * (theirs.exp() * (theirs - ours)).sum()


def directed(name: str, method: stec.Method, s: Tensor, large: int, batch: ViewBatch) -> Tensor:
    """l(s, x) or l(s, x'), one image at a time where the loss is a mean over images."""
    model, features = method.identity, method.encoder(batch.images)
    if name == "vicreg":
        return VICRegLoss()(s.double(), model.expander(features).double().chunk(2)[large])
    if name == "barlow":
        return BarlowTwinsLoss()(s.double(), model.expander(features).double().chunk(2)[large])
    z = list(model.projector(features).chunk(2))
    if name == "swav":
        shares = sinkhorn(model.prototypes(z[large]).detach().double())
        return torch.stack([-q @ softmax(p, TAU).log() for q, p in zip(shares, s, strict=True)]).mean()
    if name == "dino":
        sharp = [softmax(t - model.centre, model.target_temperature) for t in model.target(batch.images).chunk(2)]
        return torch.stack([-q @ softmax(p, TAU).log() for q, p in zip(sharp[large], s, strict=True)]).mean()
    targets = list(model.target(batch.images).chunk(2)) if hasattr(model, "target") else z
    losses = []
    for b in range(len(s)):
        q, key = unit(s[b]), unit(targets[large][b])
        if name in ("simclr", "relic"):
            losses.append(contrast(s, b, large, z, targets, alpha=0.7 if name == "relic" else 0))
        elif name == "moco":
            logits = torch.stack([q @ key, *(q @ unit(n) for n in model.queue)]) / TAU
            losses.append(-logits.log_softmax(0)[0])
        else:
            losses.append({"byol": 2 - 2 * q @ key, "simsiam": -q @ key, "gaussian": (q - key) @ (q - key)}[name])
    return torch.stack(losses).mean()


@pytest.mark.parametrize("name", IDENTITIES)
def test_the_identity_loss_is_the_mean_over_all_pairs(name: str) -> None:
    method, batch = build(name).eval(), draw(Views(small=SMALL))
    model = method.identity
    parts = dict(model.named_children())
    heads = [parts[part] for part in ("projector", "expander", "predictor", "prototypes") if part in parts]
    total = model(method.encoder(batch.images), batch).loss.double()  # l(x, x') + l(x', x)
    for small in batch.small.images.split(IMAGES):
        s = method.encoder(small)
        for head in heads:
            s = head(s)
        total = total + sum(directed(name, method, s, large, batch) for large in (0, 1))
    losses = method(batch)
    torch.testing.assert_close(losses.identity.double(), total / (1 + SMALL), rtol=2e-5, atol=1e-5)
    if name in ("simclr", "vicreg", "barlow", "gaussian", "dino", "swav"):  # the others stop some gradients
        weight = next(method.encoder.parameters())
        (found,), (expected,) = (torch.autograd.grad(x, weight) for x in (losses.total, total / (1 + SMALL)))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    without = method(batch._replace(small=None))
    assert abs(losses.identity - without.identity) > 1e-4
    assert torch.equal(losses.identity_accuracy, without.identity_accuracy)
    assert torch.equal(losses.features, without.features)
    assert torch.equal(losses.embeddings, without.embeddings)


@pytest.mark.parametrize("action", ["egocentric", "allocentric", "egocentric+colour"])
def test_the_manipulation_loss_is_the_mean_over_all_pairs(action: str) -> None:
    views = Views(small=SMALL, solarize=0.15)
    method = build("stec", manipulation={"action": action, "hidden": 16}, views=views).eval()
    batch = draw(views)
    psi = method.manipulation
    images = [batch.first, batch.second, *batch.small.images.split(IMAGES)]
    glimpses = [*batch.copy, *(batch.small.glimpse.rows(slice(i * 6, i * 6 + 6)) for i in range(SMALL))]
    features = [method.encoder(view) for view in images]
    losses: dict[int, list[float]] = {component: [] for component in range(len(psi.components))}
    for source, target in [(0, 1), *((i, j) for i in range(2, 2 + SMALL) for j in (0, 1))]:
        for b in range(IMAGES):
            copy = EfferenceCopy(*(glimpses[view].rows(slice(b, b + 1)) for view in (source, target)))
            codes = psi.bins(psi.action(copy))[0]
            logits = psi.predict(features[source][b : b + 1], features[target][b : b + 1])[0]
            solarized = bool(copy.first.solarized | copy.second.solarized)
            for c in losses:
                if not (solarized and psi.unsolarized[c]):
                    losses[c].append(F.cross_entropy(logits[c], codes[c]).item())
    assert 0 < len(losses[0]) < (1 + 2 * SMALL) * IMAGES
    expected = sum(sum(values) / len(values) for values in losses.values()) / len(losses)
    assert method(batch).manipulation.item() == pytest.approx(expected, rel=1e-5)


def test_all_small_views_share_one_forward_pass_and_the_target_sees_large_ones_alone() -> None:
    method, seen, by_target = build("stec-byol"), [], []
    method.encoder.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape)))
    target = method.identity.target.encoder
    target.register_forward_hook(lambda module, inputs, output: by_target.append(tuple(inputs[0].shape)))
    method(draw(Views(small=SMALL)))
    assert seen == [(2 * IMAGES, 3, 32, 32), (SMALL * IMAGES, 3, 16, 16)]
    assert by_target == [(2 * IMAGES, 3, 32, 32)]


def test_running_statistics_are_those_of_large_views_alone() -> None:
    """The encoder is evaluated by them, and the online probe learns from large views."""
    method = build("stec", lambda_turn=0.8, turn={"hidden": 16})
    alone, batch = deepcopy(method.encoder), draw(Views(small=SMALL, turn=True))
    for _ in range(2):  # the second batch is remembered like the first
        method(batch)
        alone(batch.images)
    found, expected = (
        [(norm.running_mean, norm.running_var) for norm in encoder.modules() if isinstance(norm, nn.BatchNorm2d)]
        for encoder in (method.encoder, alone)
    )
    torch.testing.assert_close(found, expected)


def test_quantile_bins_are_fitted_on_all_pairs() -> None:
    """Each bin of the translations holds a sixth of the actions of all pairs, which the large ones alone would not."""
    views = Views(area=(0.5, 1.0), small=SMALL)
    fitted, large = (
        stec.create("stec", "resnet-small", manipulation={"bins": "quantile"}, views=each).manipulation
        for each in (views, Views(area=(0.5, 1.0)))
    )
    torch.manual_seed(5)
    copy = views.sample_pairs(torch.full((4000, 2), 500.0))
    assert len(copy.first.crop) == 4000 * (1 + 2 * SMALL)
    for component in (2, 5):
        share, others = (psi.bins(psi.action(copy))[:, component].bincount(minlength=6) for psi in (fitted, large))
        assert (share / share.sum()).sub(1 / 6).abs().max() < 0.01
        assert (others / others.sum()).sub(1 / 6).abs().max() > 0.1


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", stec.list_methods())
def test_every_method_learns_from_small_views(name: str) -> None:
    method, views = build(name, turn={"hidden": 16}), Views(small=2, turn=METHODS[name].turn > 0)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.001)
    torch.manual_seed(2)
    for step in range(3):
        losses = method(views(noise(16)))
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
        method.after_step(step / 3)
        assert losses.total.isfinite()
    assert all(p.grad is not None and p.grad.any() for p in method.parameters() if p.requires_grad)


class Interrupted(Exception):
    pass


class InterruptsAfterTheCheckpoint(Silent):
    def progress(self, progress) -> None:
        if progress.step > 6:
            raise Interrupted


@pytest.mark.parametrize("method", ["stec-star", "stec-moco"])
def test_a_run_with_small_views_is_resumed_bit_for_bit(train, method: str) -> None:
    words = (f"method={method}", "epochs=3", "identity.queue=64", "views.small=2", "manipulation.bins=quantile")
    whole, summary = train("whole", *words)
    with pytest.raises(Interrupted):
        train("broken", *words, reporter=InterruptsAfterTheCheckpoint())
    broken = RunFolder.open(train.path / "broken")
    assert broken.config().views.small == 2
    assert train.resume(broken)["linear"] == summary["linear"]
    ours, theirs = (torch.load(folder.checkpoint)["model"] for folder in (broken, whole))
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    plain, _ = train("plain", *words, "views.small=0")
    assert plain.metrics()[0]["identity"] != whole.metrics()[0]["identity"]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("views.small=-1", "views.small=-1: must be at least 0"),
        ("views.small_size=3", "views.small_size=3: must be at least 4"),
        ("views.small_area=[0.5]", "two numbers"),
        ("views.small_area=[0.5,0.1]", "views.small_area=(0.5, 0.1): needs 0 < low <= high"),
        ("views.small_area=[0.5,1.1]", "views.small_area=(0.5, 1.1): a crop is at most the whole image"),
    ],
)
def test_wrong_settings_are_refused(word: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        load("default", [word])
    assert message in str(caught.value)


class LargeAlone(Identity):
    def forward(self, features, batch) -> IdentityOutput:
        return IdentityOutput(features.square().mean(), torch.zeros(()))


def test_a_model_that_knows_no_small_views_says_so(monkeypatch) -> None:
    monkeypatch.setitem(IDENTITIES, "simclr", LargeAlone)
    with pytest.raises(UserError, match=r"LargeAlone has no use for small views: views\.small must be 0"):
        stec.create("simclr", "resnet-small")(draw(Views(small=1)))


def test_small_views_are_off_unless_asked_for() -> None:
    assert load("default").views.small == 0
    assert Views().small_views is None
