"""What every identity model offers to the method that holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.networks.heads import projector
from stec.networks.target import Target, rising_decay
from stec.views import ViewBatch


class IdentityOutput(NamedTuple):
    """The loss, both directions summed and averaged over pairs, and how often the model finds the right partner."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1
    embeddings: Tensor | None = None  # (2B, E) of this process, where similarity is measured; shown to spot a collapse


class Identity(nn.Module, ABC):
    """An identity model: built from the encoder it serves, it turns features of view pairs into a loss."""

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """Features (2B, D) of the batch's views, first and second -> loss and accuracy."""

    def target_encoders(self) -> list[nn.Module]:
        """Copies of the encoder that this model runs itself, to be compiled like the encoder."""
        return []

    def after_step(self, progress: Tensor | float) -> None:
        """Called after every optimizer step with the share of training done; moving averages are updated here."""


class TargetIdentity(Identity):
    """An identity model that compares projections with those of a target network, which follows after every step."""

    def __init__(self, encoder: nn.Module, config: IdentityConfig, output_norm: bool) -> None:
        super().__init__(encoder, config)
        dim = int(encoder.dim)  # type: ignore[arg-type]
        self.projector = projector(dim, config.hidden, config.output, output_norm)
        self.target = Target(encoder, self.projector)
        self.ema = config.ema

    def target_encoders(self) -> list[nn.Module]:
        """The target's encoder."""
        return [self.target.encoder]

    def after_step(self, progress: Tensor | float) -> None:
        """The target follows, ever more slowly."""
        self.target.update(rising_decay(self.ema, progress))
