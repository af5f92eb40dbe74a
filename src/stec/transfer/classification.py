"""Another labelled set of images: a trained encoder classifies it, frozen and fine-tuned, by few labels and by all."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from stec import data, provenance
from stec.compiling import forget_earlier_runs
from stec.config import Config, load
from stec.data import DataSet
from stec.encoder import Description, Encoder
from stec.engine import Loop, Task, make_fabric
from stec.errors import UserError, nearest
from stec.evaluation.features import extract, extract_frozen
from stec.evaluation.linear import fit_linear
from stec.fabric import Fabric
from stec.networks.encoders import library_module
from stec.optim import create_optimizer, scaled_rate, warmup_cosine
from stec.processes import launched
from stec.reporter import Reporter
from stec.run import CONFIG, FINE_TUNING, RunFolder, save_weights
from stec.views import Views

SHARES = (1, 10, 100)  # percent of the training labels
CLASSIFIER = "classifier.safetensors"
_KEYS = ("data", "views", "optimizer", "epochs", "batch_size", "seed", "device", "precision", "compile", "log_every",
         "checkpoint_every", "logger")  # fmt: skip
# Crops and mirroring as in pretraining, but no other colours.
_PLAIN = ("views.jitter_probability=0", "views.grey=0", "views.blur=0", "views.solarize=0", "views.small=0")
_SHORT = ("epochs=30", "batch_size=128", "optimizer.warmup_epochs=1", "checkpoint_every=10", "baselines=false")
_HERE = ("device=auto", "devices=1", "logger=none")  # whatever the run was trained on
_ADAMW = ("optimizer.name=adamw", "optimizer.momentum=0.9", "optimizer.weight_decay=0.05", "optimizer.probe_rate=null")
_RATE, _RATE_OF_TRANSFORMERS = 2e-3, 2e-4  # per 256 images


@dataclasses.dataclass(frozen=True)
class Row:
    """What a share of the labels gives; accuracies in percent on all test images."""

    labels: int  # percent
    images: int
    linear: float
    linear_penalty: float
    fine_tuned: float | None = None
    epochs: int | None = None  # of fine-tuning
    seconds: float | None = None
    run: str | None = None  # the folder of the fine-tuned encoder


def classify(
    encoder: Encoder, config: Config, folder: Path, reporter: Reporter, fine_tune: bool = True, force: bool = False
) -> dict[str, Any]:
    """Classifies with every one of `SHARES`, linearly on frozen features and by fine-tuning all of the encoder.

    The test set has no part in any choice: the linear classifier's penalty is chosen on held-out training images, and
    of fine-tuning the last epoch counts.

    Args:
        encoder: To start from, every time.
        config: As `configure` makes it.
        folder: For a run folder of every fine-tuned encoder. One that is there with the same config is continued.
        reporter: Is told how it goes.
        fine_tune: Whether to; else linear classifiers alone.
        force: Do not continue what is there.
    """
    if math.prod(launched() or ()) > 1:
        raise UserError("a classification takes one process: start it without torchrun or srun")
    fabric = make_fabric(config)
    encoder = encoder.to(fabric.device)
    dataset = data.load(config.data, fabric.device)
    if dataset.test is None:
        raise UserError(f"{dataset.name} has no labelled test images to classify")
    numbers = f"{len(dataset.train):,} images to train, {len(dataset.test):,} to test"
    reporter.note(f"data: {dataset.name}, {numbers}, {len(dataset.classes)} classes")
    labelled = (dataset.train.labels >= 0).nonzero().squeeze(1)
    chosen = {share: choose(dataset.train.labels[labelled], share / 100, config.seed) for share in SHARES}
    settings = {share: _settings(config, share, len(some)) for share, some in chosen.items()}
    if fine_tune and not force:
        for share in SHARES:
            _check_folder(folder / f"{share}-percent", settings[share])
    train, test = (extract_frozen(encoder.network, encoder.views, split) for split in (dataset.train, dataset.test))
    rows = []
    for share, some in chosen.items():
        linear = fit_linear(train[0][some], train[1][some], *test, len(dataset.classes))
        row = Row(share, len(some), round(linear.accuracy, 2), linear.penalty)
        reporter.note(f"{share} % of the labels, {len(some):,} images: linear {linear.accuracy:.1f} %")
        if fine_tune:
            task = FineTuning(settings[share], fabric, encoder, dataset, labelled[some])
            row = dataclasses.replace(row, **_fine_tune(task, folder / f"{share}-percent", reporter, force))
        rows.append(dataclasses.asdict(row))
    return {
        "rows": rows,
        **dataclasses.asdict(encoder.description),
        "data": dataset.name,
        "data_fingerprint": dataset.fingerprint,
        "classes": list(dataset.classes),
        "test_images": len(test[0]),
        "skipped_images": len(dataset.skipped),
        "seed": config.seed,
        **provenance.origin(fabric.device),
    }


def configure(encoder: Encoder, path: Path, place: str | None, words: Sequence[str] = ()) -> Config:
    """The settings of fine-tuning: the run's own data and crops, a short training, and what words change of that.

    Args:
        encoder: To start from. One with layer norms, such as a transformer, gets a smaller rate.
        path: Where it comes from: a run, or a file.
        place: SOURCE:PATH or SOURCE, of other images than the run's.
        words: `key=value`; what the encoder is cannot be changed.
    """
    for word in words:
        key = word.partition("=")[0]
        if key.partition(".")[0] not in _KEYS:
            raise UserError(f"'{word}': not for a classification: {nearest(key, _KEYS)}")
    if place is None and not path.is_dir():
        raise UserError(f"{path} does not say which images to classify: add --data SOURCE:PATH")
    described = encoder.description
    own = [f"encoder={described.encoder}", f"method={described.method}", f"data.size={described.image_size}"]
    own += [f"views.size={described.size}", f"views.test_crop={described.test_crop}"]
    if not path.is_dir():
        own.append("views.area=[0.08,1.0]")
    transformer = any(isinstance(module, nn.LayerNorm) for module in encoder.modules())
    rate = _RATE_OF_TRANSFORMERS if transformer else _RATE
    own += [*_PLAIN, *_SHORT, *_HERE, *_ADAMW, f"optimizer.rate={rate}"]
    if place is not None:
        source, _, root = place.partition(":")
        if source not in data.SOURCES:
            meant = f"did you mean folder:{place}?" if Path(place).is_dir() else nearest(source, data.SOURCES)
            raise UserError(f"--data {place}: {meant}")
        own += [f"data.source={source}", f"data.root={root or 'null'}", "data.limit=null"]
    return load(str(path / CONFIG) if path.is_dir() else "default", [*own, *words])


def choose(labels: Tensor, share: float, seed: int) -> Tensor:
    """Which rows (n,) of labels (N,) are a share of each class, at least one; a larger share has those of a smaller."""
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(rows), generator=generator)
        chosen.append(rows[order[: max(1, round(share * len(rows)))]])
    return torch.cat(chosen).sort().values


class Classifier(nn.Module):
    """What is fine-tuned: the encoder, and a linear layer on it."""

    def __init__(self, network: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.network, self.head = network, head

    def forward(self, views: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the metrics of this step."""
        logits = self.logits(views)
        loss = F.cross_entropy(logits, labels)
        right = (logits.argmax(dim=1) == labels).float().mean()
        return loss, torch.stack([loss.detach(), right])

    def logits(self, views: Tensor) -> Tensor:
        """(B, classes) of views (B, 3, S, S)."""
        return self.head(self.network(views)).float()


