"""A folder of images as a file of features: whole, in order, and continued after an interruption."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from stec import embedding
from stec.data.decoding import decode
from stec.embedding import embed
from stec.encoder import Description, Encoder
from stec.errors import UserError
from stec.networks.encoders import create_encoder


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    network = create_encoder("resnet-small")
    for name, value in network.state_dict().items():
        if name.endswith("bn2.weight"):  # 0 before training
            value.fill_(1.0)
    return Encoder(network, Description("resnet-small", "stec", 16, 20, 0.9))


def save(path: Path, mode: str, width: int, height: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    if mode == "I;16":
        Image.fromarray(random.integers(0, 65536, (height, width), np.uint16)).save(path)
        return
    colours = Image.fromarray(random.integers(0, 256, (height, width, 4), np.uint8), "RGBA")
    colours.convert(mode).save(path)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Twelve images of all kinds, and a broken one, in a tree; the names are in no order of making."""
    kinds = {
        "b.jpg": "RGB", "a.png": "RGBA", "z/grey.jpg": "L", "z/print.jpg": "CMYK", "deep.png": "I;16", "p.png": "P",
        "B.jpg": "RGB", "m/n/o.webp": "RGB", "bits.png": "1", "q.bmp": "RGB", "r.tiff": "CMYK", "la.png": "LA",
    }  # fmt: skip
    for seed, (name, mode) in enumerate(kinds.items()):
        save(tmp_path / "pictures" / name, mode, 20 + 7 * seed, 60 - 3 * seed, seed)
    (tmp_path / "pictures/m/broken.jpg").write_bytes((tmp_path / "pictures/b.jpg").read_bytes()[:200])
    (tmp_path / "pictures/notes.txt").write_text("no picture")
    return tmp_path / "pictures"


IN_ORDER = [
    "B.jpg", "a.png", "b.jpg", "bits.png", "deep.png", "la.png", "m/n/o.webp", "p.png", "q.bmp", "r.tiff",
    "z/grey.jpg", "z/print.jpg",
]  # fmt: skip


def quiet(done: int, total: int) -> None:
    pass


