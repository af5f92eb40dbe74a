"""Features of all images below a folder, in a file; an interrupted embedding goes on where it stopped."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stec.checking import require_folder
from stec.data.folder import image_names
from stec.data.pictures import FilePictures
from stec.data.split import read_blocks
from stec.encoder import Encoder
from stec.errors import UserError
from stec.networks.encoders import library_module
from stec.run import make_room, replacing

logger = logging.getLogger("stec")

BLOCK = 256  # images that are encoded, and kept, at once
Watch = Callable[[int, int], None]  # is told how many images are done, and of how many


@dataclass(frozen=True)
class Embeddings:
    """What a file of embeddings holds."""

    names: list[str]  # of the images, relative to their folder, in the order of its listing
    features: np.ndarray  # float32 (N, D)
    key: str  # of the encoder and the images that they come from


def embed(encoder: Encoder, folder: Path, out: Path, watch: Watch, workers: int = 8) -> Embeddings:
    """Encodes all images below a folder and writes `out`; one that holds them already is only read.

    An image that cannot be read is named in the log and left out. Finished blocks of images are kept beside `out`
    until all are done.

    Args:
        encoder: On the device that is to do the work.
        folder: Of image files, in any tree.
        out: Ends in `.npz` (arrays `names`, `features`, `key`) or `.parquet` (columns `name`, `features`).
        watch: Hears of progress.
        workers: Threads that read images.
    """
    read, write = _format(out)
    require_folder(folder)
    names = image_names(folder)
    pictures = FilePictures(folder, names, torch.full((len(names),), -1), encoder.description.image_size)
    key = _key(encoder, pictures)
    if out.is_file() and (there := read(out)) is not None and there.key == key:
        watch(len(names), len(names))
        return there
    make_room(out)
    kept = _Kept(out.with_name(f".{out.name}.parts"), key)
    found = _encode(encoder, pictures, kept, watch, workers)
    if not found:
        raise UserError(f"none of the {len(names)} images in {folder} can be read")
    rows, features = (np.concatenate(parts) for parts in zip(*found, strict=True))
    embeddings = Embeddings([names[row] for row in rows], features, key)
    with replacing(out) as part:
        write(part, embeddings)
    kept.forget()
    return embeddings


def _encode(
    encoder: Encoder, pictures: FilePictures, kept: _Kept, watch: Watch, workers: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows (n,) and features (n, D) of every block that has any, in order."""
    total = len(pictures)
    ranges = [range(start, min(start + BLOCK, total)) for start in range(0, total, BLOCK)]
    found = {rows.start: kept.load(rows.start) for rows in ranges if kept.has(rows.start)}
    for rows in ranges:
        if rows.start in found:
            for row in sorted(set(rows) - set(found[rows.start][0].tolist())):
                logger.warning("cannot read %s: left out", pictures.name(row))
    missing = [rows for rows in ranges if rows.start not in found]
    done = total - sum(map(len, missing))
    device = next(encoder.parameters()).device
    watch(done, total)
    for rows, block in zip(missing, read_blocks(pictures, missing, pictures.size, workers), strict=True):
        features = np.empty((0, encoder.dim), np.float32)
        if len(block.images):
            with torch.no_grad():
                features = encoder.features(block.images.to(device), block.sizes.to(device)).cpu().numpy()
        found[rows.start] = block.indices.numpy(), features
        kept.save(rows.start, *found[rows.start])
        done += len(rows)
        watch(done, total)
    return [found[rows.start] for rows in ranges if len(found[rows.start][0])]


class _Kept:
    """Finished blocks, a file each, in a folder; those of another encoder or other images are thrown away."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        mark = folder / key
        if not mark.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            mark.touch()

    def _path(self, start: int) -> Path:
        return self.folder / f"{start}.npz"

    def has(self, start: int) -> bool:
        return self._path(start).is_file()

    def load(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        with np.load(self._path(start)) as file:
            return file["rows"], file["features"]

    def save(self, start: int, rows: np.ndarray, features: np.ndarray) -> None:
        with replacing(self._path(start)) as part, part.open("wb") as file:
            np.savez(file, rows=rows, features=features)

    def forget(self) -> None:
        shutil.rmtree(self.folder)


def _key(encoder: Encoder, pictures: FilePictures) -> str:
    """Changes with the weights, with what the encoder sees of an image, and with the images."""
    digest = hashlib.sha256(repr(encoder.description).encode())
    for name, value in library_module(encoder.network).state_dict().items():
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    for piece in pictures.content(dated=True):
        digest.update(piece)
    return digest.hexdigest()[:32]


# --- the two kinds of file ---


def _format(out: Path) -> tuple[Callable[[Path], Embeddings | None], Callable[[Path, Embeddings], None]]:
    if out.suffix == ".npz":
        return _read_npz, _write_npz
    if out.suffix == ".parquet":
        _pyarrow()
        return _read_parquet, _write_parquet
    raise UserError(f"{out}: the name has to end in .npz or .parquet")


def _read_npz(path: Path) -> Embeddings | None:
    """None if it is something else."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [os.fsdecode(name.encode("utf-8", "surrogateescape")) for name in file["names"].tolist()]
            return Embeddings(names, file["features"], str(file["key"]))
    except Exception:  # somebody else's file, which may hold anything
        return None


def _write_npz(path: Path, embeddings: Embeddings) -> None:
    # As UTF-8 has them, so that they are the same files for who reads them in another locale.
    names = [os.fsencode(name).decode("utf-8", "surrogateescape") for name in embeddings.names]
    with path.open("wb") as file:
        np.savez(file, names=np.array(names), features=embeddings.features, key=np.array(embeddings.key))


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("a .parquet file needs pyarrow: pip install 'stec[export]', or name a .npz file") from None
    return pyarrow


def _read_parquet(path: Path) -> Embeddings | None:
    arrow = _pyarrow()
    try:
        table = arrow.parquet.read_table(path)
        features = table["features"].combine_chunks()
        values = features.flatten().to_numpy().reshape(len(features), -1)
        return Embeddings(table["name"].to_pylist(), values, table.schema.metadata[b"key"].decode())
    except Exception:  # somebody else's file, which may hold anything
        return None


def _write_parquet(path: Path, embeddings: Embeddings) -> None:
    arrow = _pyarrow()
    # A column of text: a name that is none in UTF-8 has its odd bytes written out.
    names = [os.fsencode(name).decode("utf-8", "backslashreplace") for name in embeddings.names]
    rows = arrow.FixedSizeListArray.from_arrays(embeddings.features.ravel(), embeddings.features.shape[1])
    table = arrow.table({"name": names, "features": rows}, metadata={"key": embeddings.key})
    arrow.parquet.write_table(table, path)
