"""Utterances of twelve phones by synthetic speakers, made from a seed: speech data that need no files.

A source (pulses of the glottis, noise of friction, or both) is shaped by formants that glide from phone to phone.
Speakers differ in pitch, vocal tract, timbre, breath and pace; every utterance has its own loudness and noise,
and every phone its own little deviation. All phones last whole frames of 10 ms, so that the labels are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

RATE = 16_000
FRAME = 160  # samples of a label
SILENCE = "SIL"


class Phone(NamedTuple):
    """Formants in Hz as an average man has them, and what sounds."""

    formants: tuple[float, float, float]
    voice: float  # amplitude of the pulses
    friction: float  # amplitude of the noise
    damping: float = 1.0  # of the formants: how wide they are


PHONES = {
    "IY": Phone((280, 2250, 2900), 1.0, 0.0),
    "EH": Phone((550, 1770, 2490), 1.0, 0.0),
    "AA": Phone((710, 1100, 2540), 1.0, 0.0),
    "OW": Phone((450, 800, 2830), 1.0, 0.0),
    "UW": Phone((310, 870, 2250), 1.0, 0.0),
    "ER": Phone((490, 1350, 1690), 1.0, 0.0),
    "M": Phone((250, 1000, 2200), 0.45, 0.0, 3.0),
    "N": Phone((250, 1600, 2600), 0.45, 0.0, 3.0),
    "S": Phone((4500, 5700, 7000), 0.0, 0.12, 8.0),
    "SH": Phone((2200, 3200, 4800), 0.0, 0.12, 6.0),
    "F": Phone((1200, 4000, 7200), 0.0, 0.04, 16.0),
    "Z": Phone((300, 4500, 6000), 0.3, 0.08, 6.0),
}
CLASSES = (*PHONES, SILENCE)
_VOWELS = ("IY", "EH", "AA", "OW", "UW", "ER")
_CONSONANTS = ("M", "N", "S", "SH", "F", "Z")
_WIDTHS = np.array((80.0, 120.0, 200.0))  # of the formants, in Hz

_HOP, _WINDOW = 80, 320  # samples: a spectrum every 5 ms
_GLIDE = 7  # hops over which formants glide


class Utterance(NamedTuple):
    """A waveform and the phone of each of its frames."""

    samples: np.ndarray  # int16 (160 F,)
    phones: np.ndarray  # int16 (F,): index into CLASSES
    speaker: str


class _Speaker(NamedTuple):
    pitch: float  # Hz
    tract: float  # factor of all formants
    tilt: float  # dB per octave of the voice
    breath: float  # noise in the voice
    pace: float  # factor of all durations


def utterance(speaker: int, number: int, seconds: float, seed: int = 0) -> Utterance:
    """One utterance. It depends on seed, speaker and number alone; `seconds` is about how long it is."""
    voice = _speaker(np.random.default_rng([seed, speaker]))
    random = np.random.default_rng([seed, speaker, number + 1])
    names, frames = _say(random, voice, round(seconds * RATE / FRAME))
    phones = np.repeat([CLASSES.index(name) for name in names], frames)
    excitation, envelope = _source(random, voice, len(phones)), _filter(random, voice, names, frames)
    sound = _shape(excitation, envelope)
    # Louder and softer, and somebody else's air conditioning.
    level, noise = 10 ** (random.uniform(-26, -14) / 20), 10 ** (random.uniform(-35, -15) / 20)
    sound = sound / (np.sqrt(np.mean(sound**2)) + 1e-9)
    sound = level * (sound + noise * random.standard_normal(len(sound)))
    samples = np.clip(np.rint(32767 * sound), -32768, 32767).astype(np.int16)
    return Utterance(samples, phones.astype(np.int16), f"speaker{speaker:02d}")


def _speaker(random: np.random.Generator) -> _Speaker:
    high = random.random()  # women and children have higher voices and shorter tracts
    return _Speaker(
        pitch=95 * 2 ** (1.2 * high) * random.uniform(0.9, 1.1),
        tract=(0.9 + 0.25 * high) * random.uniform(0.95, 1.05),
        tilt=random.uniform(-6, -2),
        breath=random.uniform(0.02, 0.15),
        pace=random.uniform(0.8, 1.25),
    )


def _say(random: np.random.Generator, voice: _Speaker, wanted: int) -> tuple[list[str], list[int]]:
    """Phones and their lengths in frames: words of syllables between pauses."""
    names, frames = [SILENCE], [int(random.integers(5, 20))]
    while sum(frames) < wanted:
        for _ in range(random.integers(1, 4)):
            for name, longest in ((random.choice(_CONSONANTS), 11), (random.choice(_VOWELS), 18)):
                names.append(str(name))
                frames.append(max(4, round(voice.pace * random.uniform(5, longest))))
        if random.random() < 0.3:
            names.append(SILENCE)
            frames.append(int(random.integers(5, 25)))
    return names, frames


def _source(random: np.random.Generator, voice: _Speaker, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Pulses at a wandering pitch, and noise, both (160 F,) with a power of 1."""
    length = frames * FRAME
    knots = np.cumsum(random.normal(0, 0.04, frames // 10 + 2))
    melody = np.interp(np.arange(length), np.arange(len(knots)) * 10 * FRAME, knots - knots.mean())
    phase = np.cumsum(voice.pitch * 2**melody / RATE)
    pulses = np.diff(np.floor(phase), prepend=0.0) * np.sqrt(RATE / voice.pitch)
    return pulses + voice.breath * random.standard_normal(length), random.standard_normal(length)


def _filter(
    random: np.random.Generator, voice: _Speaker, names: list[str], frames: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Amplitudes (hops, bins) of the voice and of friction at each frequency, every 5 ms."""
    silent = Phone((500, 1500, 2500), 0.0, 0.0)
    phones = [PHONES.get(name, silent) for name in names]
    for i, name in enumerate(names):  # in a pause the mouth gets ready for what comes
        if name == SILENCE and i + 1 < len(names):
            phones[i] = phones[i]._replace(formants=phones[i + 1].formants)
    deviation = 1 + random.normal(0, 0.06, (len(phones), 3))
    loudness = 1 + random.normal(0, 0.15, len(phones)).clip(-0.5, 0.5)
    table = np.column_stack(
        [
            np.array([phone.formants for phone in phones]) * voice.tract * deviation,
            np.array([phone.damping for phone in phones]),
            np.array([phone.voice for phone in phones]) * loudness,
            np.array([phone.friction for phone in phones]) * loudness,
        ]
    )
    track = np.repeat(table, np.array(frames) * (FRAME // _HOP), axis=0)  # (hops, 6)
    around = np.pad(track, ((_GLIDE // 2, _GLIDE // 2), (0, 0)), mode="edge")
    kernel = np.hanning(_GLIDE + 2)[1:-1]
    track = np.stack([np.convolve(column, kernel / kernel.sum(), mode="valid") for column in around.T], axis=1)
    frequency = np.fft.rfftfreq(_WINDOW, 1 / RATE)
    gain = np.zeros((len(track), len(frequency)))
    for formant, weight in enumerate((1.0, 0.8, 0.5)):
        width = _WIDTHS[formant] * track[:, 3, None]
        gain += weight / (1 + ((frequency - track[:, formant, None]) / width) ** 2)
    octaves = np.log2(np.maximum(frequency, 100) / 100)
    return gain * track[:, 4, None] * 10 ** (voice.tilt * octaves / 20), gain * track[:, 5, None]


def _shape(sources: tuple[np.ndarray, np.ndarray], gains: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Filters each source with its gains: spectra of overlapping pieces, added up again."""
    length, hops = len(sources[0]), len(gains[0])
    window = np.hanning(_WINDOW + 1)[:-1] * (2 * _HOP / _WINDOW)
    starts = np.arange(hops)[:, None] * _HOP + np.arange(_WINDOW)
    spectrum = np.zeros(gains[0].shape, complex)
    for source, gain in zip(sources, gains, strict=True):
        padded = np.pad(source, (_WINDOW // 2 - _HOP // 2, _WINDOW))
        spectrum += np.fft.rfft(padded[starts] * window, axis=1) * gain
    pieces = np.fft.irfft(spectrum, axis=1)
    sound = np.zeros(length + 2 * _WINDOW)
    for part in range(_WINDOW // _HOP):  # pieces with the same remainder do not overlap
        chosen = pieces[part :: _WINDOW // _HOP]
        start = part * _HOP
        sound[start : start + chosen.size] += chosen.ravel()
    return sound[_WINDOW // 2 - _HOP // 2 :][:length]
