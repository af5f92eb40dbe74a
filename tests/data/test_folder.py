from __future__ import annotations

import logging
import os
import shutil

import pytest
import torch
from PIL import features

from stec.config import DataConfig
from stec.data import load
from stec.data.folder import image_names
from stec.errors import UserError

CPU = torch.device("cpu")


def load_folder(root, **options):
    return load(DataConfig(source="folder", root=str(root), size=8, workers=2, **options), CPU)


def everything(split):
    return next(split.batches(torch.arange(len(split)), len(split)))


def assert_same_images(a, b):
    for left, right in ((a.train, b.train), (a.test, b.test)):
        assert torch.equal(everything(left).images, everything(right).images)
        assert torch.equal(left.labels, right.labels)


def test_train_and_test_folders_with_classes(class_folders):
    data = load_folder(class_folders)
    assert data.name == f"folder:{class_folders}"
    assert data.classes == ("ant", "bee", "cat")
    assert (len(data.train), len(data.test)) == (18, 6)
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert everything(data.train).sizes[:3].tolist() == [[8, 8], [9, 10], [10, 8]]
    assert data.skipped == ()


def test_a_limit_takes_some_files_with_their_labels_wherever_they_are_kept(class_folders, tmp_path):
    whole, few = load_folder(class_folders), load_folder(class_folders, limit=9)
    assert (len(few.train), len(few.test)) == (9, 6)
    images, labels = everything(whole.train).images, whole.train.labels
    rows = [int((images == image).all(3).all(2).all(1).int().argmax()) for image in everything(few.train).images]
    assert few.train.labels.tolist() == labels[rows].tolist()
    assert rows == sorted(set(rows))
    for options in ({"resident": "never"}, {"cache": str(tmp_path / "cache"), "resident": "never"}):
        other = load_folder(class_folders, limit=9, **options)
        assert torch.equal(everything(other.train).images, images[rows])
        assert torch.equal(other.train.labels, few.train.labels)


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "val"), ("train", "valid"), ("train", "validation"), ("Training", "Testing"), ("TRAIN", "Val")],
)
def test_other_names_may_stand_for_train_and_test(class_folders, train, test):
    """Else the two would be taken for classes."""
    expected = load_folder(class_folders)
    (class_folders / "test").rename(class_folders / test)
    (class_folders / "train").rename(class_folders / train)
    assert_same_images(load_folder(class_folders), expected)


def test_labelled_val_is_preferred_to_unlabelled_test(class_folders, write_image):
    expected = load_folder(class_folders)
    (class_folders / "test").rename(class_folders / "val")
    write_image(class_folders / "test" / "a.png")
    assert_same_images(load_folder(class_folders), expected)


def test_unlabelled_test_is_not_used(class_folders, write_image, caplog):
    shutil.rmtree(class_folders / "test")
    write_image(class_folders / "test" / "a.png")
    with caplog.at_level(logging.INFO, "stec"):
        data = load_folder(class_folders)
    assert data.test is None
    assert len(data.classes) == 3
    assert "test has no class folders: training without a probe" in caplog.text


def test_without_a_split_a_tenth_of_each_class_is_held_out(tmp_path, write_image, caplog):
    for name, number in (("ant", 30), ("bee", 4), ("cat", 1)):
        for i in range(number):
            write_image(tmp_path / name / f"{i}.png")
    with caplog.at_level(logging.INFO, "stec"):
        data = load_folder(tmp_path)
    assert data.train.labels.bincount().tolist() == [27, 3, 1]
    assert data.test.labels.bincount(minlength=3).tolist() == [3, 1, 0]
    assert "held out 4 of its images, a tenth of each class" in caplog.text
    images = torch.cat([everything(data.train).images, everything(data.test).images])
    assert len(images.flatten(1).unique(dim=0)) == 35  # none is in both
    assert_same_images(load_folder(tmp_path), data)


def test_a_single_image_of_each_class_is_trained_on(tmp_path, write_image, caplog):
    for name in ("ant", "bee"):
        write_image(tmp_path / name / "only.png")
    with caplog.at_level(logging.INFO, "stec"):
        data = load_folder(tmp_path)
    assert (data.train.labels.tolist(), data.test) == ([0, 1], None)
    assert "one image of each class: training without a probe" in caplog.text


def test_a_train_folder_alone_is_split_like_any_other(class_folders):
    shutil.rmtree(class_folders / "test")
    data = load_folder(class_folders)
    assert (len(data.train), len(data.test)) == (15, 3)


