import logging
import os

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import VOCDetection, VOCSegmentation

from stec import UserError
from stec.data import shapes
from stec.transfer.config import ScenesConfig
from stec.transfer.scenes import VOID, load_scenes
from stec.transfer.voc import CLASSES

CPU = torch.device("cpu")


def read(root, task="detection", **options):
    settings = {"train": ("VOC2012/train",), "test": ("VOC2012/val",), "size": 96, "workers": 2} | options
    return load_scenes(ScenesConfig(source="voc", root=str(root), **settings), task, CPU)


def test_boxes_lie_around_the_pixels_they_name(tree):
    found = read(tree.root)
    assert found.classes[:3] == ("background", "aeroplane", "bicycle")
    assert (len(found.train), len(found.test), found.skipped, found.notes) == (3, 2, (), ())
    assert found.train.counts.tolist() == [2, 1, 1]
    assert found.train.sizes.tolist() == [[60, 80]] * 3
    # Pixels 11 to 40, counted from 1, are those from 10 to 40 between pixel borders.
    assert found.train.boxes[0].tolist() == [[10, 5, 40, 45], [40, 0, 80, 60]]
    assert found.train.labels[0].tolist() == [CLASSES.index("cat") + 1, CLASSES.index("dog") + 1]
    assert found.train.difficult[0].tolist() == [False, True]
    expected = np.asarray(Image.open(tree.folder / "JPEGImages" / "one.jpg"))
    assert np.array_equal(found.train.images[0, :, :60, :80].permute(1, 2, 0).numpy(), expected)
    assert found.train.images[0, :, 60:].sum() == 0
    assert found.train.images[0, :, :, 80:].sum() == 0


def test_larger_images_shrink_with_their_boxes_and_masks(tree):
    found = read(tree.root, size=64)
    assert found.train.sizes[0].tolist() == [48, 64]
    assert found.train.boxes[0, 0].tolist() == pytest.approx([8, 4, 32, 36])
    found = read(tree.root, size=50)
    assert found.train.sizes[0].tolist() == [38, 50], "37.5 rows are none"
    assert found.train.boxes[0, 0].tolist() == pytest.approx([6.25, 5 * 38 / 60, 25, 45 * 38 / 60])
    masks = read(tree.root, "segmentation", size=64).train.masks
    assert masks.shape == (3, 64, 64)
    assert set(masks[0].unique().tolist()) == {0, 8, VOID}
    assert (masks[0, 10:30, 12:28] == 8).all()
    assert (masks[:, 48:] == VOID).all()


def test_masks_may_show_every_class(tree):
    path = tree.folder / "SegmentationClass" / "one.png"
    values = np.array(Image.open(path))
    values[0, :2] = len(CLASSES), VOID
    Image.fromarray(values).save(path)
    assert read(tree.root, "segmentation").train.masks[0, 0, :2].tolist() == [len(CLASSES), VOID]


def test_masks_as_they_are(tree):
    masks = read(tree.root, "segmentation").train.masks
    expected = np.asarray(Image.open(tree.folder / "SegmentationClass" / "one.png"))
    assert np.array_equal(masks[0, :60, :80].numpy(), expected)
    assert (masks[0, 60:] == VOID).all()
    assert (masks[0, :, 80:] == VOID).all()


@pytest.mark.parametrize("annotated", ["turned", "stored"])
def test_an_image_lies_as_whoever_annotated_it_saw_it(tree, annotated):
    """80 x 60 pixels are stored, which EXIF's orientation 6 turns clockwise: tools annotate one or the other."""
    pixels = np.zeros((60, 80, 3), np.uint8)
    pixels[5:45, 10:40] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tree.folder / "JPEGImages" / "one.jpg"
    Image.fromarray(pixels).save(path, quality=95, exif=exif)
    seen = np.rot90(pixels, -1) if annotated == "turned" else pixels
    ys, xs = np.nonzero(seen[..., 0])
    box = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
    tree.boxes("one", ("cat", 0, box[0] + 1, box[1] + 1, box[2], box[3]))
    xml = tree.folder / "Annotations" / "one.xml"
    size = f"<size><width>{seen.shape[1]}</width><height>{seen.shape[0]}</height></size>"
    xml.write_text(xml.read_text().replace("<annotation>", f"<annotation>{size}"))
    tree.mask("one", np.where(seen[..., 0] > 0, 8, 0).astype(np.uint8))
    height, width = seen.shape[:2]
    boxed, masked = read(tree.root).train, read(tree.root, "segmentation").train
    for train in (boxed, masked):
        shown = train.images[0, :, :height, :width].permute(1, 2, 0).numpy()
        assert np.abs(shown.astype(int) - seen).mean() < 2
    assert boxed.boxes[0].tolist()[0] == list(box)
    assert np.array_equal(masked.masks[0, :height, :width].numpy() == 8, seen[..., 0] > 0)


