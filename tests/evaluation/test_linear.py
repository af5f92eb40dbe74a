import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from stec.errors import UserError
from stec.evaluation import fit_linear, linear


def clusters(spread, rows=900, dim=12, classes=3, seed=0):
    """Gaussian clusters: features and labels of 2/3 training rows and 1/3 test rows."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    features = centres[labels] + spread * torch.randn(rows, dim, generator=generator)
    cut = 2 * rows // 3
    return features[:cut], labels[:cut], features[cut:], labels[cut:]


def scipy_optimum(features, labels, classes, penalty):
    """The same objective, minimised in float64 by scipy with gradients of its own writing."""
    x = np.hstack([features.double().numpy(), np.ones((len(features), 1))])
    target = np.eye(classes)[labels.numpy()]
    decay = np.ones((classes, x.shape[1]))
    decay[:, -1] = 0

    def objective(flat):
        w = flat.reshape(classes, -1)
        logits = x @ w.T
        log_z = logsumexp(logits, axis=1, keepdims=True)
        loss = -((logits - log_z) * target).sum() / len(x) + penalty / 2 * (decay * w * w).sum()
        gradient = (np.exp(logits - log_z) - target).T @ x / len(x) + penalty * decay * w
        return loss, gradient.ravel()

    start = np.zeros(classes * x.shape[1])
    best = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    return best.fun, best.x.reshape(classes, -1)


@pytest.mark.parametrize("penalty", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("block", [65536, 100])
def test_the_classifier_is_the_optimum_that_scipy_finds(monkeypatch, penalty, block):
    monkeypatch.setattr(linear, "_BLOCK", block)
    features, labels, _, _ = clusters(spread=1.5)
    start = linear._Classifier(torch.zeros(3, 12), torch.zeros(3))
    found = linear._minimise(features, labels, penalty, start)
    loss, _, _ = linear._loss_and_gradients(features, labels, penalty, found)
    expected_loss, expected = scipy_optimum(features, labels, 3, penalty)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-6)
    np.testing.assert_allclose(found.weight, expected[:, :-1], atol=2e-3)
    # the penalty leaves the biases free, and only their differences matter
    np.testing.assert_allclose(found.bias - found.bias[0], expected[:, -1] - expected[0, -1], atol=2e-3)


def test_the_optimum_is_reached_where_features_are_much_alike_too():
    # As those of networks are. After 50 steps the loss is still 0.86 here, where 0.66 can be reached.
    generator = torch.Generator().manual_seed(0)
    spread = torch.arange(1, 41).pow(-1.5)
    causes = torch.randn(1500, 40, generator=generator)
    features = (causes * spread) @ torch.linalg.qr(torch.randn(40, 40, generator=generator)).Q
    labels = (causes @ torch.randn(40, 5, generator=generator) + torch.randn(1500, 5, generator=generator)).argmax(1)
    scaled = torch.from_numpy(StandardScaler().fit_transform(features)).float()
    start = linear._Classifier(torch.zeros(5, 40), torch.zeros(5))
    loss, _, _ = linear._loss_and_gradients(scaled, labels, 1e-4, linear._minimise(scaled, labels, 1e-4, start))
    judge = LogisticRegression(C=1 / (len(labels) * 1e-4), tol=1e-8, max_iter=10_000).fit(scaled.double(), labels)
    found = linear._Classifier(torch.from_numpy(judge.coef_), torch.from_numpy(judge.intercept_))
    expected, _, _ = linear._loss_and_gradients(scaled.double(), labels, 1e-4, found)
    assert loss.item() == pytest.approx(expected.item(), rel=2e-3)


@pytest.mark.parametrize(("spread", "classes"), [(3.0, 3), (2.5, 10)])
def test_accuracy_agrees_with_scikit_learn(spread, classes):
    train, labels, test, test_labels = clusters(spread, rows=6000, dim=24, classes=classes)
    found = fit_linear(train, labels, test, test_labels, classes)
    scaler = StandardScaler().fit(train.double())
    # Its objective is a sum over rows: C = 1 / (rows * penalty).
    judge = LogisticRegression(C=1 / (len(train) * found.penalty), tol=1e-8, max_iter=10_000)
    judge.fit(scaler.transform(train.double()), labels)
    expected = 100 * judge.score(scaler.transform(test.double()), test_labels)
    assert 40 < expected < 98
    assert found.accuracy == pytest.approx(expected, abs=0.3)


def test_gradients_are_those_of_autograd():
    features, labels, _, _ = clusters(spread=1.0, rows=60)
    weight = torch.randn(3, 12, requires_grad=True)
    bias = torch.randn(3, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(features @ weight.T + bias, labels) + 0.05 * weight.square().sum()
    loss.backward()
    with torch.no_grad():
        found = linear._loss_and_gradients(features, labels, 0.1, linear._Classifier(weight, bias))
    torch.testing.assert_close(found, (loss.detach(), weight.grad, bias.grad))


def test_separable_clusters_are_told_apart():
    result = fit_linear(*clusters(spread=0.1), classes=3)
    assert result.accuracy == 100
    assert result.train_accuracy == 100
    assert result.class_accuracy == (100, 100, 100)
    assert result.penalty == linear.PENALTIES[-1], "of those that are all right, the surest"


def test_noise_stays_at_chance_and_gets_a_strong_penalty():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3000, 20, generator=generator)
    labels = torch.randint(0, 4, (3000,), generator=generator)
    result = fit_linear(features[:1000], labels[:1000], features[1000:], labels[1000:], classes=4)
    assert result.accuracy == pytest.approx(25, abs=4)  # four standard errors
    assert result.train_accuracy < 45


def test_a_linear_classifier_cannot_solve_exclusive_or():
    features = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) - 0.5
    labels = ((features[:, 0] > 0) ^ (features[:, 1] > 0)).long()
    plain = fit_linear(features[:1000], labels[:1000], features[1000:], labels[1000:], classes=2)
    assert plain.accuracy < 65
    product = torch.cat([features, features.prod(1, keepdim=True)], 1)
    better = fit_linear(product[:1000], labels[:1000], product[1000:], labels[1000:], classes=2)
    assert better.accuracy > 95


def test_the_scale_and_offset_of_a_feature_do_not_matter():
    train, labels, test, test_labels = clusters(spread=1.5)
    scale, offset = torch.logspace(-3, 3, 12), torch.linspace(-5, 5, 12)
    plain = fit_linear(train, labels, test, test_labels, 3)
    scaled = fit_linear(train * scale + offset, labels, test * scale + offset, test_labels, 3)
    assert scaled.accuracy == pytest.approx(plain.accuracy, abs=0.4)  # rounding may turn a row
    assert scaled.penalty == plain.penalty


def test_constant_features_do_no_harm():
    train, labels, test, test_labels = clusters(spread=1.5)
    plain = fit_linear(train, labels, test, test_labels, 3)
    rounded = torch.full((600, 1), 1000.0)
    rounded[::2] = rounded[::2].nextafter(torch.tensor(2000.0))
    train = torch.cat([train, torch.full((600, 1), 0.1), torch.zeros(600, 1), rounded], 1)
    # Values that were never seen in training.
    test = torch.cat([test, torch.full((300, 1), 0.7), torch.ones(300, 1), torch.full((300, 1), 1100.0)], 1)
    assert fit_linear(train, labels, test, test_labels, 3).accuracy == pytest.approx(plain.accuracy, abs=0.4)


def test_rows_without_a_label_are_left_out():
    train, labels, test, test_labels = clusters(spread=1.5)
    more = torch.full((50, 12), 1000.0)
    none = torch.full((50,), -1)
    expected = fit_linear(train, labels, test, test_labels, 3)
    found = fit_linear(
        torch.cat([more, train]),
        torch.cat([none, labels]),
        torch.cat([test, more]),
        torch.cat([test_labels, none]),
        3,
    )
    assert found == expected


def test_test_labels_change_neither_the_penalty_nor_the_fit():
    train, labels, test, test_labels = clusters(spread=1.5)
    expected = fit_linear(train, labels, test, test_labels, 3)
    turned = fit_linear(train, labels, test, (test_labels + 1) % 3, 3)
    other = fit_linear(train, labels, test.flip(0)[:7] * 100, torch.zeros(7), 3)
    assert turned.penalty == other.penalty == expected.penalty
    assert turned.train_accuracy == other.train_accuracy == expected.train_accuracy
    assert turned.accuracy < 50 < expected.accuracy


def test_the_penalty_is_chosen_on_rows_that_were_not_fitted(monkeypatch):
    tried, minimise = [], linear._minimise

    def watched(x, y, penalty, start):
        tried.append((penalty, len(x)))
        return minimise(x, y, penalty, start)

    monkeypatch.setattr(linear, "_minimise", watched)
    # Few rows, many dimensions: on the rows it was fitted to the weakest penalty is always the best.
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(1200) % 2
    features = torch.randn(1200, 200, generator=generator)
    features[:, 0] += 2.0 * labels
    result = fit_linear(features[:200], labels[:200], features[200:], labels[200:], 2)
    assert result.penalty >= 1e-2
    assert result.accuracy > 65
    weakest = linear.PENALTIES.index(result.penalty) + 2  # two that are worse, until the weaker ones are left out
    assert tried == [*((penalty, 180) for penalty in linear.PENALTIES[: weakest + 1]), (result.penalty, 200)]


def test_the_same_features_give_the_same_result():
    data = clusters(spread=2.0)
    torch.manual_seed(1)
    first = fit_linear(*data, classes=3)
    torch.manual_seed(2)
    assert fit_linear(*data, classes=3) == first


def test_classes_without_test_rows_have_no_accuracy():
    train, labels, test, test_labels = clusters(spread=1.0)
    result = fit_linear(train, labels, test[test_labels > 0], test_labels[test_labels > 0], 3)
    assert np.isnan(result.class_accuracy[0])
    assert not np.isnan(result.class_accuracy[1:]).any()


def test_features_of_inference_mode_half_precision_and_autocast():
    data = clusters(spread=0.1)
    with torch.inference_mode():
        train, test = data[0].clone(), data[2].clone()
        inside = fit_linear(train, data[1], test, data[3], 3)
    assert inside == fit_linear(train, data[1], test, data[3], 3) == fit_linear(*data, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert fit_linear(data[0].bfloat16(), data[1], data[2].bfloat16(), data[3], 3).accuracy == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x, y: (x, y[:-1]),
            r"training features and labels are \(600, 12\) and \(599,\), expected",
        ),
        (lambda x, y: (x, y * 0 - 1), "no training image has a label"),
        (lambda x, y: (x, y + 1), "training labels go from 1 to 3, expected 0 to 2"),
        (lambda x, y: (x * float("nan"), y), "training features are not finite"),
        (lambda x, y: (x[:1], y[:1]), "at least two labelled training images"),
    ],
)
def test_unusable_data_is_the_users_error(change, message):
    train, labels, test, test_labels = clusters(spread=1.0)
    with pytest.raises(UserError, match=message):
        fit_linear(*change(train, labels), test, test_labels, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_gives_the_same_answer():
    data = clusters(spread=1.5)
    on_cpu = fit_linear(*data, classes=3)
    on_gpu = fit_linear(data[0].cuda(), data[1], data[2], data[3], classes=3)
    assert on_gpu.penalty == on_cpu.penalty
    assert on_gpu.accuracy == pytest.approx(on_cpu.accuracy, abs=0.4)
