"""Commands that use a trained encoder: probe, embed, neighbors, export."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stec.commands.screen import console, counting, make_table, say

if TYPE_CHECKING:
    from stec.encoder import Encoder

app = typer.Typer()

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or an encoder's .safetensors file.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Any tree of images; labels are not needed.")]


@app.command()
def probe(
    run: Run,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="data.KEY=VALUE", help="Other images than the run's, or where they are now."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Neighbours that vote.")] = 200,
    sgd: Annotated[
        int, typer.Option(metavar="EPOCHS", min=0, help="Also the paper's protocol for STL-10; the paper: 2000.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="JSON file; default: RUN/probe.json, of other images RUN/probe-FINGERPRINT.json."
        ),
    ] = None,
) -> None:
    """Measures frozen features: linear classification and nearest neighbours, on the labelled test images."""
    from stec.loading import fingerprint_of
    from stec.probe import probe as measure
    from stec.run import RunFolder, make_room, replacing

    encoder = _open(run)
    own = run / "probe.json" if out is None and run.is_dir() else None
    out = out or own
    if out is not None:
        make_room(out)
    with counting("epoch") as counter:
        found = measure(encoder, run, words or [], k, sgd, counter)
    # Words may name other images, whose numbers are not to stand for the run, or its own in another place.
    if own is not None and words and found["data_fingerprint"] != fingerprint_of(RunFolder.open(run)):
        out = own.with_name(f"probe-{found['data_fingerprint']}.json")
    if out is not None:
        with replacing(out) as part:
            part.write_text(json.dumps(found, indent=2) + "\n")
    table = make_table("", "", "")
    chosen = f"weight decay {found['linear_penalty']:g}, chosen on training images"
    table.add_row("linear", f"{found['linear']:.1f} %", chosen, style="bold")
    table.add_row("nearest neighbours", f"{found['knn']:.1f} %", f"k = {found['knn_k']}, cosine, temperature 0.1")
    if sgd:
        table.add_row("linear, by SGD", f"{found['linear_sgd']:.1f} %", f"the paper's protocol, {sgd:,} epochs")
    console.print(table)
    images = f"{found['train_images']:,} images to train, {found['test_images']:,} to test"
    by_class = f"; by class in {out}" if out is not None else ""
    say(f"{found['data']}, {len(found['linear_by_class'])} classes, {images}{by_class}")


@app.command()
def embed(
    run: Run,
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", "-o", help="FILE.npz, or FILE.parquet (needs pyarrow).")],
) -> None:
    """Writes the features of all images in a folder, with their names. Interrupted, the same command continues."""
    from stec.embedding import embed as encode

    encoder = _open(run)
    with counting("images") as counter:
        found = encode(encoder, folder, out, counter)
    say(f"{out}: {len(found.names):,} images, {found.features.shape[1]} features each")


@app.command()
def neighbors(
    run: Run,
    folder: Folder,
    queries: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY", help="Image files, from the folder or not; default: some of the folder."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The sheet: a .png or .html file.")] = Path("neighbors.html"),
    k: Annotated[int, typer.Option("-k", min=1, max=100, help="Neighbours of each query.")] = 8,
) -> None:
    """Shows the images of a folder that are nearest to a query. Their features are kept in RUN/embeddings."""
    from stec.embedding import embed as encode
    from stec.neighbors import check_sheet, find_query, query_name, search, write_sheet

    encoder = _open(run)
    check_sheet(out)
    asked = [find_query(word, folder) for word in queries or []]
    # Kept for the next query: one file for every folder that was asked about.
    store = run / "embeddings" if run.is_dir() else run.with_suffix(".embeddings")
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    with counting("images") as counter:
        embeddings = encode(encoder, folder, store / f"{name}.npz", counter)
    answers = search(encoder, folder, embeddings, asked, k)
    write_sheet(answers, folder, out)
    for answer in answers:
        names = ", ".join(f"{name} {s:.3f}" for name, s in zip(answer.names[:3], answer.similarities[:3], strict=True))
        say(f"{query_name(answer, folder)}: {names}{', ...' if len(answer.names) > 3 else ''}")
    say(f"{out}: the nearest of {len(embeddings.names):,} images to each query")


@app.command()
def export(
    run: Run,
    to: Annotated[str, typer.Option(metavar="FORMAT", help="safetensors, torchvision, timm, huggingface or onnx.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file; for huggingface, the folder.")],
) -> None:
    """Writes the encoder for another library, and prints the code that opens it there."""
    from stec import load
    from stec.export import export as write

    encoder = load(run)
    code = write(encoder, to, out)
    size, name = encoder.description.size, encoder.description.encoder
    say(f"{out}: {name}, {encoder.dim} features of RGB images (B, 3, {size}, {size}) in [0, 1], not normalised\n")
    say(code)


def _open(run: Path) -> Encoder:
    """On the GPU, if there is one."""
    import torch

    from stec import load

    return load(run).to("cuda" if torch.cuda.is_available() else "cpu")
