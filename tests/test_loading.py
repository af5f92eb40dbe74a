"""A run that is opened again is the run that was trained."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import Runner, Trap

from stec.errors import UserError
from stec.loading import encode, open_data, open_run
from stec.run import RunFolder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder, _ = Runner(tmp_path_factory.mktemp("runs"))("stec")
    return folder.path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_encoder_and_psi_have_the_weights_of_the_last_epoch(run):
    loaded = open_run(run)
    saved = load_file(run / "encoder.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in loaded.encoder.state_dict().items())
    state = torch.load(run / "checkpoint.pt", weights_only=True)["model"]
    for name, value in loaded.manipulation.state_dict().items():
        assert torch.equal(value, state[f"method.manipulation.{name}"])
    assert not loaded.encoder.training
    assert not loaded.manipulation.training
    assert not any(value.requires_grad for value in loaded.encoder.parameters())


def test_the_encoder_alone_does_for_features(run):
    images = torch.rand(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = encode(open_run(run), images, batch=3)
    (run / "checkpoint.pt").unlink()
    loaded = open_run(run)
    assert loaded.manipulation is None
    torch.testing.assert_close(encode(loaded, images), before)


def test_what_cannot_be_opened_is_one_line(run, tmp_path):
    with pytest.raises(UserError, match="not a run folder"):
        open_run(tmp_path)
    (run / "checkpoint.pt").write_bytes(b"half a file")
    assert open_run(run).manipulation is not None, "that of the checkpoint before"
    (run / "checkpoint-previous.pt").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        open_run(run)
    (run / "checkpoint.pt").unlink()
    (run / "encoder.safetensors").write_bytes(b"half a file")
    with pytest.raises(UserError, match="cannot be read"):
        open_run(run)
    (run / "encoder.safetensors").unlink()
    with pytest.raises(UserError, match="has no weights"):
        open_run(run)


def test_a_checkpoint_from_a_stranger_runs_no_code(run, tmp_path):
    for name in ("checkpoint.pt", "checkpoint-previous.pt"):
        torch.save({"model": Trap(tmp_path / "sprung")}, run / name)
    with pytest.raises(UserError, match="cannot be read"):
        open_run(run)
    assert not (tmp_path / "sprung").exists()


def test_other_images_than_the_runs_are_noticed(run, caplog):
    folder = RunFolder.open(run)
    assert len(open_data(folder).test) == 40
    assert not caplog.records
    folder.save_summary(folder.summary() | {"data_fingerprint": "of something else"})
    open_data(folder)
    assert "not those that" in caplog.text
