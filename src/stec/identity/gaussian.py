"""A normal distribution around the other view: similarity alone, which collapses unless something else prevents it.

Paper: appendix "Not using the context of an object: Non-contrastive SSL", which conjectures that the manipulation model
could be that something (`stec-gaussian`).
"""

from __future__ import annotations

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.identity.interface import Identity, IdentityOutput
from stec.networks.heads import projector
from stec.noncontrastive import gaussian, partner_accuracy
from stec.processes import average, gather, own_rows
from stec.views import ViewBatch


class Gaussian(Identity):
    """Squared distance of the projections of both views; no negatives, no target network, no predictor.

    The projector has no batch norm on its output, which would keep the projections apart by itself.
    """

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config)
        dim = int(encoder.dim)  # type: ignore[arg-type]
        self.projector = projector(dim, config.hidden, config.output, output_norm=False)

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        projections = self.queries(features)
        first, second = projections.chunk(2)
        loss = average(gaussian(first, second), len(first))
        accuracy = partner_accuracy(gather(first.detach()), gather(second.detach()), own_rows(len(first)))
        return IdentityOutput(loss, average(accuracy, len(first)), projections, (first, second))

    def queries(self, features: Tensor) -> Tensor:
        """The projections."""
        return self.projector(features).float()

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """Half of the loss of a small view with either large one, which has both directions."""
        first, second = (gaussian(queries, partner) for partner in keys)
        return average((first + second) / 2, len(queries))
