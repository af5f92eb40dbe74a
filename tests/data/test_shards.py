"""Images in tar files, on a disk and behind addresses."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from braceexpand import braceexpand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tar_files import CPU, open_with, pixels, png, read_all, write_shards

from stec.config import DataConfig
from stec.data import load
from stec.data.shard_index import SUFFIX, DamagedError, Index, scan
from stec.data.shards import ShardPictures, expand
from stec.errors import UserError

# --- what is read ---


@pytest.mark.parametrize("resident", ["always", "never"])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_webdataset_wrote_is_read(shards, resident, workers):
    dataset = open_with(shards, resident, workers=workers)
    assert (len(dataset.train), dataset.test, len(dataset.classes)) == (30, None, 30)
    batch = read_all(dataset)
    assert batch.labels.tolist() == list(range(30))
    for number, image in enumerate(batch.images):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels(number))


def test_a_limit_is_refused_with_what_to_do(shards):
    options = {"source": "shards", "root": str(shards), "size": 8, "workers": 0}
    with pytest.raises(UserError, match=r"data.limit=10: not of shards; name fewer of them in data.root"):
        load(DataConfig(limit=10, **options), torch.device("cpu"))
    assert len(load(DataConfig(limit=30, **options), torch.device("cpu")).train) == 30


def test_what_is_written_is_read_by_webdataset(stec, shards):
    code, out, err = stec(
        "data", "shard", "data.source=shards", f"data.root={shards}", "-o", "again", "--megabytes", "0.004"
    )
    assert code == 0, err
    assert "30 images to train, in 15 shard(s)" in out
    urls = sorted(str(path) for path in Path("again").glob("*.tar"))
    found = {int(s["cls"]): s["png"] for s in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)}
    assert found == {number: png(number) for number in range(30)}, "byte by byte"
    assert len(read_all(open_with("again")).labels.unique()) == 30


def test_photographs_of_phones_are_not_lost_when_shards_are_written_anew(stec):
    """Which hold two pictures, and are JPEGs by their names alone."""
    Path("photos").mkdir()
    for number in range(3):
        picture = Image.fromarray(pixels(number))
        picture.save(f"photos/{number}.jpg", "MPO", save_all=True, append_images=[picture])
    for source, root, out in [("folder", "photos", "once"), ("shards", "once", "twice")]:
        assert stec("data", "shard", f"data.source={source}", f"data.root={root}", "-o", out)[0] == 0
        assert len(open_with(out).train) == 3


def test_files_are_copied_and_mixed_with_their_classes(stec, class_folders):
    words = ("folder", f"data.root={class_folders}", "data.size=8")
    assert stec("data", "shard", *words, "-o", "out")[0] == 0
    assert sorted(os.listdir("out")) == [
        "classes.json", "test-000000.tar", f"test-000000.tar{SUFFIX}", "train-000000.tar", f"train-000000.tar{SUFFIX}",
    ]  # fmt: skip
    dataset = open_with("out")
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("ant", "bee", "cat"), 18, 6)
    assert dataset.train.labels.tolist() != sorted(dataset.train.labels.tolist())
    files = Counter(path.read_bytes() for path in (class_folders / "train").rglob("*.png"))
    with tarfile.open("out/train-000000.tar") as tar:
        copied = Counter(tar.extractfile(member).read() for member in tar if member.name.endswith("png"))
    assert copied == files

    code, _, err = stec("data", "shard", *words, "-o", "out")
    assert (code, err) == (2, "stec: out exists: name a folder that does not\n")


def test_arrays_lose_nothing(stec):
    words = ("data.train_images=40", "data.test_images=10", "data.size=8")
    assert stec("data", "shard", *words, "-o", "out")[0] == 0
    drawn = load(DataConfig(size=8, train_images=40, test_images=10), CPU)
    kept = open_with("out", "always")
    assert kept.classes == drawn.classes
    for split in ("train", "test"):
        one, other = (getattr(dataset, split).images.flatten(1).tolist() for dataset in (drawn, kept))
        assert sorted(one) == sorted(other)


def test_labels_in_json_and_images_without(tmp_path):
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as tar:
        tar.write({"__key__": "x/1", "jpg": png(0), "json": {"label": 3, "url": "there"}})
        tar.write({"__key__": "x/2", "PNG": png(1), "json": {"url": "there"}})
        tar.write({"__key__": "x/3", "txt": "no image"})
        tar.write({"__key__": "y.z/4", "caption.txt": "a word", "png": png(2)})
    dataset = open_with(tmp_path / "a.tar")
    assert dataset.train.labels.tolist() == [3, -1, -1]
    assert dataset.classes == ("0", "1", "2", "3")


def test_a_label_that_is_no_number_is_named(tmp_path):
    write_shards(tmp_path, 1, 2, cls=b"dog")
    with pytest.raises(UserError, match=r"train-000000\.tar: the label in 000000\.cls is 'dog', should be a number"):
        open_with(tmp_path)


def test_a_label_that_numbers_no_class_is_named(tmp_path):
    write_shards(tmp_path, 1, 2, cls=b"2084071")
    with pytest.raises(UserError, match="the highest label is 2084071, should number a class, or be -1 for none"):
        open_with(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", b""])
def test_names_of_classes_that_cannot_be_read_are_one_line(shards, pattern, tmp_path, content):
    (shards / "classes.json").write_bytes(content)
    for root in (shards, pattern.pattern):
        with pytest.raises(UserError, match=r"classes\.json: (not a text|should be a list)"):
            open_with(root, cache=str(tmp_path / "cache"))


def test_train_and_test_of_a_folder_or_a_pattern(tmp_path):
    write_shards(tmp_path, 12, 2)
    write_shards(tmp_path, 1, 4, name="val")
    assert len(open_with(tmp_path).test) == 4
    some = open_with(tmp_path / "train-{000002..000010}.tar", test_root=str(tmp_path / "val-*.tar"))
    assert some.train.labels.tolist() == list(range(4, 22))
    assert len(some.test) == 4
    assert open_with(tmp_path / "train-*.tar").test is None
    for folder in (tmp_path, write_shards(tmp_path / "apart", 1, 4, name="test")):
        found = open_with(tmp_path / "train-*.tar", test_root=str(folder)).test
        assert len(found) == 4, "a folder of both: those to test on, never those to train on"
    other = write_shards(tmp_path / "other", 2, 3, name="held-out")
    assert len(open_with(tmp_path, test_root=str(other)).test) == 6, "names that say nothing"
    with pytest.raises(UserError, match=r"data\.test_root=.*: no shards there, which are files such as test-000000"):
        open_with(tmp_path, test_root=str(write_shards(tmp_path / "wrong")))


@pytest.mark.parametrize(
    ("train", "test"),
    [("imagenet1k-train", "imagenet1k-validation"), ("Train", "Test"), ("cifar_training_", "cifar_test_")],
)
def test_shards_to_test_on_are_known_by_a_word_in_their_names(tmp_path, train, test):
    write_shards(tmp_path, 3, 2, name=train)
    write_shards(tmp_path, 1, 4, name=test)
    found = open_with(tmp_path)
    assert (len(found.train), len(found.test)) == (6, 4)
    assert len(open_with(tmp_path / "*.tar", test_root=str(write_shards(tmp_path / "x", name="y"))).train) == 10


def test_shards_of_trains_are_as_good_as_those_of_ships(tmp_path):
    for name in ("model-train", "model-ship", "trial"):
        write_shards(tmp_path, 1, 2, name=name)
    found = open_with(tmp_path)
    assert (len(found.train), found.test) == (6, None)


def test_there_are_as_many_classes_as_either_part_has(tmp_path):
    write_shards(tmp_path, 1, 3)
    write_shards(tmp_path, 1, 5, name="test")
    assert open_with(tmp_path).classes == ("0", "1", "2", "3", "4")


def test_test_images_of_which_some_have_no_label_test_nothing(tmp_path, caplog):
    write_shards(tmp_path, 2, 2)
    with webdataset.TarWriter(str(tmp_path / "test-000000.tar")) as tar:
        tar.write({"__key__": "labelled", "png": png(0), "cls": b"0"})
        tar.write({"__key__": "unlabelled", "png": png(1)})
    with caplog.at_level("INFO", logger="stec"):
        assert open_with(tmp_path).test is None
    assert "some test images have no label: training without a probe" in caplog.text


def test_a_shard_is_to_train_on_or_to_test_on(tmp_path):
    write_shards(tmp_path, 2, 2)
    write_shards(tmp_path, 1, 4, name="test")
    write_shards(tmp_path, 1, 3, name="val")
    assert len(open_with(tmp_path).test) == 4, "test, or val where there is none"
    with pytest.raises(UserError, match=r"test-000000\.tar is among the shards to train on and among those to test on"):
        open_with(tmp_path / "*.tar", test_root=str(tmp_path / "test-*.tar"))


@pytest.mark.parametrize(
    "pattern", ["a", "a-{0..3}.tar", "a-{008..011}.tar", "{x,y}/{9..10}", "{1..1}", "{a,b,c}{01..2}"]
)
def test_braces_mean_what_they_mean_elsewhere(pattern):
    assert expand(pattern) == list(braceexpand(pattern))


# --- order ---


def fake(shards, each, buffer):
    table = np.stack([np.arange(each), np.ones(each), np.zeros(each)], axis=1).astype(np.int64)
    return ShardPictures([f"{n}.tar" for n in range(shards)], [Index(each, table)] * shards, None, 8, buffer)


def order_of(pictures, epoch, batch):
    return pictures.order(torch.Generator().manual_seed(epoch), batch)


@pytest.mark.parametrize("batch", [1, 2, 13, 64, 70, 91])
def test_every_image_once_in_every_epoch(batch):
    pictures = fake(7, 13, 200)
    orders = [order_of(pictures, epoch, batch) for epoch in (0, 1, 0)]
    for order in orders:
        assert order.sort().values.tolist() == list(range(91))
    assert orders[0].tolist() == orders[2].tolist() != orders[1].tolist()


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
def test_processes_read_shards_of_their_own_and_few_at_a_time(processes):
    pictures = fake(200, 100, 64 * 50)
    batches = (order_of(pictures, 3, 128) // 100)[: 20_000 // 128 * 128].view(-1, processes, 128 // processes)
    owners = [set(batches[:, process].flatten().tolist()) for process in range(processes)]
    assert sum(map(len, owners)) <= 200 + processes, "neighbours share a shard where their parts meet"
    for process in range(processes):
        for step in range(0, len(batches) - 20, 10):
            near = batches[step : step + 20, process].unique()
            assert len(near) <= 3 * 64 // processes, "of each lane, two or three shards at a time"


def test_the_buffer_moves_an_image_no_further_than_its_length():
    def lane(buffer):
        """The first of 64 lanes, one image per batch, as places in the unshuffled row."""
        return order_of(fake(640, 100, buffer), 5, 64)[:64_000].view(1000, 64)[:, 0]

    row = lane(1)
    assert (row.diff() == 1).sum() >= 988, "shard after shard"
    moved = (lane(64 * 250)[None, :] == row[:, None]).nonzero()
    assert len(moved) == 1000, "the same images"
    distance = (moved[:, 0] - moved[:, 1]).abs()
    assert distance.max() <= 250
    assert distance.float().mean() > 50, "it is a shuffle"


def test_batches_are_mixed_from_many_shards_and_never_the_same():
    pictures = fake(100, 50, 64 * 30)
    first, second = (order_of(pictures, epoch, 100)[:5000].view(50, 100) for epoch in (0, 1))
    assert min(len((batch // 50).unique()) for batch in first) > 40
    companions = [set(batches[(batches == 0).any(1)].flatten().tolist()) for batches in (first, second)]
    assert len(companions[0] & companions[1]) < 20


def test_an_epoch_begins_anywhere_in_a_shard():
    """Else the first images of a shard would always be seen with those of the same others."""
    first = [int(order_of(fake(1, 1000, 1), epoch, 1)[0]) for epoch in range(50)]
    assert len(set(first)) > 40
    assert max(first) > 900


# --- damage ---


def test_a_shard_cut_anywhere_is_damaged(shards):
    whole = (shards / "train-000001.tar").read_bytes()
    member_ends = [512 * n for n in range(len(whole) // 512 + 1)]
    images = len(scan(io.BytesIO(whole)).images)
    end = whole.rstrip(b"\0")
    last = -(-len(end) // 512) * 512  # where the zeros start that end a tar file
    for length in [0, 100, 511, *[n + d for n in member_ends for d in (0, 7)]]:
        cut = whole[:length]
        try:
            found = scan(io.BytesIO(cut))
        except DamagedError:
            continue
        headers = length % 512 == 0 and (length == 0 or whole[length : length + 512].strip(b"\0"))
        assert length >= last or headers, length
        assert length >= last or len(found.images) < images


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return (write_shards(tmp_path_factory.mktemp("whole"), 1, 4) / "train-000000.tar").read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_bytes_are_an_index_or_damage(whole, data):
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=40))
        content[start : start + len(piece)] = piece
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        found = scan(io.BytesIO(bytes(content)))
    except (DamagedError, UserError):
        return
    assert len(found.images) <= 4
    assert Index.from_json(found.to_json()).images.tolist() == found.images.tolist()


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.sampled_from(["length", "images", "x"]), s),
    )
)
def test_any_json_is_an_index_or_none(content):
    found = Index.from_json(json.dumps(content))
    assert found is None or len(found.images) == 0


@given(st.lists(st.tuples(*[st.integers(-2, 9)] * 3), max_size=3))
def test_an_index_points_into_its_shard(images):
    fits = all(start >= 0 and size >= 0 and start + size <= 8 and label >= -1 for start, size, label in images)
    found = Index.from_json(json.dumps({"length": 8, "images": images}))
    assert (found is not None) == fits
    assert found is None or found.images.tolist() == [list(row) for row in images]


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "header", "gone"])
def test_a_damaged_shard_is_named(stec, shards, damage):
    path = shards / "train-000003.tar"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2 + 100])
    elif damage == "garbage":
        path.write_bytes(b"<html>not found</html>" * 100)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "header":
        content[1024:1536] = bytes(range(256)) * 2
        path.write_bytes(content)
    else:
        path.unlink()
        path.symlink_to("nowhere")
    code, _, err = stec("data", "data.source=shards", f"data.root={shards}")
    assert code == 2
    assert err.startswith(f"stec: {path} cannot be read (")
    assert err.endswith("mend it, or leave it out; these are more than 1 % of 6 shards\n")
    assert err.count("\n") == 1


def test_one_damaged_shard_of_many_is_left_out_and_counted(stec, tmp_path):
    write_shards(tmp_path / "shards", 100, 1)
    (tmp_path / "shards" / "train-000007.tar").write_bytes(b"damaged")
    dataset = open_with(tmp_path / "shards")
    assert len(dataset.train) == 99
    assert dataset.skipped == (str(tmp_path / "shards" / "train-000007.tar"),)
    code, out, _ = stec("data", "data.source=shards", f"data.root={tmp_path / 'shards'}", "data.size=8")
    assert code == 0
    assert "cannot read the shard" in out
    assert "unreadable   1" in out


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_that_vanishes_or_shrinks_stops_the_run_by_name(shards, workers):
    for hurt in (Path.unlink, lambda path: os.truncate(path, 600)):
        split = open_with(shards, workers=workers).train
        path = shards / "train-000002.tar"
        content = path.read_bytes()
        hurt(path)
        with pytest.raises(UserError, match=r"1 % of 30 images cannot be read \(.*train-000002\.tar, image 0"):
            list(split.batches(torch.arange(30), 10))
        path.write_bytes(content)


def test_an_index_that_does_not_fit_is_made_anew(shards):
    def labels():
        return read_all(open_with(shards)).labels.tolist()

    open_with(shards)
    index = shards / f"train-000000.tar{SUFFIX}"
    good = index.read_text()
    assert json.loads(good)["length"] == (shards / "train-000000.tar").stat().st_size
    for wrong in (
        "",
        "[]",
        '{"length": 5, "images": [[0, 9, 0]]}',
        good.replace('"length": ', '"length": 1'),
        "{" * 9999,
    ):
        index.write_text(wrong)
        assert labels() == list(range(30))
        assert index.read_text() == good
    with webdataset.TarWriter(str(shards / "train-000000.tar")) as tar:  # another shard of that name
        tar.write({"__key__": "1", "png": png(1), "cls": b"7"})
    assert labels() == [7, *range(5, 30)]


def test_the_fingerprint_follows_the_content_and_not_the_place(shards, tmp_path):
    before = open_with(shards).fingerprint
    moved = shards.rename(tmp_path / "moved")
    assert open_with(moved).fingerprint == open_with(moved, "always").fingerprint == before
    write_shards(moved, 6, 5, cls=b"1")
    assert open_with(moved).fingerprint != before


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("s3://bucket/{0..3}.tar", r"files and from http\(s\) addresses"),
        ("http://host/folder", r"name the shards, as in http://host/folder/train-\{000000\.\.000127\}\.tar"),
        ("nowhere-{0..3}.tar", "no such file as nowhere-0.tar"),
        ("nowhere-*.tar", "stands for no shard"),
        ("http://host/{3..1}.tar", "stands for no shard"),
        (".", "no shards there"),
    ],
)
def test_what_is_no_shard(tmp_path, monkeypatch, root, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=reason):
        open_with(root)


def test_a_pattern_that_the_shell_expanded(stec):
    code, _, err = stec("data", "data.source=shards", "data.root=a-0.tar", "data.root=a-1.tar")
    assert code == 2
    assert "data.root is there 2 times: quote a pattern with braces" in err
