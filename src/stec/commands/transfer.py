"""Commands that train an encoder further, for another use."""

from __future__ import annotations

import typer

from stec.commands.transfer_classification import classification

app = typer.Typer(no_args_is_help=True, help="Trains an encoder further for another use, and scores it.")

app.command()(classification)
