"""Commands of experiments: the paper's tables and figures, and the book of finished runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stec.checking import require_folder
from stec.commands.screen import console, hint, say, show_list
from stec.errors import UserError

if TYPE_CHECKING:
    from stec.experiments.book import Book

app = typer.Typer()

BookPath = Annotated[Path, typer.Option(help="The book of finished runs.")]
BOOK = Path("results/runs.jsonl")
FEW = 8  # runs that are named one by one though nothing is done with them
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD", help="Only cells of this row, recipe or data; given twice, of both."),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")]


@app.command()
def experiment(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An experiment; without one, they are listed.")
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Keys that do not change results.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what is missing, and its cost.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of every cell; default: the experiment's.")] = None,
    only: Only = None,
    data: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SOURCE:PATH", help="Where images lie: cifar10=arrays:PATH.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="local: a process for every GPU; ray: a Ray cluster; default: one run at a time."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes of the engine `local`.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    book: BookPath = BOOK,
    json_file: JsonFile = None,
) -> None:
    """A table or figure of the paper: makes the runs that are missing, shows published beside measured.

    An interrupted run is continued from its checkpoint by the same command; what is in the book is never repeated.
    """
    from stec.experiments.experiment import about, experiment_names, load_experiment

    if name is None:
        show_list({name: about(name) for name in experiment_names()})
        hint("stec experiment NAME --dry-run lists what is missing; stec results show NAME what is there")
        return
    from stec.experiments.book import Book
    from stec.experiments.display import show_plan
    from stec.experiments.engine import create_engine
    from stec.experiments.jobs import check_places, check_words, choose, missing, parse_places
    from stec.experiments.running import run_missing
    from stec.progress import Watcher
    from stec.run import make_room

    if dry_run and json_file is not None:
        raise UserError("--json writes what was measured, which --dry-run does not: choose one of them")
    if json_file is not None:
        make_room(json_file)
    if out.exists():
        require_folder(out, "--out ")
    worker, places = create_engine(engine, jobs), parse_places(data or [])
    whole = load_experiment(name)
    check_places(whole, places)
    chosen = choose(whole, only or [])
    check_words(chosen, words or [])
    finished = Book(book)
    todo = missing(chosen, finished, seeds or chosen.seeds)
    if dry_run:
        show_plan(console, chosen, finished, todo, seeds or chosen.seeds, out)
        return
    if todo:
        make_room(book)
    with Watcher(console) as watcher:
        failures = run_missing(todo, finished, words or [], places, out, worker, watcher)
    _show(name, only or [], finished, json_file)
    if failures:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in failures.items())
        raise UserError(f"{failures.total()} of {len(todo)} runs could not be made: {reasons}")


results = typer.Typer(no_args_is_help=True, help="The book of finished runs, and the tables made from it.")
app.add_typer(results, name="results")


@results.command("add")
def results_add(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, or .jsonl files of other books.")],
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="What their images are, if arrays or a folder.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="In place of a run with the same settings.")] = False,
    book: BookPath = BOOK,
) -> None:
    """Brings runs that were made elsewhere, or by `stec pretrain`, into the book.

    Of a run folder, its config.yaml, metrics.jsonl and summary.json are enough.
    """
    from stec.experiments.book import Book, read_book, read_run

    finished = Book(book)
    found = [read_book(path) if path.is_file() else [read_run(path, finished, data)] for path in paths]
    known = []
    for run in (run for runs in found for run in runs):
        about = f"{' '.join([run.recipe, *run.overrides])}, {run.data}, seed {run.seed} ({run.hash})"
        if finished.add(run, replace):
            say(f"added: {about}")
        else:
            known.append(f"already there: {about}")
    for line in known if len(known) <= FEW else [f"already there: {len(known)} runs"]:
        say(line)


@results.command("show")
def results_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment.")],
    only: Only = None,
    book: BookPath = BOOK,
    json_file: JsonFile = None,
) -> None:
    """Published beside measured, from the book as it is: runs nothing."""
    from stec.experiments.book import Book
    from stec.run import make_room

    if json_file is not None:
        make_room(json_file)
    _show(name, only or [], Book(book), json_file)
    if not book.is_file():
        say(f"warning: there is no book {book} here, so nothing is measured; --book FILE names another")


@results.command("write")
def results_write(
    page: Annotated[Path, typer.Argument(metavar="PAGE", help="A Markdown file with markers.")] = Path(
        "results/README.md"
    ),
    book: BookPath = BOOK,
) -> None:
    """Makes tables and figures of a Markdown page anew from the book; the text around them stays."""
    from stec.experiments.book import Book
    from stec.experiments.pages import write_page

    changed = write_page(page, Book(book))
    console.print(f"{page}: {'made anew' if changed else 'up to date'}", highlight=False, markup=False)


def _show(name: str, only: list[str], book: Book, json_file: Path | None) -> None:
    from stec.experiments.display import show_measured
    from stec.experiments.experiment import load_experiment
    from stec.experiments.figures import draw
    from stec.experiments.jobs import choose
    from stec.experiments.measured import measure

    whole = load_experiment(name)
    measured = measure(choose(whole, only), book)
    show_measured(console, measured)
    if json_file is not None:
        json_file.write_text(json.dumps(measured.to_json(), indent=2) + "\n")
    try:
        for file in draw(measure(whole, book), book.path.parent / "figures"):
            say(f"drawn: {file}")
    except UserError as error:  # matplotlib is not installed; the numbers are there all the same
        hint(str(error))
