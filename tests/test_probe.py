"""`stec probe` measures what training measured, what scikit-learn measures, and looks at no test label before."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from tiny_runs import Runner

from stec.config import ViewsConfig
from stec.data import ResidentSplit, shapes
from stec.encoder import Description, Encoder, load
from stec.errors import UserError
from stec.probe import _train_by_sgd, probe


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    runner = Runner(tmp_path_factory.mktemp("runs"))
    folder, _ = runner("run", "data.train_images=600", "data.test_images=700", "epochs=2")
    return folder.path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_the_numbers_are_those_of_training(run):
    summary = json.loads((run / "summary.json").read_text())
    found = probe(load(run), run)
    assert (found["linear"], found["knn"]) == (summary["linear"], summary["knn"])
    assert found["data_fingerprint"] == summary["data_fingerprint"]
    assert (found["train_images"], found["test_images"]) == (600, 700)
    assert np.mean(list(found["linear_by_class"].values())) == pytest.approx(found["linear"], abs=0.02)
    assert "linear_sgd" not in found


def test_scikit_learn_agrees_on_the_features_that_load_gives(run):
    """From drawing the images anew to accuracy, nothing but `features` is shared with the probe."""
    encoder = load(run)
    found = probe(encoder, run, k=20)
    x, y = {}, {}
    for split, number in (("train", 600), ("test", 700)):
        drawn = shapes.render(number, 32, split=split)
        x[split], y[split] = encoder.features(drawn.images).double().numpy(), drawn.labels[:, 0].numpy()
    scaler = StandardScaler().fit(x["train"])
    linear = LogisticRegression(C=1 / (600 * found["linear_penalty"]), tol=1e-6, max_iter=5000)
    linear.fit(scaler.transform(x["train"]), y["train"])
    assert found["linear"] == pytest.approx(100 * linear.score(scaler.transform(x["test"]), y["test"]), abs=0.3)
    knn = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1))
    knn.fit(x["train"], y["train"])
    assert found["knn"] == pytest.approx(100 * knn.score(x["test"], y["test"]), abs=0.3)
    assert found["knn"] > 15


def test_test_labels_change_no_choice(run, tmp_path):
    """With other test labels everything but the accuracy on them stays."""
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    for split, number in (("train", 300), ("test", 200)):
        drawn = shapes.render(number, 32, split=split)
        np.save(arrays / f"{split}.npy", drawn.images.permute(0, 2, 3, 1).numpy())
        np.save(arrays / f"{split}_labels.npy", drawn.labels[:, 0].numpy())
    words = ["data.source=arrays", f"data.root={arrays}"]
    right = probe(load(run), run, words, k=1000, sgd_epochs=2)
    assert right["knn_k"] == 300, "all that there are"
    labels = np.load(arrays / "test_labels.npy")
    np.save(arrays / "test_labels.npy", (labels + 1) % 10)
    wrong = probe(load(run), run, words, k=1000, sgd_epochs=2)
    same = ("linear_train", "linear_penalty", "train_images")
    assert [right[key] for key in same] == [wrong[key] for key in same]
    assert right["linear"] > wrong["linear"]


class Means(torch.nn.Module):
    """An encoder whose features a reader can compute: the mean colour."""

    dim = 3

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, images):
        self.seen.append(images)
        return images.mean(dim=(2, 3))


def by_sgd(network, method, epochs):
    """A classifier of two colours, as of a run that changed colours in every way."""
    encoder = Encoder(network, Description("means", method, 24, 24, 1.0))
    encoder.register_parameter("where", torch.nn.Parameter(torch.zeros(1)))  # it lives on a device
    colours = torch.tensor([[200, 40, 90], [10, 250, 60]], dtype=torch.uint8).repeat(8, 1)
    images = colours[:, :, None, None].expand(-1, -1, 24, 24).clone()
    split = ResidentSplit(images, torch.full((16, 2), 24.0), torch.arange(16) % 2)
    changed = ViewsConfig(size=24, jitter_probability=1.0, grey=0.5, blur=1.0, solarize=0.5)
    return _train_by_sgd(encoder, changed, split, 2, epochs, lambda done, total: None)


def test_sgd_sees_the_colours_as_they_are():
    by_sgd(means := Means(), "stec", epochs=3)
    found = (torch.cat(means.seen) * 255).round().permute(0, 2, 3, 1).reshape(-1, 3).unique(dim=0)
    assert found.tolist() == [[10, 250, 60], [200, 40, 90]]


def test_sgd_gives_the_same_classifier_every_time():
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        weights.append(by_sgd(Means(), "stec", epochs=2).weight)
    assert torch.equal(*weights)


def test_sgd_has_the_rate_that_the_paper_has_for_a_method():
    torch.manual_seed(0)
    start = torch.nn.Linear(3, 2).weight
    steps = [by_sgd(Means(), method, epochs=1).weight - start for method in ("stec", "stec-byol")]  # of one step
    torch.testing.assert_close(steps[1], steps[0] * 0.175 / 0.01, rtol=1e-3, atol=1e-6)
    assert steps[0].abs().max() > 0


def test_sgd_learns(run):
    found = probe(load(run), run, sgd_epochs=80)
    assert found["linear_sgd"] > 13  # guessing: 10
    assert found["linear_sgd_epochs"] == 80


def test_other_images_can_be_named(run, tmp_path):
    file = (run / "encoder.safetensors").rename(tmp_path / "e.safetensors")
    with pytest.raises(UserError, match="does not say which images"):
        probe(load(file), file)
    with pytest.raises(UserError, match=r"takes data.KEY=VALUE alone"):
        probe(load(file), file, ["epochs=3"])
    found = probe(load(file), file, ["data.source=shapes", "data.train_images=200", "data.test_images=100"])
    assert (found["train_images"], found["test_images"]) == (200, 100)


def test_a_run_on_few_images_is_probed_with_those_and_with_all_of_others(run, tmp_path):
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("limit: null", "limit: 250"))
    assert probe(load(run), run)["train_images"] == 250
    rng = np.random.default_rng(0)
    for split, number in (("train", 300), ("test", 50)):
        np.save(tmp_path / f"{split}.npy", rng.integers(0, 256, (number, 8, 8, 3), np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(number) % 3)
    other = ["data.source=arrays", f"data.root={tmp_path}"]
    assert probe(load(run), run, other)["train_images"] == 300
    assert probe(load(run), run, [*other, "data.limit=270"])["train_images"] == 270


def test_images_without_labels_are_refused(run, tmp_path):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="no labelled test images"):
        probe(load(run), run, ["data.source=folder", f"data.root={tmp_path}"])


def test_the_command_prints_a_table_and_writes_json(stec, run, tmp_path):
    code, out, _ = stec("probe", str(run), "-k", "5")
    assert code == 0
    found = json.loads((run / "probe.json").read_text())
    assert f"{found['linear']:.1f} %" in out
    assert f"{found['knn']:.1f} %" in out
    assert "k = 5" in out
    assert found["knn_k"] == 5
    assert str(run / "probe.json") in out
    code, out, _ = stec("probe", str(run), "--sgd", "2", "-o", "mine.json", "data.test_images=50")
    assert code == 0
    assert "the paper's protocol, 2 epochs" in out
    assert json.loads((tmp_path / "mine.json").read_text())["test_images"] == 50
    code, _, err = stec("probe", "nowhere")
    assert (code, len(err.splitlines())) == (2, 1)


def test_numbers_on_other_images_do_not_take_the_place_of_the_runs_own(stec, run):
    assert stec("probe", str(run))[0] == 0
    own = (run / "probe.json").read_text()
    code, out, _ = stec("probe", str(run), "data.test_images=50")
    assert code == 0
    assert (run / "probe.json").read_text() == own
    (other,) = run.glob("probe-*.json")
    assert str(other) in out
    found = json.loads(other.read_text())
    assert found["test_images"] == 50
    assert found["data_fingerprint"] in other.name
    # The run's own images, named once more or moved, are its own.
    code, out, _ = stec("probe", str(run), "data.test_images=700", "-k", "5")
    assert code == 0
    assert json.loads((run / "probe.json").read_text())["knn_k"] == 5
    assert len(list(run.glob("probe-*.json"))) == 1


def test_other_images_than_the_runs_are_noticed(run, caplog):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"data_fingerprint": "of something else"}))
    probe(load(run), run)
    assert "not those that" in caplog.text
