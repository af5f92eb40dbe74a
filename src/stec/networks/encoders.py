"""Encoders f: images (B, 3, H, W) to features h (B, D), by name.

The ResNets are torchvision's without their classifier, so that a trained `state_dict` loads into
`torchvision.models.resnet18` and `resnet50` once their `fc` is `nn.Identity()` (for another stem, after `conv1` or
`maxpool` has been replaced there; `stec export` writes it down). They differ in the stem, which has to fit the size of
the images:

=========  ==============  ========  =====================
suffix     first conv      max pool  side of the last map
=========  ==============  ========  =====================
(none)     7 x 7 stride 2  yes       7 for images of 224
`-stl`     7 x 7 stride 2  no        6 for images of 96
`-cifar`   3 x 3 stride 1  no        4 for images of 32
=========  ==============  ========  =====================

The last batch norm of every residual block starts at zero, so that each block starts as its shortcut. This
holds for the basic blocks of ResNet-18 as well as for the bottlenecks of ResNet-50.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet, conv1x1

from stec.errors import UserError, nearest
from stec.networks import normalising

_TIMM = "timm:"


class ResNetEncoder(ResNet):
    """A torchvision ResNet that ends with the average pool.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        layers: Blocks in each of the four stages.
        stem: `imagenet`, `stl` or `cifar`.
    """

    def __init__(self, block: type[BasicBlock | Bottleneck], layers: Sequence[int], stem: str) -> None:
        super().__init__(block, list(layers), zero_init_residual=True)
        self.dim: int = self.fc.in_features
        del self.fc
        if stem == "cifar":
            self.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
            _initialise(self.conv1)
        if stem != "imagenet":
            self.maxpool = nn.Identity()  # no parameters: the keys of the state dict stay torchvision's

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, D) of images (B, 3, H, W)."""
        x = _first_convolution(self.conv1, images)
        if normalising.has_kernels(self, x):
            x = normalising.features(self, x)
        else:
            x = self.maxpool(self.relu(self.bn1(x)))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(self.avgpool(x), 1)


class SmallResNet(nn.Module):
    """A ResNet for CPUs: a strided 3 x 3 stem, then one basic block per stage; 0.3 million parameters.

    The stem already halves the image because nearly all the time of a narrow network goes into its first,
    largest maps: at 32 pixels, a stride of 1 makes training about four times slower.

    Args:
        widths: Channels of each stage; every stage after the first halves the map.
    """

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 128)) -> None:
        super().__init__()
        self.dim: int = widths[-1]
        self.conv1 = nn.Conv2d(3, widths[0], kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        blocks = [BasicBlock(widths[0], widths[0])]
        for before, after in pairwise(widths):
            shortcut = nn.Sequential(conv1x1(before, after, stride=2), nn.BatchNorm2d(after))
            blocks.append(BasicBlock(before, after, stride=2, downsample=shortcut))
        self.stages = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)

        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                _initialise(module)
        for block in blocks:
            nn.init.zeros_(block.bn2.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, D) of images (B, 3, H, W)."""
        x = self.relu(self.bn1(self.conv1(images)))
        return torch.flatten(self.avgpool(self.stages(x)), 1)


class TimmEncoder(nn.Module):
    """A model of timm without its classifier.

    Args:
        name: As in `timm.list_models()`, with what else `timm.create_model` is to be told behind commas, such as
            `vit_tiny_patch16_224,patch_size=4,img_size=32`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        name, self.options = _check_timm(name)
        self.model = _build_timm(name, self.options)
        # num_features is the width of the last map; some models (MobileNetV3, VGG) widen it behind that.
        width: Any = getattr(self.model, "head_hidden_size", None) or self.model.num_features
        self.dim: int = int(width)

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, D) of images (B, 3, H, W)."""
        return self.model(images)


_ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "resnet-small": SmallResNet,
    "resnet18": partial(ResNetEncoder, BasicBlock, (2, 2, 2, 2), "imagenet"),
    "resnet18-cifar": partial(ResNetEncoder, BasicBlock, (2, 2, 2, 2), "cifar"),
    "resnet18-stl": partial(ResNetEncoder, BasicBlock, (2, 2, 2, 2), "stl"),
    "resnet50": partial(ResNetEncoder, Bottleneck, (3, 4, 6, 3), "imagenet"),
    "resnet50-cifar": partial(ResNetEncoder, Bottleneck, (3, 4, 6, 3), "cifar"),
    "resnet50-stl": partial(ResNetEncoder, Bottleneck, (3, 4, 6, 3), "stl"),
}


def create_encoder(name: str) -> nn.Module:
    """The encoder of that name, freshly initialised; its attribute `dim` is the number of features D.

    Args:
        name: One of `list_encoders()`, or `timm:NAME` for any model of timm; `timm:NAME,patch_size=4,img_size=32`
            builds it with these options, of which the first fits a vision transformer to small images.

    Examples:
        >>> encoder = create_encoder("resnet18-cifar")
        >>> encoder.dim
        512
        >>> encoder(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 512])
    """
    check_encoder(name)
    return TimmEncoder(name.removeprefix(_TIMM)) if name.startswith(_TIMM) else _ENCODERS[name]()


def check_encoder(name: str) -> None:
    """UserError if there is no encoder of that name."""
    if name.startswith(_TIMM):
        _check_timm(name.removeprefix(_TIMM))
    elif name not in _ENCODERS:
        raise UserError(f"unknown encoder '{name}': {nearest(name, [*_ENCODERS, 'timm:NAME'])}")


def check_size(encoder: nn.Module, side: int, name: str, key: str) -> None:
    """UserError if an encoder of that name cannot take images of this side, which a key of a config sets.

    Transformers want multiples of their patches, and some networks images that are not too small; ResNets take all.
    """
    if not isinstance(encoder, TimmEncoder):
        return
    try:
        with torch.no_grad():
            encoder.eval()(torch.zeros(1, 3, side, side))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{key}: {name} cannot take images of {side} px: {reason}") from None
    finally:
        encoder.train()


def library_module(encoder: nn.Module) -> nn.Module:
    """The module whose weights have the names that the encoder's own library gives them."""
    encoder = getattr(encoder, "_orig_mod", encoder)  # what torch.compile wraps
    return encoder.model if isinstance(encoder, TimmEncoder) else encoder


