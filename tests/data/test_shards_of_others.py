"""Shards that the command tar has made."""

from __future__ import annotations

import subprocess

import pytest
import torch
from tar_files import open_with, png, read_all

from stec.errors import UserError


def pack(folder, tmp_path, names=None, *options):
    """A shard of the files in a folder, as the command tar writes it."""
    names = names or sorted(path.name for path in folder.iterdir())
    subprocess.run(["tar", "-cf", tmp_path / "a.tar", *options, "-C", folder, *names], check=True)
    return tmp_path / "a.tar"


@pytest.fixture
def loose(tmp_path):
    """Three images with their labels, as files."""
    (tmp_path / "loose").mkdir()
    for number in range(3):
        (tmp_path / f"loose/{number}.png").write_bytes(png(number))
        (tmp_path / f"loose/{number}.cls").write_text(str(2 - number))
    return tmp_path / "loose"


def test_labels_may_stand_anywhere_in_a_shard(loose, tmp_path):
    shard = pack(loose, tmp_path, ["2.cls", "0.png", "1.png", "2.png", "1.cls", "0.cls"])
    assert open_with(shard).train.labels.tolist() == [2, 1, 0]


def test_files_of_one_content_may_be_hard_links(loose, tmp_path):
    for name in ("1.cls", "1.png"):
        (loose / name).unlink()
        (loose / name).hardlink_to(loose / f"0{name[1:]}")
    batch = read_all(open_with(pack(loose, tmp_path)))
    assert batch.labels.tolist() == [2, 2, 0]
    assert torch.equal(batch.images[0], batch.images[1])


def test_an_image_stored_without_its_holes_is_named(loose, tmp_path):
    with (loose / "1.bmp").open("wb") as file:
        file.truncate(1 << 20)
        file.write(b"BM")
    with pytest.raises(
        UserError, match=r"a\.tar cannot be read \(1\.bmp has holes, which 'tar --sparse' has left out\)"
    ):
        open_with(pack(loose, tmp_path, None, "--sparse"))


def test_joined_shards_are_not_taken_for_the_first(loose, tmp_path):
    shard = pack(loose, tmp_path)
    (tmp_path / "joined.tar").write_bytes(2 * shard.read_bytes())
    with pytest.raises(UserError, match=r"joined\.tar cannot be read \(it goes on behind its end, at byte \d+, as tar"):
        open_with(tmp_path / "joined.tar")
