"""The turn inverse model: by how much has this small view been turned?

Equivariant self-supervised learning (E-SSL, Dangovski et al., ICLR 2022) is an identity model with this one beside it.
In the paper's terms a further manipulation, "turning the object", that is read from the turned view alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stec.config import TurnConfig
from stec.processes import mean

TURNS = 4  # by 0, 90, 180 and 270 degrees, counterclockwise


class Turned(NamedTuple):
    """Small views, each in some of the four turns: those that are as they were, then those turned by 90 degrees, ..."""

    images: Tensor  # (nB, 3, S/2, S/2) for n turns of each
    turns: Tensor  # (nB,) from 0 to 3

    def channels_last(self) -> Turned:
        """The same, in the memory layout that convolutions on a GPU prefer."""
        return Turned(self.images.contiguous(memory_format=torch.channels_last), self.turns)


class TurnOutput(NamedTuple):
    """Cross entropy over the four turns, and the share of views whose turn is found, in all processes together."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1


def show_turned(images: Tensor, number: int = TURNS, first: int = 0) -> Turned:
    """Every image in all four turns, in two opposite ones, or in one, which its place in the batch decides.

    Args:
        images: (B, 3, S, S)
        number: of the turns that each is shown in: 4, 2 or 1.
        first: the place of the first image, in the batch of all processes.
    """
    step = TURNS // number
    some = [images[(quarters - first) % step :: step] for quarters in range(TURNS)]
    shown = torch.cat([each.rot90(quarters, dims=(-2, -1)) for quarters, each in enumerate(some)])
    turns = torch.cat([torch.full((len(each),), i, device=images.device) for i, each in enumerate(some)])
    return Turned(shown, turns)


class Turn(nn.Module):
    """A perceptron that reads the turn from the features of what `show_turned` made.

    Two hidden layers with layer norm, as in the authors' code (rdangovs/essl, `cifar10`).

    Args:
        dim: dimension of the features.
        config: its size.
    """

    def __init__(self, dim: int, config: TurnConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.predictor = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, TURNS),
        )

    def forward(self, features: Tensor, turns: Tensor) -> TurnOutput:
        """Features (nB, D) of the turned views, and their turns (nB,) -> loss and accuracy."""
        logits = self.predictor(features).float()  # (nB, TURNS)
        right = (logits.argmax(dim=1) == turns).float()
        return TurnOutput(mean(F.cross_entropy(logits, turns, reduction="none")), mean(right))
