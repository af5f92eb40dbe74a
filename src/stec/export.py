"""Writes an encoder for other libraries.

The same safetensors file serves stec, torchvision and timm: the weights already have their names, but for those of a
vision transformer, which torchvision calls otherwise. What differs is the code that opens it, which `export` returns,
stems included. There is no classifier in any of these files, as none was trained: the models give features. All take
RGB images (B, 3, S, S) in [0, 1] that are not normalised any further.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torchvision
from torch import Tensor

from stec.encoder import Encoder
from stec.errors import UserError, nearest
from stec.networks.encoders import ResNetEncoder, TimmEncoder, library_module, timm_options
from stec.run import make_room, replacing, save_weights


def export(encoder: Encoder, form: str, out: Path) -> str:
    """Writes an encoder, which has to be on the CPU, to `out` and returns the Python code that opens it there.

    Args:
        encoder: As `stec.load` gives it.
        form: One of `FORMATS`.
        out: The file, or for `huggingface` the folder.
    """
    out = out.expanduser()
    if form not in FORMATS:
        raise UserError(f"--to {form}: {nearest(form, FORMATS)}")
    suffix = {"onnx": ".onnx", "huggingface": ""}.get(form, ".safetensors")
    if suffix and out.suffix != suffix:
        raise UserError(f"{out}: the name has to end in {suffix}, by which --to {form} is recognised")
    if not suffix and out.is_file():
        raise UserError(f"{out} is a file; --to {form} writes a folder")
    code = FORMATS[form](encoder, out)
    return "\n".join(code)


def _to_safetensors(encoder: Encoder, out: Path) -> list[str]:
    encoder.save(out)
    return ["import stec", "", f"model = stec.load({str(out)!r})"]


def _to_torchvision(encoder: Encoder, out: Path) -> list[str]:
    stem: list[str] = []
    if isinstance(encoder.network, TimmEncoder):
        arguments, weights = _transformer(encoder)
        make_room(out)
        save_weights(out, weights, {})
        settings = ", ".join(f"{key}={value}" for key, value in arguments.items())
        model, head = f"VisionTransformer({settings})", "heads"
    elif isinstance(encoder.network, ResNetEncoder):
        architecture, stem = _architecture(encoder)
        encoder.save(out)
        model, head = f"{architecture}()", "fc"
    else:
        raise _not_in_torchvision(encoder, "--to safetensors or onnx")
    return [
        "import torchvision",
        "from safetensors.torch import load_file",
        "from torch import nn",
        "",
        f"model = torchvision.models.{model}",
        f"model.{head} = nn.Identity()  # no classifier was trained: features come out; put your own here afterwards",
        *stem,
        f"model.load_state_dict(load_file({str(out)!r}), strict=True)",
        "model.eval()",
    ]


def _to_timm(encoder: Encoder, out: Path) -> list[str]:
    architecture, stem = _architecture(encoder)
    encoder.save(out)
    options = "".join(f", {key}={value!r}" for key, value in _timm_arguments(encoder).items())
    if not stem:
        create = f'timm.create_model("{architecture}", num_classes=0{options}, checkpoint_path={str(out)!r})'
        return ["import timm", "", f"model = {create}.eval()"]
    return [
        "import timm",
        "from torch import nn",
        "",
        f'model = timm.create_model("{architecture}", num_classes=0{options})',
        *stem,
        f"timm.models.load_checkpoint(model, {str(out)!r})",
        "model.eval()",
    ]


def _to_huggingface(encoder: Encoder, out: Path) -> list[str]:
    """A folder as timm puts it on the Hugging Face hub, from which it opens it as well."""
    architecture, stem = _architecture(encoder)
    name, size = encoder.description.encoder, encoder.description.size
    if stem:
        raise UserError(
            f"a config.json cannot describe the stem of '{name}', which no library's {architecture} has; "
            "--to timm or torchvision writes down how to change it there, --to onnx needs no change"
        )
    make_room(out / "config.json")
    encoder.save(out / "model.safetensors")
    config = {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": encoder.dim,
        "model_args": _timm_arguments(encoder),
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "fixed_input_size": False,
            "mean": [0.0, 0.0, 0.0],
            "std": [1.0, 1.0, 1.0],
            "interpolation": "bilinear",
            "crop_pct": encoder.description.test_crop,
            "num_classes": 0,
        },
    }
    with replacing(out / "config.json") as part:
        part.write_text(json.dumps(config, indent=2) + "\n")
    return ["import timm", "", f"model = timm.create_model({f'local-dir:{out}'!r}, pretrained=True).eval()"]


def _to_onnx(encoder: Encoder, out: Path) -> list[str]:
    try:
        import onnxscript  # noqa: F401 - torch.onnx writes with it
    except ImportError:
        raise UserError("--to onnx needs onnx and onnxscript: pip install 'stec[export]'") from None
    size = encoder.description.size
    make_room(out)
    with replacing(out) as part, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its own insides
        torch.onnx.export(
            encoder.network,
            (torch.zeros(2, 3, size, size),),
            part,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    return [
        "import onnxruntime",
        "",
        f"session = onnxruntime.InferenceSession({str(out)!r})",
        'model = lambda images: session.run(["features"], {"images": images})[0]  # float32 arrays',
    ]


FORMATS: dict[str, Callable[[Encoder, Path], list[str]]] = {
    "safetensors": _to_safetensors,
    "torchvision": _to_torchvision,
    "timm": _to_timm,
    "huggingface": _to_huggingface,
    "onnx": _to_onnx,
}


def _architecture(encoder: Encoder) -> tuple[str, list[str]]:
    """The name that timm (and torchvision, of a ResNet) has for it, and the lines of code that change its stem."""
    name = encoder.description.encoder
    if isinstance(encoder.network, TimmEncoder):
        return timm_options(name.removeprefix("timm:"))[0], []
    if not isinstance(encoder.network, ResNetEncoder):
        raise UserError(f"timm has no model with the weights of '{name}'; --to safetensors or onnx can hold it")
    architecture, _, stem = name.partition("-")
    lines = {
        "": [],
        "stl": [f"model.maxpool = nn.Identity()  # the stem of {name}"],
        "cifar": [
            "model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)",
            f"model.maxpool = nn.Identity()  # with the line above, the stem of {name}",
        ],
    }
    return architecture, lines[stem]


def _timm_arguments(encoder: Encoder) -> dict[str, Any]:
    """What timm has to be told to build the model as it was built for training."""
    if not isinstance(encoder.network, TimmEncoder):
        return {}
    dynamic = getattr(encoder.network.model, "dynamic_img_size", False)
    return encoder.network.options | ({"dynamic_img_size": True} if dynamic else {})


_LAYER = "encoder.layers.encoder_layer_"

# What timm calls the parts of a vision transformer, and what torchvision calls them.
_TRANSFORMER_PARTS = {
    r"cls_token": "class_token",
    r"pos_embed": "encoder.pos_embedding",
    r"patch_embed\.proj\.(\w+)": r"conv_proj.\1",
    r"blocks\.(\d+)\.norm([12])\.(\w+)": _LAYER + r"\1.ln_\2.\3",
    r"blocks\.(\d+)\.attn\.qkv\.(\w+)": _LAYER + r"\1.self_attention.in_proj_\2",
    r"blocks\.(\d+)\.attn\.proj\.(\w+)": _LAYER + r"\1.self_attention.out_proj.\2",
    r"blocks\.(\d+)\.mlp\.fc1\.(\w+)": _LAYER + r"\1.mlp.0.\2",
    r"blocks\.(\d+)\.mlp\.fc2\.(\w+)": _LAYER + r"\1.mlp.3.\2",
    r"norm\.(\w+)": r"encoder.ln.\1",
}


def _transformer(encoder: Encoder) -> tuple[dict[str, int], dict[str, Tensor]]:
    """What torchvision's `VisionTransformer` is told to be a transformer of timm, and its weights as named there.

    Many of timm's are none of torchvision's: pooled in other ways, with registers, scales or other norms. So it is
    built there and has to give the same features; UserError if not.
    """
    from timm.layers import resample_abs_pos_embed
    from timm.models import VisionTransformer

    model, size = library_module(encoder.network), encoder.description.size
    refused = _not_in_torchvision(encoder, "--to timm")
    if not isinstance(model, VisionTransformer) or model.pos_embed is None:
        raise refused
    patch, block = model.patch_embed.patch_size[0], cast(Any, model.blocks[0])
    arguments = {
        "image_size": size,
        "patch_size": patch,
        "num_layers": len(model.blocks),
        "num_heads": block.attn.num_heads,
        "hidden_dim": model.embed_dim,
        "mlp_dim": block.mlp.fc1.out_features,
    }
    weights = {_renamed(name): weight for name, weight in model.state_dict().items()}
    places = weights["encoder.pos_embedding"]  # of the size that it was built for, which it resamples for another
    images = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        weights["encoder.pos_embedding"] = resample_abs_pos_embed(places, [size // patch] * 2, num_prefix_tokens=1)
        there = torchvision.models.VisionTransformer(**arguments).eval()
        there.heads = torch.nn.Identity()
        there.load_state_dict(weights)
        with torch.no_grad():
            torch.testing.assert_close(there(images), encoder.network(images), atol=1e-4, rtol=1e-4)
    except (RuntimeError, AssertionError):  # of the sizes, of the names, of the features
        raise refused from None
    return arguments, weights


def _renamed(name: str) -> str:
    """As torchvision calls that part of a vision transformer; unchanged if it has no such part."""
    matches = ((re.fullmatch(part, name), there) for part, there in _TRANSFORMER_PARTS.items())
    return next((match.expand(there) for match, there in matches if match), name)


def _not_in_torchvision(encoder: Encoder, instead: str) -> UserError:
    name = encoder.description.encoder
    return UserError(f"torchvision has no model with the weights of '{name}'; {instead} can hold it")
