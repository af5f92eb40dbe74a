"""Whether and how networks are compiled."""

from __future__ import annotations

import torch
from torch import nn

from stec.config import Config

TUNED = {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}  # of PyTorch's compiler


def compiles(config: Config, device: torch.device) -> bool:
    """Whether a run is compiled on that device."""
    return config.compile in ("always", "tuned") or (config.compile == "auto" and device.type == "cuda")


def compile_network(network: nn.Module, config: Config) -> None:
    """Compiles it in place, when it is called first; for every shape of its inputs anew."""
    network.compile(dynamic=False, options=TUNED if config.compile == "tuned" else None)
