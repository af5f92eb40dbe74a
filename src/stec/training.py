"""Pretraining on images: act, infer the action, and see what a linear classifier makes of the features.

summary = pretrain(config, folder, reporter)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from stec import data
from stec.compiling import start_compilers
from stec.config import Config, DataConfig
from stec.data import DataSet
from stec.encoder import Description
from stec.engine import Loop, Task, make_fabric
from stec.evaluation import health
from stec.evaluation.centroids import centroids
from stec.evaluation.features import extract, extract_frozen
from stec.evaluation.knn import knn_accuracy
from stec.evaluation.linear import fit_linear
from stec.fabric import Fabric
from stec.launching import working
from stec.limits import SOUND
from stec.method import Losses, Method, build, check_pairing, fix_settings, pairing_of
from stec.networks.encoders import create_encoder, library_module
from stec.optim import create_optimizer, scaled_rate, warmup_cosine
from stec.processes import mean, shares
from stec.reporter import Reporter
from stec.run import RunFolder
from stec.task import FEW_STEPS, smaller_batches
from stec.views import ViewBatch, Views

SURE = 400  # images to test: with fewer, accuracies are uncertain by more than five points


class Trainee(nn.Module):
    """What the optimizer sees: the method, and a linear probe that learns beside it without touching it."""

    def __init__(self, method: Method, classes: int) -> None:
        super().__init__()
        self.method = method
        self.probe = nn.Linear(int(method.encoder.dim), classes) if classes else None  # type: ignore[arg-type]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What every step measures."""
        names = ["loss", "identity", "identity_accuracy"]
        parts = {"manipulation": self.method.manipulation, "turn": self.method.turn, "probe_loss": self.probe}
        for name, part in parts.items():
            if part is not None:
                names += [name, f"{name.removesuffix('_loss')}_accuracy"]
        return tuple(names)

    def forward(self, batch: ViewBatch, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The loss to minimise, the metrics of this step as one tensor, features (2B, D) and embeddings (2B, E)."""
        losses: Losses = self.method(batch)
        measured = {**losses._asdict(), "loss": losses.total}
        total = losses.total
        if self.probe is not None:
            logits = self.probe(losses.features).float()
            labels = labels.repeat(2)
            labelled = labels >= 0
            each = F.cross_entropy(logits, labels.clamp(min=0), reduction="none")
            measured["probe_loss"] = mean(each, labelled)
            measured["probe_accuracy"] = mean((logits.argmax(dim=1) == labels).float(), labelled)
            total = total + measured["probe_loss"]
        metrics = torch.stack([measured[name].detach() for name in self.metrics])
        return total, metrics, losses.features, losses.embeddings


def pretrain(config: Config, folder: RunFolder, reporter: Reporter, resume: bool = False) -> dict[str, Any]:
    """Trains, evaluates at the last epoch, writes the run folder, and returns what summary.json holds.

    With several processes, all but the first return nothing.
    """
    if config.method in SOUND:
        from stec.audio.training import pretrain as learn
    else:
        learn = _pretrain
        config = dataclasses.replace(config, manipulation=fix_settings(config.method, config.manipulation))
        check_pairing(config)
    fabric = make_fabric(config)
    start_compilers(config.compile, fabric.device)
    with working(fabric, folder, reporter) as reporter:
        about = f"{config.method}, {config.encoder}, {config.epochs} epochs of {config.data.name}, seed {config.seed}"
        reporter.note(f"{about} -> {folder.path}")
        return learn(config, fabric, folder, reporter, resume)


def _pretrain(config: Config, fabric: Fabric, folder: RunFolder, reporter: Reporter, resume: bool) -> dict[str, Any]:
    dataset = _load(config.data, fabric)
    classes = len(dataset.classes) if dataset.test is not None else 0
    _note_data(dataset, classes, reporter)
    if fabric.device.type == "cpu" and config.encoder.startswith(("resnet18", "resnet50")):
        quick = "the recipe folder-small" if folder.recipe == "folder" else "encoder=resnet-small"
        reporter.note(f"no GPU: {config.encoder} is slow here; {quick} is many times as fast")
    steps = len(dataset.train) // config.batch_size
    if 0 < steps < FEW_STEPS and config.data.source != "shapes":
        few = f"batch_size={config.batch_size} makes {steps} step{'s' if steps > 1 else ''} an epoch"
        more = ", and ".join(["more epochs make more", *smaller_batches(len(dataset.train), steps)])
        reporter.note(f"{few} of {len(dataset.train):,} images, {steps * config.epochs:,} in all: {more}")

    torch.manual_seed(config.seed)
    views, method = build(config)
    task = Pretraining(config, fabric, dataset, views, Trainee(method, classes))
    loop = Loop(config, fabric, folder, reporter, task)
    loop.begin(resume)
    summary: dict[str, Any] = {}
    if classes and config.baselines and fabric.is_global_zero:
        reporter.note("linear accuracy before training ...")
        summary |= task.baselines()
    loop.run()
    if not fabric.is_global_zero:
        return {}
    if classes:
        reporter.note("linear accuracy after training ...")
    summary |= {"method": config.method, **task.evaluate(), **loop.describe()}
    summary |= {"data": dataset.name, "skipped_images": len(dataset.skipped)}
    loop.finish(summary)
    return summary


def _load(config: DataConfig, fabric: Fabric) -> DataSet:
    """The images, kept in the same way by all processes: resident, shards are read in another order than streamed."""
    with _one_writer(config, fabric):
        dataset = data.load(config, fabric.device)
    fits = fabric.all_reduce(torch.tensor(float(dataset.resident), device=fabric.device), reduce_op="min")
    if dataset.resident and not fits:
        del dataset
        dataset = data.load(dataclasses.replace(config, resident="never"), fabric.device)
    return dataset


def _one_writer(config: DataConfig, fabric: Fabric) -> AbstractContextManager[None]:
    """Where loading downloads, the first process does so while the others wait. A cache sees to that by itself."""
    return fabric.rank_zero_first() if config.download else nullcontext()


def _note_data(dataset: DataSet, classes: int, reporter: Reporter) -> None:
    test = f", {len(dataset.test):,} to test" if dataset.test is not None else ""
    missing = "no labelled test images" if dataset.classes else "no labels"
    labels = f"{classes} classes" if classes else f"{missing}, so no probe"
    kept = "resident" if dataset.resident else "streamed"
    size = f"{dataset.size} px"
    reporter.note(f"data: {dataset.name}, {len(dataset.train):,} images to train{test}, {size}, {labels}, {kept}")
    if dataset.test is not None and len(dataset.test) < SURE:
        number, unsure = len(dataset.test), 98 / len(dataset.test) ** 0.5  # 95 % interval, at an accuracy of 50 %
        reporter.note(f"only {number:,} images to test: accuracies are uncertain by up to {unsure:.0f} points")
    if dataset.skipped:
        reporter.note(f"data: {len(dataset.skipped)} unreadable file(s) left out")


class Pretraining(Task):
    """Two views of every image, the copy of what was done, and a method that infers it."""

    unit = "views"

    def __init__(self, config: Config, fabric: Fabric, dataset: DataSet, views: Views, trainee: Trainee) -> None:
        self.config, self.fabric, self.dataset, self.views = config, fabric, dataset, views
        self.module = self.trainee = trainee
        self.metrics = trainee.metrics
        self.items, self.fingerprint = len(dataset.train), dataset.fingerprint
        self.units = 2 * config.batch_size
        self.peak = scaled_rate(config.optimizer.rate, config.batch_size)
        self.warmup = round(config.optimizer.warmup_epochs * (self.items // config.batch_size))
        if fabric.world_size > 1:
            views.draw_for_all(shares(config.batch_size, fabric.world_size), fabric.global_rank)

    def batches(self, share: Tensor, size: int) -> Iterator[data.Batch]:
        """Images, their true sizes, and labels."""
        return self.dataset.train.batches(share, size)

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """As the images are quick to read."""
        return self.dataset.train.order(shuffle, batch_size)

    def prepare(self, images: Tensor, sizes: Tensor, labels: Tensor) -> tuple[ViewBatch, Tensor]:
        """Acts."""
        return self.views(images, sizes).channels_last(), labels

    def optimizer(self, rate: Tensor) -> Optimizer:
        """The config's; LARS does not scale the probe's steps."""
        plain = [self.trainee.probe] if self.trainee.probe is not None else []
        steady = self.trainee.method.identity.steady()
        return create_optimizer(self.config.optimizer, self.trainee, rate, plain, steady, self.peak)

    def rate(self, step: int, steps: int) -> float:
        """Linear warm-up, cosine decay, in proportion to the batch."""
        return self.peak * warmup_cosine(step, steps, self.warmup)

    def compiled(self, alone: bool) -> Iterable[nn.Module]:
        """All that is trained; with several processes the encoders alone, as losses exchange rows between them."""
        method = self.trainee.method
        return [self.trainee] if alone else [method.encoder, *method.identity.target_encoders()]

    def unsynchronised(self) -> Iterable[nn.Module]:
        """Those that the identity model names."""
        return self.trainee.method.identity.unsynchronised()

    def after_step(self, progress: Tensor) -> None:
        """Moving averages and queues."""
        self.trainee.method.after_step(progress)

    def watch(self, *shown: Tensor) -> tuple[dict[str, float], str | None]:
        """Health of the features, and whether they collapse."""
        measured = health.measure(*(health.of_all_processes(views) for views in shown))
        guarded = pairing_of(self.config.method).identity != "gaussian"
        return measured._asdict(), health.describe_collapse(measured, guarded) if measured.collapsed else None

    def publish(self, folder: RunFolder, state: dict[str, Tensor]) -> None:
        """The encoder."""
        weights = self.state_of(library_module(self.trainee.method.encoder), state)
        folder.save_encoder(weights, Description.of(self.config).metadata())

    # --- evaluation ---

    def baselines(self) -> dict[str, Any]:
        """What a linear classifier reads from the untrained encoder, and from the pixels themselves."""
        fresh = self._fresh_encoder()
        return {
            "linear_untrained": self._linear(lambda split: extract_frozen(fresh, self.views, split)),
            "linear_pixels": self._linear(lambda split: extract(lambda x: x.flatten(1), self.views, split)),
        }

    def _fresh_encoder(self) -> nn.Module:
        """The encoder as the seed made it, also in a run that was resumed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.config.seed)
            encoder = create_encoder(self.config.encoder)  # the first thing that a method draws
        return encoder.to(self.fabric.device).to(memory_format=torch.channels_last)

    def _linear(self, features: Callable[..., tuple[Tensor, Tensor]]) -> float:
        train, test = features(self.dataset.train), features(self.dataset.test)
        return round(fit_linear(*train, *test, len(self.dataset.classes)).accuracy, 2)

    def evaluate(self) -> dict[str, float | None]:
        """Accuracies of the encoder as it is, and how far views lie from images (Figure 4); none without labels."""
        probe, dataset = self.trainee.probe, self.dataset
        if probe is None or dataset.test is None:
            return dict.fromkeys(("linear_online", "linear", "knn", "centroid_shift", "feature_spread"))
        encoder, classes = self.trainee.method.encoder, len(dataset.classes)
        with self.fabric.autocast():
            train = extract_frozen(encoder, self.views, dataset.train)
            test = extract_frozen(encoder, self.views, dataset.test)
            torch.manual_seed(self.config.seed)  # the same views, also in a run that was resumed
            views = Views(**dataclasses.asdict(self.config.views))  # drawn by this process alone
            acted = extract_frozen(encoder, views, dataset.test, act=True)
        distances = centroids(test[0], acted[0], test[1], dataset.classes)
        with torch.no_grad():
            right = probe(test[0]).argmax(dim=1) == test[1]
        return {
            "linear_online": round(100 * right.float().mean().item(), 2),
            "linear": round(fit_linear(*train, *test, classes).accuracy, 2),
            "knn": round(knn_accuracy(*train, *test, classes), 2),
            "centroid_shift": round(distances.mean_shift, 4),
            "feature_spread": round(distances.scale, 4),
        }
