"""Barlow Twins: each dimension agrees between the two views and with no other dimension (Zbontar et al. 2021)."""

from __future__ import annotations

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.identity.interface import Identity, IdentityOutput
from stec.networks.heads import expander
from stec.noncontrastive import barlow, partner_accuracy
from stec.processes import average, gather, own_rows
from stec.views import ViewBatch


class BarlowTwins(Identity):
    """The cross-correlation is that of the batch over all processes, gathered with gradient."""

    settings = ("hidden", "output", "redundancy")

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config)
        self.redundancy = config.redundancy
        self.expander = expander(int(encoder.dim), config.hidden, config.output)  # type: ignore[arg-type]

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        embeddings = self.queries(features)
        first, second = (gather(half) for half in embeddings.chunk(2))
        pairs = len(embeddings) // 2
        accuracy = average(partner_accuracy(first, second, own_rows(pairs)), pairs)
        return IdentityOutput(barlow(first, second, self.redundancy), accuracy, embeddings, (first, second))

    def queries(self, features: Tensor) -> Tensor:
        """The embeddings."""
        return self.expander(features).float()

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """Half of the loss of a small view with either large one, which has both directions."""
        small = gather(queries)
        first, second = (barlow(small, partner, self.redundancy) for partner in keys)
        return (first + second) / 2
