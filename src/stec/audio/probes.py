"""What a linear classifier reads from features of sound: the phone of every frame, the speaker of every utterance."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from stec.audio.network import RATE, Network
from stec.audio.sounds import FRAME, Sounds, Split
from stec.audio.windows import waveform
from stec.evaluation.linear import LinearResult, fit_linear
from stec.run import replacing

Features = Callable[[list[Tensor]], list[Tensor]]  # waveforms (S_i,) -> features (T_i, D), one row per frame

CONFUSION = "phones.json"  # in a run folder: which phones the probe takes for which
CEPSTRA, CONTEXT = 13, 11  # of the MFCC baseline: coefficients, and frames side by side
_WINDOW, _FFT, _MELS = 400, 512, 40
_BATCH = 32  # utterances at a time


@dataclass(frozen=True)
class Probed:
    """Accuracies of linear classifiers; None where there is nothing to learn or to test."""

    phones: LinearResult | None
    speakers: LinearResult | None
    confusion: Tensor | None = None  # (C, C) test frames of phone i that are taken for phone j

    def accuracies(self, suffix: str = "") -> dict[str, float | None]:
        """In percent, for a summary."""
        parts = {"phones": self.phones, "speakers": self.speakers}
        return {f"{name}{suffix}": round(part.accuracy, 2) if part else None for name, part in parts.items()}


def probe(features: Features, sounds: Sounds, split: Split, device: torch.device) -> Probed:
    """Fits both classifiers. Phones are tested on speakers, speakers on utterances, that nobody has heard before."""
    of_phones = {*split.train, *split.phones} if has_phones(sounds, split) else set()
    of_speakers = {*split.known, *split.speakers} if has_speakers(sounds, split) else set()
    frames: dict[int, tuple[Tensor, Tensor]] = {}
    pooled: dict[int, Tensor] = {}
    for index, each in _extract(features, sounds, of_phones | of_speakers, device):  # once, for both
        if index in of_phones:
            frames[index] = _labelled(sounds, index, each)
        if index in of_speakers:
            pooled[index] = torch.cat([each.mean(dim=0), each.std(dim=0, correction=0)])
    phones = speakers = confusion = None
    if frames:
        train, test = (_joined(frames, part) for part in (split.train, split.phones))
        frames.clear()  # gigabytes, for hours of speech
        phones = fit_linear(*train, *test, len(sounds.classes))
        pairs = len(sounds.classes) * test[1].long() + phones.predicted
        confusion = pairs.bincount(minlength=len(sounds.classes) ** 2).view(len(sounds.classes), -1).cpu()
    if pooled:
        numbers = speaker_numbers(sounds).to(device)
        told = {index: (rows[None], numbers[index, None]) for index, rows in pooled.items()}
        train, test = (_joined(told, part) for part in (split.known, split.speakers))
        speakers = fit_linear(*train, *test, len(set(sounds.speakers)))
    return Probed(phones, speakers, confusion)


def save_confusion(run: Path, classes: Sequence[str], confusion: Tensor) -> None:
    """Keeps what took the probe minutes for figures of the run."""
    with replacing(run / CONFUSION) as path:
        path.write_text(json.dumps({"phones": list(classes), "taken_for": confusion.tolist()}) + "\n")


def read_confusion(run: Path, classes: Sequence[str]) -> Tensor | None:
    """What `save_confusion` kept; None if nothing of these classes is there, as in runs before it was kept."""
    try:
        kept = json.loads((run / CONFUSION).read_text())
        found = torch.tensor(kept["taken_for"], dtype=torch.long)
        return found if kept["phones"] == list(classes) and found.shape == 2 * (len(classes),) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def has_phones(sounds: Sounds, split: Split) -> bool:
    """Whether there are frames with labels to learn from, and others to test on."""
    if sounds.phones is None:
        return False
    return all(any((sounds.phones_of(index) >= 0).any() for index in part) for part in (split.train, split.phones))


def has_speakers(sounds: Sounds, split: Split) -> bool:
    """Whether there are speakers to tell apart, and further utterances of theirs to test it on."""
    return len(set(sounds.speakers)) > 1 and bool(split.speakers)


def majority(sounds: Sounds, split: Split) -> dict[str, float | None]:
    """What always saying the most frequent phone, or the speaker with most utterances, would give."""
    result: dict[str, float | None] = {"phones_majority": None, "speakers_majority": None}
    if has_phones(sounds, split):
        train, test = (torch.cat([sounds.phones_of(index) for index in part]) for part in (split.train, split.phones))
        result["phones_majority"] = _share_of_mode(train[train >= 0], test[test >= 0])
    if has_speakers(sounds, split):
        numbers = speaker_numbers(sounds)
        result["speakers_majority"] = _share_of_mode(numbers[split.known], numbers[split.speakers])
    return result


def _share_of_mode(train: Tensor, test: Tensor) -> float:
    return round(100 * (test == train.mode().values).double().mean().item(), 2)


def speaker_numbers(sounds: Sounds) -> Tensor:
    """The speaker of every utterance as a number."""
    number = {name: label for label, name in enumerate(sorted(set(sounds.speakers)))}
    return torch.tensor([number[name] for name in sounds.speakers])


def labelled_frames(
    features: Features, sounds: Sounds, chosen: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Features (N, D) and phones (N,) of all frames of these utterances whose phone is known."""
    each = {index: _labelled(sounds, index, rows) for index, rows in _extract(features, sounds, chosen, device)}
    return _joined(each, chosen)


