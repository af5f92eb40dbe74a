"""Who does the runs: this process, one after the other, or several processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple, Protocol

from stec.errors import UserError, nearest
from stec.experiments.jobs import Job, perform
from stec.reporter import Nobody, Reporter


class Outcome(NamedTuple):
    """How a job ended."""

    job: Job
    error: str | None  # what the person at the keyboard can correct; None: the run folder holds a finished run


class Engine(Protocol):
    """Does jobs, in any order and anywhere, as long as their run folders end up where they say."""

    def run(self, jobs: Sequence[Job], reporter: Reporter) -> Iterator[Outcome]:
        """Each outcome as soon as it is known."""


class Here:
    """One after the other, in this process."""

    def run(self, jobs: Sequence[Job], reporter: Reporter) -> Iterator[Outcome]:
        """Reports every run's progress."""
        for job in jobs:
            yield _attempt(job, reporter)


class Local:
    """A process for every GPU of this machine (one without)."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes

    def run(self, jobs: Sequence[Job], reporter: Reporter) -> Iterator[Outcome]:
        """Each process sees one GPU."""
        import torch

        if not jobs:
            return
        gpus = torch.cuda.device_count()
        count = min(self.processes or max(1, gpus), len(jobs))
        context = multiprocessing.get_context("spawn")
        visible: multiprocessing.Queue[str] = context.Queue()
        for gpu in (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))).split(","):
            visible.put(gpu)
        reporter.note(f"{len(jobs)} runs on {count} process(es)")
        with ProcessPoolExecutor(count, context, _take_gpu, (visible,) if gpus else (None,)) as pool:
            futures = [pool.submit(_attempt, job, Nobody()) for job in jobs]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BrokenProcessPool:
                raise UserError("a process was killed; the same command does what is missing") from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


ENGINES: dict[str, Callable[[], Engine]] = {"local": Local}


def create_engine(name: str | None) -> Engine:
    """By name; without one, `Here`."""
    if name is None:
        return Here()
    if name not in ENGINES:
        raise UserError(f"--engine {name}: {nearest(name, ENGINES)}")
    return ENGINES[name]()


def _attempt(job: Job, reporter: Reporter) -> Outcome:
    try:
        perform(job, reporter)
    except UserError as error:
        return Outcome(job, str(error))
    return Outcome(job, None)


def _take_gpu(visible: multiprocessing.Queue[str] | None) -> None:
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.get()
