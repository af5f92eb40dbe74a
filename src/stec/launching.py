"""How the processes of a run are started, and how they end when one of them fails."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch.distributed as dist

from stec.errors import UserError

FAILED, LEFT = "stec/failed", "stec/left"  # in the store that all processes share
LOOK = 0.5  # seconds between looks at it
PATIENCE = 10.0  # seconds for the others to leave


def launched() -> tuple[int, int] | None:
    """Processes on each machine, and machines, where torchrun or SLURM has started them; None where nobody has."""
    environment = os.environ
    if dist.is_available() and dist.is_torchelastic_launched():
        local = int(environment["LOCAL_WORLD_SIZE"])
        return local, int(environment["WORLD_SIZE"]) // local
    tasks = int(environment.get("SLURM_NTASKS", 1))
    if tasks > 1 and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        machines = int(environment.get("SLURM_NNODES", 1))
        return tasks // machines, machines
    return None


@contextmanager
def failing_together(fabric: Any) -> Iterator[None]:
    """Within, an error in one process ends all: it is raised there, and the others leave with the same exit code.

    They would wait for it in the next exchange, for minutes or forever.
    """
    if fabric.world_size == 1:
        yield
        return
    store = dist.distributed_c10d._get_default_store()
    finished = threading.Event()
    threading.Thread(target=_watch, args=(store, finished), daemon=True).start()
    try:
        yield
    except Exception as error:
        finished.set()
        lost = isinstance(error, RuntimeError) and _is_lost(error)
        with suppress(RuntimeError):  # the store is gone, with the first process
            if store.add(f"{FAILED}/times", 1) > 1:
                _leave(store)
            store.set(FAILED, str(2 if lost or isinstance(error, UserError) else 1))
        if lost:
            raise UserError("a process of this run has been lost, and all end; --resume continues the run") from error
        _wait_for_others(store, fabric.world_size - 1)
        raise
    finally:
        finished.set()


def _watch(store: Any, finished: threading.Event) -> None:
    while not finished.wait(LOOK):
        try:
            failed = store.check([FAILED])
        except RuntimeError:
            return
        if failed:
            _leave(store)


def _leave(store: Any) -> None:
    """Ends this process at once and in silence: another one says why."""
    code = 1
    with suppress(RuntimeError):
        code = int(store.get(FAILED))
        store.add(LEFT, 1)
    sys.stdout.flush()
    os._exit(code)


def _wait_for_others(store: Any, number: int) -> None:
    """They have to read of the failure before this process ends, which may be the one that keeps the store."""
    until = time.monotonic() + PATIENCE
    with suppress(RuntimeError):
        while store.add(LEFT, 0) < number and time.monotonic() < until:
            time.sleep(LOOK / 5)


def _is_lost(error: RuntimeError) -> bool:
    """Whether another process does not answer any more."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "by peer" in str(error)
