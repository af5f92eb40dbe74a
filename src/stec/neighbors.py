"""The images of a folder that are nearest to a query, and sheets that show them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont

from stec.data.decoding import UnreadableError, decode, open_rgb
from stec.data.folder import image_names
from stec.embedding import Embeddings
from stec.encoder import Encoder
from stec.errors import UserError, nearest
from stec.run import make_room, replacing

SHOWN = 5  # queries that are taken from the folder if none is named
SIDE = 160  # pixels of a picture on a sheet
_GAP, _TEXT = 12, 34  # between pictures; for the two lines below each
_FRAME = 3  # around a query


@dataclass(frozen=True)
class Answer:
    """A query and the images nearest to it, the nearest first."""

    query: Path
    names: list[str]  # relative to the folder
    similarities: list[float]  # cosine, at most 1


def query_name(answer: Answer, folder: Path) -> str:
    """As that of an answer, if it lies in the folder too."""
    inside = answer.query.is_relative_to(folder)
    return str(answer.query.relative_to(folder)) if inside else answer.query.name


def find_query(word: str, folder: Path) -> Path:
    """The file of that name, as a path from here or from the folder of the images."""
    for path in (Path(word), folder / word):
        if path.is_file():
            return path
    raise UserError(f"no image '{word}', here or in {folder}: {nearest(word, image_names(folder))}")


def search(encoder: Encoder, folder: Path, embeddings: Embeddings, queries: Sequence[Path], k: int = 8) -> list[Answer]:
    """The k images with the highest cosine similarity to each query; a query is not its own neighbour.

    Without queries, some of the images are taken, spread over the folder.

    Args:
        encoder: That made the embeddings.
        folder: That the embeddings are of.
        embeddings: Of the images to choose from.
        queries: Image files, in that folder or not.
        k: Neighbours; all of the images if there are fewer.
    """
    there = F.normalize(torch.from_numpy(embeddings.features))  # (N, D)
    count = min(SHOWN, len(there))
    queries = queries or [folder / embeddings.names[i * len(there) // count] for i in range(count)]
    places = {(folder / name).resolve(): row for row, name in enumerate(embeddings.names)}
    answers = []
    for query in queries:
        row = places.get(query.resolve())
        wanted = _encode(encoder, query) if row is None else there[row]
        similarity = there @ wanted
        if row is not None:
            similarity[row] = -torch.inf
        best = similarity.topk(min(k, len(there) - (row is not None)))
        found = [embeddings.names[i] for i in best.indices.tolist()]
        answers.append(Answer(query, found, best.values.tolist()))
    return answers


def _encode(encoder: Encoder, path: Path) -> torch.Tensor:
    """Normalised features (D,) of an image file."""
    try:
        picture = decode(path, encoder.description.image_size)
    except UnreadableError as error:
        raise UserError(f"cannot read {path} ({error})") from None
    device = next(encoder.parameters()).device
    image = torch.from_numpy(np.array(picture.pixels)).permute(2, 0, 1)[None].to(device)
    sizes = torch.tensor([[picture.height, picture.width]], device=device)
    with torch.no_grad():
        return F.normalize(encoder.features(image, sizes)).squeeze(0).cpu()


def check_sheet(out: Path) -> None:
    """UserError if no sheet can be written there."""
    if out.suffix not in (".png", ".html"):
        raise UserError(f"{out}: the name has to end in .png or .html")
    make_room(out)


def write_sheet(answers: Sequence[Answer], folder: Path, out: Path) -> None:
    """Shows every query with its neighbours in a row: a picture (.png) or a page (.html) that needs no other file."""
    check_sheet(out)
    with replacing(out) as part:
        if out.suffix == ".png":
            _draw(answers, folder).save(part, "PNG")
        else:
            part.write_text(_page(answers, folder), encoding="utf-8")


def _thumbnail(path: Path) -> Image.Image:
    """The whole image, at most SIDE pixels wide and high."""
    picture = open_rgb(path)
    scale = SIDE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _draw(answers: Sequence[Answer], folder: Path) -> Image.Image:
    columns = 1 + max(len(answer.names) for answer in answers)
    width, height = SIDE + _GAP, SIDE + _TEXT + _GAP
    sheet = Image.new("RGB", (columns * width + 2 * _GAP, len(answers) * height + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for row, answer in enumerate(answers):
        top = _GAP + row * height
        _place(sheet, draw, answer.query, query_name(answer, folder), "query", _GAP, top)
        edges = (_GAP - _FRAME, top - _FRAME, _GAP + SIDE + _FRAME - 1, top + SIDE + _FRAME - 1)
        draw.rectangle(edges, outline="black", width=2)
        for column, (name, similarity) in enumerate(zip(answer.names, answer.similarities, strict=True), start=1):
            _place(sheet, draw, folder / name, name, f"{similarity:.3f}", 2 * _GAP + column * width, top)
    return sheet


def _place(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, path: Path, name: str, note: str, left: int, top: int
) -> None:
    """A picture in the middle of its square, with two lines below it."""
    picture = _thumbnail(path)
    sheet.paste(picture, (left + (SIDE - picture.width) // 2, top + (SIDE - picture.height) // 2))
    font = ImageFont.load_default(13)
    draw.text((left, top + SIDE + 2), note, "black", font)
    text = _printable(name)
    while draw.textlength(text, font) > SIDE:  # the end of a path tells more than its beginning
        text = "..." + text.lstrip(".")[1:]
    draw.text((left, top + SIDE + 18), text, "#555555", font)


def _printable(name: str) -> str:
    """Without what UTF-8 cannot say and without new lines, which file names may hold."""
    return name.encode("utf-8", "replace").decode().replace("\n", " ")


_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
section { display: grid; grid-template-columns: repeat(auto-fill, minmax(118px, 1fr)); gap: 14px; padding: 14px 0; }
section { border-top: 1px solid #ddd; }
figure { margin: 0; max-width: 160px; }
figure div { aspect-ratio: 1; display: flex; align-items: center; justify-content: center; }
img { max-width: 100%; max-height: 100%; }
figure.query div { outline: 2px solid #222; outline-offset: 3px; }
figcaption { overflow-wrap: anywhere; margin-top: 6px; }
figcaption span { color: #666; }
"""


def _page(answers: Sequence[Answer], folder: Path) -> str:
    sections = []
    for answer in answers:
        figures = [_figure(answer.query, query_name(answer, folder), "query", "query")]
        for name, similarity in zip(answer.names, answer.similarities, strict=True):
            figures.append(_figure(folder / name, name, f"{similarity:.3f}", "neighbour"))
        sections.append(f"<section>{''.join(figures)}</section>")
    title = f"Nearest images in {escape(_printable(folder.resolve().name))}"
    about = "Framed, a query; after it the images nearest to it, with the cosine similarity of their features."
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><h1>{title}</h1><p>{about}</p>\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def _figure(path: Path, name: str, note: str, kind: str) -> str:
    file = io.BytesIO()
    _thumbnail(path).save(file, "JPEG", quality=85)
    source = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    name = escape(_printable(name))
    caption = f"<figcaption><b>{note}</b><br><span>{name}</span></figcaption>"
    return f'<figure class="{kind}"><div><img src="{source}" alt="{name}"></div>{caption}</figure>'
