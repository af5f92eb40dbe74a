"""Whether all images are kept on the device."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from stec.errors import UserError, nearest

CHOICES = ("auto", "always", "never")

_SHARE_OF_GPU = 0.5  # training needs the rest
_SHARE_OF_RAM = 0.4


def is_resident(choice: str, needed: int, device: torch.device) -> bool:
    """Decide for a data set of this many bytes; `auto` leaves a good part of the free memory to training."""
    if choice not in CHOICES:
        raise UserError(f"data.resident={choice}: {nearest(choice, CHOICES)}")
    if choice == "never":
        return False
    free = free_memory(device)
    if choice == "always" and needed > free:
        raise UserError(
            f"data.resident=always: the images need {needed / 1e9:.1f} GB, "
            f"{device} has {free / 1e9:.1f} GB free; choose data.resident=auto, or a smaller data.size"
        )
    share = _SHARE_OF_GPU if device.type == "cuda" else _SHARE_OF_RAM
    return choice == "always" or needed <= share * free


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a CUDA device, or in main memory for any other."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    table = Path("/proc/meminfo")
    if table.is_file():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
