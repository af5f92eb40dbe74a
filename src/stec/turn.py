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


class TurnOutput(NamedTuple):
    """Cross entropy over the four turns, and the share of views whose turn is found, in all processes together."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1


def every_turn(images: Tensor) -> Tensor:
    """All images as they are, then all turned by 90, 180 and 270 degrees. (B, C, S, S) -> (4B, C, S, S)"""
    return torch.cat([images.rot90(quarters, dims=(-2, -1)) for quarters in range(TURNS)])


class Turn(nn.Module):
    """A perceptron that reads the turn from the features of what `every_turn` made.

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

    def forward(self, features: Tensor) -> TurnOutput:
        """Features (4B, D) of the turned views, in the order of `every_turn` -> loss and accuracy."""
        logits = self.predictor(features).float()  # (4B, TURNS)
        turns = torch.arange(TURNS, device=logits.device).repeat_interleave(len(logits) // TURNS)
        right = (logits.argmax(dim=1) == turns).float()
        return TurnOutput(mean(F.cross_entropy(logits, turns, reduction="none")), mean(right))
