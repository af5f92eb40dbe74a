"""What every identity model offers to the method that holds it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.views import ViewBatch


class IdentityOutput(NamedTuple):
    """The loss, both directions summed and averaged over pairs, and how often the model finds the right partner."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1


class Identity(nn.Module):
    """An identity model: built from the encoder it serves, it turns features of view pairs into a loss."""

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__()

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """Features (2B, D) of the batch's views, first and second -> loss and accuracy."""
        raise NotImplementedError

    def target_encoders(self) -> list[nn.Module]:
        """Copies of the encoder that this model runs itself, to be compiled like the encoder."""
        return []

    def after_step(self, progress: float) -> None:
        """Called after every optimizer step with the share of training done; moving averages are updated here."""
