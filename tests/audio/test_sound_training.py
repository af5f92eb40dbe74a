"""Sound is trained by the loop that images have."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import Silent

from stec.audio import probes
from stec.audio.arrays import save_arrays
from stec.audio.loading import synthesise
from stec.audio.method import METHODS, Method
from stec.audio.network import RATE
from stec.audio.training import Listening
from stec.config import load, recipe_names, to_yaml
from stec.engine import make_fabric
from stec.errors import UserError
from stec.experiments.experiment import load_experiment
from stec.experiments.settings import hash_of, settings_of
from stec.limits import SOUND
from stec.run import RunFolder
from stec.training import pretrain

TINY = (
    "epochs=2", "batch_size=4", "audio.window=3200", "audio.steps=3", "audio.speakers=4", "audio.utterances=16",
    "optimizer.warmup_epochs=1", "log_every=3", "checkpoint_every=1", "baselines=false", "identity.hidden=16",
    "manipulation.hidden=16",
)  # fmt: skip


def _config(*words, recipe="audio/cpc"):
    return load(recipe, [*TINY, *words])


def _task(config, sounds):
    from stec.audio.sounds import split

    return Listening(config, make_fabric(config), sounds, split(sounds, 0.25))


def _train(path, *words, recipe="audio/cpc", resume=False):
    folder = RunFolder.open(path) if resume else RunFolder.new(path, recipe)
    config = folder.config() if resume else _config(*words, recipe=recipe)
    return folder, pretrain(config, folder, Silent(), resume)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with everything in it."""
    path = tmp_path_factory.mktemp("runs") / "run"
    return _train(path, "baselines=true", recipe="audio/stec-cpc-actions")


def test_a_run_has_what_runs_have_and_its_summary_what_a_table_needs(finished):
    folder, summary = finished
    names = {".lock", "config.yaml", "metrics.jsonl", "checkpoint.pt", "checkpoint-previous.pt", "encoder.safetensors"}
    names |= {"summary.json", "phones.json"}
    assert {path.name for path in folder.path.iterdir()} == names
    assert json.loads((folder.path / "summary.json").read_text()) == summary
    for probe in ("phones", "speakers"):
        for suffix in ("", "_untrained", "_mfcc", "_majority"):
            assert 0 <= summary[probe + suffix] <= 100
    assert summary["phones_gain"] == pytest.approx(summary["phones"] - summary["phones_untrained"], abs=0.01)
    assert summary["phones_mfcc"] > summary["phones_majority"] + 20
    assert summary["audio_seconds_per_second"] > 0
    record = folder.metrics()[-1]
    for name in ("identity", "utterance", "manipulation", "identity_step1", "identity_step3"):
        assert math.isfinite(record[name])
    steps = [record[f"identity_step{k}"] for k in (1, 2, 3)]
    assert record["identity"] == pytest.approx(sum(steps) / 3, rel=1e-5)
    total = record["identity"] + 0.1 * record["utterance"] + 0.1 * record["manipulation"]
    assert record["loss"] == pytest.approx(total, rel=1e-4)


def test_speed_counts_the_seconds_that_are_heard(sounds):
    task = _task(_config(), sounds)
    batch = next(task.batches(torch.arange(4), 4))
    windows, *_ = task.prepare(*batch)
    assert task.units == windows.numel() / RATE == 2 * 4 * 3200 / 16_000


@pytest.mark.parametrize("words", [(), ("audio.negatives=both", "audio.pieces=frames", "audio.bidirectional=true")])
@pytest.mark.parametrize("method", METHODS)
def test_every_part_of_every_method_gets_a_gradient(sounds, method, words):
    task = _task(_config(f"method={method}", *words), sounds)
    torch.manual_seed(0)
    batch = next(task.batches(torch.arange(0, 40, 5), 8))
    loss, values = task.module(*task.prepare(*batch))
    assert len(values) == len(task.metrics)
    assert values[0] == loss
    loss.backward()
    for name, parameter in task.module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("pieces", ["windows", "frames"])
