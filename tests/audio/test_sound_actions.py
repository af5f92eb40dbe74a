"""Actions on sound: what is done is what the copy says, and the action is egocentric."""

import math

import pytest
import torch
from scipy import signal

from stec.audio import actions
from stec.audio.actions import ACTIONS, Draw, band_pass, draw, egocentric, parse, perform, piece_length, resample
from stec.errors import UserError
from stec.limits import SOUND_ACTIONS

ALL = list(ACTIONS)


def _tone(hertz, length=16_000):
    return torch.sin(2 * math.pi * hertz * torch.arange(length) / 16_000)[None]


def _done(**changes):
    nothing = {"start": 0.0, "speed": 0.0, "low": -math.inf, "high": math.inf, "noise": -math.inf, "gain": 0.0}
    return Draw(**{name: torch.tensor([float(value)]) for name, value in (nothing | changes).items()})


def test_a_faster_window_is_the_sound_at_other_times():
    """Of a tone, another tone; the interpolation is within a percent of it up to 1 kHz."""
    for octaves in (-0.25, 0.1, 0.25):
        speed = 2**octaves
        heard = resample(_tone(1000), torch.tensor([speed]), 8000)
        assert torch.allclose(heard[:, 5:], _tone(1000 * speed, 8000)[:, 5:], atol=0.01)
    assert torch.equal(resample(_tone(300), torch.ones(1), 8000), _tone(300, 8000))


def test_the_band_is_that_of_butterworth_filters():
    noise = torch.randn(2, 16_000, generator=torch.Generator().manual_seed(0)).double()
    low, high = torch.tensor([100.0, 300.0]), torch.tensor([3400.0, 6000.0])
    heard = torch.fft.rfft(band_pass(noise, low, high)).abs() / torch.fft.rfft(noise).abs()
    for row in range(2):
        frequency = range(1, 8000, 50)
        gains = []
        for limit, kind in ((low[row], "highpass"), (high[row], "lowpass")):
            b, a = signal.butter(2, 2 * math.pi * float(limit), kind, analog=True)
            gains.append(abs(signal.freqs(b, a, [2 * math.pi * f for f in frequency])[1]))
        expected = torch.tensor(gains[0] * gains[1])
        assert torch.allclose(heard[row][list(frequency)], expected, atol=2e-3)


@pytest.mark.parametrize("octaves", [-0.25, 0.0, 0.25])
def test_what_is_played_faster_sounds_higher(octaves):
    heard = perform(_tone(1000), _done(speed=octaves), 8000, ["speed"])
    assert torch.fft.rfft(heard)[0].abs().argmax() == pytest.approx(8000 / 16_000 * 1000 * 2**octaves, abs=1)


def test_noise_and_gain_are_in_decibels():
    torch.manual_seed(0)
    tone = _tone(500)
    louder = perform(tone, _done(gain=6), 16_000, ["gain"])
    assert float(20 * (louder.norm() / tone.norm()).log10()) == pytest.approx(6, abs=1e-4)
    noisy = perform(tone, _done(noise=-20), 16_000, ["noise"])
    assert float(20 * ((noisy - tone).norm() / tone.norm()).log10()) == pytest.approx(-20, abs=0.2)
    assert torch.equal(perform(torch.zeros(1, 100), _done(noise=-20), 100, ["noise"]), torch.zeros(1, 100))


def test_windows_that_are_slid_together_have_the_same_action_between_them():
    torch.manual_seed(0)
    starts = torch.randint(5000, (2, 50))
    first, second = draw(starts[0], ALL), draw(starts[1], ALL)
    action = egocentric(first, second, 1000, ALL)
    assert action.shape == (50, 6)
    slid = [done._replace(start=done.start + 777) for done in (first, second)]
    assert torch.equal(egocentric(*slid, 1000, ALL), action)
    back = egocentric(second, first, 1000, ALL)
    assert torch.allclose(back[:, 1:], -action[:, 1:])
    # As a map of time, the way back undoes the way there: t' = (t - shift) / ratio.
    assert torch.allclose(back[:, 0], -action[:, 0] * 2 ** -action[:, 1], atol=1e-5)
    same = egocentric(first, first, 1000, ALL)
    assert not same.any()


def test_the_shift_is_where_the_second_window_begins_on_the_first():
    """Heard at double speed, 500 samples of the utterance are 250 of a window."""
    first, second = _done(start=100, speed=1), _done(start=600)
    assert egocentric(first, second, 1000, ["shift", "speed"]).tolist() == [[0.25, -1.0]]


def test_draws_fill_their_ranges_and_pieces_are_long_enough():
    torch.manual_seed(0)
    done = draw(torch.zeros(10_000, dtype=torch.long), ALL)
    ranges = {
        "speed": (-0.25, 0.25), "gain": (-9, 9), "noise": (-40, -15), "low": (math.log2(30), math.log2(300)),
        "high": (math.log2(3400), 13 - math.log2(1.024)),
    }  # fmt: skip
    for name, (low, high) in ranges.items():
        values = getattr(done, name)
        assert low <= float(values.min()) < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < float(values.max()) <= high + 1e-4
    action = egocentric(done, draw(torch.zeros(10_000, dtype=torch.long), ALL), 1000, ALL)
    limits = torch.tensor([component.limit for component in actions.components(ALL)])
    assert limits[0] == 0.5, "of a window, which is how far apart two of them may begin"
    assert ((action.abs().amax(dim=0) / limits)[1:] > 0.9).all()
    assert ((action.abs().amax(dim=0) / limits) < 1.05).all()
    length = piece_length(1000, ALL)
    assert length > 1000 * 2**0.25 + 2, "no sample is read beyond a piece"
    assert piece_length(1000, ["gain"]) == 1000


def test_what_is_not_among_the_actions_is_not_done():
    torch.manual_seed(0)
    tone = _tone(500, 1000)
    done = draw(torch.tensor([3]), ["gain"])
    assert torch.allclose(perform(tone, done, 1000, ["gain"]), tone * 10 ** (done.gain / 20))
    assert parse("gain+shift") == ["shift", "gain"]
    assert tuple(ACTIONS) == SOUND_ACTIONS
    with pytest.raises(UserError, match=r"manipulation.action=gain\+pitsh: pitsh: choose from"):
        parse("gain+pitsh")
