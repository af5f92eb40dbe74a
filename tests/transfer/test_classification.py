"""`stec transfer classification`: which labels are used, that nothing else is, and what comes out."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from tiny_runs import Runner, Silent

import stec as library
from stec.config import load
from stec.data import shapes
from stec.errors import Stopped, UserError
from stec.optim import scaled_rate
from stec.probe import probe
from stec.transfer.classification import _settings, choose, classify, configure

QUICK = ("epochs=1", "optimizer.warmup_epochs=0", "batch_size=50", "log_every=1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    runner = Runner(tmp_path_factory.mktemp("runs"))
    folder, _ = runner("run", "epochs=1", "data.train_images=200", "data.test_images=60", "optimizer.warmup_epochs=0")
    return folder.path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def classified(run: Path, *words: str, reporter=None, place: str | None = None, **options) -> dict:
    encoder = library.load(run)
    config = configure(encoder, run, place, [*QUICK, *words])
    found = classify(encoder, config, run / "transfer", reporter or Silent(), **options)
    before, after = library.load(run).state_dict(), encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before), "every share starts from the same weights"
    return found


@given(st.lists(st.integers(0, 4), min_size=1, max_size=300), st.integers(0, 3))
def test_a_share_is_drawn_from_each_class_and_holds_the_smaller_ones(labels, seed):
    labels = torch.tensor(labels)
    few, more, every = (choose(labels, share, seed) for share in (0.01, 0.1, 1.0))
    assert every.tolist() == list(range(len(labels)))
    assert set(few.tolist()) <= set(more.tolist())
    for chosen, share in ((few, 0.01), (more, 0.1)):
        assert len(set(chosen.tolist())) == len(chosen)
        for label in labels.unique():
            number = int((labels == label).sum())
            assert int((labels[chosen] == label).sum()) == max(1, round(share * number))
    assert torch.equal(more, choose(labels, 0.1, seed))


def test_another_seed_draws_other_labels():
    labels = torch.arange(1000) % 10
    assert not torch.equal(choose(labels, 0.1, 0), choose(labels, 0.1, 1))


def test_few_images_are_seen_more_often_at_the_same_rate_in_every_step():
    config = load("default", ["epochs=30", "batch_size=128", "optimizer.rate=0.5", "optimizer.warmup_epochs=2"])
    few = _settings(config, share=1, images=64)
    assert (few.epochs, few.batch_size, few.optimizer.warmup_epochs) == (300, 64, 20)
    assert scaled_rate(few.optimizer.rate, 64) == scaled_rate(0.5, 128)
    assert _settings(config, share=10, images=5000).epochs == 95  # 30 by the root of 10, rounded up
    assert _settings(config, share=100, images=50_000) == config


def test_linear_with_all_labels_is_the_probe(run):
    found = classified(run, fine_tune=False)
    assert [row["images"] for row in found["rows"]] == [10, 20, 200]
    assert found["rows"][2]["linear"] == probe(library.load(run), run)["linear"]
    assert [row["fine_tuned"] for row in found["rows"]] == [None] * 3
    assert not (run / "transfer").exists()


def test_a_fine_tuned_encoder_and_its_classifier_give_the_accuracy(run):
    found = classified(run, "epochs=6", "optimizer.rate=0.02")
    assert [row["epochs"] for row in found["rows"]] == [60, 19, 6], "by the root of the share"
    metrics = [json.loads(line) for line in (run / "transfer/1-percent/metrics.jsonl").open()]
    assert metrics[0]["loss"] == pytest.approx(np.log(10), abs=1e-5), "the classifier starts at zero"
    assert metrics[-1]["loss"] < 1, "and learns ten images by heart"
    test = shapes.render(60, 32, split="test")
    before = library.load(run)(test.images)
    for row in found["rows"]:
        encoder = library.load(row["run"])
        assert not torch.allclose(encoder(test.images), before, atol=1e-3)
        with safe_open(Path(row["run"]) / "classifier.safetensors", "pt") as file:
            assert json.loads(file.metadata()["classes"]) == list(shapes.CLASSES)
            logits = encoder(test.images) @ file.get_tensor("weight").T + file.get_tensor("bias")
        right = 100 * (logits.argmax(1) == test.labels[:, 0]).double().mean().item()
        assert row["fine_tuned"] == pytest.approx(right, abs=0.01)


def test_images_that_were_not_drawn_and_test_labels_change_no_weight(run, tmp_path):
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    for split, number in (("train", 200), ("test", 60)):
        drawn = shapes.render(number, 32, split=split)
        np.save(arrays / f"{split}.npy", drawn.images.permute(0, 2, 3, 1).numpy())
        labels = drawn.labels[:, 0].numpy()
        if split == "train":
            labels[:7] = -1  # of which nothing is learnt
        np.save(arrays / f"{split}_labels.npy", labels)
    classified(run, place=f"arrays:{arrays}")
    (run / "transfer").rename(tmp_path / "right")

    images, labels = np.load(arrays / "train.npy"), torch.from_numpy(np.load(arrays / "train_labels.npy"))
    images[np.setdiff1d(np.arange(200), 7 + choose(labels[7:], 0.1, seed=0))] = 0
    np.save(arrays / "train.npy", images)
    np.save(arrays / "test_labels.npy", (np.load(arrays / "test_labels.npy") + 1) % 10)
    classified(run, place=f"arrays:{arrays}")
    for share, same in ((1, True), (10, True), (100, False)):
        paths = (folder / f"{share}-percent" for folder in (run / "transfer", tmp_path / "right"))
        one, other = (library.load(path).state_dict() for path in paths)
        assert all(torch.equal(one[name], other[name]) for name in one) == same


@pytest.mark.slow
def test_an_interrupted_classification_is_continued_and_another_refused(run):
    class Stop(Exception):
        pass

    class Stopping(Silent):
        def progress(self, progress):
            if progress.steps == 8 and progress.step == 6:  # of all labels, behind the first checkpoint
                raise Stop

    words = ("epochs=2", "checkpoint_every=1")
    expected = classified(run, *words)
    shutil.rmtree(run / "transfer")
    with pytest.raises(Stop):
        classified(run, *words, reporter=Stopping())
    reporter = Silent()
    found = classified(run, *words, reporter=reporter)
    assert "resumed at epoch 1 of 2, step 4 of 8" in reporter.notes
    assert "resumed at epoch 20 of 20, step 20 of 20" in reporter.notes
    assert [row["fine_tuned"] for row in found["rows"]] == [row["fine_tuned"] for row in expected["rows"]]
    with pytest.raises(UserError, match="fine-tuned with other settings"):
        classified(run)
    assert classified(run, force=True)["rows"][2]["epochs"] == 1

    encoder = library.load(run)
    next(encoder.parameters()).mul_(2)
    encoder.save(run / "encoder.safetensors")
    with pytest.raises(UserError, match="changed since"):
        classified(run)


def test_a_signal_stops_it_with_the_advice_to_repeat_it(run):
    class Signalled(Silent):
        def progress(self, progress):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="all is saved; the same 'stec transfer classification' goes on"):
        classified(run, reporter=Signalled())


def test_several_processes_would_write_the_same_files(run, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="takes one process"):
        classified(run)


def test_a_run_of_eight_gpus_is_fine_tuned_on_what_is_here(run):
    path = run / "config.yaml"
    text = path.read_text().replace("devices: 1\n", "devices: 8\n").replace("device: auto", "device: cuda")
    path.write_text(text.replace("probe_rate: null", "probe_rate: 1.0"))
    encoder = library.load(run)
    config = configure(encoder, run, "shapes", ["epochs=1", "data.test_images=50"])
    assert (config.devices, config.device, config.epochs, config.data.test_images) == (1, "auto", 1, 50)
    assert (config.encoder, config.views.area, config.views.grey) == ("resnet-small", (0.35, 1.0), 0)


def test_a_run_on_few_images_is_fine_tuned_on_all_of_others(run):
    path, encoder = run / "config.yaml", library.load(run)
    path.write_text(path.read_text().replace("limit: null", "limit: 50"))
    assert configure(encoder, run, None).data.limit == 50
    assert configure(encoder, run, "shapes").data.limit is None
    assert configure(encoder, run, "shapes", ["data.limit=60"]).data.limit == 60


def test_what_makes_no_sense_is_one_line(run, stec, tmp_path):
    def refused(words, *expected):
        code, _, err = stec("transfer", "classification", *words)
        assert code == 2
        assert len(err.splitlines()) == 1
        assert all(text in err for text in expected), err

    refused([str(run), "identity.hidden=3"], "'identity.hidden=3': not for a classification")
    refused([str(run), "epoch=3"], "did you mean 'epochs'")
    refused([str(run), "--data", "folders:x"], "did you mean 'folder'")
    refused([str(run), "--data", str(tmp_path)], f"did you mean folder:{tmp_path}?")
    refused([str(run), "--data", "folder:nowhere"], "nowhere: no such folder")
    refused([str(run), "--data", "cifar10"], "needs data.root")
    file = shutil.copy(run / "encoder.safetensors", tmp_path / "e.safetensors")
    refused([str(file)], "does not say which images to classify")
    refused(["nowhere"], "no such run folder or file")


def test_results_are_named_after_the_folder_that_is_meant(run, stec, tmp_path, monkeypatch):
    for i in range(8):
        (tmp_path / f"pictures/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (30 * i, 9, 9)).save(tmp_path / f"pictures/{i % 2}/{i}.png")
    monkeypatch.chdir(tmp_path / "pictures")
    code, _, err = stec("transfer", "classification", str(run), "--data", "folder:.", "--linear-only")
    assert code == 0, err
    assert (run / "transfer/folder-pictures/classification.json").is_file()


def test_the_command_prints_a_table_and_writes_json(run, stec, tmp_path):
    code, out, err = stec("transfer", "classification", str(run), *QUICK)
    assert code == 0, err
    found = json.loads((run / "transfer/shapes/classification.json").read_text())
    table = [line.split() for line in out.splitlines() if line.strip().startswith(("1 %", "10 %", "100 %"))][-3:]
    for row, cells in zip(found["rows"], table, strict=True):
        expected = f"{row['labels']} % {row['images']} {row['linear']:.1f} % {row['fine_tuned']:.1f} %"
        assert " ".join(cells) == expected
    assert "shapes, 10 classes, 60 images to test" in out
    code, _, err = stec("pretrain", "--resume", str(run / "transfer/shapes/1-percent"))
    assert code == 2
    assert "a run of another command: the same 'stec transfer classification' continues it" in err
    code, out, err = stec("analyze", str(run / "transfer/shapes/100-percent"), "--images", "20")
    assert code == 0, err
    assert "the images are not those" not in out
    code, _, err = stec("results", "add", str(run / "transfer/shapes/100-percent"))
    assert code == 2
    assert "which is in no experiment" in err
    file = shutil.copy(run / "encoder.safetensors", tmp_path / "e.safetensors")
    code, out, _ = stec("transfer", "classification", str(file), "--data", "shapes", "--linear-only", "-o", "there")
    assert code == 0
    assert json.loads((tmp_path / "there/classification.json").read_text())["test_images"] == 1000
