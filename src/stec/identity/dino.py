"""DINO: a view is assigned to prototypes as a target network assigns the other view (Caron et al. 2021)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from stec.clustering import sharpened, swapped_prediction, warming
from stec.config import IdentityConfig
from stec.identity.interface import IdentityOutput, TargetIdentity
from stec.networks.heads import Prototypes, bottleneck
from stec.noncontrastive import partner_accuracy
from stec.processes import average, gather, own_rows, rows_of_all, total
from stec.views import ViewBatch

CENTRE_DECAY = 0.9  # as in the paper


class DINO(TargetIdentity):
    """Cross entropy between the target's assignment of one view, centred and sharpened, and that of the other.

    Nothing is compared with other images: what keeps all from being assigned alike is the centre, a moving average of
    the target's scores of the views of all processes, which is subtracted from them.

    Prototypes are directions (weight normalisation with a fixed gain). At the beginning of training they can be kept as
    they are, in the paper for an epoch: `frozen`. Without a gradient, weight decay shrinks them still, which changes no
    direction. The warm-up of the target's temperature, in epochs there, is a share of training, too.

    Accuracy and rank are those of the bottleneck, the embeddings that prototypes are compared with.
    """

    centre: Tensor  # (prototypes,)
    target_temperature: Tensor  # ()

    settings = (*TargetIdentity.settings, "temperature", "prototypes", "frozen", "target_temperature", "warmup")

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        dim = int(encoder.dim)  # type: ignore[arg-type]
        head = bottleneck(dim, config.hidden, config.output)
        prototypes = Prototypes(config.output, config.prototypes, config.frozen)
        super().__init__(encoder, config, head=nn.Sequential(head, prototypes))
        self.temperature, self.last_temperature = config.temperature, config.target_temperature
        self.warmup = config.warmup
        self.register_buffer("centre", torch.zeros(config.prototypes))
        self.register_buffer("target_temperature", warming(self.last_temperature, 0.0, self.warmup).float())
        # The target's scores since the last step, summed, and of how many views: until then, the centre must stay.
        self._waiting: tuple[Tensor, int] | None = None

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        embeddings = self.projector[0](features).float()
        first, second = self.prototypes(embeddings).chunk(2)
        pairs, targets = len(first), self.target(batch.images)  # (2B, prototypes)
        if torch.is_grad_enabled():  # several batches before a step where their gradients are accumulated
            sums, views = self._waiting or (0, 0)
            self._waiting = sums + total(targets.sum(dim=0)), views + 2 * sum(rows_of_all(pairs))
        keys = sharpened(targets, self.centre, self.target_temperature).chunk(2)
        loss = average(swapped_prediction((first, second), keys, self.temperature), pairs)
        first, second = (gather(half) for half in embeddings.detach().chunk(2))
        accuracy = average(partner_accuracy(first, second, own_rows(pairs)), pairs)
        return IdentityOutput(loss, accuracy, embeddings, keys)

    @property
    def prototypes(self) -> Prototypes:
        """Those that are trained; the target has its own."""
        return cast(Prototypes, self.projector[1])

    def queries(self, features: Tensor) -> Tensor:
        """The scores."""
        return self.projector(features)

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """From a small view, how the target assigns the large ones is predicted."""
        return average(swapped_prediction((queries, queries), keys, self.temperature), len(queries))

    def after_step(self, progress: Tensor | float) -> None:
        """The target follows, and the centre what the target made of the views of this step."""
        super().after_step(progress)
        self.prototypes.after_step(progress)
        self.target_temperature.copy_(warming(self.last_temperature, progress, self.warmup))
        if self._waiting is not None:
            sums, views = self._waiting
            self.centre.lerp_((sums / views).to(self.centre), 1 - CENTRE_DECAY)
            self._waiting = None
