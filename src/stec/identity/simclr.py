"""SimCLR: the partner is picked out among all other views of the batch (Chen et al. 2020)."""

from __future__ import annotations

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.functional import contrast_pairs, contrast_small
from stec.identity.interface import Identity, IdentityOutput
from stec.networks.heads import projector
from stec.processes import average, gather, own_rows
from stec.views import ViewBatch


class SimCLR(Identity):
    """NT-Xent over the 2B views of the batch, gathered over all processes with gradient; each computes its own rows."""

    settings = ("temperature", "hidden", "output")

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config)
        self.temperature = config.temperature
        self.projector = projector(int(encoder.dim), config.hidden, config.output)  # type: ignore[arg-type]

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        projections = self.queries(features)
        first, second = (gather(half) for half in projections.chunk(2))
        pairs = len(projections) // 2
        loss, accuracy = contrast_pairs(first, second, self.temperature, own=own_rows(pairs))
        return IdentityOutput(average(loss, pairs), average(accuracy, pairs), projections, (first, second))

    def queries(self, features: Tensor) -> Tensor:
        """The projections."""
        return self.projector(features).float()

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """The partner of a small view is picked out among the large ones."""
        first, second = keys
        own = own_rows(len(queries))
        return average(contrast_small(queries, first, second, self.temperature, own=own), len(queries))
