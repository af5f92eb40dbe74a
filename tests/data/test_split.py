from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from stec.config import DataConfig
from stec.data import SOURCES, ResidentSplit, StreamedSplit, load
from stec.data import residence as residence_module
from stec.data.loading import worker_count
from stec.data.pictures import ArrayPictures
from stec.data.residence import free_memory, is_resident
from stec.data.split import read_blocks
from stec.errors import UserError

CPU = torch.device("cpu")


def load_with(resident, source="shapes", root=None, workers=2, device=CPU):
    config = DataConfig(source, root, 8, resident=resident, workers=workers, train_images=40, test_images=10)
    return load(config, device)


def assert_same_batches(a, b):
    a, b = list(a), list(b)
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        for name in ("images", "sizes", "labels"):
            assert torch.equal(getattr(left, name).cpu(), getattr(right, name).cpu()), name
            assert getattr(left, name).dtype == getattr(right, name).dtype


@pytest.mark.parametrize("workers", [1, 3])
def test_blocks_that_are_read_ahead_stay_in_order(workers):
    pictures = ArrayPictures(np.zeros((40, 8, 8, 3), np.uint8), torch.arange(40), 8)
    blocks = read_blocks(pictures, [range(i, i + 1) for i in range(40)], 8, workers)
    assert [int(block.indices) for block in blocks] == list(range(40))


@pytest.mark.parametrize("resident", ["always", "never"])
def test_batches_follow_the_order(resident):
    split = load_with(resident).train
    order = torch.tensor([7, 3, 3, 39, 0])
    batches = list(split.batches(order, 2, drop_last=False))
    assert [len(batch.images) for batch in batches] == [2, 2, 1]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [7, 3, 3, 9, 0]
    assert torch.equal(batches[0].images[1], batches[1].images[0])
    assert batches[0].images.dtype == torch.uint8
    assert batches[0].images.shape == (2, 3, 8, 8)


@pytest.mark.parametrize("resident", ["always", "never"])
@pytest.mark.parametrize(
    ("number", "drop_last", "sizes"),
    [
        (5, True, [2, 2]),
        (5, False, [2, 2, 1]),
        (4, True, [2, 2]),
        (4, False, [2, 2]),
        (1, True, []),
        (0, False, []),
    ],
)
def test_last_batch(resident, number, drop_last, sizes):
    split = load_with(resident, workers=0).train
    assert [len(batch.images) for batch in split.batches(torch.arange(number), 2, drop_last)] == sizes


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_and_resident_give_the_same_batches(class_folders, workers):
    resident = load_with("always", "folder", str(class_folders), workers)
    streamed = load_with("never", "folder", str(class_folders), workers)
    assert isinstance(resident.train, ResidentSplit)
    assert isinstance(streamed.train, StreamedSplit)
    assert (resident.resident, streamed.resident) == (True, False)
    order = torch.randperm(18, generator=torch.Generator().manual_seed(0))
    for _ in range(2):  # a second epoch
        assert_same_batches(resident.train.batches(order, 4), streamed.train.batches(order, 4))
    assert_same_batches(resident.test.batches(order[:6] % 6, 4, False), streamed.test.batches(order[:6] % 6, 4, False))
    assert torch.equal(resident.train.labels, streamed.train.labels)


def test_reading_does_not_touch_the_generator_of_training():
    for resident in ("always", "never"):
        split = load_with(resident).train
        state = torch.get_rng_state()
        list(split.batches(torch.arange(20), 4))
        assert torch.equal(torch.get_rng_state(), state)


def test_a_streamed_epoch_may_be_left_early():
    split = load_with("never").train
    first = next(split.batches(torch.arange(40), 4))
    assert_same_batches([first], [next(split.batches(torch.arange(40), 4))])


def test_number_of_workers_changes_nothing(class_folders):
    one, many = (load_with("always", "folder", str(class_folders), workers) for workers in (0, 5))
    assert_same_batches(one.train.batches(torch.arange(18), 18), many.train.batches(torch.arange(18), 18))


def test_unreadable_image_in_a_stream_is_replaced_and_logged_once(tmp_path, write_image, caplog):
    for i in range(120):
        write_image(tmp_path / f"{i:03}.png")
    (tmp_path / "010.png").write_bytes(b"broken")
    split = load_with("never", "folder", str(tmp_path)).train
    assert len(split) == 120
    for _ in range(2):
        (batch,) = split.batches(torch.tensor([9, 10, 10, 11]), 4)
        assert len(batch.images) == 4
        assert torch.equal(batch.images[1], batch.images[3])
        assert not torch.equal(batch.images[0], batch.images[1])
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 1
    assert messages[0].startswith(f"cannot read {tmp_path}/010.png (")
    assert messages[0].endswith("replaced by another image")


