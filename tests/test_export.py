"""What is exported is opened in the other library by the printed code, and gives the same features there."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from stec.encoder import Description, Encoder, load
from stec.errors import UserError
from stec.export import export
from stec.networks.encoders import create_encoder

SIZES = {"resnet18": 64, "resnet18-cifar": 32, "resnet18-stl": 48, "resnet50": 64, "resnet50-cifar": 32}
VIT = "timm:vit_tiny_patch16_224,patch_size=8,img_size=64,depth=4"
SIZES |= {"resnet50-stl": 48, VIT: 64, "timm:resnet10t": 64, "resnet-small": 32}


def lively(name: str) -> Encoder:
    """An encoder all of whose weights and statistics matter, as after training."""
    torch.manual_seed(0)
    network, size = create_encoder(name), SIZES.get(name, 64)
    for key, value in network.state_dict().items():
        if key.endswith("running_var"):
            value.uniform_(0.5, 2)
        elif value.is_floating_point() and value.ndim <= 1:  # batch norms start at 0 and 1
            value.add_(0.3 * torch.randn_like(value))
    return Encoder(network, Description(name, "stec", size, size + 8, 0.9))


def images(name: str, number: int = 3) -> torch.Tensor:
    return torch.rand(number, 3, SIZES[name], SIZES[name], generator=torch.Generator().manual_seed(1))


def opened(code: str):
    """What the printed code makes of a file."""
    names: dict = {}
    exec(code, names)
    return names["model"]


def assert_same(model, encoder: Encoder, name: str) -> None:
    with torch.no_grad():
        expected, found = encoder.network(images(name)), model(images(name))
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet18-cifar", "resnet18-stl", "resnet50", "resnet50-cifar", "resnet50-stl"]
)
def test_torchvision(name, tmp_path):
    encoder = lively(name)
    code = export(encoder, "torchvision", tmp_path / "e.safetensors")
    assert f"torchvision.models.{name.partition('-')[0]}()" in code
    assert "strict=True" in code
    assert "stec" not in re.sub(r"'.*?'|#.*", "", code), "only the other library"
    assert_same(opened(code), encoder, name)


@pytest.mark.parametrize("seen", [64, 96])
def test_torchvision_has_transformers_under_other_names(seen, tmp_path, monkeypatch):
    monkeypatch.setitem(SIZES, VIT, seen)  # trained at the size it was built for, and at another, resampled
    encoder = lively(VIT)
    code = export(encoder, "torchvision", tmp_path / "e.safetensors")
    assert f"VisionTransformer(image_size={seen}, patch_size=8, num_layers=4, num_heads=3," in code
    assert "strict=True" in code
    assert "stec" not in re.sub(r"'.*?'|#.*", "", code)
    assert_same(opened(code), encoder, VIT)
    with pytest.raises(UserError, match="does not say which encoder it is"):
        load(tmp_path / "e.safetensors")


def test_the_line_about_the_stem_is_needed(tmp_path):
    encoder = lively("resnet18-stl")
    code = export(encoder, "torchvision", tmp_path / "e.safetensors")
    model = opened("\n".join(line for line in code.splitlines() if "the stem of" not in line))
    with pytest.raises(AssertionError, match="not close"):
        assert_same(model, encoder, "resnet18-stl")


@pytest.mark.parametrize("name", ["resnet18", "resnet18-cifar", "resnet18-stl", "resnet50", VIT, "timm:resnet10t"])
def test_timm(name, tmp_path):
    encoder = lively(name)
    code = export(encoder, "timm", tmp_path / "e.safetensors")
    assert ("checkpoint_path=" in code) == (name not in ("resnet18-cifar", "resnet18-stl"))
    assert "stec" not in re.sub(r"'.*?'|#.*", "", code)
    assert_same(opened(code), encoder, name)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", VIT])
def test_huggingface(name, tmp_path):
    import timm

    encoder = lively(name)
    code = export(encoder, "huggingface", tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    model = opened(code)
    assert_same(model, encoder, name)
    settings = timm.data.resolve_model_data_config(model)
    assert settings["input_size"] == [3, SIZES[name], SIZES[name]]
    assert (list(settings["mean"]), list(settings["std"])) == ([0, 0, 0], [1, 1, 1])
    assert (settings["crop_pct"], settings["interpolation"]) == (0.9, "bilinear")
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (described["num_features"], described["num_classes"]) == (encoder.dim, 0)


@pytest.mark.parametrize(("form", "out"), [("timm", "e.safetensors"), ("huggingface", "e")])
def test_timm_takes_images_of_another_size_than_a_transformer_was_built_for(form, out, tmp_path, monkeypatch):
    monkeypatch.setitem(SIZES, VIT, 96)
    encoder = lively(VIT)
    assert_same(opened(export(encoder, form, tmp_path / out)), encoder, VIT)


@pytest.mark.parametrize("name", ["resnet18", "resnet18-cifar", "resnet50", VIT, "resnet-small"])
def test_onnx_takes_any_number_of_images(name, tmp_path):
    encoder = lively(name)
    code = export(encoder, "onnx", tmp_path / "e.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["e.onnx"], "one file, weights included"
    model = opened(code)
    for number in (1, 2, 7):
        with torch.no_grad():
            expected = encoder.network(images(name, number))
        found = torch.from_numpy(model(images(name, number).numpy()))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["safetensors", "torchvision", "timm", "huggingface"])
def test_stec_reads_them_all(form, tmp_path):
    encoder = lively("resnet18")
    out = tmp_path / ("e" if form == "huggingface" else "e.safetensors")
    export(encoder, form, out)
    again = load(out / "model.safetensors" if form == "huggingface" else out)
    assert again.description == encoder.description
    assert_same(again.network, encoder, "resnet18")


@pytest.mark.parametrize("name", [VIT, "resnet-small", "resnet50-cifar"])
def test_safetensors(name, tmp_path):
    encoder = lively(name)
    model = opened(export(encoder, "safetensors", tmp_path / "e.safetensors"))
    raw = torch.rand(3, 3, 100, 90, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(raw), encoder(raw), atol=0, rtol=0)


def test_impossible_combinations_are_refused_and_nothing_is_written(tmp_path):
    def refused(encoder, form, out, words):
        with pytest.raises(UserError, match=words) as caught:
            export(encoder, form, tmp_path / out)
        assert "\n" not in str(caught.value)
        assert not list(tmp_path.rglob("*"))

    small, vit = lively("resnet-small"), lively(VIT)
    refused(small, "torchvision", "e.safetensors", "torchvision has no model .* --to safetensors or onnx")
    refused(lively("timm:resnet10t"), "torchvision", "e.safetensors", "torchvision has no model .* --to timm")
    for option in (
        "global_pool=avg",
        "class_token=false,global_pool=avg",
        "reg_tokens=2",
        "qk_norm=true",
        "init_values=0.5",
        "pos_embed=none",
        "pre_norm=true",
        "act_layer=relu",  # weights of the same names, other features; as in the next
        "global_pool=avg,fc_norm=false",
    ):
        refused(lively(f"{VIT},{option}"), "torchvision", "e.safetensors", "torchvision has no model .* --to timm")
    refused(small, "timm", "e.safetensors", "timm has no model")
    refused(small, "huggingface", "e", "timm has no model")
    refused(lively("resnet18-cifar"), "huggingface", "e", "cannot describe the stem of 'resnet18-cifar'")
    refused(lively("resnet50-stl"), "huggingface", "e", "cannot describe the stem of 'resnet50-stl'")
    refused(vit, "timmm", "e.safetensors", "did you mean 'timm'")
    refused(vit, "timm", "e.pth", r"has to end in \.safetensors")
    refused(vit, "onnx", "e.safetensors", r"has to end in \.onnx")


def test_other_files_are_not_harmed(tmp_path):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "e.safetensors").mkdir()
    with pytest.raises(UserError, match="is a file"):
        export(lively("resnet18"), "huggingface", tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written"):
        export(lively("resnet18"), "timm", tmp_path / "e.safetensors")
    with pytest.raises(UserError, match="cannot be written"):
        export(lively("resnet18"), "timm", tmp_path / "file" / "e.safetensors")
    assert (tmp_path / "file").read_text() == "precious"


def test_an_export_that_breaks_off_leaves_the_file_of_an_earlier_one(tmp_path, monkeypatch):
    def full(network, images, part, **_):
        Path(part).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch.onnx, "export", full)
    (tmp_path / "e.onnx").write_text("whole")
    with pytest.raises(OSError, match="No space left"):
        export(lively("resnet-small"), "onnx", tmp_path / "e.onnx")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("e.onnx", "whole")]


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("safetensors", "e.safetensors"),
        ("torchvision", "e.safetensors"),
        ("timm", "e.safetensors"),
        ("huggingface", "e"),
    ],
)
def test_a_tilde_is_the_home_for_what_is_written_and_for_the_code_that_opens_it(form, name, tmp_path, monkeypatch):
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    home.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    encoder = lively("resnet18")
    code = export(encoder, form, Path("~/mine") / name)  # as a shell leaves it in --out=~/mine/e.safetensors
    assert str(home / "mine" / name) in code
    assert (home / "mine" / name).exists()
    assert not list(here.iterdir())


def test_without_onnx_one_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UserError, match=r"pip install 'stec\[export\]'"):
        export(lively("resnet-small"), "onnx", tmp_path / "e.onnx")


def test_the_command_prints_the_code_that_opens_it(stec, train):
    run, _ = train("run", "epochs=1", "encoder=resnet18-cifar", "views.size=16", "data.train_images=32")
    code, out, _ = stec("export", str(run.path), "--to", "torchvision", "-o", "mine/e.safetensors")
    assert code == 0
    about, _, printed = out.partition("\n\n")
    assert "resnet18-cifar, 512 features of RGB images (B, 3, 16, 16) in [0, 1], not normalised" in about
    model = opened(printed)
    views = torch.rand(2, 3, 16, 16)
    encoder = load("mine/e.safetensors")
    torch.testing.assert_close(model(views), encoder.network(views), atol=1e-5, rtol=1e-5)
    code, _, err = stec("export", str(run.path), "--to", "huggingface", "-o", "mine/hf")
    assert code == 2
    assert err.startswith("stec: a config.json cannot")
    assert len(err.splitlines()) == 1
    assert not Path("mine/hf").exists()
