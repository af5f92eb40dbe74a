"""Phones of utterances from a text file, as forced aligners can write it; it may be compressed (.gz).

    utterance samples source PHONE:frames PHONE:frames ...

A line per utterance: its name, its length in samples at 16 kHz, where the pronunciation is from (not used here), and
every phone with the number of frames of 10 ms that it lasts.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stec.audio.sounds import FRAME, UNKNOWN
from stec.errors import UserError

LINE = re.compile(r"\s*(\S.*?)\s+(\d+)\s+\S+((?:\s+\S+:\d+)*)\s*")  # a name may have spaces, as a file's may


class Aligned(NamedTuple):
    """The phones of one utterance."""

    samples: int
    phones: list[str]
    frames: list[int]


def read_alignment(path: Path) -> dict[str, Aligned]:
    """Utterance -> its phones."""
    if not path.is_file():
        raise UserError(f"audio.alignment={path}: no such file")
    try:
        content = path.read_bytes()
        plain = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"audio.alignment={path}: cannot be read ({error})") from None
    found: dict[str, Aligned] = {}
    text = plain.decode("utf-8-sig", errors="surrogateescape")  # names of files may be no UTF-8
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        match = LINE.fullmatch(line)
        if match is None:
            expected = "utterance samples source PHONE:frames PHONE:frames ..."
            raise UserError(f"{path}, line {number}: expected '{expected}'")
        name, samples, pieces = match.groups()
        if name in found:
            raise UserError(f"{path}, line {number}: {name} is there twice")
        pairs = [piece.rsplit(":", 1) for piece in pieces.split()]
        found[name] = Aligned(int(samples), [phone for phone, _ in pairs], [int(count) for _, count in pairs])
    if not found:
        raise UserError(f"audio.alignment={path}: holds no utterance")
    return found


def phone_names(alignment: dict[str, Aligned]) -> tuple[str, ...]:
    """All that occur."""
    return tuple(sorted({phone for aligned in alignment.values() for phone in aligned.phones}))


def labels_of(aligned: Aligned, samples: int, classes: tuple[str, ...]) -> np.ndarray | None:
    """The phone of every whole frame, int16 (F,), UNKNOWN behind the last phone; None if it is another recording."""
    if abs(aligned.samples - samples) > FRAME:
        return None
    number = {name: label for label, name in enumerate(classes)}
    frames = samples // FRAME
    counts = [min(count, frames) for count in aligned.frames]
    labels = np.repeat([number[phone] for phone in aligned.phones], counts).astype(np.int16)
    return np.pad(labels[:frames], (0, max(0, frames - len(labels))), constant_values=UNKNOWN)
