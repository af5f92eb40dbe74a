import dataclasses
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import resnet18

import stec
from stec import UserError
from stec.networks.encoders import create_encoder
from stec.run import RunFolder
from stec.transfer.config import load_transfer
from stec.transfer.running import transfer
from stec.transfer.scenes import load_scenes
from stec.transfer.tasks import Segmentation
from stec.transfer.trunks import open_start

TINY = (
    "data.train_images=24", "data.test_images=8", "epochs=4", "batch_size=8", "checkpoint_every=2", "log_every=1",
    "data.size=32", "device=cpu", "optimizer.warmup_epochs=0",
)  # fmt: skip
FEW = (
    "detection.anchors=[8,16]", "detection.regions_per_image=8", "detection.anchors_per_image=16",
    "detection.proposals=16", "segmentation.side=32",
)  # fmt: skip


class Silent:
    def __init__(self, stop_at=None):
        self.notes, self.stop_at = [], stop_at

    def note(self, text):
        self.notes.append(text)

    def progress(self, progress):
        if self.stop_at is not None and progress.step >= self.stop_at:
            raise KeyboardInterrupt


def run(path, task, *words, reporter=None, resume=False):
    if resume:
        folder = RunFolder.open(path)
        return folder, transfer(load_transfer(str(path / "config.yaml")), folder, Silent(), True)
    config = load_transfer(f"shapes-{task}", [*TINY, *FEW, *words])
    folder = RunFolder.new(path, f"shapes-{task}")
    return folder, transfer(config, folder, reporter or Silent())


def weights(folder):
    return torch.load(folder.checkpoint, weights_only=True)["model"]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_an_interrupted_transfer_ends_as_if_it_had_never_stopped(task, tmp_path):
    whole, summary = run(tmp_path / "whole", task)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", task, reporter=Silent(stop_at=8))  # the checkpoint is from step 6
    broken, again = run(tmp_path / "broken", task, resume=True)
    assert same(weights(whole), weights(broken))
    lines = [[{k: v for k, v in line.items() if "second" not in k} for line in f.metrics()] for f in (whole, broken)]
    assert lines[0] == lines[1]
    key = "ap50" if task == "detection" else "miou"
    assert summary[key] == again[key]


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_half_precision_changes_little(task, tmp_path):
    """Boxes stay in full precision: at half of it, those of some hundred pixels would move by one."""
    full, half = (run(tmp_path / p, task, "epochs=1", f"precision={p}")[0].metrics() for p in ("32", "bf16"))
    assert [line["loss"] for line in half] != [line["loss"] for line in full]
    for name in ("loss", "boxes", "proposals") if task == "detection" else ("loss",):
        assert half[0][name] == pytest.approx(full[0][name], rel=0.1)


def test_a_run_leaves_numbers_by_class_and_a_sheet(tmp_path):
    folder, summary = run(tmp_path / "a", "detection", "epochs=1")
    assert summary == json.loads((folder.path / "summary.json").read_text())
    assert summary.keys() >= {"ap50", "ap50_11", "ap", "ap75", "images_per_second", "data_fingerprint", "commit"}
    assert list(summary["ap50_by_class"]) == list(stec.data.shapes.CLASSES)
    assert folder.metrics()[-1].keys() >= {"loss", "classes", "boxes", "objectness", "proposals", "rate"}
    with Image.open(folder.path / "predictions.png") as sheet:
        assert sheet.width > 1000


