from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stec.data.decoding import SPARE, UnreadableError, decode, open_rgb, squash
from stec.reporter import hush


def test_an_image_of_the_size_is_kept_bit_for_bit(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    picture = decode(tmp_path / "a.png", 9)
    assert np.array_equal(picture.pixels, pixels)
    assert (picture.height, picture.width) == (9, 9)


def test_the_whole_of_a_non_square_image_is_squashed_and_its_size_kept(tmp_path):
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 200
    Image.fromarray(pixels).save(tmp_path / "a.png")
    picture = decode(tmp_path / "a.png", 8)
    assert picture.pixels.shape == (8, 8, 3)
    assert (picture.height, picture.width) == (16, 32)
    assert (picture.pixels[:, :3] == 200).all()  # left end is still there
    assert (picture.pixels[:, 5:] == 0).all()  # and the right end


def test_shrinking_is_antialiased(tmp_path):
    """A one-pixel chequerboard shrunk eight times is grey; without antialiasing, black or white."""
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).convert("RGB").save(tmp_path / "a.png")
    assert np.abs(decode(tmp_path / "a.png", 8).pixels.astype(int) - 128).max() <= 4


def save(path: Path, picture: Image.Image, **options) -> np.ndarray:
    picture.save(path, **options)
    return decode(path, picture.size[0]).pixels


def test_grey(tmp_path):
    pixels = save(tmp_path / "a.png", Image.new("L", (4, 4), 77))
    assert pixels.dtype == np.uint8
    assert (pixels == 77).all()


def test_black_and_white(tmp_path):
    assert (save(tmp_path / "a.png", Image.new("1", (4, 4), 1)) == 255).all()


@pytest.mark.parametrize("extension", ["png", "tif"])
def test_sixteen_bit_grey_keeps_its_range(tmp_path, extension):
    wide = np.asarray([[0, 257], [30000, 65535]], np.uint16)
    pixels = save(tmp_path / f"a.{extension}", Image.fromarray(wide))
    assert pixels[..., 0].tolist() == [[0, 1], [117, 255]]  # 30000 / 257 = 116.7
    assert (pixels == pixels[..., :1]).all()


def test_sixteen_bit_grey_of_a_portable_map(tmp_path):
    """Pillow opens these with 32-bit integers."""
    (tmp_path / "a.ppm").write_bytes(b"P5 2 2 65535\n" + np.asarray([0, 257, 30000, 65535], ">u2").tobytes())
    assert decode(tmp_path / "a.ppm", 2).pixels[..., 0].tolist() == [[0, 1], [117, 255]]


@pytest.mark.parametrize("white", [1, 255])
def test_floats_reach_to_one_or_to_255(tmp_path, white):
    """Most programs write 0 to 1, all of which was black."""
    values = np.asarray([[0, 0.2], [0.5, 1]], np.float32) * white
    assert save(tmp_path / "a.tif", Image.fromarray(values))[..., 0].tolist() == [[0, 51], [128, 255]]
    values[0, 0] = np.nan
    assert save(tmp_path / "b.tif", Image.fromarray(values))[..., 0].tolist() == [[0, 51], [128, 255]]


def test_palette(tmp_path):
    picture = Image.new("RGB", (4, 4), (10, 200, 30)).quantize(4)
    assert (save(tmp_path / "a.png", picture) == (10, 200, 30)).all()


def test_transparent_palette_entry_becomes_white(tmp_path):
    picture = Image.new("P", (4, 4), 0)
    picture.putpalette([200, 0, 0, 0, 0, 200])
    picture.putpixel((0, 0), 1)
    pixels = save(tmp_path / "a.png", picture, transparency=0)
    assert pixels[0, 0].tolist() == [0, 0, 200]
    assert pixels[1, 1].tolist() == [255, 255, 255]


def test_transparency_becomes_white(tmp_path):
    picture = Image.new("RGBA", (4, 4), (200, 0, 0, 255))
    picture.putpixel((1, 0), (200, 0, 0, 0))
    pixels = save(tmp_path / "a.png", picture)
    assert pixels[0, 0].tolist() == [200, 0, 0]
    assert pixels[0, 1].tolist() == [255, 255, 255]


def test_grey_with_alpha(tmp_path):
    assert (save(tmp_path / "a.png", Image.new("LA", (4, 4), (50, 255))) == 50).all()


def test_cmyk(tmp_path):
    pixels = save(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    assert np.abs(pixels.astype(int) - (255, 0, 0)).max() < 20  # red: no cyan, all magenta and yellow


def test_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    assert (save(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:]) == (255, 0, 0)).all()


def test_exif_orientation_is_applied(tmp_path):
    """Orientation 6: turn clockwise by 90 degrees to see it upright, so the left edge becomes the top."""
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    picture = decode(tmp_path / "a.png", 8)
    assert (picture.height, picture.width) == (16, 8)
    assert (picture.pixels[:3] == 255).all()
    assert (picture.pixels[5:] == 0).all()


@pytest.mark.parametrize(("size", "scale"), [((400, 392), 2), ((1000, 800), 4), ((1600, 1536), 8), ((300, 3000), 1)])
def test_large_photographs_are_decoded_in_part_and_look_the_same(tmp_path, size, scale):
    """With 96 pixels wanted, 192 are enough; values are those of the whole, to rounding."""
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    photograph = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    for name, width, height, words in (("flat", *size, {}), ("turned", *size[::-1], {"exif": exif})):
        photograph.save(tmp_path / f"{name}.jpg", quality=92, **words)
        picture = decode(tmp_path / f"{name}.jpg", 96)
        assert (picture.width, picture.height) == (width, height)
        whole = squash(open_rgb(tmp_path / f"{name}.jpg"), 96)
        difference = np.abs(picture.pixels.astype(int) - whole.pixels)
        assert difference.max() <= 3
        assert (difference.max() > 0) == (scale > 1)
    with Image.open(tmp_path / "flat.jpg") as file:
        file.draft(None, (SPARE * 96, SPARE * 96))
        assert file.size == (size[0] // scale, size[1] // scale)


def test_broken_exif_does_not_lose_the_image(tmp_path):
    Image.new("RGB", (8, 8), "blue").save(tmp_path / "a.png", exif=b"Exif\0\0nonsense that is no TIFF header")
    assert (decode(tmp_path / "a.png", 8).pixels == (0, 0, 255)).all()


@pytest.mark.parametrize("extension", ["png", "jpg", "gif", "bmp", "webp", "tif"])
def test_truncated_files_are_unreadable(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    assert decode(path, 64).pixels.shape == (64, 64, 3)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UnreadableError):
        decode(path, 64)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a"])
def test_files_that_are_no_images_are_unreadable(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UnreadableError):
        decode(tmp_path / "a.png", 8)


def test_missing_file_is_unreadable(tmp_path):
    with pytest.raises(UnreadableError, match="FileNotFoundError"):
        decode(tmp_path / "a.png", 8)


def test_a_photograph_of_100_megapixels_is_read_without_a_remark(tmp_path):
    Image.new("L", (12_500, 8_000)).save(tmp_path / "a.jpg")
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        hush()
        picture = decode(tmp_path / "a.jpg", 32)
    assert (picture.height, picture.width) == (8_000, 12_500)
    assert remarks == []
