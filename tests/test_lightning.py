"""A Lightning trainer with the module does what a loop by hand does."""

import importlib
import subprocess
import sys

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.layer_sync import TorchSyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stec
from stec.adapters.lightning import LitStec
from stec.data import shapes
from stec.optim import LARS, parameter_groups, warmup_cosine

WORDS = ["batch_size=16", "optimizer.rate=1.0", "optimizer.warmup_epochs=1"]
# What Lightning says about few cores and few steps.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning", "ignore::FutureWarning")


def fit(module, loader, epochs=2, **settings):
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **settings,
    )  # fmt: skip
    trainer.fit(module, loader)
    return trainer


@pytest.fixture(scope="module")
def images():
    return shapes.render(32, size=32).images


@pytest.mark.parametrize("name", ["stec", "stec-byol"])
def test_four_steps_are_those_of_a_loop_by_hand(name, images):
    config = stec.config.load("default", [*WORDS, f"method={name}"])
    torch.manual_seed(0)
    module = LitStec(config)
    torch.manual_seed(0)
    views, method = module.views, stec.method.build(config)[1].train()

    torch.manual_seed(1)
    own = torch.Generator()  # else the loader would draw from the generator that the views use
    trainer = fit(module, DataLoader(TensorDataset(images, torch.arange(32)), batch_size=16, generator=own))
    assert trainer.global_step == 4

    torch.manual_seed(1)
    optimizer = LARS(parameter_groups(method, config.optimizer.weight_decay, config.optimizer.trust), lr=0.0)
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = 1.0 * 16 / 256 * warmup_cosine(step, 4, 2)
        losses = method(views(images[step % 2 * 16 :][:16]).channels_last())
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
        method.after_step((step + 1) / 4)
    torch.testing.assert_close(module.method.state_dict(), method.state_dict())
    assert trainer.logged_metrics["total"] == pytest.approx(losses.total.item(), rel=1e-5)
    assert {"identity", "identity_accuracy", "manipulation", "manipulation_accuracy"} <= set(trainer.logged_metrics)
    assert "turn" not in trainer.logged_metrics


@pytest.mark.parametrize("ends", [{"epochs": -1, "max_steps": 12}, {"epochs": 9, "max_steps": 12}, {"epochs": 3}])
def test_the_rate_warms_up_for_epochs_of_the_loader_whatever_ends_the_training(ends, images):
    """Of 4 steps; with max_steps alone, all of training was one epoch, and so warm-up."""
    module = LitStec(stec.config.load("default", [*WORDS, "method=stec"]))
    rates = []
    module.on_train_batch_start = lambda *batch: rates.append(module.optimizers().param_groups[0]["lr"])
    fit(module, DataLoader(TensorDataset(images), batch_size=8), **ends)
    assert rates == pytest.approx([warmup_cosine(step, 12, 4) / 16 for step in range(12)])


class Stream(IterableDataset):
    """Images without a number of them."""

    def __init__(self, images):
        self.images = images

    def __iter__(self):
        return iter(self.images)


def test_a_stream_needs_to_be_told_how_long_training_and_its_epochs_are(images):
    def train(*words, **settings):
        module = LitStec(stec.config.load("default", [*WORDS, "method=stec", *words]))
        return fit(module, DataLoader(Stream(images), batch_size=8), **settings).global_step

    with pytest.raises(stec.UserError, match="give the Trainer max_steps"):
        train(epochs=2)
    with pytest.raises(stec.UserError, match="give the Trainer limit_train_batches=N"):
        train(epochs=-1, max_steps=3)
    assert train(epochs=-1, max_steps=3, limit_train_batches=2) == 3
    assert train("optimizer.warmup_epochs=0", epochs=-1, max_steps=3) == 3


def test_a_predictor_whose_rate_is_constant(images):
    module = LitStec(stec.config.load("default", [*WORDS, "method=simsiam", "identity.predictor_rate=constant"]))
    trainer = fit(module, DataLoader(TensorDataset(images), batch_size=16))
    (optimizer,) = trainer.optimizers
    predictor = {id(p) for p in module.method.identity.predictor.parameters()}
    for group in optimizer.param_groups:
        steady = {id(p) in predictor for p in group["params"]}
        assert steady in ({True}, {False})
        assert group["lr"] == pytest.approx(1 / 16 if steady == {True} else 0)


def test_mixed_precision_trains(images):
    module = LitStec(stec.config.load("default", [*WORDS, "method=stec"]))
    trainer = fit(module, DataLoader(TensorDataset(images), batch_size=16), epochs=1, precision="bf16-mixed")
    assert trainer.logged_metrics["total"].isfinite()


