"""Pictures made with Pillow alone."""

from __future__ import annotations

import dataclasses
import math

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from stec import actions, data
from stec.actions import Glimpse
from stec.config import Config
from stec.manipulation import reader_of
from stec.views import ViewBatch, Views

PANEL = 176  # side of one picture in pixels
GAP = 20
CAPTION = 50
LINE = 16  # of a caption with more than one
PER_LINE = 6  # components of an action
INK, QUIET, PAPER, GROUND = "#1b1f24", "#6a737d", "#ffffff", "#eceff2"
FIRST, SECOND, SMALL = "#0b69c7", "#d9480f", "#2b8a3e"  # x, x' and small views


def draw_views(config: Config, pairs: int) -> Image.Image:
    """Pairs of views as the config makes them, each with the action that leads from x to x'."""
    dataset = data.load(config.data, torch.device("cpu"))
    torch.manual_seed(config.seed)
    order = torch.randperm(len(dataset.train))[:pairs]
    sample = next(dataset.train.batches(order, len(order), drop_last=False))
    views = Views(**dataclasses.asdict(config.views))
    batch = views(sample.images, sample.sizes)
    reader = reader_of(config.manipulation, views)
    values = reader.action(batch.copy)
    codes = reader.bins(values)
    columns = min(2, len(order))
    rows = -(-len(order) // columns)
    lines = -(-len(reader.components) // PER_LINE)
    panels = 4 if views.small else 3
    width, height = panels * PANEL + (panels - 1) * GAP, PANEL + CAPTION + (lines - 1) * LINE
    sheet = Image.new("RGB", (columns * (width + 2 * GAP), rows * (height + GAP) + GAP), PAPER)
    for i in range(len(order)):
        words = [
            f"{name} {value:+.2f} ({code})"
            for name, value, code in zip(reader.components, values[i].tolist(), codes[i].tolist(), strict=True)
        ]
        text = "\n".join("  ".join(words[j : j + PER_LINE]) for j in range(0, len(words), PER_LINE))
        card = _card(sample.images[i], batch, i, f"{config.manipulation.action}: {text}", width, height)
        sheet.paste(card, (GAP + (i % columns) * (width + 2 * GAP), GAP + i // columns * (height + GAP)))
    return sheet


def _card(source: Tensor, batch: ViewBatch, i: int, text: str, width: int, height: int) -> Image.Image:
    card = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(card)
    first, second = (glimpse.rows(slice(i, i + 1)) for glimpse in batch.copy)

    small, others = _small_views(batch, i)
    panel = _picture(source, PANEL)
    for glimpse, colour in (*((glimpse, SMALL) for glimpse in others), (first, FIRST), (second, SECOND)):
        corners = actions.quadrilateral(actions.view_matrix(glimpse))[0]
        _outline(panel, (corners + 1) / 2 * PANEL, colour)
    card.paste(panel, (0, 0))

    card.paste(_on_canvas_of(first, batch.first[i], others, second), (PANEL + GAP, 0))

    card.paste(_picture(batch.second[i], PANEL), (2 * (PANEL + GAP), 0))
    font = ImageFont.load_default(12)
    crops, where = ("all crops", "the others") if others else ("both crops", "and where x' is")
    captions = [f"image, {crops}", f"x{_mirrored(first)}, {where} on it", f"x'{_mirrored(second)}"]
    if small is not None:
        card.paste(small, (3 * (PANEL + GAP), 0))
        captions.append("small views")
    for column, caption in enumerate(captions):
        draw.text((column * (PANEL + GAP), PANEL + 4), caption, fill=QUIET, font=font)
    draw.text((0, PANEL + 24), text, fill=INK, font=font)
    return card


def _on_canvas_of(first: Glimpse, image: Tensor, others: list[Glimpse], second: Glimpse) -> Image.Image:
    """x in the middle of a larger ground, where all other views lie on it: twice as large, or as they need it."""
    where = [actions.egocentric(actions.EfferenceCopy(first, glimpse)) for glimpse in (*others, second)]
    corners = [actions.quadrilateral(action)[0] for action in where]
    reach = min(8.0, max(2.0, 1.08 * max(float(each.abs().max()) for each in corners)))  # in halves of a side of x
    panel = Image.new("RGB", (PANEL, PANEL), GROUND)
    start, side = round((1 - 1 / reach) / 2 * PANEL), round(PANEL / reach)
    panel.paste(_picture(image, side), (start, start))
    for each, colour in zip(corners, [SMALL] * len(others) + [SECOND], strict=True):
        _outline(panel, (each / reach + 1) / 2 * PANEL, colour)
    ImageDraw.Draw(panel).rectangle((start, start, start + side, start + side), outline=FIRST, width=2)
    return panel


def _small_views(batch: ViewBatch, i: int) -> tuple[Image.Image | None, list[Glimpse]]:
    """All small views of one image on a panel, and how they were made."""
    if batch.small is None:
        return None, []
    rows = range(i, len(batch.small.images), len(batch.first))
    columns = math.isqrt(len(rows) - 1) + 1
    side = PANEL // columns
    panel = Image.new("RGB", (PANEL, PANEL), PAPER)
    for place, row in enumerate(rows):
        panel.paste(_picture(batch.small.images[row], side - 4), (place % columns * side, place // columns * side))
    return panel, [batch.small.glimpse.rows(slice(row, row + 1)) for row in rows]


def _picture(image: Tensor, side: int) -> Image.Image:
    pixels = image if image.dtype == torch.uint8 else (image * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((side, side), Image.Resampling.NEAREST)


def _outline(panel: Image.Image, corners: Tensor, colour: str) -> None:
    """A quadrilateral with a dot at its first corner: the top left as that view sees it."""
    draw = ImageDraw.Draw(panel)
    points = [(x, y) for x, y in corners.tolist()]
    draw.line([*points, points[0]], fill=colour, width=2)
    x, y = points[0]
    draw.ellipse((x - 5, y - 5, x + 5, y + 5), fill=colour)


def _mirrored(glimpse: Glimpse) -> str:
    return " (mirrored)" if bool(glimpse.mirrored.item()) else ""
