"""The README tells the truth."""

import re
from pathlib import Path

import torch
from PIL import Image

from stec.config import load, recipe_names
from stec.experiments.experiment import experiment_names

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_library_example_runs_and_learns(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    torch.manual_seed(0)
    names: dict = {}
    exec(code, names)
    printed = [float(word) for word in re.findall(r"manipulation ([\d.]+)", capsys.readouterr().out)]
    assert len(printed) == 3
    assert printed[-1] < printed[0]
    assert names["features"].shape == (1024, 128)
    assert names["action"].shape == (256, 2, 3)


def test_the_commands_name_recipes_and_keys_that_exist():
    for line in re.findall(r"^    stec pretrain (.*)$", README, re.MULTILINE):
        words = line.split()
        recipe = next((word for word in words if "=" not in word), "default")
        assert recipe in recipe_names()
        load(recipe, [word for word in words if "=" in word])


def test_the_commands_that_use_an_encoder_run(stec, train, tmp_path):
    train("RUN", "epochs=1", "encoder=resnet18-cifar", "views.size=16", "data.train_images=64")
    (tmp_path / "PATH").mkdir()
    for name in ("QUERY.jpg", "other.jpg"):
        Image.effect_noise((30, 20), 50).save(tmp_path / "PATH" / name)
    lines = re.findall(r"^    stec (.*\bRUN\b.*)$", README, re.MULTILINE)
    assert {line.split()[0] for line in lines} == {"probe", "neighbors", "embed", "export", "transfer"}
    for line in lines:
        brief = ["--print-config"] if line.startswith("transfer") else []  # minutes of training
        code, _, err = stec(*line.split(), *brief)
        assert code == 0, err
    for name in ("RUN/probe.json", "sheet.png", "features.npz", "encoder.safetensors"):
        assert (tmp_path / name).is_file()


def test_the_experiments_that_are_named_exist():
    named = re.findall(r"stec experiment ([a-z][\w-]*)(?!\S)", README)
    assert named
    assert set(named) <= set(experiment_names())


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (Path(__file__).parents[1] / target).exists(), target
