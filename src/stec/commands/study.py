"""Commands that look at what runs have learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from stec.commands.screen import console, hint, show_list
from stec.commands.words import paths_and_words
from stec.limits import SOUND

app = typer.Typer()

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|data.KEY=VALUE", help="Run folders, and where their images are now, as data.root=PATH."
    ),
]
Images = Annotated[int, typer.Option(min=2, help="How many images to look at.")]
Seed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Which images, which views of them, and UMAP's own chance.")
]


@app.command()
def analyze(runs: Runs, images: Images = 1000, seed: Seed = 0) -> None:
    """Draws what runs have learnt: UMAP, class centroids, and what the manipulation model knows, in RUN/analysis."""
    from stec.analysis.analyze import analyze as look
    from stec.analysis.projection import has_umap
    from stec.method import METHODS
    from stec.run import RunFolder

    paths, words = paths_and_words(runs)
    sound = [RunFolder.open(path).config(words).method in SOUND for path in paths]  # all, before the first is worked on
    for path in (path for path, is_sound in zip(paths, sound, strict=True) if is_sound):
        _analyze_sound(path, images, seed, words)
    for path in (path for path, is_sound in zip(paths, sound, strict=True) if not is_sound):
        with console.status(escape(f"{path} ...")):
            found = look(path, images, seed, words)
        features, plane = found["centroids"]["features"], found["centroids"]["projection"]
        known = [part for part in found["components"] if part["informative"]]
        lines = {
            "views from originals": f"{features['mean_shift']:.2f} (the originals' spread is {features['scale']:.2f}); "
            f"in the {found['projection']} plane {plane['mean_shift']:.2f} ({plane['scale']:.2f})",
            "alignment": f"{found['alignment']:.3f}, uniformity {found['uniformity']:.2f}, "
            f"effective rank {found['effective_rank']:.1f}",
            "action": ", ".join(f"{c['name']} {c['accuracy']:.0f} % (guessing {c['chance']:.0f} %)" for c in known)
            or (
                "only the encoder's weights are left"
                if METHODS[found["method"]].manipulation
                else "no manipulation model"
            ),
        }
        console.print(f"[bold]{escape(str(path))}[/bold]: {escape(found['method'])}", highlight=False, soft_wrap=True)
        show_list(lines)
        if not has_umap():
            hint("the map shows two principal components; pip install 'stec[analysis]' gives UMAP")
        hint(f"figures and analysis.json are in {path / 'analysis'}")


def _analyze_sound(path: Path, frames: int, seed: int, words: list[str]) -> None:
    from stec.audio.figures import write_figures
    from stec.audio.study import study

    with console.status(escape(f"{path} ...")):
        found = study(path, frames, seed, words)
        write_figures(found, path / "analysis")
    steps = ", ".join(f"{loss:.2f}" for loss in found.steps)
    console.print(f"[bold]{escape(str(path))}[/bold]: {escape(found.config.method)}", highlight=False, soft_wrap=True)
    console.print(f"loss per prediction step: {steps}", highlight=False, soft_wrap=True)
    hint(f"figures are in {path / 'analysis'}")


@app.command()
def report(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; default: RUN/report.html, or beside several runs.")
    ] = None,
    images: Images = 400,
    seed: Seed = 0,
) -> None:
    """Writes one HTML page about runs: curves, tables, a map of their features, pairs of views, an action explorer."""
    from stec.report.page import write_report

    paths, words = paths_and_words(runs)
    with console.status("looking ..."):
        page, missing = write_report(paths, out, images, seed, words)
    for note in missing:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    size = f"{page.stat().st_size / 1e6:.1f} MB"
    console.print(f"{page}: {size}, opens in any browser", highlight=False, soft_wrap=True, markup=False)
