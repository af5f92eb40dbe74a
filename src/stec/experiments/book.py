"""The book of finished runs, `results/runs.jsonl`: one line each, with all that is needed to judge and repeat it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from stec.config import Config, load, recipe_names
from stec.errors import UserError
from stec.experiments.settings import Settings, differences, hash_of, settings_of
from stec.limits import STORED
from stec.locking import locked
from stec.run import FINE_TUNING, SUMMARY, RunFolder, encoder_digest, replacing
from stec.transfer.config import TransferConfig, load_run, load_transfer
from stec.transfer.config import recipe_names as transfer_recipes

POINTS = 100  # of a learning curve that are kept
CURVES = (
    "identity", "identity_accuracy", "utterance", "utterance_accuracy", "manipulation", "manipulation_accuracy",
    "turn", "turn_accuracy", "probe_accuracy",
)  # fmt: skip
NEEDED = ("commit", "device", "data_fingerprint")  # in every summary: what a number rests on


@dataclass(frozen=True)
class Run:
    """A finished run."""

    hash: str  # of the settings
    seed: int
    data: str  # name of the images, such as "cifar10"
    recipe: str
    overrides: list[str]  # what the settings change in the recipe
    settings: Settings  # all that decides the result, but the seed
    summary: dict[str, Any]  # summary.json, whole: accuracies, data fingerprint, hardware, commit, versions
    curve: dict[str, list[float]]  # at most POINTS values of each metric, and of `epoch`

    @property
    def key(self) -> tuple[str, int]:
        """What no two runs of a book share."""
        return self.hash, self.seed

    def metric(self, name: str) -> float | None:
        """A number of the summary or of the last line of metrics."""
        final = self.summary.get("final_metrics") or {}
        value = self.summary.get(name, final.get(name))
        try:
            return None if value is None else float(value)
        except (ValueError, TypeError):
            what = f"{self.recipe} seed {self.seed} ({self.hash})"
            raise UserError(f"{name}: {value} is no number, in the run {what} of the book") from None


_KINDS = {name: get_origin(kind) or kind for name, kind in get_type_hints(Run).items()}


class Book:
    """The lines of a file. Every change is on the disk before the call returns; several processes may write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[tuple[str, int], Run] = {}
        self._read()

    def _read(self) -> None:
        if self.path.is_dir():
            raise UserError(f"{self.path} is a folder: a book is a file, such as {self.path / 'runs.jsonl'}")
        self.runs |= {run.key: run for run in read_book(self.path)} if self.path.is_file() else {}

    def add(self, run: Run, replace: bool = False) -> bool:
        """Writes a run down. The same one again changes nothing (False); another in its place needs `replace`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.parent):
            self._read()
            old = self.runs.get(run.key)
            if old == run:
                return False
            if old is not None and not replace:
                raise UserError(
                    f"{self.path} has {run.recipe} seed {run.seed} with these settings already, from commit "
                    f"{old.summary.get('commit')}; --replace puts this one in its place"
                )
            self.runs[run.key] = run
            with replacing(self.path) as part:
                part.write_text("".join(json.dumps(asdict(run)) + "\n" for run in self.runs.values()))
        return True

    def name_of(self, fingerprint: str) -> str | None:
        """What images with this fingerprint were called before."""
        return next((r.data for r in self.runs.values() if r.summary.get("data_fingerprint") == fingerprint), None)


def read_book(path: Path) -> list[Run]:
    """The runs in a file, each once."""
    runs: dict[tuple[str, int], tuple[int, Run]] = {}
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            run = Run(**json.loads(line))
            _check(run)
            # Anew, as a hash counts from today's defaults: a line keeps its meaning when one of them changes.
            run = dataclasses.replace(run, hash=hash_of(run.settings))
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path}, line {number}: not a run ({error}); repair or delete it") from None
        first, other = runs.setdefault(run.key, (number, run))
        if run != other:  # as when two versions of a book were merged by their lines
            raise UserError(
                f"{path}, lines {first} and {number}: two runs of {run.recipe} seed {run.seed} with the same settings, "
                f"from commits {other.summary['commit']} and {run.summary['commit']}; delete one"
            )
    return [run for _, run in runs.values()]


def _check(run: Run) -> None:
    """ValueError if something else stands where a table, a cost or a figure will look."""
    for field in dataclasses.fields(Run):
        kind, value = _KINDS[field.name], getattr(run, field.name)
        if not isinstance(value, kind):
            raise ValueError(f"{field.name} should be {kind.__name__}")
    if not isinstance(run.summary.get("final_metrics") or {}, dict):
        raise ValueError("final_metrics should be dict")
    for key in NEEDED:
        if key not in run.summary:
            raise ValueError(f"its summary has no {key}")


def read_run(path: Path, book: Book, data: str | None = None) -> Run:
    """A run folder as a line of the book.

    Args:
        path: of the folder.
        book: which may know the images by their fingerprint.
        data: name of the images, where the folder's config does not say it (sources `arrays` and `folder`).
    """
    try:
        return _read_run(path, book, data)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: {SUMMARY} or the metrics are damaged ({type(error).__name__}: {error})") from None


def _read_run(path: Path, book: Book, data: str | None) -> Run:
    folder = RunFolder.open(path)
    if not (path / SUMMARY).is_file():
        raise UserError(f"{path} is not finished: it has no {SUMMARY}; {folder.command} continues it")
    if folder.recipe == FINE_TUNING:
        raise UserError(f"{path} was fine-tuned by 'stec transfer classification', which is in no experiment")
    config, summary = load_run(path), folder.summary() or {}
    source = config.data.source
    if data is None:
        data = book.name_of(summary["data_fingerprint"]) if source in STORED else source
    if data is None:
        raise UserError(
            f"{path}: trained on {source} files of no known name; say which images they are with --data NAME"
        )
    if source not in STORED and data != source:
        raise UserError(f"{path} was trained on {source}, not on {data}")
    recipe, start = folder.recipe, ""
    base: Config | TransferConfig | None
    if isinstance(config, TransferConfig):
        before, now = summary.get("start_encoder"), encoder_digest(Path(config.start))
        if before and now and before != now:
            raise UserError(f"{path} started from {config.start} as it was then: there is another encoder in it now")
        start = summary["start"] = start_of(config.start, book)
        base = load_transfer(recipe, ["data.root=."]) if recipe in transfer_recipes() else None
    else:
        base = load(recipe) if recipe in recipe_names() else None
    settings = settings_of(config, data, start)
    words = differences(settings, settings_of(base, data, start)) if base is not None else []
    metrics = folder.metrics()
    summary["data"] = data  # which images, not where they lay
    return Run(hash_of(settings), config.seed, data, recipe, words, settings, summary, thin(metrics))


def start_of(start: str, book: Book) -> str:
    """What a transfer starts from, wherever that lies: a run's hash and seed, or the word itself."""
    if not Path(start).is_dir():
        return start
    run = read_run(Path(start), book)
    return f"{run.hash}-seed{run.seed}"


def thin(metrics: list[dict[str, Any]]) -> dict[str, list[float]]:
    """At most POINTS lines of the metrics, evenly chosen, the last among them."""
    step = max(1, -(-len(metrics) // POINTS))
    chosen = metrics[::-step][::-1]
    names = [name for name in ("epoch", *CURVES) if metrics and name in metrics[-1]]
    return {name: [float(f"{line[name]:.4g}") for line in chosen] for name in names}
