"""The command `stec transfer classification`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from stec.commands.screen import console, make_table, say


def classification(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or an encoder's .safetensors file.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Settings of the fine-tuning, such as epochs=100 optimizer.rate=0.01."
        ),
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="SOURCE:PATH", help="The labelled images, e.g. folder:PATH; default: the run's."
        ),
    ] = None,
    linear_only: Annotated[bool, typer.Option("--linear-only", help="Do not fine-tune.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for results and runs; default: RUN/transfer/DATA.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fine-tune anew what is there.")] = False,
) -> None:
    """Classifies images with 1 %, 10 % and all of their labels: linearly on frozen features, and fine-tuned.

    Interrupted, the same command continues.
    """
    from stec import load
    from stec.locking import locked
    from stec.progress import Watcher
    from stec.run import LOCK, make_room, replacing
    from stec.transfer.classification import classify, configure

    encoder = load(run)
    config = configure(encoder, run, place, words or [])
    if out is None:
        root = [Path(os.path.abspath(config.data.root)).name] if config.data.root else []  # `.` has a name, too
        name = "-".join([config.data.source, *root])
        out = (run if run.is_dir() else run.with_suffix("")) / "transfer" / name
    results = out / "classification.json"
    make_room(results)
    with locked(out / LOCK, wait=False):
        with Watcher(console) as watcher:
            found = classify(encoder, config, out, watcher, not linear_only, force)
        with replacing(results) as part:
            part.write_text(json.dumps(found, indent=2) + "\n")
    _show(found)
    say(f"{found['data']}, {len(found['classes'])} classes, {found['test_images']:,} images to test; in {results}")


def _show(found: dict[str, Any]) -> None:
    table = make_table("labels", "images", "linear", "fine-tuned")
    for column in table.columns:
        column.justify = "right"
    for row in found["rows"]:
        tuned = "-" if row["fine_tuned"] is None else f"{row['fine_tuned']:.1f} %"
        table.add_row(f"{row['labels']} %", f"{row['images']:,}", f"{row['linear']:.1f} %", tuned)
    console.print(table)
