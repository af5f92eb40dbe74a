"""Whether all images are kept on the device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from stec.errors import UserError, nearest
from stec.processes import processes_here

OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
CHOICES = ("auto", "always", "never")

_SHARE_OF_GPU = 0.5  # training needs the rest
_SHARE_OF_RAM = 0.4


def is_resident(choice: str, needed: int, device: torch.device) -> bool:
    """Decide for a data set of this many bytes; `auto` leaves a good part of the free memory to training.

    Main memory is shared by the processes on this machine, each of which keeps all images.
    """
    if choice not in CHOICES:
        raise UserError(f"data.resident={choice}: {nearest(choice, CHOICES)}")
    if choice == "never":
        return False
    free = free_memory(device)
    if device.type != "cuda":
        free //= processes_here()
    if choice == "always" and needed > free:
        raise UserError(
            f"data.resident=always: the images need {needed / 1e9:.1f} GB, "
            f"{device} has {free / 1e9:.1f} GB free; choose data.resident=auto, or a smaller data.size"
        )
    share = _SHARE_OF_GPU if device.type == "cuda" else _SHARE_OF_RAM
    return choice == "always" or needed <= share * free


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a CUDA device, or for any other what this process may use of main memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([_free_on_machine(), *_left_to_groups()])


def _free_on_machine() -> int:
    table = Path("/proc/meminfo")
    if table.is_file():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_to_groups() -> Iterator[int]:
    """What containers and jobs of a cluster, which are groups of processes with limits, leave to this process."""
    lines = OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.is_file() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers == "":
            root, limit, usage, files = GROUPS, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, usage = GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            files = "total_inactive_file"
        else:
            continue
        group = root / path.lstrip("/")
        while group.is_relative_to(root):
            with suppress(OSError, ValueError):  # not there, or the word max
                facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                most, used = (int((group / name).read_text()) for name in (limit, usage))
                yield max(0, most - used + int(facts.get(files, 0)))  # pages of files that were read make room
            group = group.parent