def test_folders_without_images_beside_train_are_no_classes(class_folders):
    shutil.rmtree(class_folders / "test")
    expected = load_folder(class_folders)
    (class_folders / "annotations").mkdir()
    (class_folders / "annotations" / "a.xml").touch()
    assert_same_images(load_folder(class_folders), expected)


def test_a_class_may_be_called_train(tmp_path, write_image):
    for name in ("bus", "ship", "train"):
        for i in range(3):
            write_image(tmp_path / name / f"{i}.png")
    assert load_folder(tmp_path).classes == ("bus", "ship", "train")


@pytest.mark.parametrize("inside", [".", "train"])
def test_a_flat_folder_trains_without_labels(tmp_path, write_image, inside, caplog):
    for i in range(5):
        write_image(tmp_path / inside / f"{i}.png")
    with caplog.at_level(logging.INFO, "stec"):
        data = load_folder(tmp_path)
    assert data.test is None
    assert data.classes == ()
    assert data.train.labels.tolist() == [-1] * 5
    assert "has no class folders: there are no labels, and no probe" in caplog.text


def test_images_beside_class_folders_have_no_label(class_folders, write_image):
    write_image(class_folders / "train" / "a.png")
    write_image(class_folders / "test" / "a.png")
    data = load_folder(class_folders)
    assert sorted(data.train.labels.tolist()) == [-1] + [0] * 6 + [1] * 6 + [2] * 6
    assert len(data.test) == 6


def test_images_may_lie_deeper_in_a_class_folder(class_folders, write_image):
    write_image(class_folders / "train" / "bee" / "wild" / "spring" / "a.png")
    assert load_folder(class_folders).train.labels.bincount().tolist() == [6, 7, 6]


def test_extensions_in_any_case_and_nothing_else(tmp_path, write_image):
    extensions = ("jpg", "JPEG", "png", "Bmp", "webp", "gif", "tif", "TIFF", "ppm", "jpe", "jfif", "jp2", "pnm", "tga")
    for i, extension in enumerate(extensions):
        write_image(tmp_path / f"{i}.{extension}")
    write_image(tmp_path / ".hidden.png")
    write_image(tmp_path / ".thumbnails" / "a.png")
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    assert len(load_folder(tmp_path).train) == len(extensions)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
def test_avif_is_read(tmp_path, write_image):
    write_image(tmp_path / "a.avif")
    assert len(load_folder(tmp_path).train) == 1


def test_images_that_cannot_be_read_by_their_kind_are_counted(tmp_path, write_image, caplog):
    for name in ("a.HEIC", "b.heic", "c.nef"):
        (tmp_path / name).write_bytes(b"?")
    with pytest.raises(UserError, match=r"holds no images: .*; convert those that it holds \(2 .heic, 1 .nef\)$"):
        load_folder(tmp_path)
    write_image(tmp_path / "d.jpg")
    with caplog.at_level(logging.WARNING, "stec"):
        assert len(load_folder(tmp_path).train) == 1
    assert f"{tmp_path}: files that cannot be read are left out (2 .heic, 1 .nef): convert them" in caplog.messages


def test_links_are_followed_but_not_in_circles(class_folders, tmp_path_factory, write_image):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_image(elsewhere / "a.png")
    train = class_folders / "train"
    os.symlink(elsewhere, train / "dog")
    os.symlink(elsewhere / "a.png", train / "ant" / "link.png")
    os.symlink(train, train / "ant" / "again")
    data = load_folder(class_folders)
    assert data.classes == ("ant", "bee", "cat", "dog")
    assert data.train.labels.bincount().tolist() == [7, 6, 6, 1]


def test_a_link_to_itself_is_no_folder(class_folders):
    """As one that leads nowhere: it hides none of the images, and is named if it should be one."""
    train = class_folders / "train"
    os.symlink("again", train / "again")
    os.symlink("loop.png", train / "ant" / "loop.png")
    assert image_names(train)[:2] == ["ant/0.png", "ant/1.png"]
    assert image_names(train)[6] == "ant/loop.png"


def test_odd_names(tmp_path, write_image):
    for name in ("ünïcode", "with space", "-dash"):
        write_image(tmp_path / f"{name}.png")
    write_image(tmp_path / os.fsdecode(b"latin\xe9.png"))
    assert len(load_folder(tmp_path).train) == 4


