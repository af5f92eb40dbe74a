"""Small networks on top of the features: the projector g, the perceptron psi, and what some methods have instead."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def projector(dim: int, hidden: int, output: int, output_norm: bool = True, output_scale: bool = True) -> nn.Sequential:
    """g: features (B, dim) to the space (B, output) in which the identity of objects is compared.

    One hidden layer, with batch norm behind both linear layers, as in google-research/simclr. Neither linear
    layer has a bias: batch norm subtracts the mean, and a bias with it. The last batch norm has a scale and
    no bias.

    Args:
        dim: Features of the encoder.
        hidden: Units of the hidden layer.
        output: Dimensions of the projection.
        output_norm: Whether the output is normalised; methods with a target network leave that out.
        output_scale: Whether that norm has a trained scale.
    """
    layers = [
        nn.Linear(dim, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, output, bias=False),
    ]
    if output_norm:
        layers.append(_unbiased_batch_norm(output) if output_scale else nn.BatchNorm1d(output, affine=False))
    return nn.Sequential(*layers)


def mlp(dim: int, hidden: int, output: int) -> nn.Sequential:
    """psi: inputs (B, dim) to outputs (B, output), such as the logits of the manipulation's bins.

    The hidden layer has no bias, because the batch norm behind it would subtract it; the output has one.
    """
    return nn.Sequential(
        nn.Linear(dim, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, output),
    )


def expander(dim: int, hidden: int, output: int) -> nn.Sequential:
    """Features (B, dim) to the many dimensions (B, output) that VICReg and Barlow Twins decorrelate.

    Two hidden layers with batch norm and ReLU, a linear output, and no biases, as in the code of both papers.
    """
    return nn.Sequential(
        nn.Linear(dim, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden, bias=False),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, output, bias=False),
    )


def bottleneck(dim: int, hidden: int, output: int) -> nn.Sequential:
    """Features (B, dim) to the few dimensions (B, output) that DINO compares with prototypes.

    Two hidden layers with GELU, a linear output, no batch norm; weights begin small and biases at zero, as in its code.
    """
    layers = [nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, output)]
    for layer in layers[::2]:
        nn.init.trunc_normal_(layer.weight, std=0.02)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(*layers)


class Prototypes(nn.Module):
    """Cosines (..., K), in float32, of embeddings (..., D) with K directions that are learnt.

    Weights are normalised where they are used, so they have the length 1 whatever an optimizer or a moving average has
    made of them, and nothing has to change them between steps.

    Args:
        dim: D.
        number: K.
        frozen: share of training at whose beginning they get no gradient.
    """

    moving: Tensor  # (): 1, or 0 while they are frozen

    def __init__(self, dim: int, number: int, frozen: float = 0.0) -> None:
        super().__init__()
        self.frozen = frozen
        self.weight = nn.Parameter(F.normalize(torch.randn(number, dim), dim=1))
        self.register_buffer("moving", torch.tensor(float(frozen == 0)))

    def forward(self, embeddings: Tensor) -> Tensor:
        """(..., D) -> (..., K)"""
        weight = torch.lerp(self.weight.detach(), self.weight, self.moving)  # the same, with a share of the gradient
        with torch.autocast(embeddings.device.type, enabled=False):
            return F.normalize(embeddings.float(), dim=-1) @ F.normalize(weight.float(), dim=1).mT

    def after_step(self, progress: Tensor | float) -> None:
        """To be called after every optimizer step with the share of training done, from 0 to 1."""
        self.moving.copy_(torch.as_tensor(progress) >= self.frozen)


def _unbiased_batch_norm(features: int) -> nn.BatchNorm1d:
    """A batch norm with a trained scale and no bias.

    The bias is absent (None), not a frozen zero: there is nothing that an optimizer, a moving average or a
    checkpoint could change, and `SyncBatchNorm.convert_sync_batchnorm` carries None over.
    """
    norm = nn.BatchNorm1d(features)
    norm.register_parameter("bias", None)
    return norm
