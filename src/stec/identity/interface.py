"""What every identity model offers to the method that holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.errors import UserError
from stec.networks.heads import projector
from stec.networks.target import Target, rising_decay
from stec.views import ViewBatch


class IdentityOutput(NamedTuple):
    """The loss, both directions summed and averaged over pairs, and how often the model finds the right partner."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1
    embeddings: Tensor | None = None  # (2B, E) of this process, where similarity is measured; shown to spot a collapse
    keys: tuple[Tensor, ...] = ()  # what x and x' are to others, for `Identity.small_loss`


class Identity(nn.Module, ABC):
    """An identity model: built from the encoder it serves, it turns features of view pairs into a loss."""

    settings: ClassVar[tuple[str, ...]] = ("hidden", "output")  # keys of the config that it reads

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """Features (2B, D) of the batch's views, first and second -> loss and accuracy."""

    def with_small(self, large: IdentityOutput, small: Tensor) -> Tensor:
        """L_id with small views, averaged over all pairs of a view with a large one, x -> x' and x' -> x among them.

        L_id = (l(x, x') + l(x', x) + sum over the n small views s of [l(s, x') + l(s, x)]) / (1 + n)

        Args:
            large: what `forward` gave for x and x'.
            small: (n, B, D) features of the small views.
        """
        queries = self.queries(small.flatten(0, 1)).unflatten(0, small.shape[:2])  # (n, B, E)
        losses = [self.small_loss(each, large.keys) for each in queries]
        return (large.loss + torch.stack(losses).sum()) / (1 + len(losses))

    def queries(self, features: Tensor) -> Tensor:
        """What views of these features (N, D) look for their partner with. (N, E)"""
        raise self._no_small()

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """l(s, x') + l(s, x): a small view s of every image takes the place of x, then of x'. Averaged over images.

        Args:
            queries: (B, E) of the small views.
            keys: those of `IdentityOutput`.
        """
        raise self._no_small()

    def _no_small(self) -> UserError:
        return UserError(f"{type(self).__name__} has no use for small views: views.small must be 0")

    def target_encoders(self) -> list[nn.Module]:
        """Copies of the encoder that this model runs itself, to be compiled like the encoder."""
        return []

    def unsynchronised(self) -> list[nn.Module]:
        """Modules whose batch norms keep to the views of their own process, where others see those of all."""
        return []

    def steady(self) -> list[nn.Module]:
        """Modules whose learning rate stays at its peak, while that of the others rises and falls."""
        return []

    def after_step(self, progress: Tensor | float) -> None:
        """Called after every optimizer step with the share of training done; moving averages are updated here."""


class TargetIdentity(Identity):
    """An identity model that compares projections with those of a target network, which follows after every step."""

    settings: ClassVar[tuple[str, ...]] = ("hidden", "output", "ema")

    def __init__(
        self, encoder: nn.Module, config: IdentityConfig, output_norm: bool = True, head: nn.Sequential | None = None
    ) -> None:
        super().__init__(encoder, config)
        dim = int(encoder.dim)  # type: ignore[arg-type]
        self.projector = projector(dim, config.hidden, config.output, output_norm) if head is None else head
        self.target = Target(encoder, self.projector)
        self.ema = config.ema

    def target_encoders(self) -> list[nn.Module]:
        """The target's encoder."""
        return [self.target.encoder]

    def after_step(self, progress: Tensor | float) -> None:
        """The target follows, ever more slowly."""
        self.target.update(rising_decay(self.ema, progress))