def list_encoders() -> list[str]:
    """The names that `create_encoder` knows besides `timm:NAME`."""
    return sorted(_ENCODERS)


def _first_convolution(conv: nn.Conv2d, images: Tensor) -> Tensor:
    """`conv(images)`. On a GPU with more channels: it has no fast kernels for as few as three."""
    return _widened(conv, images) if images.is_cuda else conv(images)


def _widened(conv: nn.Conv2d, images: Tensor) -> Tensor:
    """`conv(images)` by a convolution of eight channels or more; those beyond the images' are empty."""
    weight, stride, padding = conv.weight, conv.stride, conv.padding
    if conv.kernel_size == (7, 7) and stride == (2, 2) and images.shape[-1] % 2 == images.shape[-2] % 2 == 0:
        images, weight, stride, padding = *_halved(images, weight), (1, 1), (0, 0)
    empty = (0, 0, 0, 0, 0, -images.shape[1] % 8)
    return F.conv2d(F.pad(images, empty), F.pad(weight, empty), None, stride, padding)


def _halved(images: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A 7 x 7 convolution of stride 2 as one of 4 x 4 without stride: squares of 2 x 2 pixels become channels.

    Kernel row k of output row i lies on input row 2 i + k - 3, which is row p of square m: k = 2 (m - i) + p + 3. So
    m - i goes from -2 to 1, and with an empty row in front of the kernel, its row 2 a + p belongs to square
    a = m - i + 2.
    """
    outputs, channels = weight.shape[:2]
    even = F.pad(weight, (1, 0, 1, 0)).view(outputs, channels, 4, 2, 4, 2)
    squares = F.pad(F.pixel_unshuffle(images, 2), (2, 1, 2, 1))
    return squares, even.permute(0, 1, 3, 5, 2, 4).reshape(outputs, 4 * channels, 4, 4)


def _initialise(conv: nn.Conv2d) -> None:
    """As torchvision does for every convolution of a ResNet."""
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")


def timm_options(name: str) -> tuple[str, dict[str, Any]]:
    """`vit_tiny_patch16_224,patch_size=4` -> the model's name, and its options."""
    name, *words = name.split(",")
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key.isidentifier() and equals and value):
            raise UserError(f"encoder '{_TIMM}{name}': '{word}' is no option, expected KEY=VALUE, as patch_size=4")
        options[key] = yaml.safe_load(value)
    return name, options


def _check_timm(name: str) -> tuple[str, dict[str, Any]]:
    """The same; UserError if timm has no such model."""
    try:
        import timm
    except ImportError:
        raise UserError(f"encoder '{_TIMM}{name}' needs timm: pip install 'stec[timm]'") from None
    model, options = timm_options(name)
    if not timm.is_model(model):
        raise UserError(f"timm has no model '{model}': {_nearest_timm(model, timm.list_models())}")
    return model, options


def _build_timm(name: str, options: dict[str, Any]) -> nn.Module:
    import timm

    try:
        try:  # vision transformers: take images of any size that their patches divide
            return timm.create_model(name, num_classes=0, dynamic_img_size=True, **options)
        except TypeError:  # the others know no such option; most take any size
            return timm.create_model(name, num_classes=0, **options)
    except Exception as error:  # a model that has no form without a classifier says so in its own way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        given = f" and with {', '.join(options)}" if options else ""
        raise UserError(f"timm cannot build '{name}' without a classifier{given}: {reason}") from None


def _nearest_timm(name: str, models: Sequence[str]) -> str:
    """A near name; never the list of all thousand of them."""
    hint = nearest(name, models)
    return hint if hint.startswith("did you mean") else "timm.list_models() lists them"
