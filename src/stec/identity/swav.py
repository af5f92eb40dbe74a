"""SwAV: views are assigned to prototypes in equal shares, and each predicts how its partner is (Caron et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stec.clustering import equal_shares, swapped_prediction
from stec.config import IdentityConfig
from stec.identity.interface import Identity, IdentityOutput
from stec.identity.queue import enqueue
from stec.networks.heads import Prototypes, projector
from stec.noncontrastive import partner_accuracy
from stec.processes import average, gather, own_rows, total
from stec.views import ViewBatch


class SwAV(Identity):
    """Cross entropy between the assignment of one view and the scores of the other; assignments get no gradient.

    The views x of all processes are assigned together, so that each prototype gets the same share of them, and so are
    the views x'. Where the batch is smaller than some times the number of prototypes, projections of earlier batches
    can be assigned with it: `assigned_queue`, which counts as soon as it is full and the share `warmup` of training is
    over, in the authors' code a number of epochs.

    Prototypes are directions; the authors normalise them after every step, here they are where they are used. For the
    share `frozen` of training they stay as they are. The projector has no batch norm on its output.
    """

    queue: Tensor  # (assigned_queue, 2, D), projections of both views
    oldest: Tensor  # (), the row that is replaced next
    counts: Tensor  # (): 1, or 0 until the queue is used

    settings = ("hidden", "output", "temperature", "prototypes", "frozen", "assigned_queue", "warmup")

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config)
        dim = int(encoder.dim)  # type: ignore[arg-type]
        self.temperature, self.warmup = config.temperature, config.warmup
        self.projector = projector(dim, config.hidden, config.output, output_norm=False)
        self.prototypes = Prototypes(config.output, config.prototypes, config.frozen)
        self.register_buffer("queue", torch.zeros(config.assigned_queue, 2, config.output))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.long))
        self.register_buffer("counts", torch.zeros(()))
        self._waiting: Tensor | None = None  # projections since the last step: until then, the queue must stay

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        projections = self.projector(features).float()
        scores, pairs = self.prototypes(projections).unflatten(0, (2, -1)), len(projections) // 2  # (2, B, K)
        first, second = (gather(half) for half in projections.detach().chunk(2))
        if torch.is_grad_enabled() and len(self.queue):
            before = [] if self._waiting is None else [self._waiting]
            self._waiting = torch.cat([*before, torch.stack([first, second], dim=1)])[-len(self.queue) :]
        keys = tuple(self._assignments(scores))
        loss = average(swapped_prediction(tuple(scores), keys, self.temperature), pairs)
        accuracy = average(partner_accuracy(first, second, own_rows(pairs)), pairs)
        return IdentityOutput(loss, accuracy, projections, keys)

    @torch.no_grad()
    def _assignments(self, scores: Tensor) -> Tensor:
        """Of both views, each with the queue of its own: (2, B, K) -> (2, B, K)"""
        earlier = self.prototypes(self.queue.transpose(0, 1))  # (2, N, K)
        return equal_shares(scores, earlier, self.counts, total=total)

    def queries(self, features: Tensor) -> Tensor:
        """The scores."""
        return self.prototypes(self.projector(features))

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """From a small view, how the large ones are assigned is predicted; small views are not assigned."""
        return average(swapped_prediction((queries, queries), keys, self.temperature), len(queries))

    def after_step(self, progress: Tensor | float) -> None:
        """The projections of this step take the place of the oldest ones."""
        self.prototypes.after_step(progress)
        if self._waiting is not None:
            enqueue(self.queue, self.oldest, self._waiting)
            full = self.queue[-1].any()  # the row that is filled last
            self.counts.copy_(full & (torch.as_tensor(progress, device=full.device) >= self.warmup))
            self._waiting = None
