"""Small networks on top of the features: the projector g, the perceptron psi, and the expander of two methods."""

from __future__ import annotations

from torch import nn


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


def _unbiased_batch_norm(features: int) -> nn.BatchNorm1d:
    """A batch norm with a trained scale and no bias.

    The bias is absent (None), not a frozen zero: there is nothing that an optimizer, a moving average or a
    checkpoint could change, and `SyncBatchNorm.convert_sync_batchnorm` carries None over.
    """
    norm = nn.BatchNorm1d(features)
    norm.register_parameter("bias", None)
    return norm
