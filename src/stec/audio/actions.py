"""Actions on sound, and the exact copy of what was done: shift, speed, band, noise, gain.

A window x is cut out of its utterance, played faster or slower, filtered, overlaid with noise, and made louder or
softer. The action from x to x' is what has to be done to x to hear x': egocentric, as for images, in units of x itself.
With M_x(t) = start + speed t, which maps the time on the canvas of x to the time in the utterance, shift and speed are
the two numbers of the affine map M_x^-1 M_x'. The paper has no actions on sound; these are ours.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stec.audio.network import RATE
from stec.errors import UserError, nearest
from stec.processes import rows_to_draw

FASTEST = 0.25  # octaves by which a window may be faster or slower
LOUDEST = 9.0  # dB by which it may be louder or softer
NOISE = (-40.0, -15.0)  # dB of the noise against the sound
LOW, HIGH = (30.0, 300.0), (3400.0, 8000.0)  # Hz: where the pass band begins and ends
NEAR = 0.5  # of a window: how far apart two windows may begin


class Draw(NamedTuple):
    """What was done to one window of each pair, all (B,): the efference copy."""

    start: Tensor  # in the utterance, samples
    speed: Tensor  # octaves
    low: Tensor  # Hz, as octaves
    high: Tensor  # Hz, as octaves
    noise: Tensor  # dB
    gain: Tensor  # dB


class Component(NamedTuple):
    """One number of the action, and the limits within which it is told apart."""

    name: str
    limit: float


ACTIONS = {
    "shift": (Component("shift", NEAR),),
    "speed": (Component("speed", 2 * FASTEST),),
    "band": (Component("low", 3.3), Component("high", 1.2)),  # octaves
    "noise": (Component("noise", NOISE[1] - NOISE[0]),),
    "gain": (Component("gain", 2 * LOUDEST),),
}


def parse(action: str) -> list[str]:
    """`gain+shift` -> its parts, in the order of ACTIONS."""
    names = action.split("+")
    for name in names:
        if name not in ACTIONS:
            raise UserError(f"manipulation.action={action}: {name}: {nearest(name, ACTIONS)} (for sound)")
    return [name for name in ACTIONS if name in names]


def piece_length(window: int, actions: list[str]) -> int:
    """Samples that a window may reach over, when it is played at the highest speed."""
    return int(window * 2**FASTEST) + 4 if "speed" in actions else window


def draw(starts: Tensor, actions: list[str]) -> Draw:
    """Draws what is done to windows (B,) that begin there; what is not among the actions stays undone."""
    number, own = rows_to_draw(len(starts))

    def uniform(name: str, low: float, high: float, undone: float) -> Tensor:
        random = torch.rand(number, device=starts.device)[own]
        return low + (high - low) * random if name in actions else torch.full_like(random, undone)

    def octaves(limits: tuple[float, float], undone: float) -> Tensor:
        return uniform("band", math.log2(limits[0]), math.log2(limits[1]), undone)

    return Draw(
        start=starts.float(),
        speed=uniform("speed", -FASTEST, FASTEST, 0.0),
        low=octaves(LOW, -torch.inf),
        high=octaves(HIGH, torch.inf),
        noise=uniform("noise", *NOISE, -torch.inf),
        gain=uniform("gain", -LOUDEST, LOUDEST, 0.0),
    )


def perform(pieces: Tensor, done: Draw, window: int, actions: list[str]) -> Tensor:
    """Pieces (B, P) -> windows (B, window), to which all that was done."""
    sound = resample(pieces, 2**done.speed, window) if "speed" in actions else pieces
    if "band" in actions:
        sound = band_pass(sound, 2**done.low, 2**done.high)
    if "noise" in actions:
        power = sound.square().mean(dim=1, keepdim=True).sqrt()
        number, own = rows_to_draw(len(sound))
        noise = torch.randn(number, sound.shape[1], device=sound.device)[own]
        sound = sound + power * 10 ** (done.noise[:, None] / 20) * noise
    return sound * 10 ** (done.gain[:, None] / 20)


def resample(pieces: Tensor, speed: Tensor, window: int) -> Tensor:
    """Reads pieces (B, P) at speeds (B,) from their first sample on, by cubic (Catmull-Rom) interpolation."""
    place = speed[:, None] * torch.arange(window, device=pieces.device)  # (B, W)
    index = place.long()
    u = place - index
    before, here, after, last = (
        pieces.gather(1, (index + step).clamp(0, pieces.shape[1] - 1)) for step in (-1, 0, 1, 2)
    )
    cubic = 0.5 * (3 * (here - after) + last - before)
    square = before - 2.5 * here + 2 * after - 0.5 * last
    return ((cubic * u + square) * u + 0.5 * (after - before)) * u + here


def band_pass(sound: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Dampens (B, W) below and above frequencies (B,) in Hz, as Butterworth filters of second order, without delay."""
    frequency = torch.fft.rfftfreq(sound.shape[1], 1 / RATE, device=sound.device)
    keep_high = 1 / (1 + (frequency / high[:, None]) ** 4)
    keep_low = 1 / (1 + (low[:, None] / frequency.clamp(min=1e-3)) ** 4)
    return torch.fft.irfft(torch.fft.rfft(sound) * (keep_low * keep_high).sqrt(), n=sound.shape[1])


def egocentric(first: Draw, second: Draw, window: int, actions: list[str]) -> Tensor:
    """The action from x to x', (B, C): components of the named actions, in their order.

    shift: where x' begins on the canvas of x, in units of its length; speed, low, high: octaves from x to x'; noise and
    gain: dB from x to x'.
    """
    values = {
        "shift": (second.start - first.start) / (window * 2**first.speed),
        **{name: getattr(second, name) - getattr(first, name) for name in ("speed", "low", "high", "noise", "gain")},
    }
    return torch.stack([values[component.name] for name in actions for component in ACTIONS[name]], dim=1)


def components(actions: list[str]) -> list[Component]:
    """Of the named actions, in their order."""
    return [component for name in actions for component in ACTIONS[name]]
