"""The one loop: act, infer the action, step, and tell how it goes. For all methods.

    summary = pretrain(config, folder, reporter)

Several processes: `torchrun --nproc-per-node 8 -m stec pretrain RECIPE devices=8`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stec import data, provenance
from stec.compiling import compile_network, compiles
from stec.config import Config
from stec.data import DataSet
from stec.encoder import Description
from stec.errors import UserError
from stec.evaluation import health
from stec.evaluation.features import extract, extract_frozen
from stec.evaluation.knn import knn_accuracy
from stec.evaluation.linear import fit_linear
from stec.functional import masked_mean
from stec.method import Losses, Method, build, check_pairing, fix_settings
from stec.networks.encoders import create_encoder, library_module
from stec.networks.synchrony import synchronise_batch_norms
from stec.optim import LARS, parameter_groups, scaled_rate, warmup_cosine
from stec.replay import Replay
from stec.reporter import Nobody, Progress, Reporter
from stec.run import RunFolder, publish
from stec.views import ViewBatch, Views

try:
    from lightning_fabric import Fabric
except ImportError:  # the same code inside of the larger `lightning` package
    from lightning.fabric import Fabric  # type: ignore[no-redef]

METRICS = (
    "loss",
    "identity",
    "manipulation",
    "identity_accuracy",
    "manipulation_accuracy",
    "turn",
    "turn_accuracy",
    "probe_loss",
    "probe_accuracy",
)


class Trainee(nn.Module):
    """What the optimizer sees: the method, and a linear probe that learns beside it without touching it."""

    def __init__(self, method: Method, classes: int) -> None:
        super().__init__()
        self.method = method
        self.probe = nn.Linear(int(method.encoder.dim), classes) if classes else None  # type: ignore[arg-type]

    def forward(self, batch: ViewBatch, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The loss to minimise, the METRICS of this step as one tensor, features (2B, D) and embeddings (2B, E)."""
        losses: Losses = self.method(batch)
        probe_loss = probe_accuracy = torch.zeros_like(losses.identity)
        if self.probe is not None:
            logits = self.probe(losses.features).float()
            labels = labels.repeat(2)
            labelled = labels >= 0
            each = F.cross_entropy(logits, labels.clamp(min=0), reduction="none")
            probe_loss = masked_mean(each, labelled)
            probe_accuracy = masked_mean((logits.argmax(dim=1) == labels).float(), labelled)
        metrics = [losses.total.detach(), *losses[1:7], probe_loss.detach(), probe_accuracy]
        return losses.total + probe_loss, torch.stack(metrics), losses.features, losses.embeddings


def pretrain(config: Config, folder: RunFolder, reporter: Reporter, resume: bool = False) -> dict[str, Any]:
    """Trains, evaluates at the last epoch, writes the run folder, and returns what summary.json holds.

    With several processes, all but the first return nothing.
    """
    config = dataclasses.replace(config, manipulation=fix_settings(config.method, config.manipulation))
    check_pairing(config)
    fabric = make_fabric(config)
    if not fabric.is_global_zero:
        reporter = Nobody()
    about = f"{config.method}, {config.encoder}, {config.epochs} epochs of {config.data.source}, seed {config.seed}"
    reporter.note(f"{about} -> {folder.path}")
    dataset = data.load(config.data, fabric.device)
    if config.batch_size > len(dataset.train):
        raise UserError(
            f"batch_size={config.batch_size} is larger than the training set ({len(dataset.train)} images): "
            "lower batch_size"
        )
    if config.batch_size % fabric.world_size:
        raise UserError(f"batch_size={config.batch_size} does not divide over {fabric.world_size} processes")
    classes = len(dataset.classes) if dataset.test is not None else 0
    _note_data(dataset, classes, reporter)

    torch.manual_seed(config.seed)
    views, method = build(config)
    trainee = Trainee(method, classes)
    loop = Loop(config, fabric, folder, reporter, dataset, views, trainee)
    summary: dict[str, Any] = {}
    if resume:
        loop.resume()
    elif fabric.is_global_zero:
        folder.begin(config)
    if classes and config.baselines and fabric.is_global_zero:
        reporter.note("linear accuracy before training ...")
        summary |= loop.baselines()
    loop.run()
    if not fabric.is_global_zero:
        return {}
    summary |= loop.evaluate()
    folder.save_summary(summary)
    return summary