def test_the_time_insensitive_model_does_not_drown_the_prediction_at_the_start(sounds, pieces):
    """Its gradient on an untrained network is about that of the prediction, at the weight that recipes give it."""
    task = _task(
        _config("method=stec-cpc", f"audio.pieces={pieces}", "audio.window=8000", "identity.hidden=128"), sounds
    )
    torch.manual_seed(0)
    batch = task.prepare(*next(task.batches(torch.arange(0, 20), 20)))
    weights = list(task.method.network.parameters())

    def gradient(weight: float) -> torch.Tensor:
        task.method.models.config = _config(
            "method=stec-cpc", f"audio.pieces={pieces}", f"audio.lambda_identity={weight}"
        )
        torch.manual_seed(1)
        loss, _ = task.module(*batch)
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, weights)])

    prediction = gradient(0)
    identity = gradient(task.config.audio.lambda_identity) - prediction
    assert 0 < identity.norm() < 4 * prediction.norm()


def test_weights_of_the_losses_are_weights(sounds):
    losses = {}
    for words in ((), ("audio.lambda_identity=2.1",), ("lambda_manip=4.1",)):
        task = _task(_config("method=stec-cpc-actions", *words), sounds)
        torch.manual_seed(0)
        batch = next(task.batches(torch.arange(0, 20, 5), 4))
        losses[words] = dict(zip(task.metrics, task.module(*task.prepare(*batch))[1].tolist(), strict=True))
    plain, identity, actions = losses.values()
    assert identity["loss"] - plain["loss"] == pytest.approx(2 * plain["utterance"], rel=1e-4)
    assert actions["loss"] - plain["loss"] == pytest.approx(4 * plain["manipulation"], rel=1e-4)


def test_an_untrained_network_is_the_one_that_the_seed_makes(sounds):
    task = _task(_config("seed=3"), sounds)
    torch.manual_seed(3)
    again = Method(_config("seed=3", "method=stec-cpc-actions")).network
    assert all(torch.equal(a, b) for a, b in zip(task.method.network.parameters(), again.parameters(), strict=True))


