"""The command line: parse, call, print."""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from stec.commands import data, experiments, study, transfer, use
from stec.commands.runs import Force, PrintConfig, Resume, check_options, is_named, open_run, show_config
from stec.commands.screen import Saying, console, forget
from stec.commands.screen import hint as _hint
from stec.commands.screen import make_table as _table
from stec.commands.screen import show_list as _list
from stec.commands.words import TakesWords, Words
from stec.commands.words import recipe_and_config as _recipe_and_config
from stec.config import Config, read_recipe, recipe_names
from stec.errors import Stopped, UserError
from stec.faults import describe
from stec.interruption import stopping
from stec.leaving import leave_others
from stec.limits import SOUND
from stec.progress import SPEEDS
from stec.reporter import hush

# Threads that wait for each other soon sleep instead of spinning: hardly slower on idle cores, and several times faster
# where other programs use them too. OpenMP reads this when PyTorch is loaded, which is why no import above loads it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # PyTorch's profiler would tell of its own doings

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich",
    help="Self-supervised learning through efference copies: act, keep a copy of the action, and learn to infer it.",
    epilog="First: stec pretrain. Your own images: stec pretrain folder data.root=PATH (without a GPU folder-small), "
    "then stec neighbors RUN PATH.",
)  # fmt: skip


def _show_version(asked: bool) -> None:
    if asked:
        from stec import __version__

        console.print(f"stec {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command(cls=TakesWords)
def pretrain(
    words: Words = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/RECIPE-METHOD-seedN.")
    ] = None,
    resume: Resume = None,
    force: Force = False,
    print_config: PrintConfig = False,
) -> None:
    """Trains an encoder. Without arguments: S-TEC on built-in data, in one to two minutes on two CPU cores.

    Your own images: stec pretrain folder data.root=PATH, or folder-small without a GPU.
    """
    words = words or []
    check_options(words, resume, force, out)
    recipe, config = _recipe_and_config([] if is_named(resume) else words)
    if print_config:
        show_config(config, words, resume)
        return

    from stec.progress import Watcher
    from stec.training import pretrain as train

    path = out or Path("runs") / _run_name(recipe, config)
    folder, config, resumed = open_run(path, recipe, config, words, resume, force)
    with Watcher(console) as watcher:
        summary = train(config, folder, watcher, resumed)
    if summary:
        _print_summary(summary, folder.path)
        if config.data.source == "folder" and config.method not in SOUND:
            places = [str(folder.path), os.path.expanduser(config.data.root or "")]
            _hint(f"stec neighbors {shlex.join(places)} shows what it finds alike", whole=True)


_FIRST = ("default", "folder", "folder-small")  # what a newcomer looks for


@app.command()
def recipes() -> None:
    """Lists the recipes."""
    names = sorted(recipe_names(), key=lambda name: (name not in _FIRST, name))
    _list({name: str(read_recipe(name).get("about", "")) for name in names})
    _hint("stec pretrain RECIPE runs one, folder or folder-small your own images; --print-config shows all keys")
    console.print()
    _list({name: str(read_recipe(name, "transfer").get("about", "")) for name in recipe_names("transfer")})
    _hint("stec transfer detection|segmentation RUN RECIPE trains a pretrained encoder further")


@app.command()
def methods() -> None:
    """Lists the methods."""
    from stec.audio.method import METHODS as SOUNDS
    from stec.method import METHODS

    _list({name: pairing.about for name, pairing in (METHODS | SOUNDS).items()})
    _hint("stec pretrain method=NAME trains with one")


@app.command(cls=TakesWords)
def views(
    words: Words = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture to write.")] = Path("views.png"),
    pairs: Annotated[int, typer.Option(min=1, max=64, help="How many pairs of views.")] = 8,
) -> None:
    """Draws pairs of views with the action between them: what the encoder will be trained on."""
    _, config = _recipe_and_config(words or [])
    if config.method in SOUND:
        raise UserError(f"method={config.method} learns from sound, which has no pictures")
    if out.suffix not in (".png", ".jpg"):
        raise UserError(f"{out}: the name has to end in .png or .jpg")

    from stec.analysis.figures import draw_views
    from stec.run import make_room

    make_room(out)
    draw_views(config, pairs).save(out)
    console.print(f"{out}: {pairs} pairs of views, the action drawn on the first of each", markup=False)