class FineTuning(Task):
    """All of an encoder is trained on labelled images, with a linear layer on it that starts at zero."""

    metrics = ("loss", "train_accuracy")

    def __init__(
        self,
        config: Config,
        fabric: Fabric,
        encoder: Encoder,
        dataset: DataSet,
        rows: Tensor,
    ) -> None:
        self.config, self.fabric, self.dataset, self.rows = config, fabric, dataset, rows
        self.views = Views(**dataclasses.asdict(config.views))
        head = nn.Linear(encoder.dim, len(dataset.classes), device=fabric.device)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        self.module = self.classifier = Classifier(copy.deepcopy(encoder.network).requires_grad_(), head)
        self.items, self.units = len(rows), config.batch_size
        self.fingerprint = f"{dataset.fingerprint}-{_digest(library_module(encoder.network).state_dict())}"
        self.warmup = round(config.optimizer.warmup_epochs * (self.items // config.batch_size))

    def batches(self, share: Tensor, size: int) -> Iterator[data.Batch]:
        """Images, their true sizes, and labels."""
        return self.dataset.train.batches(self.rows[share], size)

    def prepare(self, images: Tensor, sizes: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Crops and mirrors."""
        views = self.views.render(images, self.views.sample(sizes))
        return views.contiguous(memory_format=torch.channels_last), labels

    def optimizer(self, rate: Tensor) -> Optimizer:
        """The config's."""
        return create_optimizer(self.config.optimizer, self.module, rate)

    def rate(self, step: int, steps: int) -> float:
        """Linear warm-up, cosine decay, in proportion to the batch."""
        peak = scaled_rate(self.config.optimizer.rate, self.config.batch_size)
        return peak * warmup_cosine(step, steps, self.warmup)

    def compiled(self, alone: bool) -> Iterable[nn.Module]:
        """Encoder and head."""
        return [self.module]

    def publish(self, folder: RunFolder, state: dict[str, Tensor]) -> None:
        """The encoder, and the linear layer on it."""
        weights = self.state_of(library_module(self.classifier.network), state)
        folder.save_encoder(weights, Description.of(self.config).metadata())
        classes = json.dumps(list(self.dataset.classes))
        save_weights(folder.path / CLASSIFIER, self.state_of(self.classifier.head, state), {"classes": classes})

    def evaluate(self) -> float:
        """Accuracy in percent on the test images."""
        assert self.dataset.test is not None
        self.module.eval()
        with self.fabric.autocast():
            logits, labels = extract(
                lambda x: self.classifier.logits(x.contiguous(memory_format=torch.channels_last)),
                self.views,
                self.dataset.test,
            )
        return 100 * (logits.argmax(dim=1) == labels).double().mean().item()


def _fine_tune(task: FineTuning, path: Path, reporter: Reporter, force: bool) -> dict[str, Any]:
    """Trains or continues. -> what a row tells of it"""
    forget_earlier_runs()
    resume = (path / CONFIG).is_file() and not force
    folder = RunFolder.open(path) if resume else RunFolder.new(path, FINE_TUNING, force)
    loop = Loop(task.config, task.fabric, folder, reporter, task)
    loop.begin(resume)
    loop.run()
    accuracy = round(task.evaluate(), 2)
    loop.finish({"fine_tuned": accuracy, "data": task.dataset.name, **loop.describe()})
    found = {"fine_tuned": accuracy, "epochs": task.config.epochs, "seconds": round(loop.seconds, 1)}
    return found | {"run": str(path)}


def _settings(config: Config, share: int, images: int) -> Config:
    """Of one share: with fewer images more epochs, by the root of how many fewer, at the same rate in every step."""
    factor = math.sqrt(100 / share)
    batch_size = min(config.batch_size, images)
    rate = config.optimizer.rate * config.batch_size / batch_size
    warmup = config.optimizer.warmup_epochs * factor
    optimizer = dataclasses.replace(config.optimizer, rate=rate, warmup_epochs=warmup)
    return dataclasses.replace(
        config, epochs=math.ceil(config.epochs * factor), batch_size=batch_size, optimizer=optimizer
    )


def _check_folder(path: Path, settings: Config) -> None:
    """Refuses what was fine-tuned otherwise, before any work."""
    if (path / CONFIG).is_file() and RunFolder.open(path).config() != settings:
        raise UserError(f"{path} was fine-tuned with other settings: replace it with --force, or name another --out")


def _digest(weights: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for value in weights.values():
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:8]
