import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from stec.config import Config, load, read_recipe, recipe_names, to_yaml
from stec.errors import UserError
from stec.limits import CHOICES
from stec.method import METHODS
from stec.run import RunFolder


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads_and_says_what_it_is(name):
    assert isinstance(load(name), Config)
    assert read_recipe(name)["about"]


# method.md sections 1, 3, 4, 5: the paper's numbers, typed a second time.
@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("cifar10-resnet18-stec", ("resnet18-cifar", 1000, 1024, 1.0, 1.0, 0.5, 512, 64, (0.4, 0.1), 0.0, 0.0, 32)),
        ("cifar100-resnet50-simclr", ("resnet50-cifar", 1000, 1024, 1.0, 1.0, 0.5, 2048, 64, (0.4, 0.1), 0, 0, 32)),
        ("stl10-resnet18-simclr", ("resnet18-stl", 1000, 1024, 0.3, 0.3, 0.2, 512, 128, (0.8, 0.2), 0.5, 0.2, 96)),
        ("stl10-resnet50-stec", ("resnet50-stl", 1000, 1024, 0.3, 0.3, 0.2, 2048, 128, (0.8, 0.2), 0.5, 0.2, 96)),
        ("cifar10-resnet18-moco", ("resnet18-cifar", 1000, 1024, 1.0, 1.0, 0.5, 512, 64, (0.4, 0.1), 0.0, 0.0, 32)),
        ("cifar100-resnet50-stec-star", ("resnet50-cifar", 1000, 1024, 1.0, 1.0, 0.5, 2048, 64, (0.4, 0.1), 0, 0, 32)),
        ("cifar100-resnet18-byol", ("resnet18-cifar", 1000, 1024, 1.0, 1.0, 0.5, 512, 64, (0.4, 0.1), 0.0, 0.0, 32)),
        ("stl10-resnet18-relic", ("resnet18-stl", 1000, 1024, 0.3, 0.3, 0.2, 512, 128, (0.4, 0.1), 0.5, 0.2, 96)),
        ("stl10-resnet50-stec-star", ("resnet50-stl", 1000, 1024, 0.3, 0.3, 0.2, 2048, 128, (0.4, 0.1), 0.5, 0.2, 96)),
        ("stl10-resnet18-moco", ("resnet18-stl", 1000, 1024, 0.3, 0.3, 0.2, 512, 128, (0.8, 0.2), 0.5, 0.2, 96)),
        ("stl10-resnet18-byol", ("resnet18-stl", 1000, 1024, 0.3, 0.3, 0.2, 2048, 128, (0.8, 0.2), 0.5, 0.2, 96)),
        ("imagenet-resnet50-relic", ("resnet50", 100, 1680, 0.6, 0.3, 0.1, 2048, 128, (0.4, 0.1), 0.5, 0.2, 224)),
        ("imagenet-resnet50-stec", ("resnet50", 100, 1680, 0.6, 0.3, 0.1, 2048, 128, (0.8, 0.2), 0.5, 0.2, 224)),
    ],
)
def test_recipes_hold_the_papers_numbers(recipe, expected):
    c = load(recipe)
    assert (
        c.encoder, c.epochs, c.batch_size, c.lambda_manip, c.optimizer.rate, c.identity.temperature, c.identity.hidden,
        c.identity.output, c.views.jitter, c.views.blur, c.views.solarize, c.views.size,
    ) == expected  # fmt: skip
    assert (c.optimizer.weight_decay, c.optimizer.warmup_epochs, c.optimizer.momentum) == (1e-6, 10, 0.9)
    assert (c.manipulation.k, c.views.area, c.views.grey, c.views.mirror) == (6, (0.08, 1.0), 0.2, 0.5)


def test_stec_recipes_differ_from_simclr_in_the_method_alone():
    for name in recipe_names():
        if name.endswith("-stec") and "-vit-" not in name:  # transformers are not in the paper
            ours, theirs = (yaml.safe_load(to_yaml(load(n))) for n in (name, name.replace("-stec", "-simclr")))
            assert {k for k in ours if ours[k] != theirs[k]} == {"method"}


def test_stec_star_recipes_differ_from_relic_in_the_method_alone():
    names = [name for name in recipe_names() if "-stec-star" in name and not name.endswith("-multicrop")]
    assert len(names) == 8
    for name in names:
        ours, theirs = (yaml.safe_load(to_yaml(load(n))) for n in (name, name.replace("-stec-star", "-relic")))
        assert {k for k in ours if ours[k] != theirs[k]} == {"method"}
    small, plain = load("cifar10-resnet18-stec-star-multicrop"), load("cifar10-resnet18-stec-star")
    assert replace(small, views=plain.views, manipulation=plain.manipulation) == plain
    assert load("imagenet-resnet50-stec-star-300") == replace(load("imagenet-resnet50-stec-star"), epochs=300)