def test_the_loss_falls_and_probes_leave_the_method_as_it_was(sounds):
    task = _task(_config("audio.window=8000", "batch_size=8"), sounds)
    rate = torch.tensor(0.002)
    optimizer, losses = task.optimizer(rate), []
    torch.manual_seed(0)
    for _ in range(12):
        for batch in task.batches(torch.randperm(task.items)[:16], 8):
            loss, _ = task.module(*task.prepare(*batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(48), abs=0.1), "at first all 48 frames are alike"
    assert sum(losses[-4:]) / 4 < losses[0] - 0.1
    task.method.train()
    task.evaluate()
    assert task.method.training


def test_an_interrupted_run_continues_bit_for_bit(tmp_path):
    whole, _ = _train(tmp_path / "whole", recipe="audio/stec-cpc-actions")

    class Interrupting(Silent):
        def progress(self, progress):
            if progress.step == 6:  # past the checkpoint of the first epoch
                raise KeyboardInterrupt

    config = _config(recipe="audio/stec-cpc-actions")
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, RunFolder.new(tmp_path / "half", "audio/stec-cpc-actions"), Interrupting())
    half, _ = _train(tmp_path / "half", resume=True)
    states = [torch.load(folder.checkpoint, weights_only=True)["model"] for folder in (whole, half)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("speakers", [["she"] * 10, [f"s{i}" for i in range(10)]], ids=["one", "once each"])
def test_sound_without_phones_or_with_speakers_that_cannot_be_tested_is_learnt_from(sounds, tmp_path, speakers):
    from stec.audio.sounds import join

    pieces = [sounds.samples[start : start + 8000] for start in range(0, 80_000, 8000)]
    save_arrays(join("x", pieces, map(str, range(10)), speakers, None, ()), tmp_path / "arrays")
    words = ("data.source=arrays", f"data.root={tmp_path / 'arrays'}", "baselines=true", "epochs=1")
    _, summary = _train(tmp_path / "run", *words)
    for probe in ("phones", "speakers"):
        assert [summary[probe + suffix] for suffix in ("", "_untrained", "_mfcc", "_majority")] == [None] * 4
    assert "phones_gain" not in summary


@pytest.mark.parametrize("source", ["folder", "arrays"])
def test_librispeech_is_trained_on_from_files_and_from_arrays(librispeech, tmp_path, source, stec):
    where = [f"data.root={librispeech}", f"audio.alignment={librispeech / 'phones_10ms.txt'}"]
    if source == "arrays":
        assert stec("data", "audio/librispeech", *where, "--save", str(tmp_path / "arrays"))[0] == 0
        where = [f"data.root={tmp_path / 'arrays'}", "data.source=arrays"]
    words = ("encoder=cpc-small", "epochs=1", "batch_size=2", "audio.window=8000", "optimizer.warmup_epochs=0")
    code, out, err = stec("pretrain", "audio/librispeech", *where, *words)
    assert code == 0, err
    assert "MFCC, 11 frames" in out
    summary = json.loads((tmp_path / "runs" / "audio-librispeech-cpc-seed0" / "summary.json").read_text())
    assert summary["data_fingerprint"] == "bafbd5828f9afbb7"
    assert summary["phones"] is not None


# --- the command line, configs and experiments ---


def test_the_methods_for_sound_are_those_that_the_config_knows():
    assert tuple(METHODS) == SOUND


def test_recipes_for_sound_are_found_in_their_folder():
    names = {name for name in recipe_names() if name.startswith("audio/")}
    assert names == {"audio/cpc", "audio/stec-cpc", "audio/stec-cpc-actions", "audio/librispeech"}
    for name in names:
        config = load(name)
        assert config.method in SOUND
        assert "views:" not in to_yaml(config)
    paper = load("audio/librispeech")
    assert (paper.encoder, paper.audio.window, paper.audio.steps) == ("cpc", 20480, 12)


@pytest.mark.parametrize(
    ("recipe", "words", "message"),
    [
        ("audio/cpc", ["views.size=3"], "views: method=cpc learns from sound"),
        ("default", ["audio.steps=3"], "audio: method=stec learns from images"),
        ("audio/cpc", ["audio.negatives=none"], "audio.negatives=none: choose from same, other, both"),
        ("audio/stec-cpc-actions", ["manipulation.action=egocentric"], "manipulation.action=egocentric: choose from"),
        ("audio/cpc", ["optimizer.momentum=0.5"], "optimizer.momentum: sound is always trained with Adam"),
        ("audio/stec-cpc-actions", ["manipulation.readout=regression"], "manipulation.readout: actions on sound are"),
        ("audio/stec-cpc-actions", ["manipulation.bins=quantile"], "manipulation.bins: actions on sound are always"),
        ("audio/stec-cpc-actions", ["lambda_turn=0.2"], "lambda_turn: sound is not turned"),
        ("audio/cpc", ["data.limit=100"], "data.limit: is for images"),
        ("audio/cpc", ["data.train_images=100"], "data.train_images: only the built-in shapes are drawn in any number"),
        ("folder", ["data.train_images=100"], "data.limit=N trains on fewer images of any source"),
        ("audio/cpc", ["audio.test_speakers=1"], "audio.test_speakers=1.0: must be above 0 and below 1"),
        ("audio/cpc", ["audio.window=100"], "audio.window=100: must be at least 465"),
    ],
)
def test_keys_of_the_other_kind_of_data_and_wrong_values_are_refused(recipe, words, message):
    with pytest.raises(UserError) as caught:
        load(recipe, words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=cpc"], "data.source=shapes: method=cpc learns from sound; start from a recipe such as audio/cpc"),
        (["audio/cpc", "encoder=resnet50"], "encoder=resnet50: choose from cpc, cpc-small"),
        (["audio/cpc", "audio.window=1600"], "audio.window=1600 has 8 frames, too few to predict 12"),
        (
            ["audio/stec-cpc-actions", "audio.window=785", "audio.steps=1"],
            "audio.window=785 has 3 frames, too few for the actions, which are inferred from 4 parts of it",
        ),
        (["audio/cpc", "data.source=folder"], "data.source=folder needs data.root"),
        (["data.source=utterances"], "data.source=utterances is sound: start from a recipe such as audio/cpc"),
    ],
)
def test_what_does_not_fit_together_is_one_line(stec, words, message, tmp_path):
    few = ["audio.utterances=8", "audio.speakers=2"] if words[0].startswith("audio/") else []
    code, _, err = stec("pretrain", *words, *few)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_bench_measures_training_beside_the_ceiling(stec):
    words = ("audio.window=3200", "batch_size=2", "--seconds", "0.05")
    code, out, err = stec("bench", "audio/stec-cpc-actions", *words, "-o", "speed.json")
    assert code == 0, err
    assert "seconds of sound per second" in out
    (row,) = json.loads(Path("speed.json").read_text())["rows"]
    assert row["of_ceiling"] == pytest.approx(row["end_to_end"] / row["ceiling"], abs=0.05)
    assert row["cost_of_manipulation"] is not None
    code, _, err = stec("bench", "audio/cpc", "--streamed")
    assert code == 2
    assert "leave them out for sound" in err


