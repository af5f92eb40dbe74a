"""MoCo v2: the partner is picked out among a queue of what a target network made of earlier batches.

He et al. 2020, Chen et al. 2020 ("Improved baselines"). Paper: appendix "MoCo".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stec.config import IdentityConfig
from stec.functional import info_nce
from stec.identity.interface import IdentityOutput, TargetIdentity
from stec.identity.queue import enqueue
from stec.processes import average, gather, processes, rows_of_all, shared_permutation
from stec.views import ViewBatch


class MoCo(TargetIdentity):
    """InfoNCE in both directions; the keys of both views join the queue after the step, those of all processes.

    Everything but target and queue is as in SimCLR. The queue starts with random directions.

    Keys in the queue were normalised in other batches than the key that a query has to find, which was normalised with
    the query's own batch: batch norm would give it away. So the target sees the views of all processes shuffled and in
    groups, each normalised by itself (He et al. 2020, "Shuffling BN"; their groups are the batches of eight GPUs). The
    more groups, the less is given away, and the noisier are the statistics.
    """

    queue: Tensor  # (queue, D), of length 1 each
    oldest: Tensor  # (), the row that is replaced next

    settings = (*TargetIdentity.settings, "temperature", "queue", "groups")

    def __init__(self, encoder: nn.Module, config: IdentityConfig) -> None:
        super().__init__(encoder, config, output_norm=True)
        self.temperature, self.groups = config.temperature, config.groups
        self.register_buffer("queue", F.normalize(torch.randn(config.queue, config.output), dim=1))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.long))
        self._waiting: Tensor | None = None  # keys since the last step: until the backward pass the queue must stay

    def forward(self, features: Tensor, batch: ViewBatch) -> IdentityOutput:
        """(2B, D) -> loss and accuracy."""
        projections = self.queries(features)
        first, second = projections.chunk(2)
        pairs = rows_of_all(len(first))
        keys = self._keys(batch.images, pairs)  # of all processes
        first_keys, second_keys = (half.split(pairs)[processes()[0]] for half in keys.chunk(2))
        forwards = info_nce(first, second_keys, self.queue, self.temperature)
        backwards = info_nce(second, first_keys, self.queue, self.temperature)
        if torch.is_grad_enabled():  # several batches before a step where their gradients are accumulated
            before = [] if self._waiting is None else [self._waiting]
            self._waiting = torch.cat([*before, keys])[-len(self.queue) :]
        loss = average(forwards.loss + backwards.loss, len(first))
        accuracy = average((forwards.accuracy + backwards.accuracy) / 2, len(first))
        return IdentityOutput(loss, accuracy, projections, (first_keys, second_keys))

    @torch.compiler.disable(recursive=False)  # the target is compiled once, not again for every group
    @torch.no_grad()
    def _keys(self, images: Tensor, pairs: list[int]) -> Tensor:
        """What the target makes of the views of all processes: all first ones, then all second ones."""
        rank, world = processes()
        views = torch.cat([gather(half, pairs) for half in images.chunk(2)])
        order = shared_permutation(len(views), views.device)
        parts = order.tensor_split(world)
        own = views[parts[rank]]
        groups = min(max(1, self.groups // world), len(own) // 2)  # a batch norm needs two views
        keys = torch.cat([self.target(group) for group in own.tensor_split(groups)])
        keys = gather(F.normalize(keys.float(), dim=1), [len(part) for part in parts])
        return torch.empty_like(keys).index_copy_(0, order, keys)

    def unsynchronised(self) -> list[nn.Module]:
        """The target, whose groups are normalised by themselves."""
        return [self.target]

    def queries(self, features: Tensor) -> Tensor:
        """The projections."""
        return self.projector(features).float()

    def small_loss(self, queries: Tensor, keys: tuple[Tensor, ...]) -> Tensor:
        """The partner of a small view is what the target makes of a large one; small views have no keys."""
        first, second = (info_nce(queries, partner, self.queue, self.temperature).loss for partner in keys)
        return average(first + second, len(queries))

    def after_step(self, progress: Tensor | float) -> None:
        """The target follows, and the keys of this step take the place of the oldest ones."""
        super().after_step(progress)
        if self._waiting is not None:
            enqueue(self.queue, self.oldest, self._waiting)
            self._waiting = None
