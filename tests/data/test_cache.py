"""Image files kept decoded on disk."""

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event

import pytest
import torch
from PIL import Image

from stec.config import DataConfig
from stec.data import cache, decoding, load
from stec.data.folder import open_folder
from stec.errors import UserError

CPU = torch.device("cpu")


def config(root, cache, resident="never"):
    folder = None if cache is None else str(cache)
    return DataConfig(source="folder", root=str(root), size=16, workers=1, resident=resident, cache=folder)


def everything(data):
    return [next(s.batches(torch.arange(len(s)), len(s), drop_last=False)) for s in (data.train, data.test)]


def test_images_from_the_cache_are_those_of_the_files(class_folders, tmp_path):
    plain = everything(load(config(class_folders, None), CPU))
    for _ in range(2):  # filled, then found
        for resident in ("never", "always"):
            kept = everything(load(config(class_folders, tmp_path / "cache", resident), CPU))
            for ours, theirs in zip(kept, plain, strict=True):
                assert torch.equal(ours.images, theirs.images)
                assert torch.equal(ours.sizes, theirs.sizes)
                assert torch.equal(ours.labels, theirs.labels)
    assert len({(h, w) for h, w in plain[0].sizes.tolist()}) > 1  # true sizes, not those of the squashed images


def test_where_a_file_is_left_out_the_others_keep_their_labels(tmp_path):
    for name, number in (("a", 60), ("b", 60)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(number):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(tmp_path / "pictures" / name / f"{i:02}.bmp")
    (tmp_path / "pictures" / "a" / "07.bmp").write_bytes(b"not a picture")
    plain, kept = (
        everything(load(config(tmp_path / "pictures", where, "always"), CPU)) for where in (None, tmp_path / "c")
    )
    for ours, theirs in zip(kept, plain, strict=True):
        assert torch.equal(ours.images, theirs.images)
        assert torch.equal(ours.labels, theirs.labels)


def test_another_size_makes_another_cache(class_folders, tmp_path):
    for size in (8, 16):
        plain, kept = (
            everything(load(replace(config(class_folders, where), size=size), CPU)) for where in (None, tmp_path / "c")
        )
        assert torch.equal(kept[0].images, plain[0].images)


def test_the_second_time_nothing_is_decoded(class_folders, tmp_path, monkeypatch):
    load(config(class_folders, tmp_path / "cache"), CPU)

    def refuse(*_):
        raise AssertionError("decoded again")

    monkeypatch.setattr(decoding.Image, "open", refuse)
    data = load(config(class_folders, tmp_path / "cache", "always"), CPU)
    assert len(everything(data)[0].images) == len(data.train)


def test_a_changed_file_makes_another_cache(class_folders, tmp_path, write_image):
    before = load(config(class_folders, tmp_path / "cache"), CPU)
    write_image(class_folders / "train" / "ant" / "0.png", height=31, width=33)
    after = load(config(class_folders, tmp_path / "cache"), CPU)
    assert [31.0, 33.0] in everything(after)[0].sizes.tolist()
    assert [31.0, 33.0] not in everything(before)[0].sizes.tolist()


def test_other_pixels_in_as_many_bytes_make_another_cache(tmp_path):
    """As files that are not compressed have: the same one changed, and those of another folder."""
    seen = []
    for number, (folder, grey) in enumerate([("a", 10), ("a", 20), ("b", 30)]):
        for name in "xy":
            path = tmp_path / folder / name / "0.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (grey,) * 3).save(path)
            os.utime(path, (number, number))
        (batch,) = load(config(tmp_path / folder, tmp_path / "cache"), CPU).train.batches(torch.arange(2), 2)
        seen.append(batch.images.unique().tolist())
    assert seen == [[10], [20], [30]]


def test_splits_whose_files_have_the_same_names_and_lengths_are_kept_apart(tmp_path, write_image):
    for split, height, width in (("train", 8, 12), ("test", 12, 8)):
        for name in ("ant/0.bmp", "bee/0.bmp"):  # not compressed
            write_image(tmp_path / "set" / split / name, height, width)
            os.utime(tmp_path / "set" / split / name, (0, 0))  # as an archive may have left them
    plain = everything(load(config(tmp_path / "set", None), CPU))
    kept = everything(load(config(tmp_path / "set", tmp_path / "cache"), CPU))
    assert torch.equal(kept[0].images, plain[0].images)
    assert torch.equal(kept[1].images, plain[1].images), "not those of the other split"


def test_unreadable_images_are_named_each_time(tmp_path, write_image):
    for i in range(150):
        write_image(tmp_path / "flat" / f"{i:03d}.png")
    (tmp_path / "flat" / "077.png").write_bytes(b"no picture")
    for _ in range(2):
        data = load(config(tmp_path / "flat", tmp_path / "cache"), CPU)
        assert len(data.train) == 149
        assert [os.path.basename(name) for name in data.skipped] == ["077.png"]
        (batch,) = data.train.batches(torch.arange(149), 149)
        assert batch.images.shape == (149, 3, 16, 16)


def test_an_interrupted_cache_is_made_anew(class_folders, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("stec.data.cache.np.savez", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            load(config(class_folders, tmp_path / "cache"), CPU)
    plain = everything(load(config(class_folders, None), CPU))
    kept = everything(load(config(class_folders, tmp_path / "cache"), CPU))
    assert torch.equal(kept[0].images, plain[0].images)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_cache_of_which_a_part_is_gone_or_cut_is_made_anew(class_folders, tmp_path, suffix):
    """As a kill or a full disk leaves it."""
    plain = everything(load(config(class_folders, None), CPU))
    for hurt in (Path.unlink, lambda path: os.truncate(path, 150)):
        load(config(class_folders, tmp_path / "cache"), CPU)
        for path in (tmp_path / "cache").glob(f"*{suffix}"):
            hurt(path)
        kept = everything(load(config(class_folders, tmp_path / "cache"), CPU))
        assert torch.equal(kept[0].images, plain[0].images)


def test_two_runs_at_once_fill_it_once(class_folders, tmp_path, monkeypatch):
    """The second begins while the first is at work, and would have written over it."""
    plain = everything(load(config(class_folders, None), CPU))
    fill, begun, second_done, fills = cache._fill, Event(), Event(), []
    read_all = cache.read_all

    def watched_fill(*words):
        fills.append(words)
        fill(*words)

    def slow(*words):
        for block in read_all(*words):
            yield block
            begun.set()
            second_done.wait(0.3)  # in vain: it waits for this one

    monkeypatch.setattr(cache, "_fill", watched_fill)
    monkeypatch.setattr(cache, "read_all", slow)

    def run():
        return everything(load(config(class_folders, tmp_path / "cache", "always"), CPU))

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run)
        assert begun.wait(10)
        second = run()
        second_done.set()
        for batches in (first.result(), second):
            assert torch.equal(batches[0].images, plain[0].images)
    assert len(fills) == 2, "train and test"


def test_where_files_cannot_be_locked_two_runs_fill_it_without_harm(class_folders, tmp_path, monkeypatch):
    def cannot(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    both, read_all = Barrier(2, timeout=10), cache.read_all

    def at_once(*words):
        both.wait()  # both have opened what they write to
        yield from read_all(*words)
        both.wait()

    monkeypatch.setattr(fcntl, "flock", cannot)
    monkeypatch.setattr(cache, "read_all", at_once)
    pictures = open_folder(class_folders, 16).train
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(cache.cached, pictures, 16, tmp_path / "cache", 1) for _ in range(2)]
        for run in runs:
            kept, skipped = run.result()
            assert not skipped
            for number in range(len(pictures)):
                assert (kept.read(number).pixels == pictures.read(number).pixels).all()
    assert not list((tmp_path / "cache").glob(".*.part"))


def test_a_full_disk_is_one_clear_line(class_folders, disk):
    (disk / "rest").write_bytes(bytes(8 * 1024 * 1024 - 20_000))  # the images need 55 kB
    with pytest.raises(UserError, match=r"data\.cache=.*: cannot be written \(No space left on device\)"):
        load(replace(config(class_folders, disk / "cache"), size=32), CPU)
    assert sum(path.stat().st_size for path in (disk / "cache").iterdir()) == 0, "and what was written is gone"


def test_a_cache_that_cannot_be_written_is_one_clear_line(class_folders, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.cache=.*file/cache: cannot be written"):
        load(config(class_folders, tmp_path / "file" / "cache"), CPU)
