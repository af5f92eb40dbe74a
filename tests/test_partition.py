"""Weights in parts: what is put together when, and what trains with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from train_in_parts import TRANSFORMER

from stec import UserError, create
from stec.bench import bench
from stec.config import load
from stec.networks import create_encoder, projector
from stec.partition import blocks, is_part, partition
from stec.reporter import Nobody
from stec.run import RunFolder
from stec.training import pretrain
from stec.views import Views


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts")
    script = str(Path(__file__).with_name("train_in_parts.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pretrain(load("default", TRANSFORMER), RunFolder.new(path / "vit-one", "default"), Nobody())
    return path


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
    dist.destroy_process_group()


@pytest.mark.parametrize(("first", "second"), [("vit-one", "vit-fsdp"), ("sound-ddp", "sound-fsdp")])
def test_a_run_with_parts_is_the_run_without(first, second, runs):
    wanted, found = (RunFolder.open(runs / name) for name in (first, second))
    for theirs, ours in zip(wanted.metrics(), found.metrics(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    expected, encoder = (load_file(run.path / "encoder.safetensors") for run in (wanted, found))
    assert encoder.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(encoder[key], value, rtol=1e-3, atol=1e-3, msg=key)
    same = [key for key in ("linear", "knn", "phones", "speakers") if key in wanted.summary()]
    assert len(same) == 2
    assert [found.summary()[key] for key in same] == [wanted.summary()[key] for key in same]


def test_a_transfer_with_parts_is_the_transfer_without(runs):
    expected, found = (torch.load(runs / f"scenes-{name}/checkpoint.pt") for name in ("ddp", "fsdp"))
    for key, value in expected["model"].items():
        torch.testing.assert_close(found["model"][key], value, rtol=1e-4, atol=1e-4, msg=key)
    scores = [RunFolder.open(runs / f"scenes-{name}").summary()["miou"] for name in ("ddp", "fsdp")]
    assert scores[0] == pytest.approx(scores[1], abs=0.1)


def test_what_is_wrong_with_one_part_stops_all_processes(runs):
    told = [(runs / f"told-{rank}").read_text() for rank in range(2)]
    assert all("the weights became NaN or infinite at step 2" in text for text in told)
    assert not (runs / "poisoned/checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("name", "number", "kind"),
    [
        ("resnet-small", 4, "BasicBlock"),
        ("resnet50", 16, "Bottleneck"),
        ("timm:vit_tiny_patch16_224", 12, "Block"),
        ("timm:convnext_atto", 12, "ConvNeXtBlock"),
        ("timm:efficientnet_b0", 16, None),
    ],
)
def test_blocks_of_an_encoder(name, number, kind):
    found = list(blocks(create_encoder(name)))
    assert len(found) == number
    assert kind is None or {type(block).__name__ for block in found} == {kind}


def test_a_head_has_no_blocks():
    assert list(blocks(projector(8, 8, 8))) == []


def test_a_block_is_whole_only_while_it_computes(mesh):
    method = partition(create("byol", "resnet-small", identity={"hidden": 8, "output": 4}), mesh)
    stages, seen = method.encoder.stages, []
    stages[1].conv1.register_forward_hook(
        lambda *_: seen.append([any(map(is_part, block.parameters())) for block in stages])
    )
    loss = method(Views(size=16)(torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8))).total
    assert seen == [[True, False, True, True]]
    loss.backward()
    method.after_step(0.5)
    assert all(map(is_part, method.parameters()))
    assert all(is_part(weight.grad) for weight in method.parameters() if weight.requires_grad)


def test_a_weight_that_has_no_parts_is_refused():
    module = nn.Linear(2, 2)
    module.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(UserError, match="strategy=fsdp: the weight scale is a single number"):
        partition(module, None)


def test_measuring_with_parts_is_refused():
    with pytest.raises(UserError, match="use strategy=ddp"):
        bench(load("default", ["strategy=fsdp"]), [32], 0.1)
