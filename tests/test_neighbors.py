"""Nearest images: against a slow loop, and as a person sees them."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from stec.embedding import Embeddings
from stec.encoder import Description, Encoder
from stec.errors import UserError
from stec.neighbors import Answer, find_query, search, write_sheet


class Means(torch.nn.Module):
    """An encoder whose features a reader can compute: the mean colour."""

    dim = 3

    def forward(self, images):
        return images.mean(dim=(2, 3))


@pytest.fixture
def encoder() -> Encoder:
    encoder = Encoder(Means(), Description("means", "stec", 8, 8, 1.0))
    encoder.register_parameter("where", torch.nn.Parameter(torch.zeros(1)))  # it lives on a device
    return encoder


COLOURS = {
    "red.png": (250, 0, 0), "rose.png": (250, 60, 60), "green.png": (0, 200, 0), "sub/blue.png": (0, 0, 250),
    "sub/sky.png": (60, 60, 250), "grass.png": (30, 220, 40),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, colour in COLOURS.items():
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 20), colour).save(path)
    return tmp_path / "pictures"


@pytest.fixture
def embeddings() -> Embeddings:
    return Embeddings(list(COLOURS), np.array(list(COLOURS.values()), np.float32) / 255, "key")


def test_neighbours_equal_a_slow_loop(encoder, folder):
    random = np.random.default_rng(0)
    features = random.normal(size=(50, 3)).astype(np.float32)
    names = [f"{i}.png" for i in range(50)]
    (answer,) = search(encoder, folder, Embeddings(names, features, "key"), [folder / "7.png"], k=49)
    query = features[7].astype(np.float64)
    cosine = {
        names[i]: float(query @ row / np.linalg.norm(query) / np.linalg.norm(row))
        for i, row in enumerate(features.astype(np.float64))
        if i != 7
    }
    expected = sorted(cosine, key=lambda name: -cosine[name])
    assert answer.names == expected
    assert answer.similarities == pytest.approx([cosine[name] for name in expected], abs=1e-6)


def test_a_query_from_elsewhere_is_encoded(encoder, folder, embeddings, tmp_path):
    Image.new("RGB", (30, 30), (0, 120, 0)).save(tmp_path / "mine.png")
    Image.new("RGB", (30, 30), (10, 10, 200)).save(tmp_path / "other.png")
    green, blue = search(encoder, folder, embeddings, [tmp_path / "mine.png", tmp_path / "other.png"], k=2)
    assert green.names == ["green.png", "grass.png"]
    assert green.similarities[0] == pytest.approx(1)
    assert blue.names == ["sub/blue.png", "sub/sky.png"]


def test_of_a_long_query_the_middle_is_seen_in_its_own_proportions(encoder, folder, embeddings, tmp_path):
    picture = Image.new("RGB", (120, 30), (0, 0, 250))
    picture.paste((0, 200, 0), (30, 0, 90, 30))
    picture.save(tmp_path / "long.png")
    (answer,) = search(encoder, folder, embeddings, [tmp_path / "long.png"], k=1)
    assert answer.names == ["green.png"]


def test_a_query_is_not_its_own_neighbour_by_whatever_path(encoder, folder, embeddings, monkeypatch):
    monkeypatch.chdir(folder)
    for path, place in (
        (folder / "red.png", folder), (Path("red.png"), folder), (folder / "sub" / ".." / "red.png", folder),
        (folder / "red.png", Path()), (Path("red.png"), Path()),
    ):  # fmt: skip
        (answer,) = search(encoder, place, embeddings, [path], k=100)
        assert answer.names[0] == "rose.png"
        assert sorted(answer.names) == sorted(set(COLOURS) - {"red.png"})
        assert np.isfinite(answer.similarities).all()


def test_without_a_query_some_of_the_folder_are_shown(encoder, folder, embeddings):
    answers = search(encoder, folder, embeddings, [], k=1)
    assert [answer.query.name for answer in answers] == ["red.png", "rose.png", "green.png", "blue.png", "sky.png"]
    assert answers[0].names == ["rose.png"]


def test_a_query_is_found_from_here_and_in_the_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_query("pictures/red.png", folder) == Path("pictures/red.png")
    assert find_query("sub/blue.png", folder) == folder / "sub/blue.png"
    with pytest.raises(UserError, match=r"no image 'gren.png'.* did you mean 'green.png'"):
        find_query("gren.png", folder)


def test_an_unreadable_query_is_the_users_error(encoder, folder, embeddings, tmp_path):
    (tmp_path / "notes.jpg").write_text("no picture")
    with pytest.raises(UserError, match=r"cannot read .*notes.jpg"):
        search(encoder, folder, embeddings, [tmp_path / "notes.jpg"])


def answers(folder) -> list[Answer]:
    return [
        Answer(folder / "red.png", ["rose.png", "sub/sky.png"], [0.98, 0.25]),
        Answer(folder / "green.png", ["grass.png", "red.png"], [0.97, 0.125]),
    ]


def test_the_picture_shows_every_image_in_its_place(folder, tmp_path):
    write_sheet(answers(folder), folder, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB")).astype(int)
    names = [["red.png", "rose.png", "sub/sky.png"], ["green.png", "grass.png", "red.png"]]
    for row, line in enumerate(names):
        lefts = []
        for name in line:
            part = pixels[row * len(pixels) // 2 : (row + 1) * len(pixels) // 2]
            there = (part == COLOURS[name]).all(axis=2)
            assert there.sum() == 160 * 80, "the whole picture, in its own proportions"
            lefts.append(np.flatnonzero(there.any(axis=0))[0])
        assert lefts == sorted(lefts)


def test_a_name_of_two_lines_is_written_in_one(folder, tmp_path):
    (folder / "red.png").rename(folder / "red\nrose.png")
    write_sheet([Answer(folder / "red\nrose.png", ["green.png"], [0.5])], folder, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height < 2 * 160


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.images: list[dict] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.images.append(dict(attributes))


def test_the_page_needs_nothing_else_and_names_every_image(folder, tmp_path):
    Image.new("RGB", (9, 9), "red").save(folder / "<b>&.png")
    odd = Answer(folder / "<b>&.png", ["red.png"], [0.5])
    below = Answer(folder / "sub/sky.png", ["green.png"], [0.5])
    write_sheet([*answers(folder), odd, below], folder, tmp_path / "sheet.html")
    text = (tmp_path / "sheet.html").read_text()
    page = Page(text)
    shown = ["red.png", "rose.png", "sub/sky.png", "green.png", "grass.png", "red.png", "<b>&.png", "red.png"]
    shown += ["sub/sky.png", "green.png"]
    assert [image["alt"] for image in page.images] == shown
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.images)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    for similarity in ("0.980", "0.250", "0.970", "0.125"):
        assert similarity in text
    assert "<b>&" not in text


def test_another_ending_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match=r"end in \.png or \.html"):
        write_sheet(answers(folder), folder, tmp_path / "sheet.pdf")