def test_replacement_brings_its_own_label(tmp_path, write_image):
    for name in ("ant", "bee"):
        for i in range(60):
            write_image(tmp_path / "train" / name / f"{i:02}.png")
            write_image(tmp_path / "test" / name / f"{i:02}.png")
    (tmp_path / "train" / "ant" / "59.png").write_bytes(b"broken")
    split = load_with("never", "folder", str(tmp_path), workers=0).train
    assert next(split.batches(torch.tensor([58, 59]), 2)).labels.tolist() == [0, 1]


def test_an_image_with_a_label_is_replaced_by_one_with_a_label(tmp_path, write_image):
    """The one after the last is the first, and those beside the class folders come first."""
    for i in range(120):
        write_image(tmp_path / "train" / ("ant" if i < 60 else "bee") / f"{i:03}.png")
        write_image(tmp_path / "test" / ("ant" if i < 60 else "bee") / f"{i:03}.png")
    for i in range(3):
        write_image(tmp_path / "train" / f"{i}.png")
    (tmp_path / "train" / "bee" / "119.png").write_bytes(b"broken")
    split = load_with("never", "folder", str(tmp_path), workers=0).train
    assert next(split.batches(torch.tensor([121, 122]), 2)).labels.tolist() == [1, 0]


def test_readers_end_by_a_signal_of_their_run_alone(tmp_path, write_image):
    """A scheduler's reaches them too, while the run still saves; and a run that ends by an error waits for them."""
    for i in range(8):
        write_image(tmp_path / f"{i}.png")
    before = set(multiprocessing.active_children())
    batches = load_with("never", "folder", str(tmp_path), workers=1).train.batches(torch.arange(8), 2)
    next(batches)
    (reader,) = set(multiprocessing.active_children()) - before
    subprocess.run(["/bin/kill", "-TERM", str(reader.pid)], check=True)
    next(batches)
    reader.join(0.5)
    assert reader.is_alive()
    reader.terminate()
    reader.join(5)
    ended = not reader.is_alive()
    reader.kill()  # else the tests, too, would wait for it
    assert ended


def test_stream_of_broken_files_stops(tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(b"broken")
    split = load_with("never", "folder", str(tmp_path), workers=1).train
    with pytest.raises(UserError, match=r"more than 1 % of 5 images cannot be read") as caught:
        list(split.batches(torch.arange(5), 5))
    assert str(caught.value).count(".png") == 3  # the first few
    assert "\n" not in str(caught.value)


def test_auto_compares_with_free_memory(monkeypatch):
    needed = 50 * 3 * 8 * 8
    monkeypatch.setattr(residence_module, "free_memory", lambda device: int(needed / 0.4) + 1)
    assert load_with("auto").resident
    monkeypatch.setattr(residence_module, "free_memory", lambda device: int(needed / 0.4) - 3)
    assert not load_with("auto").resident
    assert load_with("always").resident
    assert is_resident("auto", needed, torch.device("cuda"))  # may take half


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone can keep a process to some cores")
def test_no_more_workers_than_the_cores_of_a_job():
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, list(cores)[:1])
        assert worker_count(DataConfig(workers=8)) == 1
    finally:
        os.sched_setaffinity(0, cores)
    assert worker_count(DataConfig(workers=8)) == min(8, len(cores))
    assert worker_count(DataConfig(workers=0)) == 0


def test_processes_share_the_memory_of_a_machine(monkeypatch):
    monkeypatch.setattr(residence_module, "free_memory", lambda device: 10**9)
    for processes, fits in ((1, True), (2, True), (3, False), (8, False)):
        monkeypatch.setattr(residence_module, "processes_here", lambda processes=processes: processes)
        assert is_resident("auto", 2 * 10**8, CPU) == fits
        assert is_resident("auto", 5 * 10**8, torch.device("cuda")), "a GPU has a process of its own"


def test_always_needs_the_room(monkeypatch):
    monkeypatch.setattr(residence_module, "free_memory", lambda device: 10**9)
    with pytest.raises(UserError, match=r"the images need 2\.0 GB, cpu has 1\.0 GB free; choose data\.resident=auto"):
        is_resident("always", 2 * 10**9, CPU)


