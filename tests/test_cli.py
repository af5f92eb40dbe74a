"""The command line as a person meets it."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from tiny_runs import TINY, fitting

from stec import cli, training
from stec.commands import screen
from stec.config import load
from stec.run import RunFolder


def refused(result, *parts):
    code, _, err = result
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("stec: ")
    for part in parts:
        assert part in err


def test_a_run_prints_its_accuracies_and_where_it_is(stec, tmp_path):
    code, out, _ = stec("pretrain", *TINY, "baselines=true")
    assert code == 0
    for words in ("linear accuracy, trained encoder", "same encoder untrained", "pixels", "nearest neighbours"):
        assert words in out
    assert "runs/default-stec-seed0" in out
    for words in ("epoch 4/4", "identity", "manipulation", "probe", "views/s", "done"):
        assert words in out, "plain progress lines, as the output is no terminal"
    assert "\x1b" not in out
    summary = json.loads((tmp_path / "runs/default-stec-seed0/summary.json").read_text())
    assert f"{summary['linear']:.1f} %" in out


@pytest.mark.parametrize("summary", [{}, {"phones": None, "speakers": None}])
def test_without_labels_there_is_no_table(summary, capsys):
    cli._print_summary({"seconds": 3.0, **summary}, Path("run"))
    assert capsys.readouterr().out == "3 s of training; everything is in run\n"


def test_a_folder_with_brackets_is_named_as_it_is(stec):
    assert "everything is in run[bold]" in stec("pretrain", *TINY, "epochs=1", "--out", "run[bold]")[1]


def test_a_star_is_not_put_into_a_path(stec, tmp_path):
    code, _, _ = stec("pretrain", *TINY, "epochs=1", "method=stec*")
    assert code == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["default-stec-star-seed0"]


def test_an_existing_run_is_refused_then_resumed_then_replaced(stec, tmp_path):
    stec("pretrain", *TINY, "--out", "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    refused(stec("pretrain", *TINY, "--out", "run"), "run exists", "--resume run", "--force")
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    code, out, _ = stec("pretrain", "--resume", "run")
    assert code == 0
    assert "resumed at epoch 4 of 4" in out
    code, _, _ = stec("pretrain", *TINY, "epochs=2", "--out", "run", "--force")
    assert code == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["epochs"] == 2


def test_a_project_with_a_config_of_its_own_is_no_run(stec, tmp_path):
    (tmp_path / "project/code").mkdir(parents=True)
    (tmp_path / "project/config.yaml").write_text("learning_rate: 1\n")
    for force in ((), ("--force",)):
        refused(stec("pretrain", *TINY, "--out", "project", *force), "project is not a run folder", "another --out")
    assert (tmp_path / "project/code").is_dir()


def test_what_is_hidden_in_an_empty_folder_stays(stec, tmp_path):
    (tmp_path / "run/.git").mkdir(parents=True)
    (tmp_path / "run/.gitignore").write_text("*.pt")
    for force in ((), ("--force",)):
        assert stec("pretrain", *TINY, "--out", "run", *force)[0] == 0
        assert {".git", ".gitignore", "summary.json"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_force_does_not_delete_what_is_not_a_run(stec, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/mother.txt").write_text("precious")
    for force in ((), ("--force",)):
        refused(stec("pretrain", *TINY, "--out", "photos", *force), "photos is not a run folder", "another --out")
    assert (tmp_path / "photos/mother.txt").read_text() == "precious"


def test_print_config_prints_yaml_that_is_a_recipe(stec, tmp_path):
    code, out, _ = stec("pretrain", "cifar10-resnet18-stec", "seed=4", "--print-config")
    assert code == 0
    (tmp_path / "printed.yaml").write_text(out)
    assert load(str(tmp_path / "printed.yaml")) == load("cifar10-resnet18-stec", ["seed=4"])
    assert not (tmp_path / "runs").exists()


def test_the_command_line_answers_before_pytorch_is_loaded():
    """Help is quick, and OMP_WAIT_POLICY is set in time."""
    code = "import sys, os, stec.cli; print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "PASSIVE"]


def test_lists(stec):
    _, recipes, _ = stec("recipes")
    assert [line.split()[0] for line in recipes.splitlines()[:3]] == ["default", "folder", "folder-small"]
    assert "cifar10-resnet18-stec" in recipes
    assert "published: 92.0 +- 0.2" in recipes
    _, methods, _ = stec("methods")
    assert "simclr" in methods
    assert "SimCLR + the manipulation model" in methods
    _, sources, _ = stec("data")
    assert "any tree of images" in sources


def test_lists_fit_a_narrow_terminal(stec, monkeypatch):
    monkeypatch.setattr(screen, "console", Console(width=80, force_terminal=True, no_color=True))
    _, out, _ = stec("recipes")
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    begun = next(line for line in lines if line.startswith("cifar10-resnet18-barlow"))
    following = lines[lines.index(begun) + 1]
    assert following.startswith(" " * begun.index("Barlow Twins")), "a line that goes on keeps to its column"


def test_data_does_not_call_readable_what_it_has_not_read(stec, tmp_path):
    """Images that do not fit into memory are read in training only."""
    (tmp_path / "pictures").mkdir()
    for i in range(3):
        (tmp_path / f"pictures/{i}.png").write_bytes(b"not a picture")
    code, out, _ = stec("data", "folder", "data.root=pictures", "data.resident=never")
    assert code == 0
    assert "unreadable   0 so far: streamed images are read in training" in out


def test_what_to_type_next_can_be_typed_as_it_is_told(stec, tmp_path):
    """Folders with spaces, too, and in one line, however long it is."""
    photos = "photos of a long summer, and of the autumn that came after it"
    for i in range(40):
        path = tmp_path / photos / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 30), (i, i, i)).save(path)
    words = fitting(*TINY, "data.source=folder", f"data.root={photos}", "epochs=1", "batch_size=16")
    _, out, _ = stec("pretrain", *words, "--out", "my run")
    command, _, rest = out.splitlines()[-1].partition(" shows")
    assert rest == " what it finds alike"
    assert stec(*shlex.split(command)[1:])[0] == 0
    _, out, _ = stec("data", "shard", "folder", f"data.root={photos}", "-o", "my shards")
    assert shlex.split(out.splitlines()[-1])[-1] == "data.root=my shards"


def test_names_that_a_screen_cannot_show_are_told_all_the_same(stec, tmp_path):
    """File names are bytes, of which an encoding knows some."""
    for i in range(20):
        path = tmp_path / "pictures" / ("caf\udce9", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 30), (i, i, i)).save(path)
    code, out, err = stec("data", "folder", "data.root=pictures", "data.size=40")
    assert (code, err) == (0, "")
    assert "2: caf\\udce9, dog" in out


def test_data_describes_ones_own_images(stec, tmp_path):
    for i in range(20):
        path = tmp_path / "pictures" / ("[cat]", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 30), (i, i, i)).save(path)
    code, out, _ = stec("data", "data.source=folder", "data.root=pictures")
    assert code == 0
    assert "2: [cat], dog" in out
    assert "18 images, 18 labelled" in out
    assert out.startswith("pictures has no test folder: held out 2 of its images"), "one plain line"


def test_data_says_that_there_are_more_classes_than_it_names(stec, tmp_path):
    for name in "abcdefghijk":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / f"pictures/{name}/1.png")
    assert "11: a, b, c, d, e, f, g, h, i, j, ..." in stec("data", "folder", "data.root=pictures")[1]


def test_views_draws_a_picture(stec, tmp_path):
    code, _, _ = stec("views", "-o", "pairs.png", "--pairs", "3")
    assert code == 0
    with Image.open(tmp_path / "pairs.png") as picture:
        assert picture.width > 1000
        assert len(picture.getcolors(maxcolors=1 << 24)) > 50
        width = picture.width
    assert stec("views", "-o", "small.png", "--pairs", "3", "views.small=2")[0] == 0
    with Image.open(tmp_path / "small.png") as picture:
        assert picture.width > width, "a panel of small views"


def test_the_version_is_told(stec):
    code, out, _ = stec("--version")
    assert (code, out) == (0, "stec 0.1.0\n")


def test_mistakes_are_one_line_and_exit_code_2(stec, tmp_path):
    refused(stec("pretrain", "defalt"), "unknown recipe 'defalt'", "did you mean 'default'")
    refused(stec("pretrain", "method=simclear"), "unknown method 'simclear'", "did you mean 'simclr'")
    refused(stec("pretrain", "encoder=resnet17"), "resnet17", "did you mean 'resnet1")
    refused(stec("pretrain", "default", "other"), "more than one recipe")
    refused(stec("pretrain", "epoch=3"), "did you mean 'epochs'")
    refused(stec("pretrain", "epochs=three"), "epochs=three: expected a whole number")
    refused(stec("pretrain", "views.area=0.5"), "views.area=0.5: expected two numbers in brackets, such as [0.2,1.0]")
    refused(stec("pretrain", "seed=-1"), "seed=-1: must be at least 0")
    refused(stec("pretrain", "device=gpu"), "device=gpu: choose from auto, cpu, cuda")
    refused(
        stec("pretrain", "epochs=1"),
        "optimizer.warmup_epochs=2.0: is longer than the run of 1 epoch(s): add optimizer.warmup_epochs=1, or 0",
    )
    refused(stec("pretrain", "SimCLR"), "unknown recipe 'SimCLR': did you mean method=simclr?")
    refused(stec("data", "cifar10"), "did you mean data.source=cifar10?")
    refused(stec("pretrain", "--resume", "nowhere"), "nowhere is not a run folder")
    refused(stec("pretrain", "--resume", "nowhere", "epochs=3"), "leave out the other words")
    refused(stec("pretrain", "data.source=folder"), "needs data.root")
    refused(stec("pretrain", "data.source=folder", "data.root=nowhere"), "nowhere")
    (tmp_path / "empty").mkdir()
    refused(stec("pretrain", "empty"), "it is a folder; 'folder data.root=empty' reads your own images")
    refused(stec("pretrain", "folder", "empty"), "the images are data.root=empty")
    (tmp_path / "my photos").mkdir()
    refused(stec("pretrain", "my photos"), "'folder 'data.root=my photos'' reads your own images")
    refused(stec("pretrain", "folder", "my photos"), "the images are 'data.root=my photos'")
    refused(stec("pretrain", "folder", "data.root=my", "photos"), "key=value, in quotes if it holds a space")
    refused(stec("pretrain", "--epochs", "5"), "no option --epochs: settings are words without dashes, epochs=VALUE")
    refused(stec("views", "--batch-size", "5"), "batch_size=VALUE")
    refused(stec("pretrain", "data.root=empty"), "data.source=shapes reads no files")
    code, *_ = stec("pretrain", "cifar10-resnet18-stec", "data.source=shapes", "--print-config")  # its own root
    assert code == 0
    refused(stec("pretrain", "data.source=folder", "data.root=empty"), "empty", "no image")
    refused(stec("pretrain", *TINY, "batch_size=1000"), "batch_size=1000", "96 examples")
    refused(stec("pretrain", "cifar10-resnet18-stec"), "data.download=true")
    (tmp_path / "file").write_text("")
    refused(stec("pretrain", *TINY, "--out", "file"), "file is a file")
    refused(stec("pretrain", "folder", "data.root=file"), "data.root=file: a file, not a folder")
    refused(stec("pretrain", "--resume", "run", "--out", "other"), "leave out --out")
    refused(stec("views", "-o", "views.txt"), "has to end in .png or .jpg")
    refused(stec("views", "-o", "file/views.png"), "there is a file where its folder should be")
    refused(stec("bench", "-o", "empty"), "empty cannot be written")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("method=moco identity.groups=1", "keys are told from the queue by their batch norm statistics"),
        ("method=byol identity.ema=0", "the target would be the encoder itself"),
        ("method=stec-star identity.ema=1", "it would never follow"),
        ("manipulation.action=colour views.jitter_probability=0 views.grey=0", "nothing to infer"),
        ("manipulation.action=allocentric views.area=[1,1] views.mirror=0", "nothing to infer"),
        ("views.solarize=1", "nothing to infer"),
        ("method=relic identity.alpha=-1", "identity.alpha=-1.0: must be at least 0"),
        ("encoder=resnet17", "did you mean 'resnet1"),
        ("encoder=timm:vit_tinny_patch16_224", "did you mean 'vit_tiny_patch16_224'"),
        ("manipulation.k=1", "manipulation.k=1: must be at least 2"),
    ],
)
def test_pairings_that_make_no_sense_are_refused_before_data_are_loaded(stec, tmp_path, words, reason):
    refused(stec("pretrain", *words.split(), "data.source=folder", "data.root=nowhere"), reason)
    assert not list(tmp_path.iterdir())


def test_only_we_speak(tmp_path):
    words = [*TINY, "precision=bf16", "epochs=1", "optimizer.warmup_epochs=0", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "stec", "pretrain", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.startswith("stec, resnet-small, 1 epochs of shapes")


def test_an_interruption_is_one_line_that_says_how_to_go_on(stec, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "pretrain", interrupt)
    code, _, err = stec("pretrain", *TINY)
    assert code == 130
    assert err == "stec: interrupted; --resume continues a run, the same command an experiment or an embedding\n"


def test_a_mistake_found_before_training_leaves_no_run_folder_behind(stec, tmp_path):
    refused(stec("pretrain", *TINY, "method=simclear"))
    refused(stec("pretrain", *TINY, "batch_size=1000"))
    refused(stec("pretrain", "data.source=folder", "data.root=nowhere"))
    assert not list(tmp_path.glob("runs/*"))


def test_a_tenth_of_broken_images_is_fatal_and_one_is_named(stec, tmp_path):
    for i in range(120):
        path = tmp_path / "pictures" / f"{i:03d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 30), (i, i, i)).save(path)
    (tmp_path / "pictures/007.png").write_bytes(b"not a picture")
    words = fitting(*TINY, "data.source=folder", "data.root=pictures", "epochs=1")
    code, out, _ = stec("pretrain", *words)
    assert code == 0
    assert "007.png" in out
    assert "1 unreadable file" in out
    for i in range(12):
        (tmp_path / f"pictures/{i:03d}.png").write_bytes(b"not a picture")
    refused(stec("pretrain", *words, "--out", "second"), "more than 1 % of 120 images")


def test_a_command_that_is_told_can_be_copied_into_a_shell(stec, tmp_path):
    RunFolder.new(tmp_path / "my run", "default").begin(load("default", TINY))
    refused(stec("pretrain", "--out", "my run"), "stec pretrain --resume 'my run'' continues it")


def test_a_run_is_resumed_on_other_devices_with_all_else_as_it_was(stec, tmp_path, monkeypatch):
    folder = RunFolder.new(tmp_path / "run", "default")
    folder.begin(load("default", [*TINY, "seed=7", "devices=2"]))
    seen = []
    monkeypatch.setattr("stec.training.pretrain", lambda config, *_: seen.append(config))
    stec("pretrain", "--resume", str(folder.path), "devices=4", "device=cpu", "strategy=fsdp")
    assert seen == [dataclasses.replace(folder.config(), devices=4, device="cpu", strategy="fsdp")]
    assert seen[0].seed == 7


def test_a_signal_to_a_process_that_is_ending_says_nothing():
    """As torchrun sends one to those that are left."""
    code = (
        "import atexit, os, signal, sys; from stec import cli\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))\n"
        "sys.argv = ['stec', 'methods']; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "stec-byol" in done.stdout
    assert done.stderr == ""


def test_an_interruption_before_any_command_is_one_line(stec, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    code, out, err = stec("methods")
    assert (code, out) == (130, "")
    assert err.startswith("stec: interrupted; ")
