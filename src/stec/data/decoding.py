"""Any picture Pillow can open, as an RGB array of one size."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

SPARE = 2  # pixels that are left for every one that is needed, along either side, where a file is not decoded whole


class Picture(NamedTuple):
    """An image squashed to S x S, and its size before that."""

    pixels: np.ndarray  # uint8 (S, S, 3)
    height: int
    width: int


class UnreadableError(Exception):
    """A file that is no image, or a broken one."""


def decode(path: str | Path | BinaryIO, size: int) -> Picture:
    """Read an image file, squashed to size x size.

    A JPEG is decoded at a half, quarter or eighth of its size where that leaves `SPARE` times as many pixels as are
    needed: photographs are read several times as fast, with values that differ by rounding.
    """
    image, width, height = _open(path, turned=True, side=SPARE * size)
    return Picture(squash(image, size).pixels, height, width)


def open_rgb(path: str | Path | BinaryIO, turned: bool = True) -> Image.Image:
    """Read an image file: first frame, RGB, turned as its EXIF orientation says or as it is stored."""
    return _open(path, turned)[0]


def _open(path: str | Path | BinaryIO, turned: bool, side: int | None = None) -> tuple[Image.Image, int, int]:
    """The image, of which no side needs to be longer than that, and its true width and height."""
    try:
        with Image.open(path) as picture:
            width, height = picture.size
            if side is not None:
                picture.draft(None, (side, side))
            picture.load()
            stored = picture.size
            with suppress(Exception):  # a broken EXIF block is no reason to lose the image
                if turned:
                    ImageOps.exif_transpose(picture, in_place=True)
            if picture.size != stored:
                width, height = height, width
            return to_rgb(picture), width, height
    except Exception as error:  # a broken file raises nearly anything: OSError, SyntaxError, struct.error
        raise UnreadableError(f"{type(error).__name__}: {error}") from None


def to_rgb(picture: Image.Image) -> Image.Image:
    """Convert any mode to RGB: 16-bit grey and floats keep their full range, and what is transparent becomes white."""
    if picture.mode == "I" or picture.mode.startswith("I;16"):
        wide = np.asarray(picture).astype(np.int64)  # 0 to 65535, where Pillow's own conversion clips at 255
        grey = np.clip((wide + 128) // 257, 0, 255).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if picture.mode == "F":
        real = np.nan_to_num(np.asarray(picture))
        real = real * 255 if real.max() <= 1 else real  # the two ranges that are usual
        return Image.fromarray(np.clip(real + 0.5, 0, 255).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")


def squash(picture: Image.Image, size: int) -> Picture:
    """Resize the whole of an RGB image to a square, bilinear and antialiased; keep one that has the size."""
    width, height = picture.size
    if (height, width) != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return Picture(np.asarray(picture), height, width)
