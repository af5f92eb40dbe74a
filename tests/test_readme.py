"""The README tells the truth."""

import re
from pathlib import Path

import torch

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


def test_the_experiments_that_are_named_exist():
    named = re.findall(r"stec experiment ([a-z][\w-]*)(?!\S)", README)
    assert named
    assert set(named) <= set(experiment_names())


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (Path(__file__).parents[1] / target).exists(), target
