"""Makes the runs that an experiment lacks, and writes each down as soon as it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from stec.errors import UserError
from stec.experiments.book import Book
from stec.experiments.engine import Engine
from stec.experiments.experiment import Cell
from stec.experiments.jobs import Job, Place, has_run, make_job, starts_of, to_run
from stec.reporter import Reporter


def run_missing(
    todo: Sequence[tuple[Cell, int]],
    book: Book,
    words: Sequence[str],
    places: Mapping[str, Place],
    runs: Path,
    engine: Engine,
    reporter: Reporter,
) -> Counter[str]:
    """Does all that can be done. -> why runs could not be made, and how many each time.

    Args:
        todo: cells and seeds, as `missing` finds them.
        book: where finished runs are written down.
        words: `key=value` that do not change results.
        places: where images lie, by their name.
        runs: folder of all run folders.
        engine: who does it.
        reporter: who watches.
    """
    starts = starts_of(cell for cell, _ in todo)
    no_start = run_missing(starts, book, words, places, runs, engine, reporter) if starts else Counter()
    failures: Counter[str] = Counter()
    jobs: list[Job] = []
    for cell, seed in todo:
        try:
            job = make_job(cell, seed, words, places, runs)
        except UserError as error:
            failures[str(error)] += 1
            continue
        if cell.start is not None and not has_run(cell.start, cell.start_seed, runs):
            failures[f"nothing to start from: {'; '.join(no_start)}"] += 1
        else:
            jobs.append(job)
    with closing(engine.run(jobs, reporter)) as outcomes:
        for number, (job, problem) in enumerate(outcomes, 1):
            if problem is None:
                try:
                    run = to_run(job, book)
                    if run.key not in book.runs:  # as a start may be, whose folder is needed all the same
                        book.add(run)
                except UserError as error:
                    problem = str(error)
            if problem is not None:
                failures[problem] += 1
            reporter.note(f"{number} of {len(jobs)}: {job.name} {'done' if problem is None else 'failed: ' + problem}")
    return failures
