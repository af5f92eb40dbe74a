"""The built-in utterances."""

import numpy as np

from stec.audio import synthesis
from stec.audio.synthesis import CLASSES, PHONES, RATE, utterance


def test_an_utterance_depends_on_its_seed_speaker_and_number_alone():
    first, again = utterance(3, 5, 1.0), utterance(3, 5, 1.0)
    assert np.array_equal(first.samples, again.samples)
    assert np.array_equal(first.phones, again.phones)
    for other in (utterance(2, 5, 1.0), utterance(3, 6, 1.0), utterance(3, 5, 1.0, seed=1)):
        assert not np.array_equal(first.samples[:8000], other.samples[:8000])


def test_there_is_a_label_for_every_frame_and_every_phone_occurs(sounds):
    assert len(PHONES) == 12
    assert len(sounds.phones) == sounds.offsets[-1] // 160
    assert (sounds.lengths % 160 == 0).all()
    assert set(np.unique(sounds.phones)) == set(range(len(CLASSES)))
    assert len(set(sounds.speakers)) == 4


def test_phones_sound_as_their_formants_say(sounds):
    """The power of each phone's frames: friction lies high, voices low, and pauses are quiet."""
    frames = sounds.samples.astype(np.float64).reshape(-1, 160)
    power = np.abs(np.fft.rfft(frames * np.hanning(160), axis=1)) ** 2
    frequency = np.fft.rfftfreq(160, 1 / RATE)

    def share_above(name, hertz):
        mean = power[sounds.phones == CLASSES.index(name)].mean(axis=0)
        return mean[frequency > hertz].sum() / mean.sum()

    assert share_above("S", 3500) > 0.5
    friction, voices = (
        [share_above(name, 3500) for name in names] for names in (("S", "SH", "F", "Z"), ("IY", "AA", "OW", "UW", "M"))
    )
    assert min(friction) > 2 * max(voices)
    assert share_above("SH", 5500) < share_above("S", 5500)
    assert share_above("UW", 1800) < share_above("IY", 1800)
    loudness = {name: power[sounds.phones == label].sum(axis=1).mean() for label, name in enumerate(CLASSES)}
    assert loudness[synthesis.SILENCE] == min(loudness.values())
