"""The two networks of CPC: strided convolutions that make a frame of every 10 ms, and a context that runs over frames.

Van den Oord, Li and Vinyals, Representation Learning with Contrastive Predictive Coding (2018), section 3.1. Every
convolution is followed by a normalisation over the channels of each frame, without which training is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from stec.errors import UserError, nearest
from stec.run import ENCODER, read_weights

RATE = 16_000  # samples per second of all that is heard here
MOST = 6_000  # frames that the encoder makes at once for features


class Layer(NamedTuple):
    """A convolution over time, without padding: where a window begins and ends must not be heard in its frames.

    With zeros around it, training may learn nothing but that.
    """

    kernel: int
    stride: int


LAYERS = (Layer(10, 5), Layer(8, 4), Layer(4, 2), Layer(4, 2), Layer(4, 2))  # the paper's


class Size(NamedTuple):
    """How wide the networks are."""

    channels: int
    context: int  # units of the GRU, per direction


SIZES = {
    "cpc": Size(512, 256),
    "cpc-small": Size(64, 96),
}


class Geometry(NamedTuple):
    """Which samples a frame is made of: frame t of those from `t hop` on, `field` of them."""

    field: int
    hop: int

    @property
    def seconds(self) -> float:
        """Between two frames."""
        return self.hop / RATE


def geometry(layers: Sequence[Layer] = LAYERS) -> Geometry:
    """Receptive field and hop of convolutions on top of each other."""
    field, hop = 1, 1
    for kernel, stride in layers:
        field += (kernel - 1) * hop
        hop *= stride
    return Geometry(field, hop)


def frame_count(samples: int, layers: Sequence[Layer] = LAYERS) -> int:
    """How many frames convolutions make of this many samples."""
    for kernel, stride in layers:
        samples = max(0, (samples - kernel) // stride + 1)
    return samples


class FrameNorm(nn.LayerNorm):
    """Normalises the channels of each frame by themselves. (B, C, 1, T) in channels-last memory: nothing is copied.

    In mixed precision the result is rounded at once, as the next convolution will do, so that what ReLU makes of it is
    kept only once, for that and for its own gradient.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, memory layout and precision."""
        return super().forward(x.permute(0, 2, 3, 1)).to(x.dtype).permute(0, 3, 1, 2)


class FirstConvolution(nn.Conv2d):
    """Of waveforms (B, S) -> (B, C, 1, T), channels last, as a product: cuDNN has no fast one for a single channel."""

    def forward(self, waveforms: Tensor) -> Tensor:
        """Kernels get empty ends, up to a multiple of eight, of which fast products are."""
        length, step = self.kernel_size[1], self.stride[1]
        empty = (0, -length % 8)
        pieces = F.pad(waveforms, empty).unfold(1, length + empty[1], step)  # (B, T, L)
        return F.linear(pieces, F.pad(self.weight.flatten(1), empty), self.bias).transpose(1, 2).unsqueeze(2)


class Encoder(nn.Module):
    """g_enc: waveforms to frames. Convolutions over time as flat images, which run fastest with channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for kernel, stride in LAYERS:
            convolution, inputs = (nn.Conv2d, channels) if parts else (FirstConvolution, 1)
            parts += [convolution(inputs, channels, (1, kernel), (1, stride)), FrameNorm(channels), nn.ReLU()]
        self.layers = nn.Sequential(*parts)
        self.layers[1:].to(memory_format=torch.channels_last)  # not the first, a product, whose gradient is not
        self.dim = channels

    def forward(self, waveforms: Tensor) -> Tensor:
        """Waveforms (B, S) -> frames z (B, T, D)."""
        return self.layers(waveforms).squeeze(2).transpose(1, 2)


class Context(nn.Module):
    """g_ar: a GRU over frames. With both directions, one half has heard only the past, the other only the future."""

    def __init__(self, inputs: int, units: int, bidirectional: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, units, batch_first=True, bidirectional=bidirectional)
        self.bidirectional = bidirectional
        self.units = units
        self.dim = units * (2 if bidirectional else 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Frames (B, T, D) -> contexts c (B, T, H)."""
        # Not in bfloat16, for which cuDNN has no recurrent network: 128 small steps would be launched one by one.
        with torch.autocast(frames.device.type, enabled=False):
            return self.gru(frames.float())[0]

    def ragged(self, frames: list[Tensor]) -> list[Tensor]:
        """Frames (T_i, D) of utterances of any lengths -> contexts (T_i, H), each as if it were alone."""
        lengths = torch.tensor([len(each) for each in frames])
        with torch.autocast(frames[0].device.type, enabled=False):
            padded = pad_sequence([each.float() for each in frames], batch_first=True)
            packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
            contexts, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        return [each[:length] for each, length in zip(contexts, lengths.tolist(), strict=True)]


class Network(nn.Module):
    """What is trained and kept: encoder and context. Its features are the contexts."""

    def __init__(self, size: str, bidirectional: bool = False) -> None:
        super().__init__()
        channels, units = size_of(size)
        self.encoder = Encoder(channels)
        self.context = Context(channels, units, bidirectional)
        self.dim = self.context.dim

    def forward(self, waveforms: Tensor) -> tuple[Tensor, Tensor]:
        """Waveforms (B, S) -> frames z (B, T, D) and contexts c (B, T, H)."""
        frames = self.encoder(waveforms)
        return frames, self.context(frames)

    @torch.no_grad()
    def features(self, waveforms: list[Tensor]) -> list[Tensor]:
        """Waveforms (S_i,) of any lengths -> contexts (T_i, H), which do not depend on what else is in the list.

        They are float32 at 16 kHz with a power of 1, as in training; frame t is that of the samples around 160 t + 80.
        """
        with torch.backends.cudnn.flags(enabled=True, benchmark=False):  # every length would be tried out anew
            return self.context.ragged([self._frames(padded(waveform)) for waveform in waveforms])

    def _frames(self, waveform: Tensor) -> Tensor:
        """Frames (T, D) of a waveform (S,), a minute at a time: an hour at once would take 45 GB."""
        field, hop = geometry()
        count = frame_count(len(waveform))
        pieces = (waveform[start * hop :][: (MOST - 1) * hop + field] for start in range(0, count, MOST))
        return torch.cat([self.encoder.forward(piece[None])[0] for piece in pieces])


def load(path: str | Path) -> Network:
    """Encoder and context of a run folder or of its `encoder.safetensors`, in evaluation mode; no code is run."""
    path = Path(path).expanduser()
    file = path / ENCODER if path.is_dir() else path
    weights, about = read_weights(file)
    try:
        network = Network(about["encoder"], about["bidirectional"] == "True")
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{file} cannot be read: {str(error).splitlines()[0]}") from None
    except KeyError:
        raise UserError(f"{file} holds no encoder of sound") from None
    return network.requires_grad_(False).eval()


def padded(waveform: Tensor) -> Tensor:
    """With silence around it: every 160 samples have a frame, which is centred on them."""
    field, hop = geometry()
    before = (field - hop) // 2
    return F.pad(waveform, (before, max(field - hop - before, field - before - len(waveform))))


def size_of(name: str) -> Size:
    """By its name."""
    if name not in SIZES:
        raise UserError(f"encoder={name}: {nearest(name, SIZES)}")
    return SIZES[name]
