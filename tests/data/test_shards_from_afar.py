"""Shards behind addresses, and in the training of several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from tar_files import CPU, open_with, pixels, png, read_all, write_shards

from stec.config import DataConfig
from stec.data import load
from stec.data import store as store_module
from stec.data.shard_index import SUFFIX
from stec.data.store import Store
from stec.errors import UserError


def tars(folder):
    return sorted(path.name[-16:] for path in folder.iterdir() if path.name.endswith(".tar"))


@pytest.mark.parametrize("indexed", [True, False])
def test_addresses_are_as_good_as_files(shards, pattern, tmp_path, indexed):
    if indexed:
        open_with(shards)  # makes the indices
    local = read_all(load(DataConfig("shards", str(shards / "train-*.tar"), 8, resident="never", workers=0), CPU))
    if not indexed:
        for index in shards.glob(f"*{SUFFIX}"):
            index.unlink()
    cache = tmp_path / "cache"
    dataset = open_with(pattern.pattern, cache=str(cache), workers=2)
    assert bool(cache.exists() and tars(cache)) != indexed, "with indices, nothing is downloaded before it is needed"
    for _ in range(2):
        batches = list(dataset.train.batches(torch.arange(30), 5))
        assert torch.equal(torch.cat([batch.images for batch in batches]), local.images)
    assert {name: n for name, n in pattern.asked.items() if name.endswith("tar")} == {
        f"train-{n:06}.tar": 1 for n in range(6)
    }, "by one of both workers, in the first epoch only"
    assert dataset.fingerprint == open_with(shards).fingerprint


def test_copies_make_room_and_come_back(shards, pattern, tmp_path):
    open_with(shards)
    size = (shards / "train-000000.tar").stat().st_size
    dataset = open_with(pattern.pattern, cache=str(tmp_path / "cache"), cache_gb=2.5 * size / 1e9)
    for _ in range(2):
        for shard in range(6):
            (batch,) = dataset.train.batches(torch.arange(5 * shard, 5 * shard + 5), 5)
            assert batch.labels.tolist() == list(range(5 * shard, 5 * shard + 5))
            assert np.array_equal(batch.images[0].permute(1, 2, 0).numpy(), pixels(5 * shard))
            assert len(tars(tmp_path / "cache")) <= 2
    assert tars(tmp_path / "cache") == ["train-000004.tar", "train-000005.tar"]


def test_a_shard_that_changed_on_the_server_comes_again(shards, pattern, tmp_path):
    """Old pixels would have new labels."""
    open_with(shards)
    read_all(open_with(pattern.pattern, cache=str(tmp_path / "cache")))
    with webdataset.TarWriter(str(shards / "train-000000.tar")) as tar:
        for number in (7, 8):
            tar.write({"__key__": f"{number:06}", "png": png(number), "cls": str(number).encode()})
    open_with(shards)  # a new index
    batch = read_all(open_with(pattern.pattern, cache=str(tmp_path / "cache")))
    assert batch.labels.tolist() == [7, 8, *range(5, 30)]
    for label, image in zip(batch.labels.tolist(), batch.images, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels(label))
    assert pattern.asked["train-000000.tar"] == 2
    assert pattern.asked["train-000001.tar"] == 1, "the others are as they were"


def test_a_shard_that_is_not_that_of_its_index_is_named(shards, pattern, tmp_path):
    open_with(shards)
    dataset = open_with(pattern.pattern, cache=str(tmp_path / "cache"))
    write_shards(shards, 1, 4)
    with pytest.raises(UserError, match=r"cannot be read \(http.*train-000000\.tar, image 0"):
        read_all(dataset)


def test_what_others_keep_in_that_folder_is_left_alone(shards, pattern, tmp_path):
    open_with(shards)
    cache = tmp_path / "cache"
    (cache / "photos").mkdir(parents=True)
    others = [cache / "thesis.txt", cache / "backup.tar", cache / "0123456789abcdef.npy", cache / "photos"]
    for other in others:
        if not other.exists():
            other.write_bytes(bytes(100_000))
        os.utime(other, (1, 1))  # not read for the longest time
    size = (shards / "train-000000.tar").stat().st_size
    dataset = open_with(pattern.pattern, cache=str(cache), cache_gb=2.5 * size / 1e9)
    assert read_all(dataset).labels.tolist() == list(range(30))
    assert all(other.exists() for other in others)
    assert tars(cache) == ["backup.tar", "train-000004.tar", "train-000005.tar"], "nor does it count"


def test_a_server_that_stumbles_is_asked_again(shards, pattern, tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "PAUSES", (0, 0))
    open_with(shards)
    pattern.refuse["train-000001.tar"] = 2
    assert read_all(open_with(pattern.pattern, cache=str(tmp_path / "cache"))).labels.tolist() == list(range(30))
    assert pattern.asked["train-000001.tar"] == 3


@pytest.mark.parametrize("trouble", ["cut", "refused", "missing"])
def test_a_shard_that_never_comes_is_named(shards, pattern, tmp_path, monkeypatch, trouble):
    monkeypatch.setattr(store_module, "PAUSES", (0, 0))
    open_with(shards)
    dataset = open_with(pattern.pattern, cache=str(tmp_path / "cache"))
    if trouble == "cut":
        pattern.cut.add("train-000001.tar")
    elif trouble == "refused":
        pattern.refuse["train-000001.tar"] = 99
    else:
        (shards / "train-000001.tar").unlink()
    with pytest.raises(UserError, match=r"cannot be read \(http.*train-000001\.tar, image 0"):
        read_all(dataset)
    assert pattern.asked["train-000001.tar"] == (1 if trouble == "missing" else 3), "it is not asked for every image"
    assert "train-000001.tar" not in tars(tmp_path / "cache")
    (shards / f"train-000001.tar{SUFFIX}").unlink()
    with pytest.raises(UserError, match=r"train-000001\.tar cannot be read"):
        open_with(pattern.pattern, cache=str(tmp_path / "other"))


def test_copies_need_a_folder(pattern, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"data\.cache=.*file/cache: shards cannot be kept there \(Not a directory\)"):
        open_with(pattern.pattern, cache=str(tmp_path / "file" / "cache"))


def test_a_store_reads_only_whole_pieces(shards, tmp_path):
    store = Store(tmp_path, 0)
    path = str(shards / "train-000000.tar")
    length = os.path.getsize(path)
    assert len(store.read(path, length - 10, 10)) == 10
    with pytest.raises(Exception, match="ends before the image does"):
        store.read(path, length - 10, 11)


# --- training ---


def seen(path, rank):
    return [json.loads(line) for line in Path(f"{path}-{rank}").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_with_more_and_less_memory_see_every_image_once(tmp_path):
    """Resident images come in another order than those that are streamed from shards."""
    words = [
        "pretrain", "data.source=shards", f"data.root={write_shards(tmp_path / 'shards', 8, 8)}", "data.size=8",
        "data.workers=1", "views.size=8", "batch_size=16", "epochs=1", "devices=2", "device=cpu",
        "optimizer.warmup_epochs=0", "encoder=resnet-small", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1", "SEEN": str(tmp_path / "seen"), "LESS_MEMORY": "1"}
    command = [sys.executable, str(Path(__file__).with_name("watched.py")), *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
    images = [label for rank in range(2) for *_, labels in seen(tmp_path / "seen", rank) for label in labels]
    assert sorted(images) == list(range(64))


@pytest.mark.slow
def test_two_processes_see_every_image_once_per_epoch_also_when_killed(tmp_path):
    write_shards(tmp_path / "shards", 8, 8)
    words = [
        "pretrain", "data.source=shards", f"data.root={tmp_path / 'shards'}", "data.size=8", "data.resident=never",
        "data.workers=1", "data.buffer=12", "views.size=8", "batch_size=16", "epochs=3", "checkpoint_every=1",
        "log_every=1", "devices=2", "device=cpu", "optimizer.warmup_epochs=0", "encoder=resnet-small",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip

    def start(words, name):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "SEEN": str(tmp_path / name)}
        command = [sys.executable, str(Path(__file__).with_name("watched.py")), *words]
        return subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)

    process = start(words, "killed")
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed-0").exists() or len(seen(tmp_path / "killed", 0)) < 6:  # of 4 steps per epoch
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    again = start(["pretrain", "--resume", str(tmp_path / "run")], "resumed")
    assert again.wait(timeout=120) == 0

    steps: dict[tuple[int, int, int], list[int]] = {}
    for name in ("killed", "resumed"):
        for rank in range(2):
            for epoch, step, labels in seen(tmp_path / name, rank):
                assert steps.setdefault((epoch, step, rank), labels) == labels, "a step that is repeated is the same"
    assert min(epoch for epoch, *_ in seen(tmp_path / "resumed", 0)) == 1, "the first epoch is not repeated"
    for epoch in range(3):
        images = [label for (other, *_), labels in steps.items() if other == epoch for label in labels]
        assert sorted(images) == list(range(64))
        owners = [
            {image // 8 for (e, _, r), images in steps.items() if (e, r) == (epoch, rank) for image in images}
            for rank in range(2)
        ]
        assert len(owners[0] & owners[1]) <= 2, "and every shard in one of both, but where their parts meet"


def test_an_index_that_many_write_at_once_is_whole(tmp_path):
    """As containers do that share a disk, where all processes have the same number."""
    path, text = tmp_path / "a.index.json", "x" * 200_000

    def write(_):
        store_module._write(path, text)
        assert path.read_text() == text

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(200)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.index.json"]