def test_unreadable_images_are_named_and_left_out(tmp_path, write_image, caplog):
    for i in range(199):
        write_image(tmp_path / "ab"[i % 2] / f"{i:03}.png")
    broken = tmp_path / "a" / "100.png"
    broken.write_bytes(broken.read_bytes()[:60])
    (tmp_path / "b" / "zzz.jpg").symlink_to(tmp_path / "missing.jpg")
    shutil.copytree(tmp_path / "a", tmp_path / "test" / "a")
    (tmp_path / "test" / "a" / "100.png").unlink()
    (tmp_path / "train").mkdir()
    for name in "ab":
        (tmp_path / name).rename(tmp_path / "train" / name)
    data = load_folder(tmp_path)
    assert data.skipped == (str(tmp_path / "train/a/100.png"), str(tmp_path / "train/b/zzz.jpg"))
    assert len(data.train) == 198
    assert data.train.labels.bincount().tolist() == [99, 99]
    batch = everything(data.train)
    assert torch.equal(batch.images[0], everything(data.test).images[0])
    assert batch.sizes.tolist() == [[8, 8]] * 198
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert warnings[0].startswith(f"cannot read {tmp_path}/train/a/100.png (")
    assert warnings[0].endswith("): left out")


@pytest.mark.parametrize("resident", ["always", "never"])
def test_more_than_one_percent_unreadable_is_fatal(tmp_path, write_image, resident):
    for i in range(150):
        write_image(tmp_path / f"{i:03}.png")
    for i in (3, 77):
        (tmp_path / f"{i:03}.png").write_bytes(b"broken")
    names = f"{tmp_path}/003.png, {tmp_path}/077.png"
    with pytest.raises(UserError, match=rf"more than 1 % of 150 images cannot be read \({names}\)"):
        everything(load_folder(tmp_path, resident=resident).train)


def test_missing_root(tmp_path):
    with pytest.raises(UserError, match=f"data.root={tmp_path}/nowhere: no such folder"):
        load_folder(tmp_path / "nowhere")


@pytest.mark.parametrize("inside", ["notes.txt", "train/ant/notes.txt"])
def test_no_images(tmp_path, inside):
    (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / inside).write_text("not an image")
    with pytest.raises(UserError, match=r"holds no images: none of its files ends in \.jpg \.jpeg"):
        load_folder(tmp_path)


def test_empty_test_folder(class_folders):
    shutil.rmtree(class_folders / "test")
    (class_folders / "test").mkdir()
    with pytest.raises(UserError, match=r"/test holds no images"):
        load_folder(class_folders)


def test_forbidden_folder(class_folders, monkeypatch):
    scandir = os.scandir

    def forbid(path):
        if str(path).endswith("bee"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbid)
    with pytest.raises(UserError, match=r"cannot look into .*/train/bee: Permission denied"):
        load_folder(class_folders)


@pytest.mark.parametrize("loose", [0, 2])
def test_one_folder_is_no_class(tmp_path, write_image, loose, caplog):
    """Photographs in a single album, some of them beside it: all are trained on, without labels."""
    for name in ["album/a.png", "album/deep/b.png", "c.png", "d.png"][: 2 + loose]:
        write_image(tmp_path / name)
    with caplog.at_level(logging.INFO, "stec"):
        data = load_folder(tmp_path)
    assert data.train.labels.tolist() == [-1] * (2 + loose)
    assert (data.test, data.classes) == (None, ())
    assert "has only one class folder: there are no labels, and no probe" in caplog.text


def test_test_class_that_train_lacks(class_folders, write_image):
    write_image(class_folders / "test" / "dog" / "a.png")
    with pytest.raises(UserError, match=r"/test has a class folder 'dog' that .*/train has not"):
        load_folder(class_folders)


def test_test_may_lack_a_class(class_folders):
    shutil.rmtree(class_folders / "test" / "ant")
    assert load_folder(class_folders).test.labels.tolist() == [1, 1, 2, 2]


def test_a_tilde_is_the_home_folder(class_folders, monkeypatch):
    monkeypatch.setenv("HOME", str(class_folders))
    assert len(load_folder("~/train").classes) == 3


def test_real_sample_files(samples):
    """Ten classes each, of which one of CIFAR-100 is called train."""
    for name in ("cifar10", "cifar100", "imagenette96"):
        data = load_folder(samples / name)
        assert len(data.classes) == 10
        assert sorted(set(data.test.labels.tolist())) == list(range(10))
        assert everything(data.train).images.float().std() > 40