def test_methods_and_data_list_sound(stec):
    assert "stec-cpc-actions" in stec("methods")[1]
    assert "utterances" in stec("data")[1]
    code, out, _ = stec("data", "audio/cpc", "audio.utterances=8", "audio.speakers=2")
    assert code == 0
    assert "IY EH AA" in out
    code, _, err = stec("data", "default", "--save", "x")
    assert code == 2
    assert "--save writes sound" in err
    assert stec("views", "audio/cpc")[0] == 2


def test_settings_of_sound_hold_what_decides_and_nothing_else():
    plain = settings_of(load("audio/cpc"), "utterances")
    assert {"audio.window", "audio.negatives", "audio.utterances", "optimizer.rate", "encoder"} <= plain.keys()
    assert not any(k.startswith(("views.", "turn.", "data.", "identity.", "manipulation.")) for k in plain)
    same = ["audio.alignment=x", "identity.output=3", "manipulation.k=3", "audio.pool=9", "data.root=y"]
    assert hash_of(settings_of(load("audio/cpc", same), "utterances")) == hash_of(plain)
    for word in ("audio.steps=3", "audio.negatives=both", "audio.bidirectional=true", "method=stec-cpc"):
        assert hash_of(settings_of(load("audio/cpc", [word]), "utterances")) != hash_of(plain)
    actions = load("audio/stec-cpc-actions", ["manipulation.k=3"])
    assert settings_of(actions, "utterances")["manipulation.k"] == 3


def test_an_experiment_with_sound_runs_and_is_written_down(stec, tmp_path, sounds):
    cell = load_experiment("audio").cells[0]
    assert (cell.data, cell.published["phones"].mean) == ("librispeech", 65.1)
    save_arrays(sounds, tmp_path / "arrays")
    (tmp_path / "mine.yaml").write_text(
        "metrics: [phones, speakers, audio_seconds_per_second]\n"
        f"overrides: {' '.join(w for w in TINY if not w.startswith(('log', 'check', 'base')))}\n"
        "cells:\n- {row: CPC, recipe: audio/cpc, data: mine}\n"
    )
    code, out, err = stec("experiment", "mine.yaml", "--data", f"mine=arrays:{tmp_path / 'arrays'}")
    assert code == 0, err
    assert "phones" in out
    line = json.loads((tmp_path / "results" / "runs.jsonl").read_text())
    assert line["data"] == "mine"
    assert line["summary"]["phones"] is not None


