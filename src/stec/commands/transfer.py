"""Commands that train an encoder further, for another use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stec.commands.runs import Force, PrintConfig, Resume, check_options, is_named, open_run, show_config
from stec.commands.screen import console, make_table, say
from stec.commands.transfer_classification import classification
from stec.commands.words import Words, require_files
from stec.errors import UserError

app = typer.Typer(no_args_is_help=True, help="Trains an encoder further for another use, and scores it.")
app.command()(classification)

Start = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run folder, an encoder's file, torchvision:NAME, torchvision:PATH (weights), or none."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/RECIPE-RUN-seedN.")]


@app.command()
def detection(
    start: Start = None,
    words: Words = None,
    out: Out = None,
    resume: Resume = None,
    force: Force = False,
    print_config: PrintConfig = False,
) -> None:
    """Object detection: the encoder as the trunk of Faster R-CNN. Without a recipe, on built-in scenes of shapes."""
    summary, path = _transfer("detection", start, words or [], out, resume, force, print_config)
    if not summary:
        return
    rows = {
        "AP50 (area under the curve)": "ap50",
        "AP50 (at 11 recalls, as VOC 2007)": "ap50_11",
        "AP (overlaps 0.5 to 0.95)": "ap",
        "AP75": "ap75",
    }
    _print(summary, rows, path)
    if summary["ap50"] is None:
        say("no test image has an object that counts, so there is no score")
    elif summary["ap"] is None:
        say("AP and AP75 need torchmetrics and pycocotools: pip install 'stec[transfer]'")


@app.command()
def segmentation(
    start: Start = None,
    words: Words = None,
    out: Out = None,
    resume: Resume = None,
    force: Force = False,
    print_config: PrintConfig = False,
) -> None:
    """Semantic segmentation: the encoder as the trunk of FCN-16s. Without a recipe, on built-in scenes of shapes."""
    summary, path = _transfer("segmentation", start, words or [], out, resume, force, print_config)
    if summary:
        _print(summary, {"mean intersection over union": "miou", "pixels right": "pixel_accuracy"}, path)


def _transfer(
    task: str, start: str | None, words: list[str], out: Path | None, resume: Path | None, force: bool, show: bool
) -> tuple[dict[str, Any], Path]:
    """Runs it. -> the summary (empty where nothing was run, or another process has it) and the run folder."""
    from stec.transfer.config import recipe_and_config

    if start is not None and (is_named(resume) or ("=" in start and not Path(start).exists())):
        words, start = [start, *words], None
    check_options(words, resume, force, out)
    if start is None and not is_named(resume):
        raise UserError(f"from which encoder? 'stec transfer {task} RUN', with a run folder, a file, or none")
    recipe, config = recipe_and_config(task, start or "none", [] if is_named(resume) else words)
    if not is_named(resume):
        require_files(config, words)
    if show:
        show_config(config, words, resume)
        return {}, Path()

    from stec.progress import Watcher
    from stec.transfer.running import transfer

    origin = Path(config.start.rpartition(":")[2]).expanduser()
    name = f"{Path(recipe).stem}-{origin.name if origin.is_dir() else origin.stem}-seed{config.seed}"
    folder, config, resumed = open_run(out or Path("runs") / name, recipe, config, words, resume, force)
    with Watcher(console) as watcher:
        return transfer(config, folder, watcher, resumed), folder.path


def _print(summary: dict[str, Any], rows: dict[str, str], path: Path) -> None:
    table = make_table("", "")
    for i, (text, key) in enumerate(rows.items()):
        if summary[key] is not None:
            table.add_row(text, f"{summary[key]:.1f} %", style="" if i else "bold")
    console.print(table)
    say(f"{summary['seconds']:.0f} s of training; by class in {path / 'summary.json'}, {path / 'predictions.png'}")
