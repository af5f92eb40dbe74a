"""Runs as tasks of a Ray cluster."""

from __future__ import annotations

import io
import logging
import os
import shutil
import tarfile
import uuid
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from stec.errors import Stopped, UserError
from stec.experiments.engine import ATTEMPTS, Outcome, attempt, describe, given_up
from stec.experiments.jobs import Job
from stec.interruption import Interruption
from stec.reporter import Nobody, Reporter

SAVING = 120  # seconds that runs have to end their step and save when all is stopped


class Cluster:
    """The cluster that `RAY_ADDRESS` names or that runs on this machine; without one, Ray is started here.

    Every run takes a GPU, or a CPU where there are none. A run whose worker is killed is sent to another, which
    continues from its checkpoint if they share a disk. Without a shared disk, the finished run folder is brought here.
    A signal to stop is for all runs: each ends its step and saves.
    """

    def run(self, jobs: Sequence[Job], reporter: Reporter) -> Generator[Outcome]:
        """Sends all jobs, and gives each outcome as it comes."""
        if not jobs:
            return
        ray = _connect()
        waiting: dict[Any, Job] = {}
        marks = {folder / f".shared-{uuid.uuid4().hex}" for folder in {job.path.parent for job in jobs}}
        try:
            for mark in marks:
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
            there = ray.cluster_resources()
            gpus, cpus = int(there.get("GPU", 0)), int(there.get("CPU", 0))
            wanted = 1 if gpus and jobs[0].config.device != "cpu" else 0
            words = f"{len(ray.nodes())} node(s), {cpus} CPU(s), {gpus} GPU(s)"
            reporter.note(f"{len(jobs)} runs on a Ray cluster of {words}")
            task = ray.remote(num_cpus=1, num_gpus=wanted, max_retries=ATTEMPTS - 1, retry_exceptions=True)(do)
            names = {mark.parent: mark.name for mark in marks}
            waiting = {task.remote(job, Path.cwd(), names[job.path.parent]): job for job in jobs}
            with Interruption() as asked:
                while waiting:
                    ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1)
                    if asked.name is not None:  # raised by a handler, it would be lost while Ray waits
                        raise Stopped(f"stopped by {asked.name}: all runs save; the same command goes on")
                    for answer in ready:
                        yield _outcome(ray, answer, waiting.pop(answer))
        finally:
            for answer in waiting:
                ray.cancel(answer)  # as Ctrl-C would
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=SAVING)
            for mark in marks:
                mark.unlink(missing_ok=True)
            ray.shutdown()  # also ends what is still at work


def do(job: Job, folder: Path, mark: str) -> tuple[str | None, bytes | None]:
    """The job, on any machine. -> its error; and its run folder, if that lies on no disk that both machines have.

    Args:
        job: whose path may be relative,
        folder: to this one, if it exists here.
        mark: name of a file that lies beside the run folder where the job comes from.
    """
    if folder.is_dir():
        os.chdir(folder)
    outcome = attempt(job, Nobody(), wait=True)
    shared = (job.path.parent / mark).is_file()
    return outcome.error, None if shared or outcome.error else _pack(job.path)


def _outcome(ray: Any, answer: Any, job: Job) -> Outcome:
    try:
        error, packed = ray.get(answer)
    except ray.exceptions.RayTaskError as failed:
        return Outcome(job, given_up(describe(failed.cause or failed)))
    except ray.exceptions.RayError as failed:
        return Outcome(job, given_up(f"its worker was lost ({describe(failed)})"))
    if packed is not None:
        unpack(packed, job.path)
    return Outcome(job, error)


def _connect() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'stec[ray]'") from None
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise UserError(f"no Ray cluster can be reached ({describe(error)}); RAY_ADDRESS names one") from None
    return ray


def _pack(path: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(path, arcname="run")
    return file.getvalue()


def unpack(packed: bytes, path: Path) -> None:
    """Puts a run folder in its place, whole."""
    part = path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(part, filter="data")
    shutil.rmtree(path, ignore_errors=True)
    (part / "run").rename(path)
    part.rmdir()
