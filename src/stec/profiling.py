"""Where the time of a step goes, kernel by kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

CALLS = 5
LISTED = 40  # kernels by name; the groups count all
GROUPS = {  # the first whose pattern is in a kernel's name has it
    "batch norm, ReLU, residuals": r"batch_norm|threshold|^norm_",  # compiled, backward passes are fused
    "convolutions": r"convolution|fprop|dgrad|wgrad|convolve|cudnn",
    "matrix products": r"gemm|nvjet|cutlass|mm$",
    "optimizer": r"multi_tensor|foreach|^triton_for_",
    "the rest": r"",
}


def time_by_kernel(step: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Milliseconds per step of every kernel on a GPU, or of every operation on a CPU, and by groups of them."""
    cuda = device.type == "cuda"
    step()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as recorded:
        for _ in range(CALLS):
            step()
        if cuda:
            torch.cuda.synchronize(device)
    times: dict[str, list[float]] = {}
    for event in recorded.events():
        if not cuda:
            times.setdefault(event.name, []).append(event.self_cpu_time_total)
        elif event.device_type == DeviceType.CUDA:
            times.setdefault(event.name, []).append(event.time_range.elapsed_us())
    kernels = {name: sum(values) / CALLS / 1000 for name, values in times.items()}
    groups = dict.fromkeys(GROUPS, 0.0)
    for name, milliseconds in kernels.items():
        groups[group_of(name)] += milliseconds
    slowest = sorted(kernels, key=lambda name: -kernels[name])[:LISTED]
    return {
        "milliseconds": round(sum(kernels.values()), 3),
        "groups": {name: round(value, 3) for name, value in groups.items()},
        "kernels": [
            {"name": name, "milliseconds": round(kernels[name], 4), "calls": len(times[name]) / CALLS}
            for name in slowest
        ],
    }


def group_of(kernel: str) -> str:
    """The group of a kernel, by its name."""
    return next(group for group, pattern in GROUPS.items() if re.search(pattern, kernel))
