"""The words that most commands take: a recipe, and keys to change in it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stec.config import Config, known_keys, load
from stec.errors import UserError

BUILT_IN = ("shapes", "utterances")  # sources

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE|KEY=VALUE",
        help="A recipe ('stec recipes' lists them), and keys to change in it, such as epochs=100.",
    ),
]


class TakesWords(TyperCommand):
    """A command whose settings are words: `--epochs 5`, as other programs have it, is answered with `epochs=...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = str(getattr(error, "option_name", ""))
            key = option.lstrip("-").replace("-", "_")
            if key in known_keys():
                raise UserError(f"no option {option}: settings are words without dashes, {key}=VALUE") from None
            raise


def recipe_and_config(words: list[str]) -> tuple[str, Config]:
    """The name of the recipe, and what it says with all changes."""
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        folder = next((name for name in names[1:] if Path(name).is_dir()), None)
        rest = "everything else is key=value, in quotes if it holds a space"
        if folder:
            rest = f"the images are {shlex.quote(f'data.root={folder}')}"
        raise UserError(f"more than one recipe: {', '.join(names)}; {rest}")
    shards = [word for word in words if word.startswith("data.root=") and word.endswith(".tar")]
    if len(shards) > 1:
        raise UserError(f"data.root is there {len(shards)} times: quote a pattern with braces, or the shell expands it")
    recipe = names[0] if names else "default"
    config = load(recipe, [word for word in words if "=" in word])
    require_files(config, words)
    return recipe, config


def paths_and_words(given: list[str]) -> tuple[list[Path], list[str]]:
    """Run folders, and words that say where their images or recordings are now."""
    words = [word for word in given if "=" in word and word.startswith(("data.", "audio.alignment="))]
    paths = [Path(word) for word in given if word not in words]
    if not paths:
        raise UserError(f"{words[0]}: whose? Name the run folder, too")
    return paths, words


def require_files(config: Any, words: list[str]) -> None:
    """UserError if words give files to a source that makes its own; a recipe's own root may be left over."""
    given = next((word for word in words if word.startswith("data.root=")), None)
    if given is not None and config.data.source in BUILT_IN:
        unread = f"{given}: data.source={config.data.source} reads no files"
        raise UserError(f"{unread}; 'stec recipes' and 'stec data' list what does")
