"""`stec.load`: what was learnt, from a run or from one file."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import Runner, Trap

import stec
from stec.encoder import Description
from stec.errors import UserError
from stec.loading import encode, open_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder, _ = Runner(tmp_path_factory.mktemp("runs"))("stec", "epochs=1", "views.size=24", "views.test_crop=0.9")
    return folder.path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def images(number=5, height=40, width=32):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, height, width), dtype=torch.uint8, generator=generator)


def test_features_are_those_of_the_opened_run(run):
    encoder = stec.load(run)
    opened = open_run(run)
    expected = encode(opened, opened.views.plain(images()))
    features = encoder.features(images())
    assert features.shape == (5, encoder.dim) == (5, 128)
    torch.testing.assert_close(features, expected)
    torch.testing.assert_close(encoder(images().float() / 255), expected, atol=1e-5, rtol=1e-5)


def test_the_central_square_is_what_counts(run):
    encoder = stec.load(str(run))
    wide = images(height=32, width=64)
    wide[..., 16:48] = images(height=32, width=32)
    torch.testing.assert_close(encoder(wide), encoder(images(height=32, width=32)))
    assert not torch.allclose(encoder(wide), encoder(wide, sizes=torch.tensor([[32, 32]] * 5)))


def test_the_file_alone_does(run, tmp_path):
    expected = stec.load(run)(images())
    moved = run.rename(tmp_path / "gone") / "encoder.safetensors"
    alone = moved.rename(tmp_path / "mine.safetensors")
    torch.testing.assert_close(stec.load(alone)(images()), expected, rtol=0, atol=0)


def test_it_is_saved_where_there_is_no_folder_yet(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    stec.load(run).save("~/of/mine/encoder.safetensors")
    torch.testing.assert_close(stec.load("~/of/mine/encoder.safetensors")(images()), stec.load(run)(images()))
    with pytest.raises(UserError, match="name a file in a folder that is yours"):
        stec.load(run).save(tmp_path / "of")


@pytest.mark.parametrize("name", ["resnet-small", "timm:test_resnet"])
def test_a_compiled_encoder_is_saved_as_any_other(name, tmp_path):
    """`torch.compile` puts it into another module, with the names of its weights behind a prefix."""
    network = stec.networks.create_encoder(name)
    description = Description(name, method="stec", size=32, image_size=32, test_crop=1.0)
    stec.Encoder(torch.compile(network), description).save(tmp_path / "mine.safetensors")
    expected = stec.Encoder(network, description)(images())
    torch.testing.assert_close(stec.load(tmp_path / "mine.safetensors")(images()), expected)


def test_a_run_needs_no_pickle(run):
    expected = stec.load(run)(images())
    (run / "checkpoint.pt").unlink()
    torch.testing.assert_close(stec.load(run)(images()), expected, rtol=0, atol=0)


def test_an_interrupted_run_has_an_encoder_too(tmp_path):
    """It is written with every checkpoint."""

    class Stop(Exception):
        pass

    class Stopping:
        def note(self, text):
            pass

        def progress(self, progress):
            if progress.epoch == 4:
                raise Stop

    train = Runner(tmp_path)
    with pytest.raises(Stop):
        train("run", reporter=Stopping())
    state = torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)
    assert state["step"] == 6  # two epochs
    weights = stec.load(tmp_path / "run").network.state_dict()
    assert all(torch.equal(value, state["model"][f"method.encoder.{name}"]) for name, value in weights.items())


def test_it_is_frozen_until_told_otherwise(run):
    encoder = stec.load(run)
    assert not encoder.training
    assert not encoder(images()).requires_grad
    encoder.requires_grad_().train()
    encoder(images()).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_any_precision_will_do(run, dtype):
    encoder, parts = stec.load(run), images().double() / 255  # as of a NumPy array that was divided by 255
    torch.testing.assert_close(encoder(parts.to(dtype)), encoder(parts.float()), atol=2e-3, rtol=2e-3)
    assert stec.Views(size=16)(parts.to(dtype)).first.dtype == torch.float32


@pytest.mark.parametrize(("precision", "error"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-5)])
def test_the_encoder_may_have_another_precision(run, precision, error):
    expected = stec.load(run).features(images())
    features = stec.load(run).to(precision).features(images())
    assert features.dtype == torch.float32
    assert (features - expected).norm() <= error * expected.norm()


def test_whole_numbers_other_than_bytes_are_refused(run):
    with pytest.raises(UserError, match=r"images are int64, expected uint8, or float in \[0, 1\]"):
        stec.load(run)(images().long())


def test_images_of_another_shape_are_refused(run):
    with pytest.raises(UserError, match=r"\(3, 8, 8\), expected \(B, 3, H, W\)"):
        stec.load(run)(torch.zeros(3, 8, 8))


def test_what_is_no_encoder_is_refused_in_one_line(run, tmp_path):
    def refused(path, words):
        with pytest.raises(UserError, match=words) as caught:
            stec.load(path)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "nowhere", "no such run folder or file")
    refused(tmp_path, "not a run folder")
    file = run / "encoder.safetensors"
    weights = load_file(file)
    (tmp_path / "half.safetensors").write_bytes(file.read_bytes()[:5000])
    refused(tmp_path / "half.safetensors", "no whole safetensors file")
    refused(run / "checkpoint.pt", "no whole safetensors file")
    save_file(weights, tmp_path / "silent.safetensors")
    refused(tmp_path / "silent.safetensors", "does not say which encoder it is")
    about = {"encoder": "resnet18", "method": "stec", "size": "24", "image_size": "32", "test_crop": "1.0"}
    save_file(weights, tmp_path / "other.safetensors", about)
    refused(tmp_path / "other.safetensors", "not those of 'resnet18'")
    save_file(weights, tmp_path / "unknown.safetensors", about | {"encoder": "resnet-smal"})
    refused(tmp_path / "unknown.safetensors", "did you mean 'resnet-small'")
    save_file(weights, tmp_path / "odd.safetensors", about | {"size": "big"})
    refused(tmp_path / "odd.safetensors", "does not say which encoder it is")
    file.unlink()
    refused(run, "has no encoder.safetensors yet")


def test_a_malicious_file_runs_no_code(run, tmp_path):
    torch.save({"model": Trap(tmp_path / "sprung")}, tmp_path / "encoder.safetensors")
    with pytest.raises(UserError, match="no whole safetensors file"):
        stec.load(tmp_path / "encoder.safetensors")
    torch.save(Trap(tmp_path / "sprung"), run / "checkpoint.pt")
    stec.load(run)
    assert not (tmp_path / "sprung").exists()