def test_a_target_follows_once_for_all_batches_whose_gradients_are_accumulated(images, monkeypatch):
    module = LitStec(stec.config.load("default", [*WORDS, "method=byol"]))
    told = []
    monkeypatch.setattr(module.method, "after_step", told.append)
    fit(module, DataLoader(TensorDataset(images), batch_size=8), accumulate_grad_batches=2)
    assert told == [0.25, 0.5, 0.75, 1.0]  # 2 epochs of 4 batches


def test_pairs_from_a_loader_train_it_and_its_encoder_is_a_file(images, tmp_path):
    transform = stec.transforms.PairWithAction(size=32)
    loader = DataLoader([transform(image) for image in images], batch_size=16)
    module = LitStec(stec.config.load("default", [*WORDS, "method=stec"]))
    before = {name: value.clone() for name, value in module.method.named_parameters()}
    fit(module, loader, epochs=1)
    assert all(not torch.equal(before[name], value) for name, value in module.method.named_parameters())
    module.save_encoder(tmp_path / "new" / "mine.safetensors")
    module.method.eval()
    encoder = stec.load(tmp_path / "new" / "mine.safetensors")
    torch.testing.assert_close(encoder(images), module.method.encoder(module.views.plain(images)))


@pytest.mark.parametrize("transform", [lambda image: image, stec.transforms.PairWithAction(size=32)])
def test_images_or_pairs_may_come_with_labels_and_names(images, transform):
    """As lightly's data sets have them, and torchvision's without names."""
    named = [(transform(image), 0, f"{i}.png") for i, image in enumerate(images)]
    trainer = fit(LitStec(stec.config.load("default", WORDS)), DataLoader(named, batch_size=16), epochs=1)
    assert trainer.global_step == 2


@pytest.mark.parametrize("name", ["moco", "byol"])
def test_batch_norms_that_lightning_synchronises_keep_their_activations_and_mocos_target_its_groups(name, images):
    """PyTorch's conversion drops the activations inside of timm's batch norms, and tells keys from the queue."""
    torch.manual_seed(0)
    words = [*WORDS, f"method={name}", "identity.queue=64", "encoder=timm:test_efficientnet"]
    module = LitStec(stec.config.load("default", words))
    batch = module.views(images)

    def losses():
        torch.manual_seed(1)  # for MoCo's groups
        return module.method(batch).total.item()

    expected = losses()
    TorchSyncBatchNorm().apply(module)  # what the trainer calls
    module.on_fit_start()
    assert losses() == pytest.approx(expected, rel=1e-4)
    encoder, target = (
        {isinstance(norm, torch.nn.SyncBatchNorm) for norm in part.modules() if isinstance(norm, _BatchNorm)}
        for part in (module.method.encoder, module.method.identity.target)
    )
    assert (encoder, target) == ({True}, {name != "moco"})


DEVICES = """
import sys
import pytorch_lightning as pl, torch, stec
from stec.adapters.lightning import LitStec


class Watched(LitStec):
    def _act(self, batch):
        acted = super()._act(batch)
        crops = stec.processes.gather(acted.copy.first.crop).chunk(2)
        assert not torch.equal(*crops), "both processes do the same to their images"
        return acted


if __name__ == "__main__":
    pl.seed_everything(0)
    module = Watched(stec.config.load("default", ["method=stec", "batch_size=8", "optimizer.warmup_epochs=0"]))
    images = torch.randint(256, (16, 3, 32, 32), dtype=torch.uint8)
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(images, batch_size=4))
    assert trainer.global_step == 2
    for number in range(20):
        torch.distributed.barrier()
        module.save_encoder(f"{sys.argv[1]}/{number}/encoder.safetensors")
"""


def test_several_devices_do_different_things_to_their_images_and_write_one_file(tmp_path):
    """Where all processes have the same seed, and call for the file at the same time."""
    script = tmp_path / "train.py"
    script.write_text(DEVICES)
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [stec.load(tmp_path / str(number) / "encoder.safetensors").dim for number in range(20)] == [128] * 20


def test_without_lightning_one_line_names_the_extra(monkeypatch):
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "stec.adapters.lightning")
    with pytest.raises(stec.UserError, match=r"pip install 'stec\[lightning\]'"):
        importlib.import_module("stec.adapters.lightning")


LATE = """
import sys
import stec.training
from lightning_fabric.utilities.imports import _TORCHMETRICS_GREATER_EQUAL_1_0_0 as recent

assert not {"torchmetrics", "scipy", "matplotlib"} & sys.modules.keys()
import torchmetrics
assert recent
"""


def test_training_starts_without_what_only_lightning_needs():
    """Which takes seconds to import; and Lightning still knows the version of torchmetrics."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
