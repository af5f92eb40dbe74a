"""How good is a trained encoder? Classifiers on its frozen features, by the labels of a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stec import data, provenance
from stec.config import Config, ViewsConfig, load
from stec.data import Split
from stec.encoder import Encoder
from stec.errors import UserError
from stec.evaluation.features import extract
from stec.evaluation.knn import knn_accuracy
from stec.evaluation.linear import fit_linear
from stec.evaluation.protocol import fit_sgd, rate_of
from stec.loading import compare_data
from stec.run import CONFIG, RunFolder
from stec.views import Views


def probe(
    encoder: Encoder,
    path: Path,
    words: Sequence[str] = (),
    k: int = 200,
    sgd_epochs: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Accuracies in percent on unaugmented test images, and what they were measured on.

    `linear` is logistic regression by L-BFGS, `knn` a weighted vote of the nearest training images, and `linear_sgd`
    the paper's protocol for STL-10. The test set has no part in any choice.

    Args:
        encoder: On the device that is to do the work.
        path: Where it comes from: a run, whose images it is probed with, or a file, with `words` that name images.
        words: `data.key=value`, to probe with other images than the run's, or with the same in another place.
        k: Neighbours that vote.
        sgd_epochs: Of the paper's protocol, where 2,000 are usual; 0 for none.
        watch: Is told how many of these are done, and of how many.
    """
    config = _config(encoder, path, words)
    device = next(encoder.parameters()).device
    dataset = data.load(config.data, device)
    if dataset.test is None:
        raise UserError(f"{dataset.name} has no labelled test images to probe with: name others, as data.root=PATH")
    if path.is_dir() and not words:
        compare_data(RunFolder.open(path), dataset, config.data.source)
    train, test = (extract(_network(encoder), encoder.views, split) for split in (dataset.train, dataset.test))
    classes = len(dataset.classes)
    linear = fit_linear(*train, *test, classes)
    result: dict[str, Any] = {
        "linear": round(linear.accuracy, 2),
        "linear_train": round(linear.train_accuracy, 2),
        "linear_penalty": linear.penalty,
        "linear_by_class": {
            name: round(accuracy, 2) if accuracy == accuracy else None  # nan: no test image of this class
            for name, accuracy in zip(dataset.classes, linear.class_accuracy, strict=True)
        },
        "knn": round(knn_accuracy(*train, *test, classes, k), 2),
        "knn_k": min(k, len(train[0])),
    }
    if sgd_epochs:
        classifier = _train_by_sgd(encoder, config.views, dataset.train, classes, sgd_epochs, watch)
        with torch.no_grad():
            right = classifier(test[0]).argmax(dim=1) == test[1]
        result |= {"linear_sgd": round(100 * right.double().mean().item(), 2), "linear_sgd_epochs": sgd_epochs}
    return result | {
        **dataclasses.asdict(encoder.description),
        "data": dataset.name,
        "data_fingerprint": dataset.fingerprint,
        "train_images": len(train[0]),
        "test_images": len(test[0]),
        "skipped_images": len(dataset.skipped),
        **provenance.origin(device),
    }


def _config(encoder: Encoder, path: Path, words: Sequence[str]) -> Config:
    """The run's own; of a file, the usual one for the images that words name."""
    for word in words:
        if not word.startswith("data."):
            raise UserError(f"'{word}': a probe takes data.KEY=VALUE alone")
    if path.is_dir():
        others = any(word.startswith("data.source=") for word in words)
        return load(str(path / CONFIG), [*(["data.limit=null"] if others else []), *words])
    if not words:
        raise UserError(f"{path} does not say which images to probe with: add data.source=NAME and data.root=PATH")
    described = encoder.description
    seen = (f"data.size={described.image_size}", f"views.size={described.size}", "views.area=[0.08,1.0]")
    return load("default", [*seen, *words])


def _network(encoder: Encoder) -> Callable[[Tensor], Tensor]:
    return lambda views: encoder.network(views.contiguous(memory_format=torch.channels_last)).float()


def _train_by_sgd(
    encoder: Encoder,
    settings: ViewsConfig,
    split: Split,
    classes: int,
    epochs: int,
    watch: Callable[[int, int], None],
) -> nn.Linear:
    """The paper's protocol, in which images are cropped and mirrored as in pretraining, but not recoloured."""
    plain = dataclasses.replace(settings, jitter_probability=0.0, grey=0.0, blur=0.0, solarize=0.0)
    views, network = Views(**dataclasses.asdict(plain)), _network(encoder)
    torch.manual_seed(0)
    classifier = nn.Linear(encoder.dim, classes).to(next(encoder.parameters()).device)
    fit_sgd(
        lambda images, sizes: network(views.render(images, views.sample(sizes))),
        split,
        classifier,
        rate_of(encoder.description.method),
        epochs,
        watch,
    )
    return classifier
