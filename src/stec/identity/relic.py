"""ReLIC: contrast with a target network, and views of one image agree about all other images (Mitrovic et al. 2021).

With the manipulation model it is the paper's S-TEC*. Paper: appendices "S-TEC*" and "Recovering ReLIC and ReLICv2".
"""

from __future__ import annotations

from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.functional import relic, relic_small
from stec.identity.interface import IdentityOutput, TargetIdentity
from stec.processes import average, gather, own_rows
from stec.views import ViewBatch


class ReLIC(TargetIdentity):
    """Each view picks its partner out of the target's views of all images; both views should assign alike.

    In one direction, -log p(x' | x) + alpha KL(stopgrad p( . | x') ; p( . | x)); `stec.functional.relic` has the
    definitions. Candidates are gathered over all processes, without gradient; each computes its own rows. The
    projector has no batch norm on its output.
    """

    settings = (*TargetIdentity.settings, "temperature", "alpha")

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config, output_norm=False)
        self.temperature, self.alpha = config.temperature, config.alpha

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        projections = self.queries(features)
        first, second = projections.chunk(2)
        first_target, second_target = (gather(half) for half in self.target(batch.images).float().chunk(2))
        pairs, keys = len(first), (first, second, first_target, second_target)
        loss, accuracy = relic(*keys, self.temperature, self.alpha, own=own_rows(pairs))
        return IdentityOutput(average(loss, pairs), average(accuracy, pairs), projections, keys)

    def queries(self, features: Tensor) -> Tensor:
        """The projections."""
        return self.projector(features).float()

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """A small view picks its partners out of what the target makes of large ones, and assigns as they do."""
        first, second, first_target, second_target = keys
        own = own_rows(len(queries))
        loss = relic_small(queries, first, second, first_target, second_target, self.temperature, self.alpha, own=own)
        return average(loss, len(queries))
