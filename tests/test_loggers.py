"""Metrics also go to TensorBoard and Weights & Biases, and go on there when a run is resumed."""

import importlib.util
import json

import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_runs import TINY

from stec import loggers
from stec.engine import Loop
from stec.run import RunFolder


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch, tmp_path):
    """Whoever runs the tests keeps their account out of them."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    wandb.teardown()  # what it remembers of the environment of earlier tests


def scalars(path):
    """Name -> [(step, value)], as TensorBoard itself reads them."""
    events = EventAccumulator(str(path), purge_orphaned_data=True).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def metrics_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_shows_all_metrics_and_the_results(stec, tmp_path):
    code, out, err = stec("pretrain", *TINY, "logger=tensorboard", "-o", "runs/a")
    assert code == 0, err
    assert "metrics: tensorboard --logdir runs\n" in out
    run = tmp_path / "runs/a"
    shown, lines = scalars(run), metrics_of(run)
    for name in set(lines[0]) - {"step", "seconds"}:
        assert [step for step, _ in shown[name]] == [line["step"] for line in lines], name
        assert [value for _, value in shown[name]] == pytest.approx([line[name] for line in lines], rel=1e-6), name
    summary = json.loads((run / "summary.json").read_text())
    for name in ("linear_online", "linear", "knn"):
        assert shown[f"final/{name}"] == [(12, pytest.approx(summary[name], rel=1e-6))]


def test_what_an_interrupted_run_had_logged_after_its_checkpoint_is_dropped(tmp_path):
    folder = RunFolder(tmp_path, "default")
    first = loggers.TensorBoard(folder, step=0)
    for step in (2, 4, 6, 8):
        first.metrics({"loss": float(step)}, step)
    assert scalars(tmp_path)["loss"] == [(2, 2.0), (4, 4.0), (6, 6.0), (8, 8.0)]  # nobody has closed it
    again = loggers.TensorBoard(folder, step=4)
    again.metrics({"loss": 60.0}, 6)
    again.end({})
    assert scalars(tmp_path)["loss"] == [(2, 2.0), (4, 4.0), (6, 60.0)]


def test_a_resumed_run_tells_the_logger_from_where_it_goes_on(train, monkeypatch):
    opened = []

    class Spy:
        place = "a spy"

        def __init__(self, folder, step):
            opened.append(step)

        def metrics(self, values, step):
            opened.append((step, values["epoch"]))

        def end(self, summary):
            opened.append(summary["linear"])

    monkeypatch.setattr(loggers, "TensorBoard", Spy)
    steps = iter(range(9))
    real = Loop.train

    def fail(self, batch):
        if next(steps) == 8:
            raise KeyboardInterrupt
        real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train", fail)
        with pytest.raises(KeyboardInterrupt):
            train("run", "logger=tensorboard")
    seen = len(opened)
    summary = train.resume(RunFolder.open(train.path / "run"))
    assert opened[:seen] == [0, (2, 0.6667), (4, 1.3333), (6, 2.0), (8, 2.6667)]
    assert opened[seen:] == [6, (8, 2.6667), (10, 3.3333), (12, 4.0), summary["linear"]]


def test_weights_and_biases_keeps_a_run_in_its_folder_and_goes_on_with_it(stec, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    code, out, err = stec("pretrain", *TINY, "logger=wandb", "-o", "runs/b")
    assert code == 0, err
    wandb.teardown()  # as at the end of a process: until then its service may still be writing
    (kept,) = (tmp_path / "runs/b/wandb").glob("offline-run-*/run-*.wandb")
    assert f"metrics: wandb sync runs/b/wandb/{kept.parent.name}\n" in out
    written = kept.read_bytes()
    for word in (b"identity_accuracy", b"manipulation_accuracy", b"linear_online", b"resnet-small"):
        assert word in written, word
    again = loggers.WeightsAndBiases(RunFolder(tmp_path / "runs/b", "default"))
    try:
        assert again.run.id == kept.stem.removeprefix("run-")
        assert again.run.name == "b"
        assert again.run.project == "stec"
    finally:
        again.end({})


def test_without_an_account_nothing_is_left_behind(stec, tmp_path):
    code, _, err = stec("pretrain", *TINY, "logger=wandb", "-o", "runs/c")
    assert code == 2
    assert err.startswith("stec: logger=wandb: ")
    assert "WANDB_MODE=offline" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_logger_that_is_not_installed_is_named_with_what_to_install(stec, tmp_path, monkeypatch, name):
    find = importlib.util.find_spec
    monkeypatch.setattr(loggers, "find_spec", lambda package: None if package == name else find(package))
    code, _, err = stec("pretrain", *TINY, f"logger={name}")
    assert (code, err) == (2, f"stec: logger={name} needs {name}: pip install 'stec[{name}]'\n")
    assert not (tmp_path / "runs").exists()


def test_an_unknown_logger_is_refused(stec):
    code, _, err = stec("pretrain", *TINY, "logger=tensorbord")
    assert code == 2
    assert "tensorboard" in err