@app.command(cls=TakesWords)
def bench(
    words: Words = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas; default: the recipe's.")] = "",
    seconds: Annotated[float, typer.Option(min=0.01, help="How long each part is measured.")] = 4.0,
    compare: Annotated[str | None, typer.Option(metavar="lightly", help="A library to measure beside.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also show where the time of a step goes.")] = False,
    streamed: Annotated[bool, typer.Option("--streamed", help="Also train on images read from a file.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Measures speed and memory: training beside the encoder's ceiling, with and without the manipulation model."""
    _, config = _recipe_and_config(words or [])
    if not all(size.strip().isdigit() and int(size) > 1 for size in batch.split(",") if batch):
        raise UserError(f"--batch {batch}: expected whole numbers above 1, such as 256,1024")

    from stec.bench import bench as measure
    from stec.run import make_room

    if out is not None:
        make_room(out)
    sizes = [int(size) for size in batch.split(",")] if batch else [config.batch_size]
    result = measure(config, sizes, seconds, compare, profile, streamed)
    size = f"{result['size']} {'px' if result['unit'] == 'views' else 'samples'}"
    about = f"{result['method']}, {result['encoder']}, {size}, {result['precision']}, {result['device']}"
    console.print(f"{about}; {result['unit']} per second", highlight=False, soft_wrap=True)
    columns = ("batch", "training", "ceiling", "ratio", "views alone", "psi costs", "1st step", "memory")
    table = _table(*columns)
    for row in result["rows"]:
        cost = row["cost_of_manipulation"]
        table.add_row(
            f"{row['batch_size']:,}",
            f"{row['end_to_end']:,}",
            f"{row['ceiling']:,}",
            f"{row['of_ceiling']:.2f}",
            f"{row['augmentation']:,}",
            "-" if cost is None else f"{100 * cost:.1f} %",
            f"{row['seconds_to_first_step']:.1f} s",
            f"{row['peak_memory_bytes'] / 2**30:.2f} GiB",
        )
    console.print(table)
    for row in result["rows"]:
        for line in _bench_lines(row):
            console.print(f"batch {row['batch_size']:,}: {line}", highlight=False, soft_wrap=True)
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n")


def _bench_lines(row: dict[str, Any]) -> Iterator[str]:
    """What has no place in the table."""
    ours, checkpoint = row["end_to_end"], row["checkpoint"]
    often = (
        f", {100 * checkpoint['share']:.2g} % at one every {checkpoint['minutes']:g} min" if checkpoint["share"] else ""
    )
    size = f"{checkpoint['bytes'] / 2**20:.0f} MiB, written in {checkpoint['seconds_of_writing']:.2f} s meanwhile"
    yield f"a checkpoint costs {1000 * checkpoint['seconds']:.0f} ms{often} ({size})"
    if "lightly" in row:
        loader, tensors = row["lightly"]["loader"], row["lightly"]["tensors"]
        times = f"ours is {ours / loader:.1f} times as fast"
        yield f"lightly with a DataLoader {loader:,} ({times}), on ready tensors {tensors:,}"
    if "streamed" in row:
        yield f"streamed from a memory map {row['streamed']:,} ({row['streamed'] / ours:.2f} of resident)"
    if "profile" in row:
        groups = ", ".join(f"{name} {time:.2f}" for name, time in row["profile"]["groups"].items() if time)
        yield f"{row['profile']['milliseconds']:.2f} ms per step: {groups}"


app.add_typer(data.app, name="data")
app.add_typer(study.app)  # analyze, report
app.add_typer(use.app)  # probe, embed, neighbors, export
app.add_typer(transfer.app, name="transfer")
app.add_typer(experiments.app)  # experiment, results


def _run_name(recipe: str, config: Config) -> str:
    method = config.method.replace("*", "-star")  # no star in a path
    name = recipe.replace("/", "-") if recipe in recipe_names() else Path(recipe).stem
    return f"{name if name == f'audio-{method}' else f'{name}-{method}'}-seed{config.seed}"


_RESULTS = {
    "linear": "linear accuracy, trained encoder",
    "linear_untrained": "same encoder untrained",
    "linear_pixels": "pixels",
    "linear_online": "online probe",
    "knn": "nearest neighbours",
}


def _print_summary(summary: dict[str, Any], path: Path) -> None:
    table = _table("", "")
    for key, text in _RESULTS.items():
        if summary.get(key) is not None:
            table.add_row(text, f"{summary[key]:.1f} %", style="bold" if key == "linear" else "")
    if "phones" in summary:
        from stec.audio.figures import BASELINES

        table = _table("linear accuracy", "phones", "speakers")
        for suffix, text in BASELINES.items():
            values = [summary.get(f"{name}{suffix}") for name in ("phones", "speakers")]
            if any(value is not None for value in values):
                table.add_row(
                    text, *("-" if v is None else f"{v:.1f} %" for v in values), style="" if suffix else "bold"
                )
    if table.row_count:  # without labels there is nothing to tell
        console.print(table)
    speeds = [f", {summary[key]:,} {name}" for key, name in SPEEDS.items() if summary.get(key)]
    where = f"everything is in {path}"
    console.print(f"{summary['seconds']:.0f} s of training{''.join(speeds)}; {where}", highlight=False, markup=False)


_INTERRUPTED = "interrupted; --resume continues a run, the same command an experiment or an embedding"


def main() -> None:
    """Runs the command line. What a user can mend is one line and exit code 2; docs/resume.md has the other codes."""
    logger = logging.getLogger("stec")
    logger.handlers = [Saying()]
    logger.setLevel(logging.INFO)
    hush()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files can hold what its encoding does not know
    ending = [number for number in stopping() if number != signal.SIGINT]  # which Python has its own way with
    before = {number: signal.signal(number, _terminate) for number in ending}
    try:
        app()
    except UserError as error:
        _end(str(error), 2)
    except Stopped as stop:
        _end(str(stop), os.EX_TEMPFAIL)
    except SystemExit as stop:
        if stop.code == 130:  # what typer makes of KeyboardInterrupt
            _end(_INTERRUPTED, 130)
        if stop.code in (None, 0):
            leave_others()
        raise
    except KeyboardInterrupt:  # before typer was there
        _end(_INTERRUPTED, 130)
    except (OSError, MemoryError, RuntimeError) as error:
        line = describe(error)
        if line is None:
            raise
        _end(line, 2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # while the interpreter ends, an exception would be a traceback


def _end(line: str, code: int) -> NoReturn:
    if line:
        try:
            print("stec:", " ".join(line.split()), file=sys.stderr)  # one line, whatever somebody's file or word holds
        except OSError:  # a pipe or a terminal that has been closed
            forget(sys.stderr)
    sys.exit(code)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Where no run is training: there is nothing to save."""
    name = signal.Signals(number).name
    raise Stopped(f"stopped by {name}; --resume continues a run, the same command an experiment or an embedding")


if __name__ == "__main__":
    main()
