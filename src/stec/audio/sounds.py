"""Utterances with their speakers and phones, from any source, and how they are split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stec.audio.network import geometry

FRAME = geometry().hop  # samples per label: 10 ms
UNKNOWN = -1  # the label of a frame whose phone nobody knows


@dataclass(frozen=True)
class Sounds:
    """Utterances at 16 kHz, one after the other, and what is known of them."""

    name: str  # such as "utterances", "folder:/path"
    samples: np.ndarray  # int16 (S,), which may be mapped from a file
    offsets: np.ndarray  # int64 (U + 1,): utterance i has the samples from offsets[i] to offsets[i + 1]
    names: tuple[str, ...]  # of the utterances
    speakers: tuple[str, ...]  # of each utterance
    phones: np.ndarray | None  # int16 (F,): of every whole frame of every utterance; None: no labels at all
    classes: tuple[str, ...]  # names of the phones
    skipped: tuple[str, ...] = ()  # files that were left out

    def __len__(self) -> int:
        return len(self.names)

    @property
    def lengths(self) -> np.ndarray:
        """Samples of every utterance."""
        return np.diff(self.offsets)

    @property
    def seconds(self) -> float:
        """Of all utterances."""
        return float(self.offsets[-1]) / (100 * FRAME)

    @cached_property
    def frame_offsets(self) -> np.ndarray:
        """As `offsets`, of the labels."""
        return np.concatenate([[0], np.cumsum(self.lengths // FRAME)])

    def phones_of(self, index: int) -> Tensor:
        """Labels (F,) of an utterance; -1 where there is none."""
        first, last = self.frame_offsets[index : index + 2]
        if self.phones is None:
            return torch.full((int(last - first),), UNKNOWN)
        return torch.from_numpy(self.phones[first:last].astype(np.int64))

    def fingerprint(self) -> str:
        """Of samples, speakers and phones."""
        digest = hashlib.sha256()
        for start in range(0, len(self.samples), 2**24):
            digest.update(self.samples[start : start + 2**24].tobytes())
        digest.update(self.offsets.astype(np.int64).tobytes())
        digest.update(_bytes("\0".join((*self.speakers, *self.classes))))
        digest.update(b"" if self.phones is None else self.phones.tobytes())
        return digest.hexdigest()[:16]


def join(
    name: str,
    waveforms: Sequence[np.ndarray],
    names: Iterable[str],
    speakers: Iterable[str],
    phones: Sequence[np.ndarray] | None,
    classes: tuple[str, ...],
    skipped: Iterable[str] = (),
) -> Sounds:
    """Lays waveforms, int16 (S_i,), one after the other, and their phones, int16 (S_i // 160,)."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in waveforms])]).astype(np.int64)
    labels = None if phones is None else np.concatenate(phones).astype(np.int16)
    return Sounds(
        name, np.concatenate(waveforms), offsets, tuple(names), tuple(speakers), labels, classes, tuple(skipped)
    )


@dataclass(frozen=True)
class Split:
    """Who is heard when. Nothing that a probe is tested on is heard before, by the networks or by the probe."""

    train: list[int]  # utterances to pretrain on, and to learn phones from
    phones: list[int]  # to test phones on: all that the held-out speakers say (of a lone speaker, as `speakers`)
    speakers: list[int]  # to test speakers on: a tenth of what every speaker says
    known: list[int]  # to learn speakers from: all the rest of every speaker


def split(sounds: Sounds, test_speakers: float) -> Split:
    """By the names of speakers and utterances alone, on any machine the same.

    Args:
        sounds: all utterances.
        test_speakers: share of the speakers that are held out, at least one if there are several.
    """
    speakers = sorted(set(sounds.speakers), key=_shuffled)
    number = min(max(1, round(test_speakers * len(speakers))), len(speakers) - 1)
    strangers = set(speakers[:number])
    by_speaker: dict[str, list[int]] = {}
    for index, speaker in enumerate(sounds.speakers):
        by_speaker.setdefault(speaker, []).append(index)
    heard_out: set[int] = set()
    for indices in by_speaker.values():
        order = sorted(indices, key=lambda index: _shuffled(sounds.names[index]))
        heard_out.update(order[: min(-(-len(order) // 10), len(order) - 1)])
    everything = range(len(sounds))
    return Split(
        train=[i for i in everything if sounds.speakers[i] not in strangers and i not in heard_out],
        phones=[i for i in everything if sounds.speakers[i] in strangers] or sorted(heard_out),
        speakers=[i for i in everything if i in heard_out],
        known=[i for i in everything if i not in heard_out],
    )


def _shuffled(name: str) -> bytes:
    return hashlib.sha256(_bytes(name)).digest()


def _bytes(name: str) -> bytes:
    """Of a word that comes from the name of a file, which may be no UTF-8."""
    return name.encode(errors="surrogateescape")
