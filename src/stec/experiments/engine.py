"""Who does the runs: this process, one after the other; several processes; or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from stec.errors import Stopped, UserError, nearest
from stec.experiments.jobs import Job, perform
from stec.reporter import Nobody, Reporter, hush
from stec.run import RunFolder

TELL = 60.0  # seconds without news after which it is told how far the runs are
ATTEMPTS = 3  # at a job whose process is killed, or fails for a reason that is no mistake in the experiment


class Outcome(NamedTuple):
    """How a job ended."""

    job: Job
    error: str | None  # what the person at the keyboard can correct; None: the run folder holds a finished run


class Engine(Protocol):
    """Does jobs, in any order and anywhere, as long as their run folders end up where they say."""

    def run(self, jobs: Sequence[Job], reporter: Reporter) -> Generator[Outcome]:
        """Each outcome as soon as it is known. Closed before its end, it stops what is at work."""


class Here:
    """One after the other, in this process."""

    def run(self, jobs: Sequence[Job], reporter: Reporter) -> Generator[Outcome]:
        """Reports every run's progress."""
        for job in jobs:
            yield attempt(job, reporter)


class Local:
    """Several processes of this machine: as many as it has GPUs (one without), unless a number is given."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes

    def run(self, jobs: Sequence[Job], reporter: Reporter) -> Generator[Outcome]:
        """Each process sees one GPU, or takes its share of the cores. What a killed one leaves, another continues.

        A signal to stop is for all of them: every run ends its step and saves.
        """
        if not jobs:
            return
        gpus = _visible_gpus()
        count = min(self.processes or max(1, len(gpus)), len(jobs))
        reporter.note(f"{len(jobs)} runs on {count} process(es)")
        workers = [_Worker(gpus[number % len(gpus)] if gpus else None, count) for number in range(count)]
        free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in workers:
            free.put(worker)
        at_work: list[Job] = []

        def do(job: Job) -> Outcome:
            worker = free.get()
            at_work.append(job)
            try:
                return worker.do(job)
            finally:
                at_work.remove(job)
                free.put(worker)

        threads = ThreadPoolExecutor(count)
        try:
            waiting = {threads.submit(do, job) for job in jobs}
            while waiting:
                ready, waiting = wait(waiting, TELL, FIRST_COMPLETED)
                for future in ready:
                    yield future.result()
                if not ready and at_work:
                    reporter.note("; ".join(map(_how_far, tuple(at_work))))
        except BaseException:
            for worker in workers:
                worker.stop()
            raise
        finally:
            threads.shutdown(wait=True, cancel_futures=True)
            for worker in workers:
                worker.pool.shutdown()


class _Worker:
    """A process that sees one GPU, or has the cores with the others, and is started anew when it is killed."""

    def __init__(self, gpu: str | None, count: int) -> None:
        self.gpu, self.count, self.stopped = gpu, count, False
        self.pool = self._start()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        there, self.line = context.Pipe(duplex=False)  # nothing is ever sent; it is there as long as this process is
        return ProcessPoolExecutor(1, context, _begin, (self.gpu, self.count, there))

    def stop(self) -> None:
        """Has the process save its run and end."""
        self.stopped = True
        self.line.close()

    def do(self, job: Job) -> Outcome:
        reason = ""
        for _ in range(ATTEMPTS):
            try:
                return self.pool.submit(attempt, job, Nobody()).result()
            except Stopped:  # a signal came to the process itself
                raise
            except BrokenProcessPool:
                reason = "its process was killed"
                if self.stopped:
                    break
                self.pool = self._start()
            except Exception as error:  # no mistake of the user's, such as a GPU whose memory somebody else fills
                reason = describe(error)
        return Outcome(job, given_up(reason))


def create_engine(name: str | None, jobs: int | None = None) -> Engine:
    """By name; without one, `Here`, or `Local` if a number of jobs at a time is given."""
    if name is None and jobs is None:
        return Here()
    if name in (None, "local"):
        return Local(jobs)
    if name != "ray":
        raise UserError(f"--engine {name}: {nearest(str(name), ('local', 'ray'))}")
    if jobs is not None:
        raise UserError("--jobs: Ray does as many runs at a time as its cluster has GPUs (or CPUs, without any)")
    from stec.experiments.cluster import Cluster

    return Cluster()


def attempt(job: Job, reporter: Reporter, wait: bool = False) -> Outcome:
    """Does a job; a mistake of the user's is its outcome. With `wait`, it waits for another process that is at it."""
    try:
        perform(job, reporter, wait)
    except UserError as error:
        return Outcome(job, str(error))
    return Outcome(job, None)


def describe(error: BaseException) -> str:
    """An error that nobody foresaw, as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def given_up(reason: str) -> str:
    """What to tell after the last attempt."""
    return f"{reason} (given up after {ATTEMPTS} attempts; the same command tries again)"


def _how_far(job: Job) -> str:
    """A run that another process is at, as its folder tells."""
    epochs = [record["epoch"] for record in RunFolder(job.path, job.recipe).metrics() if "epoch" in record]
    return f"{job.path.name}: epoch {int(epochs[-1]) if epochs else 0} of {job.config.epochs}"


def _visible_gpus() -> list[str]:
    import torch

    every = ",".join(map(str, range(torch.cuda.device_count())))
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or every).split(",") if every else []


def _begin(gpu: str | None, count: int, parent: Connection) -> None:
    """What a new process does first, of as many as `count`."""
    hush()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    else:
        import torch

        torch.set_num_threads(max(1, torch.get_num_threads() // count))  # more threads than cores wait for each other
    for number in (signal.SIGINT, signal.SIGHUP):  # these are for the process that started it, which passes them on
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_stop_with, args=(parent,), daemon=True).start()


def _stop_with(parent: Connection) -> None:
    """Stops this process as soon as the other end of the line is gone: closed, or killed with its process."""
    with suppress(EOFError, OSError):
        parent.recv()
    # A run saves at the first signal; the process that made it, and has nobody to tell, ends by a later one.
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
