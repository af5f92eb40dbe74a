"""The target network: a slow copy of encoder and projector that follows them as a moving average."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from stec.partition import own_part


class Target(nn.Module):
    """Copies of f and g that no gradient reaches and only `update` moves (Grill et al. 2020; the paper's f~ and g~).

    Batch norms normalise by the batch while training, as in the online network. Their running statistics are not
    those of the copy's own batches but, like the weights, a moving average of the online network's: the copy can be
    evaluated and exported at any time.

    Args:
        encoder: f, the online encoder.
        projector: g, the online projector.
    """

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        # In a tuple, as modules set as attributes would become part of this one: of its parameters and its state.
        self._online = (encoder, projector)
        self.encoder, self.projector = copy.deepcopy(encoder), copy.deepcopy(projector)
        self.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = 0.0  # running statistics come from `update`, not from the batches seen here

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Projections (N, D) of images (N, 3, S, S)."""
        return self.projector(self.encoder(images))

    @torch.no_grad()
    def update(self, decay: Tensor | float) -> None:
        """w~ = decay w~ + (1 - decay) w, for all weights and running statistics; counters are copied.

        Nothing here waits for the device.
        """
        share = (1 - decay).float() if isinstance(decay, Tensor) else 1 - decay
        averaged, counters = _tensors(self.encoder, self.projector)
        online_averaged, online_counters = _tensors(*self._online)
        way = torch._foreach_sub(online_averaged, averaged)
        torch._foreach_add_(averaged, torch._foreach_mul(way, share))
        if counters:
            torch._foreach_copy_(counters, online_counters)


def _tensors(*networks: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters and buffers: those that can be averaged, and the integers that cannot."""
    tensors = [own_part(tensor) for network in networks for tensor in (*network.parameters(), *network.buffers())]
    return [t for t in tensors if t.is_floating_point()], [t for t in tensors if not t.is_floating_point()]


def rising_decay(initial: float, progress: Tensor | float) -> Tensor:
    """BYOL's schedule: from `initial` to 1 along half a cosine. (), float64

    Args:
        initial: the decay at the beginning of training.
        progress: share of training done, from 0 to 1; as a tensor, the decay is on its device.
    """
    return 1 - (1 - initial) * (1 + torch.cos(math.pi * torch.as_tensor(progress, dtype=torch.float64))) / 2
