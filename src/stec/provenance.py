"""Where a result comes from: commit, versions, hardware."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
import torchvision

import stec


def origin(device: torch.device) -> dict[str, str]:
    """Where the results of this process come from."""
    return {"device": hardware(device), "commit": commit(), **versions()}


def in_turn(origins: Sequence[dict[str, str]]) -> dict[str, str]:
    """The same of a run that several processes made, one continuing the other: every value, where they differ."""
    return {key: " then ".join(dict.fromkeys(each[key] for each in origins)) for key in origins[-1]}


@cache
def commit() -> str:
    """The commit of the source, with `+changes` if it was edited since: as this process found it when it first asked.

    So it is to be asked early, as what has been read is what runs, whatever becomes of the files. Where the source is a
    copy without git, as in a container, $STEC_COMMIT may name it; failing that, the version.
    """

    folder = Path(__file__).parent

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(folder))  # results are no source
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("STEC_COMMIT", f"v{stec.__version__}")


def hardware(device: torch.device) -> str:
    """The name of what trains."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    """Of the software that decides the numbers."""
    return {
        "stec": stec.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # no plain text, which alone a checkpoint may hold
        "torchvision": torchvision.__version__,
    }


def forget_peak() -> None:
    """Has `peak_memory_bytes` count from now on. The peak of a process can be forgotten on Linux alone."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory held so far: on the GPU if that trains, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):  # of Linux, where ru_maxrss is also that of the process which started this one
        found = re.search(rb"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_bytes(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