def _labelled(sounds: Sounds, index: int, frames: Tensor) -> tuple[Tensor, Tensor]:
    """Of the frames (T, D) of an utterance those with a phone, (N, D), and their phones (N,)."""
    phones = sounds.phones_of(index)[: len(frames)].to(frames.device)
    known = phones >= 0
    return frames[: len(phones)][known], phones[known]


def _joined(found: dict[int, tuple[Tensor, Tensor]], part: Iterable[int]) -> tuple[Tensor, Tensor]:
    """Rows and labels of some utterances, in the order in which they were found."""
    chosen = set(part)
    rows, labels = zip(*(pair for index, pair in found.items() if index in chosen), strict=True)
    return torch.cat(rows), torch.cat(labels)


def _extract(
    features: Features, sounds: Sounds, chosen: Iterable[int], device: torch.device
) -> Iterator[tuple[int, Tensor]]:
    """Utterances and their features (T, D), a few at a time, those of about one length together."""
    order = sorted(chosen, key=lambda index: (int(sounds.lengths[index]), index))
    for start in range(0, len(order), _BATCH):
        indices = order[start : start + _BATCH]
        yield from zip(indices, features([waveform(sounds, index).to(device) for index in indices]), strict=True)


def network_features(network: Network) -> Features:
    """The contexts, in evaluation mode."""
    return network.eval().features


def mfcc_features(waveforms: list[Tensor]) -> list[Tensor]:
    """MFCC of each frame and of five before and after it, side by side."""
    return [with_context(mfcc(each), CONTEXT) for each in waveforms]


def with_context(frames: Tensor, width: int) -> Tensor:
    """Frames (T, D) with their neighbours, (T, width D); beyond the ends, the first and last are repeated."""
    times = torch.arange(len(frames), device=frames.device)
    around = torch.arange(width, device=frames.device) - width // 2
    return frames[(times[:, None] + around).clamp(0, len(frames) - 1)].flatten(1)


def mfcc(samples: Tensor) -> Tensor:
    """Mel-frequency cepstral coefficients (T, 13) of a waveform (S,): 25 ms around the middle of each whole frame."""
    count = max(1, len(samples) // FRAME)
    before = (_WINDOW - FRAME) // 2
    padded = F.pad(samples, (before, max(0, (count - 1) * FRAME + _WINDOW - before - len(samples))))
    pieces = padded.unfold(0, _WINDOW, FRAME)[:count] * torch.hann_window(_WINDOW, device=samples.device)
    power = torch.fft.rfft(pieces, _FFT).abs().square()  # (T, bins)
    energies = (power @ _mel_filters(samples.device) + 1e-6).log()
    return energies @ _cosines(samples.device)


def _mel_filters(device: torch.device) -> Tensor:
    """Triangles (bins, mels), evenly spaced on the mel scale from 0 to 8 kHz."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, _MELS + 2, device=device) / 2595) - 1)
    frequency = torch.fft.rfftfreq(_FFT, 1 / RATE, device=device)[:, None]
    rising = (frequency - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequency) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


def _cosines(device: torch.device) -> Tensor:
    """The orthonormal discrete cosine transform (mels, 13)."""
    n, k = torch.arange(_MELS, device=device)[:, None], torch.arange(CEPSTRA, device=device)
    matrix = torch.cos(math.pi / _MELS * (n + 0.5) * k) * math.sqrt(2 / _MELS)
    matrix[:, 0] /= math.sqrt(2)
    return matrix