def test_voc_devkit_may_lie_between(tree, tmp_path):
    (tmp_path / "other" / "VOCdevkit").mkdir(parents=True)
    expected = read(tree.root)
    tree.folder.rename(tmp_path / "other" / "VOCdevkit" / "VOC2012")
    assert read(tmp_path / "other").fingerprint == expected.fingerprint


def test_sbd_adds_images_that_no_other_set_has(tree):
    io = pytest.importorskip("scipy.io")
    folder = tree.root / "SBD"
    for name in ("img", "cls"):
        (folder / name).mkdir(parents=True)
    for name in ("one", "four", "six"):  # one is in train, four in val
        Image.fromarray(np.zeros((50, 70, 3), np.uint8)).save(folder / "img" / f"{name}.jpg")
        values = np.full((50, 70), 3, np.uint8)
        io.savemat(folder / "cls" / f"{name}.mat", {"GTcls": {"Segmentation": values}})
    (folder / "train.txt").write_text("one\nfour\nsix\n")
    found = read(tree.root, "segmentation", train=("SBD/train", "VOC2012/train"))
    assert len(found.train) == 4
    assert found.train.sizes[0].tolist() == [50, 70]  # six alone, in the place that was asked for
    assert (found.train.masks[0, :50, :70] == 3).all()
    assert len(found.test) == 2
    alone = read(tree.root, "segmentation", train=("SBD/train",), test=("SBD/train",))
    assert (len(alone.train), len(alone.test)) == (3, 3)
    (folder / "val.txt").write_text("one\n")
    with pytest.raises(UserError, match="image set SBD/val: other sets have all of its images"):
        read(tree.root, "segmentation", test=("SBD/val",))
    with pytest.raises(UserError, match="SBD has masks alone"):
        read(tree.root, train=("SBD/train",))