def test_probed_features_are_the_contexts_of_the_last_epoch(finished):
    """The encoder's file alone gives the accuracy of the summary again."""
    from stec.audio import load as load_network
    from stec.audio.loading import open_sounds
    from stec.audio.sounds import split

    folder, summary = finished
    network = load_network(folder.path)
    sounds = open_sounds(folder.config())
    found = probes.probe(probes.network_features(network), sounds, split(sounds, 0.25), torch.device("cpu"))
    assert found.accuracies() == {"phones": summary["phones"], "speakers": summary["speakers"]}
    (folder.path / "text").write_text("no weights")
    for path, message in (
        (folder.path / "text", "no whole safetensors file"),
        (folder.path / "none", "no such run folder or file"),
    ):
        with pytest.raises(UserError, match=message):
            load_network(path)
    (folder.path / "text").unlink()


def test_figures_and_the_page_show_what_the_probe_measured(finished, stec, monkeypatch):
    monkeypatch.setattr("stec.audio.study.has_umap", lambda: False)  # which takes long; tests/analysis has it
    folder, summary = finished
    code, out, err = stec("analyze", str(folder.path), "--images", "60")
    assert code == 0, err
    assert "loss per prediction step" in out
    names = {path.name for path in (folder.path / "analysis").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("steps", "confusion", "frames") for kind in ("png", "svg")}
    code, _, err = stec("report", str(folder.path), "-o", "page.html", "--images", "60")
    assert code == 0, err
    page = Path("page.html").read_text()
    assert f"{summary['phones']:.1f} %" in page
    assert page.count("<svg") == 3
    assert len(re.findall(f"<h[12]>{folder.path.name}<", page)) == 1
    assert "src=" not in page, "it asks for nothing else"
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    curves = json.loads(data)[0]["curves"]
    assert curves["prediction"] == pytest.approx([line["identity"] for line in folder.metrics()], rel=1e-4)
    assert {"loss", "utterance_accuracy", "manipulation", "rate"} <= set(curves)
    shutil.rmtree(folder.path / "analysis")
    code, _, err = stec("probe", str(folder.path))
    assert (code, "is a run on sound" in err) == (2, True)
    code, _, err = stec("transfer", "segmentation", str(folder.path / "encoder.safetensors"))
    assert (code, "is an encoder of sound: stec.audio.load opens it" in err) == (2, True)


def test_the_confusion_is_that_of_the_probe(finished, monkeypatch):
    from stec.audio.study import study

    monkeypatch.setattr("stec.audio.study.has_umap", lambda: False)
    folder, summary = finished
    found = study(folder.path, 40, 0)
    sounds = synthesise(4, 16)
    from stec.audio.sounds import split

    labels = torch.cat([sounds.phones_of(index) for index in split(sounds, 0.25).phones])
    share = torch.bincount(labels, minlength=13) / len(labels)
    assert float(100 * (found.confusion.diagonal() * share).sum()) == pytest.approx(summary["phones"], abs=0.1)
    assert found.projection.points.shape == (40, 2)
    assert len(found.steps) == 3
    kept = json.loads((folder.path / "phones.json").read_text())
    assert sum(map(sum, kept["taken_for"])) == len(labels)
    with monkeypatch.context() as patch:
        patch.delattr("stec.audio.study.probe")
        study(folder.path, 40, 0)  # what is kept is not fitted again
    for damaged in ("{", "[]", '{"phones": [], "taken_for": []}', json.dumps(kept | {"taken_for": "abc"}), None):
        (folder.path / "phones.json").write_text(damaged) if damaged else (folder.path / "phones.json").unlink()
        assert torch.equal(study(folder.path, 40, 0).confusion, found.confusion), "a run without it is probed again"
