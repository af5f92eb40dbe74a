"""Random windows of utterances, two of each: what is trained on. They are cut where the samples are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stec.audio.sounds import Sounds
from stec.data.residence import is_resident
from stec.errors import UserError
from stec.processes import rows_to_draw


class Pieces(NamedTuple):
    """Two pieces of each of B utterances."""

    samples: Tensor  # int16 (2, B, P)
    starts: Tensor  # int64 (2, B): where they begin, in samples
    scales: Tensor  # float32 (B,): brings an utterance to a power of 1
    utterances: Tensor  # int64 (B,): which ones


class Windows:
    """Pieces of some utterances.

    An epoch has as many pairs of windows as fit into the utterances side by side, so that it is about as long as they
    are, whatever is done to the windows. Utterances that are shorter than a piece are left out.

    Args:
        sounds: all utterances.
        chosen: those to cut from.
        length: samples of a piece, P.
        window: samples of the window that is made of a piece.
        near: the second piece begins at most this many samples before or after the first; None: anywhere.
        device: where the pieces are needed.
        residence: whether all samples are kept there: auto, always, never.
    """

    def __init__(
        self,
        sounds: Sounds,
        chosen: Sequence[int],
        length: int,
        window: int,
        near: int | None,
        device: torch.device,
        residence: str = "auto",
    ) -> None:
        lengths = sounds.lengths
        usable = [index for index in chosen if lengths[index] >= length]
        if not usable:
            longest = max((int(lengths[index]) for index in chosen), default=0)
            raise UserError(f"no utterance to train on has {length} samples, the longest {longest}: lower audio.window")
        self.too_short = len(chosen) - len(usable)
        self.length, self.near, self.device = length, near, device
        self.resident = is_resident(residence, sounds.samples.nbytes, device)
        place = device if self.resident else torch.device("cpu")
        self.samples = torch.from_numpy(sounds.samples).to(place)
        pairs = [max(1, int(lengths[index]) // (2 * window)) for index in usable]
        self.items = torch.arange(len(usable)).repeat_interleave(torch.tensor(pairs)).to(place)  # pair -> utterance
        self.first = torch.from_numpy(sounds.offsets[usable]).to(place)
        self.room = torch.from_numpy(lengths[usable] - length + 1).to(place)  # starts that are possible
        self.scales = torch.from_numpy(scales_of(sounds)[usable]).to(place)

    def __len__(self) -> int:
        return len(self.items)

    def batches(self, share: Tensor, size: int) -> Iterator[Pieces]:
        """The pairs with these numbers, `size` at a time, cut at random."""
        share = share.to(self.samples.device)
        within = torch.arange(self.length, device=self.samples.device)
        pairs, own = rows_to_draw(size)
        for numbers in share.split(size):
            utterances = self.items[numbers]
            room = self.room[utterances]
            random = torch.rand(2, pairs, device=self.samples.device, dtype=torch.float64)[:, own][:, : len(numbers)]
            starts = (random * room).long()
            if self.near is not None:
                shift = ((2 * random[1] - 1) * self.near).long()
                starts[1] = (starts[0] + shift).clamp(min=0).minimum(room - 1)
            samples = self.samples[(self.first[utterances] + starts)[..., None] + within]
            yield Pieces(*(self._send(part) for part in (samples, starts, self.scales[utterances], utterances)))

    def _send(self, part: Tensor) -> Tensor:
        if self.resident:
            return part
        part = part.pin_memory() if self.device.type == "cuda" else part
        return part.to(self.device, non_blocking=True)


def scales_of(sounds: Sounds) -> np.ndarray:
    """For every utterance the factor that brings it to a power of 1, float32 (U,)."""
    return np.array([_scale(_cut(sounds, index)) for index in range(len(sounds))], np.float32)


def waveform(sounds: Sounds, index: int) -> Tensor:
    """A whole utterance with a power of 1, float32 (S,)."""
    samples = _cut(sounds, index)
    return torch.from_numpy(samples * _scale(samples))


def _cut(sounds: Sounds, index: int) -> np.ndarray:
    return sounds.samples[sounds.offsets[index] : sounds.offsets[index + 1]].astype(np.float32)


def _scale(samples: np.ndarray) -> np.float32:
    return np.float32(1 / np.sqrt(max(1.0, np.mean(samples**2))))