def make_fabric(config: Config) -> Fabric:
    """Device, precision and processes as the config asks for."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: no CUDA device is available here; use device=cpu or device=auto")
    cuda = config.device != "cpu" and torch.cuda.is_available()
    bf16 = config.precision == "bf16" or (config.precision == "auto" and cuda and torch.cuda.is_bf16_supported())
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=config.devices,
        precision="bf16-mixed" if bf16 else "32-true",
    )
    fabric.launch()
    return fabric


def _note_data(dataset: DataSet, classes: int, reporter: Reporter) -> None:
    test = f", {len(dataset.test):,} to test" if dataset.test is not None else ""
    labels = f"{classes} classes" if classes else "no labels, so no probe"
    kept = "resident" if dataset.resident else "streamed"
    size = f"{dataset.size} px"
    reporter.note(f"data: {dataset.name}, {len(dataset.train):,} images to train{test}, {size}, {labels}, {kept}")
    if dataset.skipped:
        reporter.note(f"data: {len(dataset.skipped)} unreadable image(s) left out")


class Loop:
    """The state of one training: what `pretrain` sets up, runs, and evaluates."""

    def __init__(
        self,
        config: Config,
        fabric: Fabric,
        folder: RunFolder,
        reporter: Reporter,
        dataset: DataSet,
        views: Views,
        trainee: Trainee,
    ) -> None:
        self.config, self.fabric, self.folder, self.reporter = config, fabric, folder, reporter
        self.dataset, self.views, self.trainee = dataset, views, trainee
        self.rate = scaled_rate(config.optimizer.rate, config.batch_size)
        plain = [trainee.probe] if trainee.probe is not None else []
        settings = config.optimizer
        groups = parameter_groups(trainee, settings.weight_decay, settings.trust, plain)
        # Rate and progress change from step to step on the device: the host never waits, and a step can be replayed.
        self.rate_now = torch.zeros((), device=fabric.device)
        self.progress = torch.zeros((), dtype=torch.float64, device=fabric.device)
        optimizer = LARS(groups, lr=self.rate_now, momentum=settings.momentum)
        if fabric.world_size > 1 and fabric.device.type == "cuda":  # PyTorch has no synchronised batch norm for CPUs
            synchronise_batch_norms(trainee, trainee.method.identity.unsynchronised())
        self.act: Callable[[Tensor, Tensor], ViewBatch] = lambda images, sizes: views(images, sizes).channels_last()
        self.step_on_device: Callable[..., tuple[Tensor, ...]] = self._step
        if compiles(config, fabric.device):
            torch.backends.cudnn.benchmark = True  # of convolutions, too, the fastest kernels are picked by trying
            for network in self._compiled_as_one():
                compile_network(network, config)
            self.act = torch.compile(self.act, dynamic=False)
            if fabric.device.type == "cuda" and fabric.world_size == 1:
                self.step_on_device = Replay(self._step)
        self.model, self.optimizer = fabric.setup(trainee, optimizer)
        self.steps_per_epoch = len(dataset.train) // config.batch_size
        self.steps = self.steps_per_epoch * config.epochs
        self.warmup = round(config.optimizer.warmup_epochs * self.steps_per_epoch)
        self.epoch = self.step = 0
        self.seconds = 0.0  # spent training, over all resumptions
        self.steady: list[float] = []  # seconds per step in every interval
        self.pending: list[Tensor] = []  # metrics not yet fetched from the device
        self.shown: list[Tensor] = []  # features (2B, D) and embeddings (2B, E) of the last step
        self.collapsed = False  # and the reporter knows
        self.since = 0.0

    def _compiled_as_one(self) -> list[nn.Module]:
        """All that is trained; with several processes the encoders alone, as losses exchange rows between them."""
        method = self.trainee.method
        alone = self.fabric.world_size == 1
        return [self.trainee] if alone else [method.encoder, *method.identity.target_encoders()]

    # --- training ---

    def run(self) -> None:
        """All epochs that are left."""
        self.model.train()
        self.since = time.perf_counter()
        while self.epoch < self.config.epochs:
            for batch in self._batches():
                self.train(batch)
                if len(self.pending) == self.config.log_every:
                    self._fetch()
            self.epoch += 1
            if self.epoch % self.config.checkpoint_every == 0 or self.epoch == self.config.epochs:
                self._fetch()
                self._save()

    def _batches(self) -> Iterator[data.Batch]:
        """This process's share of an epoch, in an order that seed and epoch alone decide."""
        seed, rank, world = self.config.seed, self.fabric.global_rank, self.fabric.world_size
        shuffle = torch.Generator().manual_seed(_mix(seed, self.epoch))
        order = torch.randperm(len(self.dataset.train), generator=shuffle)
        torch.manual_seed(_mix(seed, self.epoch, rank + 1))  # the actions; a resumed run repeats them exactly
        share = order[: self.steps_per_epoch * self.config.batch_size][rank::world]
        yield from self.dataset.train.batches(share, self.config.batch_size // world)

    def train(self, batch: data.Batch) -> None:
        """One step."""
        self.rate_now.fill_(self._rate())
        self.step += 1
        self.progress.fill_(self.step / self.steps)
        metrics, *self.shown = self.step_on_device(batch.images, batch.sizes, batch.labels)
        self.pending.append(metrics.clone())

    def _step(self, images: Tensor, sizes: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """All that the device does in a step: the METRICS, features and embeddings."""
        loss, *shown = self.model(self.act(images, sizes), labels)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.optimizer.step()
        self.trainee.method.after_step(self.progress)
        return tuple(shown)

    def _rate(self) -> float:
        return self.rate * warmup_cosine(self.step, self.steps, self.warmup)

    def _fetch(self) -> None:
        """Brings the metrics of the last steps to the host: the only place where the loop waits for the device."""
        if not self.pending:
            return
        values = torch.stack(self.pending)  # (steps, METRICS)
        finite = values[:, 0].isfinite()
        mean, good = values.mean(dim=0).tolist(), finite.tolist()
        now = time.perf_counter()
        elapsed, self.since = now - self.since, now
        self.seconds += elapsed
        self.steady.append(elapsed / len(good))
        if not all(good):
            self._diverged(self.step - len(good) + good.index(False))
        self.pending = []
        views_per_second = 2 * self.config.batch_size / self.steady[-1]
        metrics = dict(zip(METRICS, mean, strict=True))
        method = self.trainee.method
        parts = {"manipulation": method.manipulation, "turn": method.turn, "probe": self.trainee.probe}
        absent = tuple(name for name, part in parts.items() if part is None)
        metrics = {name: value for name, value in metrics.items() if not name.startswith(absent)}
        metrics |= self._health()
        metrics |= {"rate": self._rate(), "views_per_second": views_per_second}
        epoch = self.step / self.steps_per_epoch
        if self.fabric.is_global_zero:
            record = {
                "step": self.step,
                "epoch": round(epoch, 4),
                "seconds": round(self.seconds, 3),
                **metrics,
            }
            self.folder.add_metrics(record)
            begun = -(-self.step // self.steps_per_epoch)
            progress = Progress(begun, self.config.epochs, self.step, self.steps, self.seconds, metrics)
            self.reporter.progress(progress)

    def _health(self) -> dict[str, float]:
        """Of the last step's features in this process. A collapse that outlasts the warm-up is noted once."""
        measured = health.measure(*self.shown)
        if measured.collapsed and not self.collapsed and self.step > self.warmup:
            self.reporter.note(health.describe_collapse(measured))
            self.collapsed = True
        return measured._asdict()

    def _diverged(self, step: int) -> None:
        rate = self.rate * warmup_cosine(step, self.steps, self.warmup)
        kept = f"{self.folder.checkpoint} is from before" if self.folder.checkpoint.exists() else "no checkpoint yet"
        raise UserError(
            f"the loss became NaN or infinite at step {step} (learning rate {rate:.4g}; {kept}): "
            "lower optimizer.rate or lengthen optimizer.warmup_epochs"
        )

    # --- checkpoints ---

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "epoch": self.epoch,
            "step": self.step,
            "seconds": self.seconds,
            "data_fingerprint": self.dataset.fingerprint,
        }

    def _save(self) -> None:
        part = self.folder.checkpoint.with_name(".checkpoint.pt.part")
        self.fabric.save(part, self._state())
        if self.fabric.is_global_zero:
            weights = library_module(self.trainee.method.encoder).state_dict()
            self.folder.save_encoder(weights, Description.of(self.config).metadata())
            publish(part, self.folder.checkpoint)  # last: a run that has it has all

    def resume(self) -> None:
        """Continues from the last checkpoint, if there is one."""
        if not self.folder.checkpoint.exists():
            self.reporter.note("no checkpoint yet: starting from the beginning")
            self.folder.forget_metrics_after(0)
            return
        state = self._state()
        try:
            self.fabric.load(self.folder.checkpoint, state)
        except (RuntimeError, KeyError, EOFError) as error:
            raise UserError(f"{self.folder.checkpoint} cannot be read: {str(error).splitlines()[0]}") from None
        if state["data_fingerprint"] != self.dataset.fingerprint:
            raise UserError(f"the data changed since {self.folder.checkpoint} was written; start a new run")
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_now  # loading has put another tensor in its place
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self.folder.forget_metrics_after(self.step)
        self.reporter.note(f"resumed at epoch {self.epoch} of {self.config.epochs}")

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

    def evaluate(self) -> dict[str, Any]:
        """The last epoch's accuracies, and where they come from."""
        config, dataset = self.config, self.dataset
        encoder = self.trainee.method.encoder
        results: dict[str, Any] = {"linear_online": None, "linear": None, "knn": None}
        if self.trainee.probe is not None and dataset.test is not None:
            self.reporter.note("linear accuracy after training ...")
            with self.fabric.autocast():
                train = extract_frozen(encoder, self.views, dataset.train)
                test = extract_frozen(encoder, self.views, dataset.test)
            classes = len(dataset.classes)
            with torch.no_grad():
                right = self.trainee.probe(test[0]).argmax(dim=1) == test[1]
            results["linear_online"] = round(100 * right.float().mean().item(), 2)
            results["linear"] = round(fit_linear(*train, *test, classes).accuracy, 2)
            results["knn"] = round(knn_accuracy(*train, *test, classes), 2)
        steady = sorted(self.steady)[len(self.steady) // 2] if self.steady else None  # median, past compilation
        metrics = self.folder.metrics()
        return {
            "method": config.method,
            "recipe": self.folder.recipe,
            "seed": config.seed,
            "epochs": config.epochs,
            **results,
            "final_metrics": metrics[-1] if metrics else None,
            "views_per_second": round(2 * config.batch_size / steady) if steady else None,
            "peak_memory_bytes": provenance.peak_memory_bytes(self.fabric.device),
            "seconds": round(self.seconds, 1),
            "data": dataset.name,
            "data_fingerprint": dataset.fingerprint,
            "device": provenance.hardware(self.fabric.device),
            "processes": self.fabric.world_size,
            "commit": provenance.commit(),
            "skipped_images": len(dataset.skipped),
            **provenance.versions(),
        }


def _mix(*numbers: int) -> int:
    """One seed from several numbers, well apart from its neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])
