"""Commands of data: what sources there are, what one holds, and one written as shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stec.commands.screen import console, counting, hint, make_table, say, show_list
from stec.commands.words import Words, recipe_and_config


class _Group(TyperGroup):
    """`stec data folder ...` is short for `stec data describe folder ...`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            args = ["describe", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Group, invoke_without_command=True, subcommand_metavar="[COMMAND] [RECIPE] [KEY=VALUE]...",
    help="Lists the data sources; with a recipe or keys, prepares that data and describes it.",
)  # fmt: skip


@app.callback()
def _list(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from stec.data import SOURCES

        show_list(SOURCES)
        hint("stec data folder data.root=PATH checks and describes your own images")


@app.command()
def describe(words: Words = None) -> None:
    """Prepares the data of a recipe or of keys, and describes it. The word `describe` can be left out."""
    import torch

    from stec import data

    _, config = recipe_and_config(words or [])
    dataset = data.load(config.data, torch.device("cpu"))
    table = make_table("", "")
    table.add_row("name", dataset.name)
    table.add_row("to train", f"{len(dataset.train):,} images, {int((dataset.train.labels >= 0).sum()):,} labelled")
    table.add_row("to test", f"{len(dataset.test):,} images" if dataset.test is not None else "none")
    table.add_row(
        "classes", f"{len(dataset.classes)}: {', '.join(dataset.classes[:10])}" if dataset.classes else "none"
    )
    table.add_row("kept at", f"{dataset.size} x {dataset.size} px, {'in memory' if dataset.resident else 'streamed'}")
    table.add_row("unreadable", str(len(dataset.skipped)))
    table.add_row("fingerprint", dataset.fingerprint)
    console.print(table)


@app.command()
def shard(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="To be made.")],
    words: Words = None,
    megabytes: Annotated[float, typer.Option(min=0.001, help="At which a shard is full.")] = 250.0,
) -> None:
    """Writes the images of any source as tar files in webdataset's format, mixed; the source `shards` reads them."""
    from stec.data.sharding import write_shards

    _, config = recipe_and_config(words or [])
    with counting("images") as counter:
        written = write_shards(config.data, out, megabytes, counter)
    images = ", ".join(f"{number:,} images to {split}" for split, number in written.images.items())
    skipped = f", {written.skipped} unreadable left out" if written.skipped else ""
    say(f"{out}: {images}{skipped}, in {written.shards} shard(s) of {written.size / 1e6:,.1f} MB together")
    hint(f"stec pretrain folder data.source=shards data.root={out}")
