"""Every method there is: it trains, stops, resumes bit for bit, and is probed."""

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import Silent
from torch import nn

import stec
from stec import UserError
from stec.config import ManipulationConfig, load
from stec.identity import IDENTITIES, Identity, IdentityOutput
from stec.method import METHODS, Pairing
from stec.run import RunFolder
from stec.views import Views

SHORT = ("epochs=3", "identity.queue=64", "identity.assigned_queue=64")  # 9 steps, a checkpoint at step 6
KEYS = {"loss", "identity", "identity_accuracy", "probe_accuracy", "feature_std", "effective_rank"}
KEYS |= {"alignment", "uniformity", "embedding_rank"}


class Interrupted(Exception):
    pass


class InterruptsAfterTheCheckpoint(Silent):
    def progress(self, progress) -> None:
        if progress.step > 6:
            raise Interrupted


@pytest.mark.parametrize("method", stec.list_methods())
def test_every_method_trains_resumes_bit_for_bit_and_is_probed(train, method) -> None:
    words = (f"method={method}", *SHORT)
    whole, summary = train("whole", *words)
    with pytest.raises(Interrupted):
        train("broken", *words, reporter=InterruptsAfterTheCheckpoint())
    broken = RunFolder.open(train.path / "broken")
    assert train.resume(broken)["linear"] == summary["linear"]

    encoders = [load_file(folder.path / "encoder.safetensors") for folder in (whole, broken)]
    assert all(torch.equal(encoders[0][key], encoders[1][key]) for key in encoders[0])
    checkpoints = [torch.load(folder.checkpoint)["model"] for folder in (whole, broken)]
    assert all(torch.equal(checkpoints[0][key], checkpoints[1][key]) for key in checkpoints[0])

    records = whole.metrics()
    assert records[-1]["step"] == 9
    assert records[-1].keys() >= KEYS
    assert ("manipulation" in records[-1]) == METHODS[method].manipulation
    assert ("turn" in records[-1]) == ("turn_accuracy" in records[-1]) == (METHODS[method].turn > 0)
    assert [{k: r[k] for k in KEYS} for r in broken.metrics()] == [{k: r[k] for k in KEYS} for r in records]
    assert 0 <= records[-1]["identity_accuracy"] <= 1
    assert all(0 <= summary[key] <= 100 for key in ("linear", "knn", "linear_online"))


@pytest.mark.parametrize("method", stec.list_methods())
def test_every_part_of_every_method_is_trained(method) -> None:
    torch.manual_seed(0)
    model = stec.create(method, encoder="resnet-small", identity={"queue": 64})
    for parameter in model.encoder.parameters():
        nn.init.normal_(parameter, std=0.1)  # the last scale of a residual block starts at 0 and hides the block
    model(Views(size=32, turn=True)(torch.randint(256, (16, 3, 32, 32), dtype=torch.uint8))).total.backward()
    without = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert not without


@pytest.mark.parametrize(
    ("last", "dim", "found"),
    [
        (nn.Identity(), 4, r"\(12, 4, 32, 32\)"),  # a map
        (nn.AdaptiveAvgPool2d(1), 4, r"\(12, 4, 1, 1\)"),
        (nn.Flatten(2), 4, r"\(12, 4, 1024\)"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), 5, r"\(12, 4\), expected \(2B, 5\)"),
        (nn.AdaptiveMaxPool2d(1, return_indices=True), 4, "a tuple"),
    ],
)
def test_an_encoder_that_gives_something_else_than_announced_is_named(last, dim, found) -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 1), last)
    encoder.dim = dim
    with pytest.raises(UserError, match=f"the encoder Sequential gives {found}"):
        stec.create("stec", encoder)(Views()(torch.rand(6, 3, 32, 32)))


class Opposite(Identity):
    """All there is to an identity model of one's own."""

    def __init__(self, encoder, config) -> None:
        super().__init__(encoder, config)
        self.head = nn.Linear(encoder.dim, config.output)

    def forward(self, features, batch) -> IdentityOutput:
        first, second = self.head(features).chunk(2)
        loss = 2 * (1 - torch.cosine_similarity(first, second)).mean()
        return IdentityOutput(loss, torch.zeros_like(loss.detach()))


def test_an_identity_model_of_ones_own_takes_one_class_and_one_registration(train, monkeypatch) -> None:
    monkeypatch.setitem(IDENTITIES, "opposite", Opposite)
    monkeypatch.setitem(METHODS, "stec-opposite", Pairing("opposite", True, "an example"))
    folder, summary = train("run", "method=stec-opposite", *SHORT)
    assert summary["linear"] is not None
    assert KEYS | {"manipulation"} <= folder.metrics()[-1].keys()


def test_augself_regresses_the_allocentric_action_by_itself() -> None:
    for manipulation in (None, {"hidden": 32}, ManipulationConfig(), {"action": "allocentric"}):
        psi = stec.create("augself", encoder="resnet-small", manipulation=manipulation).manipulation
        assert psi.components == ["left", "top", "width", "height", "mirror"]
        assert not psi.classifies
        assert psi.psi[-1].out_features == 5
    with pytest.raises(UserError, match=r"manipulation\.action=paper: augself always has action=allocentric"):
        stec.create("augself", encoder="resnet-small", manipulation={"action": "paper"})


def test_other_names_imply_nothing_about_the_manipulation_model() -> None:
    psi = stec.create("stec-simsiam", encoder="resnet-small", manipulation={"action": "paper"}).manipulation
    assert psi.classifies
    assert len(psi.components) == 6


# Published rate per 256, decay and limit of LARC, and by how much our loss is larger than the one they belong to.
PUBLISHED = {
    "cifar10-resnet18-simsiam": (0.03, 5e-4, 0.0, 2),  # Chen and He 2021, appendix D
    "cifar10-resnet18-e-simclr": (0.06, 5e-4, 0.0, 2),  # rdangovs/essl, cifar10
    "cifar10-resnet18-e-simsiam": (0.06, 5e-4, 0.0, 2),
    "stl10-resnet18-simsiam-200": (0.03, 5e-4, 0.0, 2),  # hankook/AugSelf, pretrain.py
    "stl10-resnet18-augself": (0.03, 5e-4, 0.0, 2),
    "cifar10-resnet18-vicreg": (0.3, 1e-4, 0.02, 2),  # solo-learn, scripts/pretrain/cifar
    "cifar10-resnet18-barlow": (0.3, 1e-4, 0.02, 20),
    "cifar10-resnet18-dino": (0.3, 1e-6, 0.02, 2),
    "cifar10-resnet18-swav": (0.6, 1e-6, 0.02, 2),
}


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_recipes_make_the_published_steps_with_a_loss_of_another_scale(recipe) -> None:
    """SGD: rate (g + decay w). LARC: the same, but never longer than trust |w|."""
    rate, decay, trust, factor = PUBLISHED[recipe]
    ours = load(recipe).optimizer
    assert ours.rate * factor == pytest.approx(rate)
    assert ours.weight_decay / factor == pytest.approx(decay)
    assert (ours.name, ours.trust) == ("larc" if trust else "lars", trust)


def test_methods_come_in_pairs_and_say_what_they_are() -> None:
    alone = {pairing.identity for pairing in METHODS.values() if not pairing.manipulation}
    joined = {pairing.identity for pairing in METHODS.values() if pairing.manipulation}
    assert alone == joined == set(IDENTITIES)
    assert all(pairing.about for pairing in METHODS.values())
