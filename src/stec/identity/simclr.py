"""SimCLR: the partner is picked out among all other views of the batch (Chen et al. 2020)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.functional import pair_logits
from stec.identity.gathering import gather
from stec.identity.interface import Identity, IdentityOutput
from stec.networks.heads import projector
from stec.views import ViewBatch


class SimCLR(Identity):
    """NT-Xent over the 2B views of the batch, gathered over all processes with gradient."""

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config)
        self.temperature = config.temperature
        self.projector = projector(int(encoder.dim), config.hidden, config.output)  # type: ignore[arg-type]

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        first, second = (gather(half) for half in self.projector(features).float().chunk(2))
        logits, partners = pair_logits(first, second, self.temperature)
        loss = 2 * F.cross_entropy(logits, partners)
        return IdentityOutput(loss, (logits.detach().argmax(dim=1) == partners).float().mean())