def test_images_that_are_trained_on_and_tested_are_told(tree):
    (tree.folder / "ImageSets" / "Main" / "trainval.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    assert read(tree.root, train=("VOC2012/trainval",)).notes == ("2 images to test are among those to train on",)


def test_wider_masks_go_before(tree):
    (tree.folder / "SegmentationClassAug").mkdir()
    wider = np.full((60, 80), 2, np.uint8)
    Image.fromarray(wider).save(tree.folder / "SegmentationClassAug" / "two.png")
    masks = read(tree.root, "segmentation").train.masks
    assert (masks[1, :60, :80] == 2).all()
    assert (masks[0, :60, :80] == 8).any()


def test_boxes_without_area_are_left_out_and_counted(tree):
    tree.boxes("two", ("cat", 0, 11, 6, 10, 45), ("cat", 0, 5, 5, 20, 20))
    tree.boxes("three", ("cat", 0, 200, 6, 240, 45))  # beyond the image
    found = read(tree.root)
    assert found.train.counts.tolist() == [2, 1, 0]
    assert found.notes == ("2 boxes of no area left out", "1 images without an object")


def test_images_without_objects_are_kept(tree):
    tree.boxes("two")
    found = read(tree.root)
    assert len(found.train) == 3
    assert found.train.counts.tolist() == [2, 0, 1]


def test_images_of_which_none_has_an_object_are_refused(tree):
    """As those whose annotations are of another kind, in which no object is found."""
    for name in ("one", "two", "three"):
        (tree.folder / "Annotations" / f"{name}.xml").write_text(
            '<annotation xmlns="http://voc"><object/></annotation>'
        )
    with pytest.raises(UserError, match=r"VOC2012/train: no object in any of its 3 annotations, such as .*one\.xml"):
        read(tree.root)
    assert len(read(tree.root, "segmentation").train) == 3


def test_masks_of_which_none_shows_a_class_are_refused(tree):
    for name in ("one", "two", "three"):
        tree.mask(name, np.repeat(np.uint8([[0, 255]]), 40, axis=1).repeat(60, axis=0))  # white for what is there
    with pytest.raises(UserError, match=r"no pixel of a class \(1 to 20; 255 is void\) in any .* such as .*one\.png"):
        read(tree.root, "segmentation")


def test_unknown_classes_are_named(tree):
    tree.boxes("two", ("cta", 0, 11, 6, 40, 45))
    with pytest.raises(UserError, match=r"two\.xml: unknown class 'cta': did you mean 'cat'\?; data.classes"):
        read(tree.root)
    found = read(tree.root, classes=("cta", "cat", "dog"))
    assert found.classes == ("background", "cta", "cat", "dog")
    assert found.train.labels[:, 0].tolist() == [2, 1, 2]


def test_missing_sets_and_folders_are_named(tree):
    with pytest.raises(UserError, match=r"ImageSets.Main.trian\.txt is missing; did you mean 'train'\?"):
        read(tree.root, train=("VOC2012/trian",))
    with pytest.raises(UserError, match="image set VOC2007/test: neither"):
        read(tree.root, test=("VOC2007/test",))
    with pytest.raises(UserError, match="expected FOLDER/SET"):
        read(tree.root, train=("VOC2012",))
    with pytest.raises(UserError, match="no such folder"):
        read(tree.root / "nowhere")
    (tree.folder / "ImageSets" / "Main" / "none.txt").write_text("\n")
    with pytest.raises(UserError, match="names no image"):
        read(tree.root, train=("VOC2012/none",))


@pytest.mark.parametrize(("kind", "end"), [("Annotations", "xml"), ("JPEGImages", "jpg")])
def test_a_set_without_any_of_its_files_is_told_before_another_is_read(tree, kind, end):
    for name in ("four", "five"):
        (tree.folder / kind / f"{name}.{end}").unlink()
    tree.boxes("one", ("unknown", 0, 1, 1, 2, 2))  # of the set that is read first
    with pytest.raises(UserError, match=rf"image set VOC2012/val: .*four.{end} is missing, and so are all others"):
        read(tree.root)


def test_lists_may_begin_with_a_mark_of_their_encoding_and_name_files_by_any_bytes(tree):
    odd = (
        os.fsencode(tree.folder / "JPEGImages") + b"/j\xf6rg.jpg",
        os.fsencode(tree.folder / "Annotations") + b"/j\xf6rg.xml",
    )
    for path, like in zip(odd, ("JPEGImages/two.jpg", "Annotations/two.xml"), strict=True):
        os.symlink(os.fsencode(tree.folder / like), path)
    (tree.folder / "ImageSets" / "Main" / "train.txt").write_bytes(b"\xef\xbb\xbfone  1\r\n\r\ntwo -1\r\nj\xf6rg\r\n")
    assert len(read(tree.root).train) == 3


def test_sets_of_the_other_task_can_be_asked_for(tree):
    (tree.folder / "ImageSets" / "Segmentation" / "few.txt").write_text("two\n")
    assert len(read(tree.root, train=("VOC2012/Segmentation/few",)).train) == 1


def many(tree):
    """A hundred and fifty images to train on, so that one may be broken."""
    names = [f"n{i}" for i in range(147)]
    for name in names:
        for kind, end in (("JPEGImages", "jpg"), ("Annotations", "xml"), ("SegmentationClass", "png")):
            (tree.folder / kind / f"{name}.{end}").symlink_to(tree.folder / kind / f"two.{end}")
    for kind in ("Main", "Segmentation"):
        (tree.folder / "ImageSets" / kind / "train.txt").write_text("\n".join(["one", "two", "three", *names]))


@pytest.mark.parametrize(
    ("break_it", "task", "reason"),
    [
        (lambda t: (t.folder / "JPEGImages" / "one.jpg").write_bytes(b"no image"), "detection", "UnidentifiedImage"),
        (lambda t: (t.folder / "JPEGImages" / "one.jpg").unlink(), "detection", "FileNotFound"),
        (lambda t: (t.folder / "Annotations" / "one.xml").write_text("<annotation>"), "detection", "ParseError"),
        (lambda t: t.boxes("one", ("cat", 0, "left", 1, 2, 3)), "detection", "ValueError"),
        (lambda t: t.mask("one", np.zeros((60, 79), np.uint8)), "segmentation", "a mask of 79 x 60 for 80 x 60 pixels"),
        (lambda t: t.mask("one", np.full((60, 80), 99, np.uint8)), "segmentation", "not 99"),
        (lambda t: t.mask("one", np.zeros((60, 80, 3), np.uint8)), "segmentation", "colours"),
        (lambda t: (t.folder / "SegmentationClass" / "one.png").unlink(), "segmentation", "FileNotFound"),
    ],
)
def test_few_broken_files_are_named_and_left_out_and_many_are_fatal(tree, caplog, break_it, task, reason):
    break_it(tree)
    with pytest.raises(UserError, match=r"more than 1 % of 3 images cannot be read \(.*one"):
        read(tree.root, task)
    many(tree)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "stec"):
        found = read(tree.root, task)
    assert len(found.train) == 149
    assert len(found.skipped) == 1
    assert "one." in found.skipped[0]
    assert reason in caplog.text


