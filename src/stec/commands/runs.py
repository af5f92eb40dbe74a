"""Runs that a command begins, continues or replaces: the options for that, and the folder that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from stec.config import to_yaml
from stec.errors import UserError

if TYPE_CHECKING:
    from stec.config import Config
    from stec.run import RunFolder
    from stec.transfer.config import TransferConfig

    AnyConfig = TypeVar("AnyConfig", Config, TransferConfig)

Resume = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Continue the run in this folder; auto: the run of these words, if begun."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the run folder if it exists.")]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the resolved config and stop.")]

AUTO = Path("auto")
# Keys that can change when a run is resumed: what trains, and where the data lie.
ELSEWHERE = ("device", "devices", "strategy", "data.root", "data.test_root", "data.cache", "data.workers")


class Opened(NamedTuple):
    """A run folder, what is trained in it, and whether it goes on with what is there."""

    folder: RunFolder
    config: Any
    resumed: bool


def is_named(resume: Path | None) -> bool:
    """Whether --resume names a folder."""
    return resume not in (None, AUTO)


def check_options(words: Sequence[str], resume: Path | None, force: bool, out: Path | None) -> None:
    """Refuses what contradicts --resume."""
    if is_named(resume) and out is not None:
        raise UserError(f"--resume {resume} goes on in that folder: leave out --out")
    if is_named(resume) and any(word.partition("=")[0] not in ELSEWHERE for word in words):
        changing = f"{', '.join(ELSEWHERE[:-1])} and {ELSEWHERE[-1]}"
        raise UserError(f"--resume takes all from the run but for {changing}; leave out the other words")
    if resume is not None and force:
        raise UserError("--resume continues a run, --force replaces it: choose one of them")


def config_of(run: Path, like: AnyConfig, words: Sequence[str] = ()) -> AnyConfig:
    """What is trained in a run folder, with words laid over it; UserError if another command trains it."""
    from stec.run import FINE_TUNING, RunFolder
    from stec.transfer.config import load_run

    folder = RunFolder.open(run)
    config = load_run(run, words)
    tasks = [getattr(some, "task", None) for some in (config, like)]
    if type(config) is not type(like) or tasks[0] != tasks[1] or folder.recipe == FINE_TUNING:
        raise UserError(f"{run} is a run of another command: {folder.command} continues it")
    return config


def show_config(config: AnyConfig, words: Sequence[str], resume: Path | None) -> None:
    """Prints it, or that of the run that --resume names."""
    print(to_yaml(config_of(resume, config, words) if resume is not None and is_named(resume) else config), end="")


def open_run(
    path: Path, recipe: str, config: AnyConfig, words: Sequence[str], resume: Path | None, force: bool
) -> Opened:
    """The folder that the options mean.

    Args:
        path: of the folder, where --resume does not name another.
        recipe: of a new run.
        config: that recipe with all words.
        words: `key=value` that may change in a run that is resumed.
        resume: a folder, `AUTO`, or None.
        force: replace what is there.
    """
    from stec.run import CONFIG, RunFolder

    if resume is not None and is_named(resume):
        return Opened(RunFolder.open(resume), config_of(resume, config, words), True)
    if resume == AUTO and (path / CONFIG).is_file():
        _check_same(config, config_of(path, config), path)
        return Opened(RunFolder.open(path), config, True)
    return Opened(RunFolder.new(path, recipe, force), config, False)


def _check_same(config: AnyConfig, begun: AnyConfig, path: Path) -> None:
    """UserError if a config would not give what the run in a folder gives."""
    from stec.experiments.settings import differences

    words = differences(_settings(config), _settings(begun))
    if words:
        raise UserError(
            f"{path} was begun with other settings than {' '.join(words)}: name another --out, "
            "or replace it with --force instead of --resume auto"
        )


def _settings(config: Config | TransferConfig) -> dict[str, Any]:
    """All that decides the result."""
    from stec.experiments.settings import settings_of
    from stec.transfer.config import TransferConfig, knows_its_encoder

    source, seed = config.data.source, {"seed": config.seed}
    if not isinstance(config, TransferConfig):
        return settings_of(config, source) | seed
    if not knows_its_encoder(config.start):
        return settings_of(config, source, config.start) | seed
    settings = settings_of(config, source, str(Path(config.start).resolve())) | seed
    return {key: value for key, value in settings.items() if key != "encoder"}
