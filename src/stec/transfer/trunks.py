"""Where a transfer starts: an encoder, cut before its last stage.

A start is one of

- a run folder, or an encoder's file that `stec export` wrote,
- `torchvision:NAME` for weights that torchvision downloads (`torchvision:IMAGENET1K_V1`), or `torchvision:PATH` for a
  file with a state dict of torchvision's model,
- `none`: weights as the seed makes them.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from stec.encoder import load
from stec.errors import UserError, nearest
from stec.networks.encoders import ResNetEncoder, SmallResNet, create_encoder
from stec.run import encoder_digest
from stec.transfer.config import NONE, TORCHVISION

# What torchvision's weights were trained on: RGB in [0, 1] less the mean, over the standard deviation.
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Start(NamedTuple):
    """An encoder to begin with."""

    encoder: nn.Module
    name: str  # of the encoder, as `create_encoder` knows it
    mean: tuple[float, ...]  # of each channel, that it wants images to be freed of
    std: tuple[float, ...]
    pretrained: bool
    digest: str | None = None  # of a run's encoder: a run that goes on, or is made anew, has another one later


def open_start(start: str, encoder: str) -> Start:
    """The encoder that a start names. `encoder` is the name of one for starts that do not know it themselves."""
    if start == NONE:
        return Start(create_encoder(encoder), encoder, (0.0,) * 3, (1.0,) * 3, False)
    if start.startswith(TORCHVISION):
        network = create_encoder(encoder)
        _fill(network, encoder, start.removeprefix(TORCHVISION))
        return Start(network, encoder, *_IMAGENET, True)
    loaded = load(start)
    network = loaded.network.requires_grad_(True)
    return Start(network, loaded.description.encoder, (0.0,) * 3, (1.0,) * 3, True, encoder_digest(Path(start)))


def _fill(network: nn.Module, encoder: str, weights: str) -> None:
    """Loads the weights that torchvision knows by that name, or those of a file."""
    path = Path(weights).expanduser()
    state = _read(path) if path.is_file() else _download(encoder, weights)
    state = {name: value for name, value in state.items() if not name.startswith("fc.")}  # of the classifier
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[1:2]).strip()
        raise UserError(f"the weights {weights} are not those of '{encoder}': {reason}") from None


def _read(path: Path) -> dict[str, Tensor]:
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read as weights: {str(error).splitlines()[0]}") from None
    if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
        raise UserError(f"{path} holds no state dict: torch.save(model.state_dict(), PATH) writes one")
    return state


def _download(encoder: str, name: str) -> dict[str, Any]:
    from torchvision.models import get_model_weights, list_models

    if encoder not in list_models():
        raise UserError(f"torchvision has no weights of '{encoder}': choose encoder=resnet18 or encoder=resnet50")
    known = get_model_weights(encoder)
    names = [weights.name for weights in known]
    if name not in names:
        raise UserError(f"{TORCHVISION}{name}: no such file, and of {encoder} torchvision has {nearest(name, names)}")
    try:
        return known[name].get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no connection, or half a file
        raise UserError(f"{TORCHVISION}{name} cannot be downloaded: {error}") from None


class Trunk(nn.Module):
    """All of an encoder before its last stage: uint8 images to maps.

    Args:
        start: the encoder, whose weights become the trunk's own.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, start: Start) -> None:
        super().__init__()
        layers, last = _cut(start)
        self.layers = layers
        self.channels, self.last_channels = _channels(layers), _channels(last)
        self.stride = _stride(layers)
        self.register_buffer("mean", torch.tensor(start.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(start.std).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H / stride, W / stride) of images (B, 3, H, W) in [0, 1]."""
        images = (images - self.mean) / self.std
        return self.layers(images.contiguous(memory_format=torch.channels_last))


def last_stage(start: Start) -> nn.Sequential:
    """The stage that follows the trunk (conv5 of a ResNet)."""
    return _cut(start)[1]


def _cut(start: Start) -> tuple[nn.Sequential, nn.Sequential]:
    network = start.encoder
    if isinstance(network, ResNetEncoder):
        stem = (network.conv1, network.bn1, network.relu, network.maxpool)
        return nn.Sequential(*stem, network.layer1, network.layer2, network.layer3), network.layer4
    if isinstance(network, SmallResNet):
        before = (network.conv1, network.bn1, network.relu, *network.stages[:-1])
        return nn.Sequential(*before), nn.Sequential(network.stages[-1])
    raise UserError(f"encoder '{start.name}' cannot be cut into a trunk and a last stage: transfer takes ResNets")


def _channels(layers: nn.Module) -> int:
    """Of the maps that come out."""
    block = [m for m in layers.modules() if isinstance(m, BasicBlock | Bottleneck)][-1]
    return (block.bn3 if isinstance(block, Bottleneck) else block.bn2).num_features


def _stride(layers: nn.Module) -> int:
    with torch.no_grad():
        training = layers.training
        side = 64
        found = layers.eval()(torch.zeros(1, 3, side, side)).shape[-1]
        layers.train(training)
    return side // int(found)


def dilate(stage: nn.Module) -> None:
    """Replaces the stride of a stage by a dilation of 2: the same map, computed at every place instead of every other.

    The convolutions behind the strided one reach twice as far as before, as their inputs lie twice as close.
    """
    behind = False
    for block in stage.children():
        for name in ("conv1", "conv2", "conv3"):  # a block's own path, in the order of its layers
            conv = getattr(block, name, None)
            if conv is None:
                continue
            if conv.stride != (1, 1):
                conv.stride, behind = (1, 1), True
            elif behind and conv.kernel_size != (1, 1):
                conv.dilation = (2, 2)
                conv.padding = tuple(2 * p for p in conv.padding)
        shortcut = getattr(block, "downsample", None)
        if shortcut is not None:
            shortcut[0].stride = (1, 1)
