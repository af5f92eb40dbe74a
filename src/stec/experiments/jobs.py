"""From an experiment to the runs that are missing, and how one of them is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from stec.compiling import forget_earlier_runs
from stec.config import Config, load
from stec.data import SOURCES
from stec.errors import UserError, nearest
from stec.experiments.book import Book, Run, read_run
from stec.experiments.cost import TRAINING_IMAGES
from stec.experiments.experiment import Cell, Experiment
from stec.experiments.settings import NEUTRAL, differences, hash_of, settings_of
from stec.limits import STORED
from stec.locking import locked
from stec.reporter import Reporter
from stec.run import CHECKPOINT, PREVIOUS, SUMMARY, RunFolder
from stec.training import pretrain
from stec.transfer.config import TransferConfig, load_transfer
from stec.transfer.running import transfer

VOC = "voc"  # the source of scenes for transfers that needs files
_NOT_GIVEN = {"seed", "data.source", "devices"}  # keys that an experiment sets itself


class Place(NamedTuple):
    """Where a set of images lies."""

    source: str
    root: str


@dataclass(frozen=True)
class Job:
    """One run to be made. It can be sent to another process."""

    hash: str
    data: str
    recipe: str
    config: Config | TransferConfig
    path: Path  # of the run folder, which its settings and seed name: an interrupted run is found there again

    @property
    def name(self) -> str:
        """For a person."""
        what = self.config.task if isinstance(self.config, TransferConfig) else self.config.method
        return f"{self.path.name} ({what}, {self.config.epochs} epochs of {self.data})"


def choose(experiment: Experiment, words: Sequence[str]) -> Experiment:
    """With only those cells that every word fits: as their row, column, recipe or data, or else as a part of one."""
    cells = experiment.cells
    for word in words:
        whole = [cell for cell in cells if word.lower() in _names(cell)]
        cells = tuple(whole or [cell for cell in cells if any(word.lower() in name for name in _names(cell))])
    if not cells:
        why = "no such row, recipe or data" if len(words) == 1 else "no row, recipe or data that fits every word"
        raise UserError(f"--only {' --only '.join(words)}: {why} in {experiment.name}")
    return replace(experiment, cells=cells)


def _names(cell: Cell) -> list[str]:
    return [name.lower() for name in (cell.column, cell.row, cell.recipe, cell.data)]


def missing(experiment: Experiment, book: Book, seeds: int) -> list[tuple[Cell, int]]:
    """Cells and seeds that the book does not have: every cell once, then every cell a second time, and so on."""
    found: dict[tuple[str, int], tuple[Cell, int]] = {}
    for seed in range(seeds):
        for cell in experiment.cells:
            key = cell.at(seed).hash, seed
            if key not in book.runs:
                found.setdefault(key, (cell.at(seed), seed))
    return list(found.values())


def make_job(cell: Cell, seed: int, words: Sequence[str], places: Mapping[str, Place], runs: Path) -> Job:
    """The run of a cell with one seed.

    Args:
        cell: what to run.
        seed: its seed.
        words: `key=value` that do not change the result.
        places: where images lie, by their name; the recipe's own place where there is none.
        runs: folder of all run folders.
    """
    _check_given(words)
    cell = cell.at(seed)
    place = places.get(cell.data)
    if place is None and (cell.data not in (*SOURCES, "utterances") or cell.data in STORED):
        kinds = f"{VOC}:PATH" if cell.data == VOC else "folder:PATH (or arrays:PATH)"
        raise UserError(f"say where {cell.data} lies: --data {cell.data}={kinds}")
    where = [f"data.source={place.source}", f"data.root={place.root}"] if place else []
    config = _config_of(cell, [*words, *where], seed)
    if config.data.source not in (*STORED, cell.data):
        where_else = f"--data {cell.data}=arrays:PATH (or folder:PATH) says where those lie"
        raise UserError(f"{cell.recipe} is trained on {config.data.source}, not on {cell.data}; {where_else}")
    if isinstance(config, TransferConfig):
        start = make_job(cell.start, cell.start_seed, words, places, runs) if cell.start else None
        config = replace(config, start=str(start.path) if start else cell.origin)
    return Job(cell.hash, cell.data, cell.recipe, config, path_of(cell, seed, runs))


def check_words(experiment: Experiment, words: Sequence[str]) -> None:
    """UserError if no cell could be run with these words, so that it is said before anything is done."""
    _check_given(words)
    problems = []
    for cell in experiment.cells:
        root = ["data.root=."] if isinstance(cell.config, TransferConfig) else []
        try:
            _config_of(cell, [*words, *root], 0)
        except UserError as error:
            problems.append(error)
        else:
            return
    raise problems[0]


def check_places(experiment: Experiment, places: Mapping[str, Place]) -> None:
    """UserError if a place is told for images that nobody knows; those of another experiment may be told, too."""
    known = {each.data for cell in experiment.cells for each in (cell, cell.start) if each is not None}
    for name, place in places.items():
        if name not in known | TRAINING_IMAGES.keys() | {*SOURCES, VOC, "librispeech"}:
            raise UserError(
                f"--data {name}={place.source}:{place.root}: {experiment.name} has no {name}: {nearest(name, known)}"
            )


def _check_given(words: Sequence[str]) -> None:
    for word in words:
        if word.startswith("data.source="):
            raise UserError(f"{word}: which images would these be? Use --data NAME=SOURCE:PATH, with their name")
        if word.startswith("seed="):
            raise UserError(f"{word}: an experiment counts seeds from 0; --seeds N makes that many runs of a cell")


def _config_of(cell: Cell, words: Sequence[str], seed: int) -> Config | TransferConfig:
    """A cell's, with words that may not change its results."""
    every = [*cell.words, *words, f"seed={seed}"]
    config: Config | TransferConfig
    if isinstance(cell.config, TransferConfig):
        config = replace(load_transfer(cell.recipe, every), encoder=cell.config.encoder)
    else:
        config = load(cell.recipe, every)
    settings = settings_of(config, cell.data, cell.origin)
    if hash_of(settings) != cell.hash:
        changed = differences(settings, settings_of(cell.config, cell.data, cell.origin))
        raise UserError(
            f"{' '.join(changed)}: would change the results, which an experiment fixes; 'stec pretrain' is free to "
            f"({', '.join(sorted(NEUTRAL - _NOT_GIVEN))} can be given)"
        )
    if config.devices > 1:
        raise UserError("devices: every run of an experiment takes one device; --engine local uses all GPUs at once")
    return config