def test_recipes_with_a_target_network_have_its_decay_and_the_queue():
    for name in recipe_names():
        method = name.partition("-resnet")[2][3:].removesuffix("-300")
        if method in ("relic", "stec-star", "moco", "byol"):
            config = load(name)
            assert config.method == method
            assert config.identity.ema == (0.996 if method == "byol" else 0.99)
            assert (config.identity.alpha, config.identity.queue) == (1.0, 65536)


def test_words_win_over_the_recipe_and_types_are_kept():
    config = load("default", ["views.area=[0.5,0.9]", "seed=7", "optimizer.rate=1", "data.root=null"])
    assert config.views.area == (0.5, 0.9)
    assert config.seed == 7
    assert isinstance(config.optimizer.rate, float)
    assert config.data.root is None


@pytest.mark.parametrize(("key", "choice"), [(key, choice) for key, choices in CHOICES.items() for choice in choices])
def test_every_choice_can_be_made_with_a_word(key, choice):
    """YAML takes some words, such as yes and no, for something else."""
    group, _, name = key.rpartition(".")
    config = load("audio/cpc" if group == "audio" else "default", [f"{key}={choice}"])
    assert getattr(getattr(config, group) if group else config, name) == choice


def test_the_resolved_config_round_trips(tmp_path):
    config = load("stl10-resnet18-stec", ["seed=3", "data.root=/somewhere"])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load(str(path)) == config


@pytest.mark.parametrize(
    "name",
    ["2024_05", "007", "1e3", "12:30", "yes", "photos #2", "trip: Rome", "photos ", "[new]", "@home", "\udce9t\udce9"],
)
def test_a_path_is_the_word_as_it_stands(tmp_path, name):
    """YAML would make another number or word of it, and so find another folder, or none."""
    config = load("folder", [f"data.root={name}", f"data.cache=kept/{name}"])
    assert (config.data.root, config.data.cache) == (name, f"kept/{name}")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load(str(path)) == config


