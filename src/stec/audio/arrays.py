"""Utterances in NumPy files of one folder, which need no further package to be read.

waveforms.npy    int16 (S,): all utterances at 16 kHz, one after the other
utterances.npz   offsets (U + 1,): where they begin and end; names (U,); speakers (U,); and, where phones are known,
                 phones int16 (F,): one for each whole frame of 10 ms of every utterance, -1 where there is none;
                 classes: names of the phones
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from stec.audio.sounds import FRAME, Sounds
from stec.errors import UserError
from stec.run import make_room, replacing

WAVEFORMS, UTTERANCES = "waveforms.npy", "utterances.npz"


def save_arrays(sounds: Sounds, root: Path) -> None:
    """Writes the files; the waveforms last."""
    make_room(root / UTTERANCES)
    known: dict[str, Any] = (
        {} if sounds.phones is None else {"phones": sounds.phones, "classes": np.array(sounds.classes)}
    )
    about: dict[str, Any] = {
        "offsets": sounds.offsets,
        "names": np.array(sounds.names),
        "speakers": np.array(sounds.speakers),
    }
    with replacing(root / UTTERANCES) as part, part.open("wb") as file:
        np.savez_compressed(file, **about, **known)
    with replacing(root / WAVEFORMS) as part, part.open("wb") as file:
        np.save(file, sounds.samples)


def open_arrays(root: Path) -> Sounds:
    """The arrays under a folder; the waveforms stay on disk until they are needed."""
    try:
        samples = np.load(root / WAVEFORMS, mmap_mode="c", allow_pickle=False)  # a tensor must be writable
        kept = np.load(root / UTTERANCES, allow_pickle=False)
        if not isinstance(samples, np.ndarray) or isinstance(kept, np.ndarray):
            raise ValueError("one is in the other's place")
        with kept as file:
            about = dict(file)
    except FileNotFoundError as error:
        needed = f"{WAVEFORMS} and {UTTERANCES}, as 'stec data RECIPE data.root=PATH --save FOLDER' writes them"
        raise UserError(f"{error.filename}: no such file; the folder should hold {needed}") from None
    except (ValueError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise UserError(f"{root}: not NumPy files ({' '.join(str(error).split())})") from None
    for name in ("offsets", "names", "speakers"):
        if name not in about:
            raise UserError(f"{root / UTTERANCES}: has no '{name}'")
    if any(about[name].dtype.kind != "U" or about[name].ndim != 1 for name in ("names", "speakers")):
        raise UserError(f"{root / UTTERANCES}: names and speakers should be words, one of each per utterance")
    offsets, names, speakers = about["offsets"], about["names"].tolist(), about["speakers"].tolist()
    if samples.dtype != np.int16 or samples.ndim != 1:
        raise UserError(f"{root / WAVEFORMS}: should be int16 (S,), is {samples.dtype} {samples.shape}")
    lengths = np.diff(offsets) if offsets.ndim == 1 and offsets.dtype.kind in "iu" else np.array([])
    if not (len(lengths) == len(names) == len(speakers) > 0 and offsets[0] == 0 and (lengths > 0).all()):
        raise UserError(f"{root / UTTERANCES}: offsets should rise from 0, one more than there are names and speakers")
    if offsets[-1] != len(samples):
        raise UserError(f"{root}: the utterances end at sample {offsets[-1]}, {WAVEFORMS} has {len(samples)}")
    phones, classes = about.get("phones"), tuple(about.get("classes", np.array([])).tolist())
    frames = int((lengths // FRAME).sum())
    if phones is not None and (
        phones.shape != (frames,) or phones.dtype.kind not in "iu" or phones.max(initial=-1) >= len(classes)
    ):
        raise UserError(f"{root / UTTERANCES}: phones should be ({frames},), each below the {len(classes)} classes")
    return Sounds(f"arrays:{root}", samples, offsets, tuple(names), tuple(speakers), phones, classes)