def path_of(cell: Cell, seed: int, runs: Path) -> Path:
    """Of the run folder of a cell. Where a recipe of one's own lies says nothing about where runs do."""
    own = cell.recipe.endswith((".yaml", ".yml"))
    return runs / f"{Path(cell.recipe).name if own else cell.recipe}-{cell.hash}-seed{seed}"


def starts_of(cells: Iterable[Cell]) -> list[tuple[Cell, int]]:
    """What these cells start from, and with which seed, once each."""
    starts = {cell.origin: (cell.start, cell.start_seed) for cell in cells if cell.start is not None}
    return list(starts.values())


def has_run(cell: Cell, seed: int, runs: Path) -> bool:
    """Whether there is a finished run folder to start from: being in the book is not enough."""
    return (path_of(cell, seed, runs) / SUMMARY).is_file()


def parse_places(texts: Sequence[str]) -> dict[str, Place]:
    """Every name with its place, which is one."""
    places: dict[str, Place] = {}
    for name, place in map(parse_place, texts):
        if places.setdefault(name, place) != place:
            raise UserError(f"--data {name}= is given twice: in {places[name].root} and in {place.root}; choose one")
    return places


def parse_place(text: str) -> tuple[str, Place]:
    """`cifar10=arrays:data/cifar10` -> the name of the images, and where they are."""
    name, equals, rest = text.partition("=")
    source, colon, root = rest.partition(":")
    if not (name and equals and colon and root):
        raise UserError(f"--data {text}: expected NAME=SOURCE:PATH, such as imagenette=folder:/data/imagenette")
    if source not in (*SOURCES, VOC):
        raise UserError(f"--data {text}: {source}: {nearest(source, SOURCES)}")
    if source not in STORED and source != name:
        raise UserError(f"--data {text}: the source {source} holds {source}, not {name}")
    return name, Place(source, root)


def perform(job: Job, reporter: Reporter, wait: bool = False) -> None:
    """Trains, or continues where an earlier attempt was interrupted; nothing to do where it had come to its end.

    Another process that is at work on the run is a mistake, or with `wait` somebody to wait for.
    """
    job.path.parent.mkdir(parents=True, exist_ok=True)
    with locked(job.path.with_name(f".{job.path.name}.lock"), wait):
        if (job.path / SUMMARY).is_file():
            return
        interrupted = any((job.path / name).is_file() for name in (CHECKPOINT, PREVIOUS))
        folder = RunFolder.open(job.path) if interrupted else RunFolder.new(job.path, job.recipe, force=True)
        forget_earlier_runs()
        if isinstance(job.config, TransferConfig):
            transfer(job.config, folder, reporter, resume=interrupted)
        else:
            pretrain(job.config, folder, reporter, resume=interrupted)


def to_run(job: Job, book: Book) -> Run:
    """The finished run as a line of the book, after a look at whether it is the one that was asked for."""
    run = read_run(job.path, book, job.data)
    if run.key != (job.hash, job.config.seed):
        raise UserError(f"{job.path} holds another run than its name says; remove it")
    return run