def test_real_files_are_read_as_torchvision_reads_them(real_voc, tmp_path):
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    (folder / "ImageSets").mkdir(parents=True)
    for name in ("JPEGImages", "Annotations", "SegmentationClass"):
        (folder / name).symlink_to(real_voc / "VOC2012" / name)
    for kind in ("Main", "Segmentation"):
        (folder / "ImageSets" / kind).symlink_to(real_voc / "VOC2012" / "ImageSets" / "Segmentation")
    boxes, masks = read(tmp_path, size=512), read(tmp_path, "segmentation", size=512)
    assert len(boxes.train) + len(boxes.test) == 16
    assert not boxes.skipped
    objects = 0
    pairs = zip(VOCDetection(tmp_path), VOCSegmentation(tmp_path), strict=True)
    for i, ((image, annotation), (_, mask)) in enumerate(pairs):
        h, w = boxes.train.sizes[i].tolist()
        assert np.array_equal(boxes.train.images[i, :, :h, :w].permute(1, 2, 0).numpy(), np.asarray(image))
        assert np.array_equal(masks.train.masks[i, :h, :w].numpy(), np.asarray(mask))
        expected = annotation["annotation"]["object"]
        assert boxes.train.counts[i] == len(expected)
        for box, label, difficult, item in zip(
            boxes.train.boxes[i], boxes.train.labels[i], boxes.train.difficult[i], expected, strict=False
        ):
            left, top, right, bottom = (float(item["bndbox"][key]) for key in ("xmin", "ymin", "xmax", "ymax"))
            assert box.tolist() == pytest.approx([max(0, left - 1), max(0, top - 1), min(w, right), min(h, bottom)])
            assert boxes.classes[label] == item["name"]
            assert difficult == (item["difficult"] == "1")
            objects += 1
    assert objects > 10


def test_built_in_scenes_have_exact_boxes_and_masks():
    config = ScenesConfig(train_images=40, test_images=20, objects=5, size=64)
    boxes, masks = load_scenes(config, "detection", CPU), load_scenes(config, "segmentation", CPU)
    drawn = shapes.render(40, 64, objects=5)
    assert boxes.classes == ("background", *shapes.CLASSES)
    assert boxes.fingerprint != masks.fingerprint
    hidden = 0
    for i in range(40):
        seen = [k for k in range(5) if drawn.masks[i, k].any()]
        hidden += 5 - len(seen)
        count = int(boxes.train.counts[i])
        assert count == len(seen)
        assert torch.equal(boxes.train.boxes[i, :count], drawn.boxes[i, seen])
        assert torch.equal(boxes.train.labels[i, :count], drawn.labels[i, seen] + 1)
        for k in seen:
            assert (masks.train.masks[i][drawn.masks[i, k]] == drawn.labels[i, k] + 1).all()
        assert (masks.train.masks[i][~drawn.masks[i].any(dim=0)] == 0).all()
    assert not torch.equal(boxes.train.images[:20], boxes.test.images)
