"""BYOL: from one view, predict what a target network makes of the other; no negatives (Grill et al. 2020).

Paper: appendices "BYOL" and "Recovering non-contrastive SSL (BYOL)".
"""

from __future__ import annotations

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.functional import byol, target_accuracy
from stec.identity.interface import IdentityOutput, TargetIdentity
from stec.networks.heads import projector
from stec.processes import average, gather, own_rows
from stec.views import ViewBatch


class BYOL(TargetIdentity):
    """2 - 2 cos(predictor(g(f(x))), g~(f~(x'))); the predictor and the slow target keep it from collapsing.

    Projector and predictor have the same hidden and output units, and no batch norm on their output.
    """

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config, output_norm=False)
        self.predictor = projector(config.output, config.hidden, config.output, output_norm=False)

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        projections = self.projector(features)
        first, second = self.predictor(projections).float().chunk(2)
        targets = self.target(batch.images).float().chunk(2)
        first_target, second_target = (gather(half) for half in targets)
        accuracy = target_accuracy(first, second, first_target, second_target, own_rows(len(first)))
        loss = average(byol(first, second, *targets), len(first))
        return IdentityOutput(loss, average(accuracy, len(first)), projections, targets)

    def queries(self, features: Tensor) -> Tensor:
        """The predictions."""
        return self.predictor(self.projector(features)).float()

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """From a small view, what the target makes of the large ones is predicted."""
        return average(byol(queries, queries, *keys), len(queries))