def one_by_one(encoder: Encoder, folder: Path) -> np.ndarray:
    rows = []
    for name in IN_ORDER:
        picture = decode(folder / name, 20)
        image = torch.tensor(picture.pixels).permute(2, 0, 1)[None]
        rows.append(encoder(image, torch.tensor([[picture.height, picture.width]]))[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("block", [256, 5, 1])
def test_npz_has_every_readable_image_in_order(encoder, folder, tmp_path, monkeypatch, caplog, block):
    monkeypatch.setattr(embedding, "BLOCK", block)
    embed(encoder, folder, tmp_path / "out.npz", quiet)
    with np.load(tmp_path / "out.npz") as file:  # refuses pickles by default
        assert file["names"].tolist() == IN_ORDER
        np.testing.assert_allclose(file["features"], one_by_one(encoder, folder), atol=1e-5)
        assert file["features"].dtype == np.float32
        assert file["features"].std(axis=0).max() > 0.01
    assert "broken.jpg" in caplog.text
    assert "left out" in caplog.text
    assert sorted(os.listdir(tmp_path)) == ["out.npz", "pictures"]


def test_parquet_holds_the_same(encoder, folder, tmp_path):
    found = embed(encoder, folder, tmp_path / "out.parquet", quiet)
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["name", "features"]
    assert table["name"].to_pylist() == IN_ORDER
    assert table["features"].type.list_size == 128
    np.testing.assert_array_equal(np.array(table["features"].to_pylist(), np.float32), found.features)
    np.testing.assert_allclose(found.features, one_by_one(encoder, folder), atol=1e-5)


class Interrupted(Exception):
    pass


def interrupt(encoder, folder, out, after):
    def watch(done, total):
        if done >= after:
            raise Interrupted

    with pytest.raises(Interrupted):
        embed(encoder, folder, out, watch)
    assert not out.exists()


class Counting(torch.nn.Module):
    """Counts what goes through a network."""

    def __init__(self, network):
        super().__init__()
        self.network, self.dim, self.images = network, network.dim, 0

    def forward(self, x):
        self.images += len(x)
        return self.network(x)


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_an_interrupted_embedding_is_continued_and_a_finished_one_is_left(
    encoder, folder, tmp_path, monkeypatch, caplog, suffix
):
    monkeypatch.setattr(embedding, "BLOCK", 4)
    whole = embed(encoder, folder, tmp_path / f"whole{suffix}", quiet)
    encoder.network = Counting(encoder.network)
    interrupt(encoder, folder, tmp_path / f"out{suffix}", after=8)
    assert encoder.network.images == 7  # the broken one is among the first eight
    caplog.clear()
    told = []
    found = embed(encoder, folder, tmp_path / f"out{suffix}", lambda *counts: told.append(counts))
    assert told == [(8, 13), (12, 13), (13, 13)]
    assert encoder.network.images == 12
    assert "broken.jpg" in caplog.text, "named in the second session as well"
    assert found.names == whole.names
    np.testing.assert_array_equal(found.features, whole.features)
    again = embed(encoder, folder, tmp_path / f"out{suffix}", quiet)
    assert encoder.network.images == 12
    np.testing.assert_array_equal(again.features, whole.features)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("interrupted", [True, False])
@pytest.mark.parametrize("change", ["weights", "images", "as many bytes", "view"])
def test_nothing_is_kept_from_another_encoder_or_other_images(
    encoder, folder, tmp_path, monkeypatch, change, interrupted
):
    monkeypatch.setattr(embedding, "BLOCK", 4)
    out = tmp_path / "out.npz"
    if interrupted:
        interrupt(encoder, folder, out, after=8)
    else:
        embed(encoder, folder, out, quiet)
    if change == "weights":
        encoder.network.conv1.weight.mul_(2)
    elif change == "images":
        save(folder / "a.png", "RGB", 31, 17, 99)
    elif change == "as many bytes":
        length = (folder / "q.bmp").stat().st_size
        save(folder / "q.bmp", "RGB", 20 + 7 * 9, 60 - 3 * 9, 99)
        assert (folder / "q.bmp").stat().st_size == length
    else:
        encoder = Encoder(encoder.network, Description("resnet-small", "stec", 20, 20, 1.0))
    found = embed(encoder, folder, out, quiet)
    np.testing.assert_allclose(found.features, one_by_one(encoder, folder), atol=1e-5)


def test_mistakes_are_the_users_errors(encoder, folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"end in \.npz or \.parquet"):
        embed(encoder, folder, tmp_path / "out.csv", quiet)
    with pytest.raises(UserError, match="no such folder"):
        embed(encoder, tmp_path / "nowhere", tmp_path / "out.npz", quiet)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no images"):
        embed(encoder, tmp_path / "empty", tmp_path / "out.npz", quiet)
    (tmp_path / "empty/a.jpg").write_bytes(b"nothing")
    with pytest.raises(UserError, match="none of the 1 images"):
        embed(encoder, tmp_path / "empty", tmp_path / "out.npz", quiet)
    with pytest.raises(UserError, match="cannot be written"):
        embed(encoder, folder, folder / "a.png" / "out.npz", quiet)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'stec\[export\]'"):
        embed(encoder, folder, tmp_path / "out.parquet", quiet)


def test_a_foreign_file_of_that_name_is_replaced_only_when_all_is_done(encoder, folder, tmp_path):
    (tmp_path / "out.npz").write_bytes(b"something else")
    with pytest.raises(Interrupted):
        embed(encoder, folder, tmp_path / "out.npz", lambda done, total: (_ for _ in ()).throw(Interrupted))
    assert (tmp_path / "out.npz").read_bytes() == b"something else"
    assert embed(encoder, folder, tmp_path / "out.npz", quiet).names == IN_ORDER


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX")
def test_a_name_that_is_no_utf8_is_kept(encoder, tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    name = os.fsdecode(b"caf\xe9.png")
    try:
        save(folder / name, "RGB", 9, 9, 0)
    except OSError:
        pytest.skip("this file system has no such names")
    assert embed(encoder, folder, tmp_path / "out.npz", quiet).names == [name]
    with np.load(tmp_path / "out.npz") as file:
        assert (folder / str(file["names"][0])).is_file()
    embed(encoder, folder, tmp_path / "out.parquet", quiet)
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["name"].to_pylist() == ["caf\\xe9.png"]


def test_names_are_those_of_the_files_in_another_locale_too(encoder, tmp_path):
    save(tmp_path / "café.png", "RGB", 9, 9, 0)
    embed(encoder, tmp_path, tmp_path / "out.npz", quiet)
    code = (
        "import sys; from pathlib import Path; from stec.embedding import _read_npz\n"
        "print(sys.getfilesystemencoding(), *(Path(name).is_file() for name in _read_npz(Path('out.npz')).names))"
    )
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | plain, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "ascii True\n", done.stderr
