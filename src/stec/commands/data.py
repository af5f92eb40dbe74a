"""Commands of data: what sources there are, what one holds, one written as shards, and the phones of speech."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from stec.commands.screen import console, counting, hint, make_table, say, show_list
from stec.commands.words import Words, recipe_and_config
from stec.config import Config
from stec.errors import UserError
from stec.limits import SOUND

_SHOWN = 10  # classes that are named


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
        from stec.audio.loading import SOURCES as SOUNDS
        from stec.data import SOURCES

        show_list(SOURCES)
        console.print("\nfor sound:")
        show_list(SOUNDS)
        hint("stec data folder data.root=PATH checks and describes your own images, audio/librispeech your own sound")


@app.command()
def describe(
    words: Words = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Sound: also write it as arrays, which are read anywhere.")
    ] = None,
) -> None:
    """Prepares the data of a recipe or of keys, and describes it. The word `describe` can be left out."""
    import torch

    from stec import data

    _, config = recipe_and_config(words or [])
    if config.method in SOUND:
        _describe_sounds(config, save)
        return
    if save is not None:
        raise UserError("--save writes sound; decoded images are kept with data.cache=FOLDER")
    dataset = data.load(config.data, torch.device("cpu"))
    table = make_table("", "")
    table.add_row("name", escape(dataset.name))
    table.add_row("to train", f"{len(dataset.train):,} images, {int((dataset.train.labels >= 0).sum()):,} labelled")
    table.add_row("to test", f"{len(dataset.test):,} images" if dataset.test is not None else "none")
    more = ", ..." if len(dataset.classes) > _SHOWN else ""
    classes = f"{len(dataset.classes)}: {', '.join(dataset.classes[:_SHOWN])}{more}" if dataset.classes else "none"
    table.add_row("classes", escape(classes))
    table.add_row("kept at", f"{dataset.size} x {dataset.size} px, {'in memory' if dataset.resident else 'streamed'}")
    later = "" if dataset.resident else " so far: streamed images are read in training"
    table.add_row("unreadable", f"{len(dataset.skipped)}{later}")
    table.add_row("fingerprint", dataset.fingerprint)
    console.print(table)


def _describe_sounds(config: Config, save: Path | None) -> None:
    from stec.audio.arrays import save_arrays
    from stec.audio.loading import open_sounds
    from stec.audio.sounds import split

    sounds = open_sounds(config)
    parts = split(sounds, config.audio.test_speakers)
    strangers = sorted({sounds.speakers[index] for index in parts.phones})
    table = make_table("", "")
    table.add_row("name", escape(sounds.name))
    table.add_row("utterances", f"{len(sounds):,}, {sounds.seconds / 3600:.2f} hours at 16 kHz")
    speakers = f"{len(set(sounds.speakers))}, of whom {len(strangers)} to test: {' '.join(strangers[:12])}"
    table.add_row("speakers", escape(speakers))
    classes = f"{len(sounds.classes)}: {' '.join(sounds.classes)}" if sounds.phones is not None else "no alignment"
    table.add_row("phones", escape(classes))
    table.add_row("to train", f"{len(parts.train):,} utterances")
    table.add_row("unreadable", str(len(sounds.skipped)))
    table.add_row("fingerprint", sounds.fingerprint())
    console.print(table)
    if save is not None:
        save_arrays(sounds, save)
        hint(f"written to {save}: data.source=arrays {shlex.quote(f'data.root={save}')}")


@app.command()
def shard(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="To be made.")],
    words: Words = None,
    megabytes: Annotated[float, typer.Option(min=0.001, help="At which a shard is full.")] = 250.0,
) -> None:
    """Writes the images of any source as tar files in webdataset's format, mixed; the source `shards` reads them."""
    from stec.data.sharding import write_shards

    _, config = recipe_and_config(words or [])
    if config.method in SOUND:
        raise UserError("shards hold images; sound is kept as arrays: stec data RECIPE --save FOLDER")
    with counting("images") as counter:
        written = write_shards(config.data, out, megabytes, counter)
    images = ", ".join(f"{number:,} images to {split}" for split, number in written.images.items())
    skipped = f", {written.skipped} unreadable left out" if written.skipped else ""
    say(f"{out}: {images}{skipped}, in {written.shards} shard(s) of {written.size / 1e6:,.1f} MB together")
    hint(shlex.join(["stec", "pretrain", "folder", "data.source=shards", f"data.root={out}"]), whole=True)


@app.command()
def align(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="To be made; compressed if it ends in .gz.")],
    words: Words = None,
    pronunciations: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of words that are missing, a line each: word PHONE PHONE ...")
    ] = None,
) -> None:
    """Finds the phones of English speech whose words are known, by pocketsphinx: a file for audio.alignment."""
    from stec.audio.aligning import write_alignment
    from stec.data.loading import worker_count

    _, config = recipe_and_config(words or [])
    if config.method not in SOUND or config.data.source != "folder" or config.data.root is None:
        raise UserError("sound files are aligned: stec data align audio/librispeech data.root=PATH -o FILE")
    root = Path(config.data.root).expanduser()
    with counting("recordings") as counter:
        written = write_alignment(root, out, worker_count(config.data), pronunciations, counter)
    say(f"{out}: {written.aligned:,} recordings, {written.phones} phones")
    if written.wordless:
        say(f"left out: {written.wordless:,} whose words are nowhere")
    if written.unknown:
        missing = sorted({word for each in written.unknown.values() for word in each})
        say(f"left out: {len(written.unknown):,} with words that have no pronunciation, {_few(missing)}")
    if written.failed:
        reasons = [f"{name} ({why})" for name, why in sorted(written.failed.items())]
        say(f"left out: {len(written.failed):,} that could not be aligned, {_few(reasons)}")
    words = [f"data.root={root}", f"audio.alignment={out}"]
    hint(shlex.join(["stec", "pretrain", "audio/librispeech", *words]), whole=True)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f", ... ({len(names):,})" if len(names) > 3 else "")