def test_free_memory_of_this_machine():
    assert 10**7 < free_memory(CPU) < 10**14


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_or_a_job_has_the_memory_that_it_may_use(tmp_path, monkeypatch, version):
    """As Docker and SLURM limit it: here to a megabyte, of which 300 kB are used and 100 kB of these are read files."""
    names = (
        ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
        if version == 1
        else ("max", "current", "inactive_file")
    )
    root = tmp_path / "memory" if version == 1 else tmp_path
    inner = root / "job" / "step"
    inner.mkdir(parents=True)
    (inner.parent / f"memory.{names[0]}").write_text("1000000\n")
    (inner.parent / f"memory.{names[1]}").write_text("300000\n")
    (inner.parent / "memory.stat").write_text(f"anon 200000\n{names[2]} 100000\n")
    (inner / f"memory.{names[0]}").write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    (inner / f"memory.{names[1]}").write_text("300000\n")
    group = "0::/job/step\n" if version == 2 else "5:cpu:/\n4:hugetlb,memory:/job/step\n"
    (tmp_path / "cgroup").write_text(group)
    monkeypatch.setattr(residence_module, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(residence_module, "GROUPS", tmp_path)
    assert free_memory(CPU) == 800_000


def test_free_memory_of_a_gpu_is_asked_of_the_driver(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (123, 456))
    assert free_memory(torch.device("cuda")) == 123


def test_wrong_choices_are_named():
    with pytest.raises(UserError, match=r"data\.resident=alway: did you mean 'always'\?"):
        load_with("alway")
    with pytest.raises(UserError, match=r"data\.source=cifar11: did you mean 'cifar10"):
        load_with("auto", "cifar11")


@pytest.mark.parametrize("source", [name for name in SOURCES if name != "shapes"])
def test_sources_of_files_need_a_root(source):
    with pytest.raises(UserError, match=rf"data\.source={source} needs data\.root"):
        load_with("auto", source)


def test_test_images_that_would_not_be_read_are_refused(class_folders):
    """A tenth of the training images would be taken in their place."""
    config = DataConfig("folder", str(class_folders / "train"), 8, test_root=str(class_folders / "test"))
    with pytest.raises(UserError, match=r"data\.test_root=.*: for shards alone; a folder has train and test inside"):
        load(config, CPU)


def test_every_source_has_a_line_about_it():
    assert all(line and "\n" not in line for line in SOURCES.values())


def test_fingerprint_of_arrays_is_the_same_wherever_they_are_kept():
    assert load_with("always").fingerprint == load_with("never").fingerprint
    assert len(load_with("always").fingerprint) == 16


@pytest.mark.parametrize("resident", ["always", "never"])
def test_fingerprint_follows_content(class_folders, write_image, resident):
    def fingerprint():
        return load_with(resident, "folder", str(class_folders), workers=0).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    write_image(class_folders / "train" / "ant" / "1.png", height=30)  # another image
    second = fingerprint()
    (class_folders / "train" / "ant" / "2.png").rename(class_folders / "train" / "bee" / "2b.png")  # another label
    third = fingerprint()
    write_image(class_folders / "test" / "bee" / "1.png", height=30)  # another test image
    assert len({first, second, third, fingerprint()}) == 4


def test_fingerprint_of_a_folder_does_not_depend_on_its_place(class_folders):
    before = [load_with(resident, "folder", str(class_folders)).fingerprint for resident in ("always", "never")]
    moved = class_folders.rename(class_folders.parent / "moved")
    assert [load_with(resident, "folder", str(moved)).fingerprint for resident in ("always", "never")] == before


def test_fingerprint_of_files_is_the_same_wherever_they_are_kept(class_folders, tmp_path):
    """Else a run that is resumed with more or less memory, or with a cache, would be told that its data changed."""
    config = DataConfig("folder", str(class_folders), 8, workers=0)
    changes = [{"resident": kept, "cache": cache} for kept in ("always", "never") for cache in (None, f"{tmp_path}/c")]
    assert len({load(replace(config, **change), CPU).fingerprint for change in changes}) == 1


def test_fingerprint_tells_of_images_that_are_left_out(tmp_path, write_image):
    """The others come in another order than if it were there."""
    for i in range(120):
        write_image(tmp_path / f"{i:03}.png")
    whole = [load_with(resident, "folder", str(tmp_path)).fingerprint for resident in ("always", "never")]
    image = tmp_path / "010.png"
    image.write_bytes(bytes(image.stat().st_size))
    broken = [load_with(resident, "folder", str(tmp_path)).fingerprint for resident in ("always", "never")]
    assert whole[0] == whole[1] == broken[1], "of a stream, nobody knows beforehand"
    assert broken[0] != whole[0]


def test_nothing_is_printed(class_folders, capfd):
    load_with("always", "folder", str(class_folders))
    assert capfd.readouterr() == ("", "")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_both_kinds_on_a_gpu(class_folders):
    device = torch.device("cuda")
    resident = load_with("auto", "folder", str(class_folders), device=device)
    streamed = load_with("never", "folder", str(class_folders), device=device)
    assert resident.resident
    order = torch.randperm(18)
    for kind in (resident, streamed):
        assert {b.images.device.type for b in kind.train.batches(order, 4)} == {"cuda"}
        assert {b.labels.device.type for b in kind.train.batches(order, 4)} == {"cuda"}
    assert_same_batches(resident.train.batches(order, 4), streamed.train.batches(order, 4))
