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
    for i, (h, w) in enumerate(scenes.shapes()):
        image = Image.fromarray(scenes.images[i, :, :h, :w].permute(1, 2, 0).cpu().numpy())
        if isinstance(found, torch.Tensor):
            assert scenes.masks is not None
            masks = [values[i, :h, :w].cpu().numpy().astype(np.uint8) for values in (scenes.masks, found)]
            pair = [_tint(image, mask, len(classes)) for mask in masks]
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
    return _lay_out(cells)


def _colour(label: int, classes: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb((label - 1) / max(1, classes - 1), 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def _enlarge(image: Image.Image, resampling: Image.Resampling) -> Image.Image:
    factor = _SIDE / max(image.size)
    return image.resize((round(image.width * factor), round(image.height * factor)), resampling)


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


def _lay_out(cells: list[list[Image.Image]]) -> Image.Image:
    """Pairs side by side, with a line above that says which is which."""
    across = min(_ACROSS, len(cells))
    down = -(-len(cells) // across)
    wide, high = 2 * _SIDE + _GAP, _SIDE + _GAP
    sheet = Image.new("RGB", (across * (wide + 3 * _GAP) + _GAP, _CAPTION + down * high + _GAP), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for i, pair in enumerate(cells):
        row, column = divmod(i, across)
        for k, picture in enumerate(pair):
            x = _GAP + column * (wide + 3 * _GAP) + k * (_SIDE + _GAP)
            sheet.paste(picture, (x, _CAPTION + row * high))
            if row == 0:
                pen.text((x, 2), ("marked", "found")[k], fill=_INK, font=font)
    return sheet