def test_the_config_of_a_run_is_utf8_in_any_locale(tmp_path):
    """Written in that of the locale, a run on a folder with an umlaut could not be opened again."""
    code = (
        "import sys; from pathlib import Path; from stec.config import load; from stec.run import RunFolder\n"
        r"RunFolder.new(Path('run'), 'folder').begin(load('folder', ['data.root=caf\xe9']))"
        "\nprint(sys.getfilesystemencoding())"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | plain, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "ascii\n", done.stderr
    assert RunFolder.open(tmp_path / "run").config().data.root == "café"


@pytest.mark.parametrize(
    ("word", "root"), [("", None), ("null", None), ("~", None), ("'a b'", "a b"), ('"a: b"', "a: b")]
)
def test_no_path_and_a_path_in_quotes_are_read_as_in_a_recipe(word, root):
    assert load("folder", [f"data.root={word}"]).data.root == root


def test_a_recipe_of_ones_own_can_be_based_on_another(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: cifar10-resnet18-stec\nepochs: 20\n")
    config = load(str(path))
    assert (config.epochs, config.encoder, config.method) == (20, "resnet18-cifar", "stec")


def test_a_recipe_can_differ_for_some_methods(tmp_path):
    """Words win over it, and so does a recipe that is based on it."""
    path = tmp_path / "mine.yaml"
    path.write_text("epochs: 20\nmethods:\n  byol: {epochs: 30, identity: {ema: 0.5}}\n")
    (tmp_path / "other.yaml").write_text(f"base: {path}\nmethod: byol\nidentity: {{ema: 0.7}}\n")
    assert load(str(path)).epochs == 20
    config = load(str(path), ["method=byol", "epochs=40"])
    assert (config.epochs, config.identity.ema) == (40, 0.5)
    config = load(str(tmp_path / "other.yaml"))
    assert (config.epochs, config.identity.ema) == (30, 0.7)
    assert load(str(tmp_path / "other.yaml"), ["method=stec"]).epochs == 20
    path.write_text("methods: {byol: {epoch: 3}}")
    with pytest.raises(UserError, match="unknown key 'epoch': did you mean 'epochs'"):
        load(str(path), ["method=byol"])
    for wrong in ("methods: 3", "methods: {byol: 3}"):
        path.write_text(wrong)
        with pytest.raises(UserError, match="'methods' maps names of methods to keys"):
            load(str(path))


def test_a_mistake_in_a_file_is_told_with_its_name(tmp_path):
    mine, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    other.write_text(f"base: {mine}\nseed: 3\n")
    for wrong, reason in {
        "epoch: 3": "unknown key 'epoch'",
        "epochs: many": "epochs=many: expected a whole",
    }.items():
        mine.write_text(f"{wrong}\n")
        for recipe in (mine, other):
            with pytest.raises(UserError) as error:
                load(str(recipe), ["seed=4"])
            assert str(error.value).startswith(f"{mine}: {reason}")
    mine.write_text("seed: '${'\n")
    with pytest.raises(UserError, match=f"^{re.escape(str(mine))}: seed: "):
        load(str(mine))
    mine.write_text("epochs: 3\n")
    with pytest.raises(UserError, match=r"^epochs=many: expected a whole"):
        load(str(mine), ["epochs=many"])


def test_methods_named_in_recipes_exist():
    for name in recipe_names():
        assert set(read_recipe(name).get("methods", {})) <= set(METHODS)


def test_some_methods_have_settings_of_their_own_in_the_default_recipe():
    """At the rate and with the optimizer of the others, VICReg diverges within three epochs."""
    configs = [load("default", [f"method={m}"]) for m in ("stec", "vicreg", "stec-vicreg", "stec*", "stec-star")]
    assert [config.optimizer.rate for config in configs] == [8, 0.1, 0.1, 8, 8]
    assert [config.batch_size for config in configs] == [256, 64, 64, 64, 64]
    assert load("default", ["method=vicreg", "optimizer.rate=2"]).optimizer.rate == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["view.size=32"], "unknown key 'view': did you mean 'views'?"),
        (["views.sise=32"], "unknown key 'views.sise': did you mean 'views.size'?"),
        (["temperature=1"], "unknown key 'temperature': did you mean 'identity.temperature'?"),
        (["epochs=many"], "epochs=many: expected a whole number"),
        (["views.area=[0.1,x]"], "expected two numbers in brackets, such as [0.2,1.0]"),
        (["views.area=[0.5]"], "two numbers"),
        (["views.area=[0.9,0.5]"], "views.area=(0.9, 0.5): needs 0 < low <= high"),
        (["views.grey=1.5"], "views.grey=1.5: is a probability"),
        (["views.jitter=[0.4,0.7]"], "views.jitter"),
        (["manipulation.action=egocentrik"], "did you mean 'egocentric'?"),
        (["manipulation.k=1"], "manipulation.k=1: must be at least 2"),
        (["lambda_manip=-1"], "lambda_manip=-1.0: must be at least 0"),
        (["identity.temperature=0"], "identity.temperature=0.0: must be above 0"),
        (["epochs=5", "optimizer.warmup_epochs=6"], "optimizer.warmup_epochs=6.0: is longer than the run"),
        (["optimizer.probe_rate=-1"], "optimizer.probe_rate=-1.0: must be at least 0"),
        (["optimizer.probe_rate=1", "optimizer.name=adamw"], "optimizer.probe_rate=1.0: with adamw it has to be null"),
        (["optimizer.probe_rate=1", "optimizer.rate=0"], "optimizer.probe_rate=1.0: needs an optimizer.rate above 0"),
        (["data=cifar10"], "'data' is a group of keys, such as data.source=..."),
        (["data=cifar10", "data.root=here"], "'data' is a group of keys"),
        (["epochs="], "epochs"),
        ([f"seed={2**64}"], f"seed={2**64}: must be below 4294967296"),
        (["lambda_manip=inf"], "lambda_manip=inf: must be finite"),
        ([f"identity.output={2**64}"], f"identity.output={2**64}: must be below 4294967296"),
        (["views.aspect=[0.5,inf]"], "views.aspect=(0.5, inf): must be finite"),
        (["=3"], "'=3': expected key=value"),
        (["[epochs=3"], "'[epochs=3': expected key=value"),
        (["views.area=[0.1"], "cannot read"),
    ],
)
def test_a_wrong_word_is_named_with_what_would_be_right(words, message):
    with pytest.raises(UserError) as caught:
        load("default", words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_recipes_are_named(tmp_path):
    with pytest.raises(UserError, match="unknown recipe 'cifar10-resnet18-stek': did you mean 'cifar10-resnet18-stec'"):
        load("cifar10-resnet18-stek")
    with pytest.raises(UserError, match=r"no-such.yaml: no such file"):
        load("no-such.yaml")
    path = tmp_path / "bad.yaml"
    for text, message in (("a: [", "not valid YAML"), ("- a", "mapping"), (f"base: {path}", "based on itself")):
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            load(str(path))


def test_an_optimizer_that_sound_would_not_use_is_refused():
    with pytest.raises(UserError, match=r"optimizer.name: sound is always trained with Adam"):
        load("audio/cpc", ["optimizer.name=adamw"])
    with pytest.raises(UserError, match=r"optimizer.probe_rate: sound is always trained with Adam"):
        load("audio/cpc", ["optimizer.probe_rate=1"])
    assert load("audio/cpc", ["optimizer.rate=0.002"]).optimizer.rate == 0.002


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "shapes"),
        (["data.source=cifar10", "data.root=data"], "cifar10"),
        (["data.source=arrays", "data.root=data/cifar10"], "cifar10"),
        (["data.source=folder", "data.root=photos/"], "photos"),
        (["data.source=folder", "data.root=."], "folder"),
        (["data.source=shards", "data.root=http://host/flowers"], "flowers"),
    ],
)
def test_images_in_files_are_called_by_their_folder(words, name):
    assert load("default", words).data.name == name
