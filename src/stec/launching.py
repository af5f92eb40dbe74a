"""How the processes of a run are started, and how they end when one of them fails."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch.distributed as dist

from stec.errors import Stopped, UserError
from stec.processes import launched
from stec.reporter import Nobody, Reporter
from stec.run import RunFolder

FAILED, LEFT = "stec/failed", "stec/left"  # in the store that all processes share
STARTER = "STEC_STARTER"  # in the environment: the number of the process that starts the others of a run
LOOK = 0.5  # seconds between looks at it
PATIENCE = 10.0  # seconds for the others to leave
LOST = "a process of this run has been lost, and all end; --resume continues the run"


def meet_again(backend: str) -> None:
    """Lets processes that torchrun has started once more find each other.

    Its store still holds what their predecessors wrote there, addresses for one; so they take a part of it that is new.
    """
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if launched() is None or again == "0" or dist.is_initialized():
        return
    store, rank, world = next(dist.rendezvous("env://"))
    dist.init_process_group(backend, store=dist.PrefixStore(again, store), rank=rank, world_size=world)


def end_with_starter() -> None:
    """What this process starts ends with it, also if it is killed before they have met, for which it would wait long.

    To be called before others are started, and by these.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.environ[STARTER] = str(os.getpid())
    elif STARTER in os.environ:  # else somebody has started it by hand
        threading.Thread(target=_end_without, args=(int(os.environ[STARTER]),), daemon=True).start()


def _end_without(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(LOOK)
    time.sleep(PATIENCE)  # in which those that had met say so, and end by themselves
    os._exit(2)


def give_time_to_end() -> None:
    """Fabric kills this process as soon as one that it has started is lost: before it could say so, and why.

    Within some seconds it ends by itself. Where it cannot, waiting for the lost one, it is ended after that.
    """
    for thread in threading.enumerate():
        if thread.name == "child-process-observer":
            thread._terminate_all = partial(_end_later, thread._child_processes)  # type: ignore[attr-defined]


def _end_later(children: list[Any]) -> None:
    time.sleep(PATIENCE)
    for child in children:
        child.kill()
    print("stec:", LOST, file=sys.stderr)
    _end_at_once()


@contextmanager
def working(fabric: Any, folder: RunFolder, reporter: Reporter) -> Iterator[Reporter]:
    """Within, the processes of a run fail together, and the first holds its folder and speaks for all.

    Yields whom this process reports to.
    """
    if not fabric.is_global_zero:
        reporter = Nobody()
        logging.getLogger("stec").setLevel(logging.WARNING)  # what all have to say, the first does
    with failing_together(fabric), folder.held() if fabric.is_global_zero else nullcontext():
        yield reporter


@contextmanager
def failing_together(fabric: Any) -> Iterator[None]:
    """Within, an error in one process ends all: it is raised there, and the others leave in silence.

    They would wait for it in the next exchange, for minutes or forever.
    """
    rank, others = fabric.global_rank, fabric.world_size - 1
    if not others:
        yield
        return
    store = dist.distributed_c10d._get_default_store()  # the first process keeps it
    finished = threading.Event()
    watch = threading.Thread(target=_watch, args=(store, rank, finished), daemon=True)
    watch.start()
    try:
        yield
    except Stopped:  # all of them, after the same step
        raise
    except Exception as error:
        finished.set()
        lost = isinstance(error, RuntimeError) and _is_lost(error)
        with suppress(RuntimeError):  # the store is gone, and the first process with it
            if store.add(f"{FAILED}/times", 1) > 1:
                _leave(store, rank)
            store.set(FAILED, str(2 if lost or isinstance(error, UserError) else 1))
        if lost:
            atexit.register(_end_at_once)
            raise UserError(LOST) from error
        # The error is told at once, but this process ends after the others, which leave by themselves.
        linger = partial(_wait_for_others, store, others) if rank == 0 else partial(time.sleep, 10 * LOOK)
        atexit.register(linger)
        raise
    finally:
        finished.set()
        watch.join(PATIENCE)  # a thread that asks the store when Python ends would abort the process


def _end_at_once() -> None:
    """Without taking the connections down: with a process gone, their threads may abort in the middle of that."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2)


def _watch(store: Any, rank: int, finished: threading.Event) -> None:
    while not finished.wait(LOOK):
        try:
            failed = store.check([FAILED])
        except RuntimeError:
            return
        if failed:
            _leave(store, rank)


def _leave(store: Any, rank: int) -> None:
    """Ends this process in silence: another one says why.

    With the exit code of the failure, if it is the first process: its code is that of the whole command. Others end
    without one, for which Fabric would kill a first process that has started them, before it can leave.
    """
    code = 0
    with suppress(RuntimeError):
        store.add(LEFT, 1)
        if rank == 0:
            code = int(store.get(FAILED))
            time.sleep(2 * LOOK)  # the others have to read it, too
    sys.stdout.flush()
    os._exit(code)


def _wait_for_others(store: Any, number: int) -> None:
    until = time.monotonic() + PATIENCE
    with suppress(RuntimeError):
        while store.add(LEFT, 0) < number and time.monotonic() < until:
            time.sleep(LOOK / 5)


def _is_lost(error: RuntimeError) -> bool:
    """Whether another process does not answer any more."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "by peer" in str(error)
