"""A short pretraining, and both transfers from it: half a minute, and well above what guessing gives."""

import pytest
from tiny_runs import Silent

from stec.config import load
from stec.run import RunFolder
from stec.training import pretrain
from stec.transfer.config import load_transfer
from stec.transfer.running import transfer

ONE = ("data.size=32", "data.objects=1", "data.train_images=400", "data.test_images=100", "device=cpu")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    words = (
        "epochs=6",
        "data.train_images=1024",
        "data.test_images=100",
        "baselines=false",
        "optimizer.warmup_epochs=1",
    )
    folder = RunFolder.new(tmp_path_factory.mktemp("runs") / "stec", "default")
    pretrain(load("default", words), folder, Silent())
    return folder.path


def score(start, task, *words):
    config = load_transfer(f"shapes-{task}", [*ONE, f"start={start}", *words])
    return transfer(config, RunFolder.new(start.parent / task, f"shapes-{task}"), Silent())


@pytest.mark.slow
def test_detection(pretrained):
    words = ("epochs=4", "detection.anchors=[14,20]", "detection.regions_per_image=16", "detection.proposals=32")
    assert score(pretrained, "detection", *words)["ap50"] > 20  # untrained: about 1


@pytest.mark.slow
def test_segmentation(pretrained):
    words = ("epochs=10", "segmentation.side=32", "segmentation.scale=[1.0,1.0]")
    assert score(pretrained, "segmentation", *words)["miou"] > 15  # background alone: 7
