"""How one of several processes ends when all of them are done."""

from __future__ import annotations

import os
import sys
from typing import Any


def leave_others() -> None:
    """Ends a process beside the first at once.

    The others take their connections down at the same time, and a thread of gloo's may then abort the process.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    together = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if together and distributed.get_rank() > 0:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