def test_a_network_is_evaluated_in_evaluation_mode_at_the_precision_of_its_training(tmp_path, monkeypatch):
    modes, evaluate = [], Segmentation.evaluate

    def watched(task):
        modes.append((task.module.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return evaluate(task)

    monkeypatch.setattr(Segmentation, "evaluate", watched)
    run(tmp_path / "a", "segmentation", "epochs=1", "precision=bf16")
    assert modes == [(False, False, True)]


def test_what_was_found_in_the_data_is_told(tmp_path, monkeypatch):
    def load(*words):
        return dataclasses.replace(load_scenes(*words), skipped=("a.jpg", "b.jpg"), notes=("one box is empty",))

    monkeypatch.setattr("stec.transfer.running.load_scenes", load)
    reporter = Silent()
    _, summary = run(tmp_path / "a", "segmentation", "epochs=1", reporter=reporter)
    assert summary["skipped_images"] == 2
    told = [note for note in reporter.notes if note.startswith("data:")]
    assert told[0].endswith("24 images to train, 8 to test, 32 px, 10 classes")
    assert told[1:] == ["data: 2 broken image(s) or annotation(s) left out", "data: one box is empty"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_a_gpu_starts_with_the_loss_of_a_cpu_and_ends_with_numbers(task, tmp_path):
    """In half precision, segmentation compiled and replayed; what is mirrored and cut out is drawn anew."""
    (there, summary), (here, _) = (run(tmp_path / name, task, f"device={name}") for name in ("cuda", "cpu"))
    assert there.metrics()[0]["loss"] == pytest.approx(here.metrics()[0]["loss"], rel=0.1)  # other draws: 4 %
    assert summary["ap50" if task == "detection" else "miou"] is not None


def test_detection_does_not_try_out_convolutions_as_the_run_before_it_did(tmp_path, monkeypatch):
    """Its numbers of regions are ever new: cuDNN would look for the fastest kernels again and again."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    run(tmp_path / "a", "detection", "epochs=1")
    assert not torch.backends.cudnn.benchmark


def test_the_rate_warms_up_and_drops(tmp_path):
    words = ("optimizer.rate=0.08", "optimizer.warmup_epochs=1", "optimizer.drops=[0.5,0.75]", "batch_size=6")
    folder, _ = run(tmp_path / "a", "segmentation", *words)  # 4 epochs of 4 steps
    rates = [line["rate"] for line in folder.metrics()]  # of the step to come
    assert rates[:-1] == pytest.approx([0.04, 0.06, *[0.08] * 5, *[0.008] * 4, *[0.0008] * 4])


def test_pretrained_weights_have_a_rate_of_their_own(tmp_path):
    encoder = create_encoder("resnet-small")
    file = tmp_path / "encoder.safetensors"
    description = stec.encoder.Description("resnet-small", "stec", 32, 32, 1.0)
    stec.encoder.Encoder(encoder, description).save(file)
    words = ("epochs=1", "optimizer.pretrained=0")
    folder, summary = run(tmp_path / "a", "segmentation", f"start={file}", "encoder=resnet50", *words)
    assert summary["encoder"] == "resnet-small", "as the start knows itself"
    frozen, before = weights(folder), encoder.state_dict()
    assert torch.equal(frozen["trunk.layers.0.weight"], before["conv1.weight"])
    assert torch.equal(frozen["last.0.conv2.weight"], before["stages.3.conv2.weight"])
    assert not torch.equal(frozen["trunk.layers.1.running_mean"], before["bn1.running_mean"])
    folder, _ = run(tmp_path / "b", "segmentation", *words)  # nothing is pretrained
    torch.manual_seed(0)
    assert not torch.equal(weights(folder)["trunk.layers.0.weight"], create_encoder("resnet-small").conv1.weight)


def test_starts(tmp_path, train):
    folder, _ = train("run", "epochs=1", "optimizer.warmup_epochs=0")
    of_run, of_file = open_start(str(folder.path), "resnet50"), open_start(str(folder.path / "encoder.safetensors"), "")
    expected = stec.load(folder.path).network.state_dict()
    for start in (of_run, of_file):
        assert (start.name, start.pretrained, start.mean) == ("resnet-small", True, (0.0, 0.0, 0.0))
        assert same(start.encoder.state_dict(), expected)
        assert all(parameter.requires_grad for parameter in start.encoder.parameters())

    torch.manual_seed(0)
    model = resnet18()
    torch.save(model.state_dict(), tmp_path / "a.pth")
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    for name in ("a.pth", "a.safetensors"):
        start = open_start(f"torchvision:{tmp_path / name}", "resnet18")
        assert torch.equal(start.encoder.layer4[0].conv1.weight, model.layer4[0].conv1.weight)
        assert start.mean == (0.485, 0.456, 0.406)

    torch.manual_seed(3)
    expected = create_encoder("resnet18").state_dict()
    torch.manual_seed(3)
    assert same(open_start("none", "resnet18").encoder.state_dict(), expected)


def test_starts_that_cannot_be(tmp_path):
    torch.save(resnet18().state_dict(), tmp_path / "a.pth")
    (tmp_path / "b.pth").write_bytes(b"no weights")
    for start, encoder, words in (
        ("nowhere", "resnet18", "no such run folder or file"),
        (f"torchvision:{tmp_path / 'a.pth'}", "resnet50", "are not those of 'resnet50'"),
        (f"torchvision:{tmp_path / 'b.pth'}", "resnet18", "cannot be read as weights"),
        ("torchvision:IMAGENET1K_V9", "resnet18", "did you mean 'IMAGENET1K_V1'"),
        ("torchvision:IMAGENET1K_V1", "resnet18-cifar", "torchvision has no weights of 'resnet18-cifar'"),
    ):
        with pytest.raises(UserError, match=words):
            open_start(start, encoder)
    from stec.transfer.trunks import Trunk

    with pytest.raises(UserError, match="transfer takes ResNets"):
        Trunk(open_start("none", "timm:vit_tiny_patch16_224"))


def test_on_the_command_line(stec):
    code, out, _ = stec("transfer", "segmentation", "none", *TINY, *FEW, "epochs=1")
    assert code == 0
    assert "mean intersection over union" in out
    assert "24 images to train, 8 to test" in out
    code, _, err = stec("transfer", "segmentation", "none", *TINY)
    assert code == 2
    assert "--resume runs/shapes-segmentation-none-seed0" in err
    assert stec("transfer", "segmentation", "--resume", "runs/shapes-segmentation-none-seed0")[0] == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["detection"], "from which encoder?"),
        (["detection", "none", "shapes-segmentation"], "is for segmentation, not for detection"),
        (["detection", "none", "voc-detection"], "data.root=PATH"),
        (["detection", "none", "voc-detectoin"], "did you mean 'voc-detection'?"),
        (["detection", "none", "data.root=VOC"], "data.source=shapes reads no files"),
        (["segmentation", "none", "voc-segmentation", "data.root=.", "data.classes=[background,cat]"], "is class 0"),
        (["detection", "none", "voc-detection", "data.root=.", "data.classes=[cat,cat]"], "is there twice"),
        (["detection", "none", "data.size=50"], "must be a multiple of 32"),
        (["detection", "none", "detection.sides=[0]"], "must be multiples of 32"),
        (["detection", "none", "detection.anchors=[16,0]"], "detection.anchors=(16, 0): needs at least one side"),
        (["detection", "none", "detection.anchor=[8]"], "did you mean 'detection.anchors'?"),
        (["detection", "epochs=3"], "from which encoder?"),
        (["detection", "nowhere", "encoder=resnet18"], "encoder=resnet18: the start, nowhere, says so itself"),
        (["detection", "none", "start=nowhere"], "start=nowhere: the start, none, says so itself"),
        (["segmentation", "nowhere"], "no such run folder or file"),
        (["segmentation", "--resume", "nowhere"], "is not a run folder"),
    ],
)
def test_mistakes_are_one_line(stec, words, error):
    code, _, err = stec("transfer", *words)
    assert code == 2
    assert error in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "recipe", ["voc-detection", "voc-detection-short", "voc-segmentation", "voc-segmentation-short"]
)
def test_recipes_are_whole(recipe):
    config = load_transfer(recipe, ["data.root=somewhere"])
    assert config.task in recipe
    assert config.data.test


def test_the_papers_schedules():
    detection = load_transfer("voc-detection", ["data.root=x"])
    steps = (5011 + 11540) // detection.batch_size * detection.epochs
    assert steps == pytest.approx(24_000, rel=0.02)
    assert detection.optimizer.warmup_epochs * (16551 // 15) == pytest.approx(1000, abs=1)
    assert [part * steps for part in detection.optimizer.drops] == pytest.approx([18_000, 22_000], abs=2)
    assert (detection.optimizer.rate, detection.batch_size, detection.detection.rpn_weight) == (0.7, 15, 0.2)
    assert detection.optimizer.weight_decay == 0
    sides = [side * 375 / detection.data.size for side in detection.detection.sides]  # of most of VOC: 500 x 375
    assert (min(sides), max(sides)) == pytest.approx((480, 800), abs=16)  # half of MoCo's steps of 32
    assert detection.detection.test_side * 375 / detection.data.size == pytest.approx(800, abs=16)
    segmentation = load_transfer("voc-segmentation", ["data.root=x"])
    assert (segmentation.epochs, segmentation.batch_size, segmentation.optimizer.rate) == (45, 16, 0.03)
    assert segmentation.optimizer.rate * segmentation.optimizer.pretrained == pytest.approx(0.003)
    assert (segmentation.optimizer.drops, segmentation.optimizer.weight_decay) == ((0.7, 0.9), 1e-4)
