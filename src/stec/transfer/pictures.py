"""A sheet of predictions: test images, what is marked in them, and what was found."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from stec.run import replacing
from stec.transfer.metrics import Boxes
from stec.transfer.scenes import VOID, Scenes

if TYPE_CHECKING:
    from stec.transfer.tasks import TransferTask

SHEET = "predictions.png"
_SHOWN = 12  # scenes
_ACROSS = 3  # in a row
_SIDE = 192  # pixels, of a scene in the sheet
_GAP, _CAPTION = 6, 18
_LEAST = 0.5  # score of a box that is drawn
_INK, _PAPER = (40, 40, 40), (255, 255, 255)


def save_sheet(task: TransferTask, folder: Path) -> None:
    """Writes the sheet of a trained task, in evaluation mode, into a run folder."""
    number = min(_SHOWN, len(task.scenes.test))
    scenes = task.scenes.test.take(torch.arange(number), task.device)
    sheet = draw(scenes, task.predict(scenes), task.scenes.classes)
    with replacing(folder / SHEET) as part:
        sheet.save(part, format="png")


def draw(scenes: Scenes, found: list[Boxes] | torch.Tensor, classes: tuple[str, ...]) -> Image.Image:
    """Pairs of pictures, marked and found, a few in a row.

    Args:
        scenes: whose boxes or masks are drawn on the left.
        found: the boxes of each, or the class of every pixel (B, S, S), drawn on the right.
        classes: their names, the background first.
    """
    cells = []
    shown: set[int] = set()  # classes in any mask
    for i, (h, w) in enumerate(scenes.shapes()):
        image = Image.fromarray(scenes.images[i, :, :h, :w].permute(1, 2, 0).cpu().numpy())
        if isinstance(found, torch.Tensor):
            assert scenes.masks is not None
            masks = [values[i, :h, :w].cpu().numpy().astype(np.uint8) for values in (scenes.masks, found)]
            pair = [_tint(image, mask, len(classes)) for mask in masks]
            shown |= {int(label) for mask in masks for label in np.unique(mask)} - {0, VOID}
        else:
            n = int(scenes.counts[i])
            marked = [(box, label, "") for box, label in zip(scenes.boxes[i, :n], scenes.labels[i, :n], strict=True)]
            good = [
                (box, label, f" {100 * score:.0f}")
                for box, label, score in zip(found[i].boxes, found[i].labels, found[i].scores, strict=True)
                if score >= _LEAST
            ]
            pair = [_frame(image, boxes, classes) for boxes in (marked, good)]
        cells.append(pair)
    captions = ("marked", "found" if isinstance(found, torch.Tensor) else f"found, scored at least {100 * _LEAST:.0f}")
    legend = {classes[label]: _colour(label, len(classes)) for label in sorted(shown)}
    return _lay_out(cells, captions, legend)


def _colour(label: int, classes: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb((label - 1) / max(1, classes - 1), 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def _enlarge(image: Image.Image, resampling: Image.Resampling) -> Image.Image:
    factor = _SIDE / max(image.size)
    return image.resize((max(1, round(image.width * factor)), max(1, round(image.height * factor))), resampling)


def _tint(image: Image.Image, mask: np.ndarray, classes: int) -> Image.Image:
    """The image in grey under the colours of its classes; void is white."""
    colours = np.zeros((256, 3), np.uint8)
    colours[1:classes] = [_colour(label, classes) for label in range(1, classes)]
    colours[VOID] = 255
    grey = np.asarray(image.convert("L").convert("RGB"), np.float32)
    share = np.where(mask == 0, 0.0, 0.65)[..., None]
    mixed = grey * (1 - share) + colours[mask] * share
    return _enlarge(Image.fromarray(mixed.astype(np.uint8)), Image.Resampling.NEAREST)


def _frame(
    image: Image.Image, boxes: list[tuple[torch.Tensor, torch.Tensor, str]], classes: tuple[str, ...]
) -> Image.Image:
    factor = _SIDE / max(image.size)
    large = _enlarge(image, Image.Resampling.BILINEAR)
    pen, font = ImageDraw.Draw(large), ImageFont.load_default(11)
    for box, label, score in boxes:
        left, top, right, bottom = (float(value) * factor for value in box)
        colour = _colour(int(label), len(classes))
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=2)
        text = f"{classes[int(label)]}{score}"
        high = top - 13 if top >= 13 else top + 1
        pen.rectangle((left, high, left + pen.textlength(text, font=font) + 3, high + 13), fill=colour)
        pen.text((left + 2, high), text, fill=(0, 0, 0), font=font)
    return large


def _lay_out(
    cells: list[list[Image.Image]], captions: tuple[str, str], legend: dict[str, tuple[int, int, int]]
) -> Image.Image:
    """Pairs side by side, with a line above that says which is which, and below, where needed, what colours mean."""
    across = min(_ACROSS, len(cells))
    down = -(-len(cells) // across)
    wide, high = 2 * _SIDE + _GAP, _SIDE + _GAP
    width, bottom = across * (wide + 3 * _GAP) + _GAP, _CAPTION + down * high
    font = ImageFont.load_default(12)
    places, x, y = [], _GAP, bottom
    for name in legend:
        long = _CAPTION + round(font.getlength(name)) + 2 * _GAP
        if x > _GAP and x + long > width:
            x, y = _GAP, y + _CAPTION
        places.append((x, y))
        x += long
    sheet = Image.new("RGB", (width, (y + _CAPTION if legend else y) + _GAP), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for i, pair in enumerate(cells):
        row, column = divmod(i, across)
        for k, picture in enumerate(pair):
            x = _GAP + column * (wide + 3 * _GAP) + k * (_SIDE + _GAP)
            sheet.paste(picture, (x, _CAPTION + row * high))
            if row == 0:
                pen.text((x, 2), captions[k], fill=_INK, font=font)
    for (x, y), (name, colour) in zip(places, legend.items(), strict=True):
        pen.rectangle((x, y + 3, x + 11, y + 14), fill=colour)
        pen.text((x + _CAPTION - 2, y + 1), name, fill=_INK, font=font)
    return sheet
