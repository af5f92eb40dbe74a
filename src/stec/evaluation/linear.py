"""Offline linear evaluation: multinomial logistic regression on frozen features."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.errors import UserError

# Strongest first: each fit starts at the solution of the one before, the first and easiest at zero.
PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
_PATIENCE = 2  # penalties in a row that are worse than the best before the weaker ones are not tried any more
_BLOCK = 65536  # rows whose logits are held at once


@dataclass(frozen=True)
class LinearResult:
    """What a linear classifier on frozen features reaches; accuracies in percent."""

    accuracy: float  # on the test set
    train_accuracy: float
    penalty: float  # the L2 penalty chosen on held-out training rows
    class_accuracy: tuple[float, ...]  # on the test set, by class; nan for a class without test rows
    predicted: Tensor = field(repr=False, compare=False)  # (M',) of the test rows that have a label


@dataclass(frozen=True)
class _Classifier:
    weight: Tensor  # (classes, D)
    bias: Tensor  # (classes,)

    def predict(self, features: Tensor) -> Tensor:
        """Classes (N,) of features (N, D)."""
        return torch.cat([self.logits(block).argmax(1) for block in features.split(_BLOCK)])

    def logits(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)


def fit_linear(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor, classes: int
) -> LinearResult:
    """Train a linear classifier on frozen features and test it.

    Features are standardised with the mean and standard deviation of the training rows. The classifier minimises
    the mean cross-entropy + penalty / 2 * |W|^2 by full-batch L-BFGS. The penalty is the one of `PENALTIES`, strongest
    first, that is best on a tenth of the training rows, held out, until weaker ones only make it worse; then all
    training rows are fitted again. The test set has no part in any choice, and the same features always give the same
    result.

    Args:
        train_features: (N, D), on any device, which then does all the work.
        train_labels: (N,) integers; rows with label -1 have none and are left out.
        test_features: (M, D).
        test_labels: (M,), likewise.
        classes: Number of classes.
    """
    with torch.no_grad(), torch.autocast(train_features.device.type, enabled=False):
        train, labels = labelled_rows(train_features, train_labels, classes, "training")
        test, test_labels = labelled_rows(test_features.to(train), test_labels, classes, "test")
        if len(train) < 2:
            raise UserError("linear evaluation needs at least two labelled training images")
        mean, scale = _moments(train)
        penalty, start = _choose_penalty(train, labels, classes, mean, scale)
        train, test = (_standardise(features.clone(), mean, scale) for features in (train, test))
        classifier = _minimise(train, labels, penalty, start)
        predicted = classifier.predict(test)
        correct = predicted == test_labels
        train_correct = classifier.predict(train) == labels
    by_class = [_percent(correct[test_labels == label]) for label in range(classes)]
    return LinearResult(_percent(correct), _percent(train_correct), penalty, tuple(by_class), predicted)


def labelled_rows(features: Tensor, labels: Tensor, classes: int, which: str) -> tuple[Tensor, Tensor]:
    """The rows that have a label (not -1), as float32, and their labels; checked.

    Args:
        features: (N, D).
        labels: (N,).
        classes: Number of classes.
        which: What the error message calls this set.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        shapes = f"{tuple(features.shape)} and {tuple(labels.shape)}"
        raise UserError(f"{which} features and labels are {shapes}, expected (N, D) and (N,)")
    labels = labels.to(features.device, torch.long)
    if (labels != -1).all():
        features = features.float()
    else:
        features, labels = features[labels != -1].float(), labels[labels != -1]
    if len(labels) == 0:
        raise UserError(f"no {which} image has a label")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise UserError(f"{which} labels go from {low} to {high}, expected 0 to {classes - 1} (or -1 for none)")
    if not features.isfinite().all():
        raise UserError(f"{which} features are not finite: training has diverged")
    return features, labels


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (D,); the deviation of a constant feature counts as 1."""
    deviation, mean = torch.std_mean(features, dim=0, correction=0)
    # A constant column has a deviation of a few rounding errors, not exactly 0.
    constant = deviation <= 1e-6 * mean.abs()
    return mean, torch.where(constant, 1.0, deviation)


def _standardise(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """In place: beside the features of all images there is one copy of them at a time."""
    return features.sub_(mean).div_(scale)


def _choose_penalty(
    features: Tensor, labels: Tensor, classes: int, mean: Tensor, scale: Tensor
) -> tuple[float, _Classifier]:
    """The penalty with the best accuracy on held-out rows (ties: lower cross-entropy), and its classifier."""
    # At random, as data sets come sorted or in cycles of classes; on the CPU, to be the same everywhere.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
    held, kept = order.tensor_split([max(1, len(labels) // 10)])
    fit_features, held_features = (_standardise(features[rows], mean, scale) for rows in (kept, held))
    fit_labels, held_labels = labels[kept], labels[held]

    classifier = _Classifier(features.new_zeros(classes, features.shape[1]), features.new_zeros(classes))
    best: tuple[tuple[float, float], float, _Classifier] | None = None
    worse = 0
    for penalty in PENALTIES:
        classifier = _minimise(fit_features, fit_labels, penalty, classifier)
        correct = classifier.predict(held_features) == held_labels
        loss = F.cross_entropy(classifier.logits(held_features), held_labels).item()
        score = (_percent(correct), -loss)
        if best is None or score > best[0]:
            best, worse = (score, penalty, classifier), 0
        else:
            worse += 1
            if worse == _PATIENCE:
                break
    assert best is not None
    return best[1:]


def _minimise(
    features: Tensor, labels: Tensor, penalty: float, start: _Classifier, iterations: int = 300
) -> _Classifier:
    """The minimum, by L-BFGS from `start`, of the mean cross-entropy + penalty / 2 * |W|^2.

    Features that are much alike take hundreds of steps: stopped early, a weak penalty seems worse than it is.
    """
    weight, bias = start.weight.clone(), start.bias.clone()
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        max_eval=2 * iterations,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        loss, weight.grad, bias.grad = _loss_and_gradients(features, labels, penalty, _Classifier(weight, bias))
        return loss

    optimizer.step(closure)
    return _Classifier(weight, bias)


def _loss_and_gradients(
    features: Tensor, labels: Tensor, penalty: float, classifier: _Classifier
) -> tuple[Tensor, Tensor, Tensor]:
    """The objective and its gradients for weight and bias, written out to be summed over blocks of rows."""
    count = len(labels)
    loss = penalty / 2 * classifier.weight.square().sum()
    weight_gradient = penalty * classifier.weight
    bias_gradient = torch.zeros_like(classifier.bias)
    for x, y in zip(features.split(_BLOCK), labels.split(_BLOCK), strict=True):
        log_p = F.log_softmax(classifier.logits(x), dim=1)  # (rows, classes)
        loss = loss + F.nll_loss(log_p, y, reduction="sum") / count
        residual = (log_p.exp() - F.one_hot(y, log_p.shape[1])) / count
        weight_gradient = weight_gradient.addmm(residual.T, x)
        bias_gradient = bias_gradient + residual.sum(0)
    return loss, weight_gradient, bias_gradient


def _percent(correct: Tensor) -> float:
    """Share of true values in percent; nan of none."""
    return 100 * correct.double().mean().item()
