"""Cells that are transfers: they start from a run, which is made first where it is missing."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from synthetic import made_up

from stec.config import load
from stec.errors import UserError
from stec.experiments.book import Book, read_run
from stec.experiments.cost import cost_of_repetition
from stec.experiments.display import show_plan
from stec.experiments.engine import Here
from stec.experiments.experiment import load_experiment
from stec.experiments.jobs import make_job, missing, parse_place, path_of
from stec.experiments.measured import measure
from stec.experiments.running import run_missing
from stec.experiments.settings import hash_of
from stec.reporter import Nobody
from stec.run import RunFolder
from stec.training import pretrain
from stec.transfer.config import load_transfer
from stec.transfer.running import transfer

MINE = """
about: a transfer from a short pretraining, and from nothing
seeds: 2
metrics: [miou, pixel_accuracy]
overrides: epochs=1 data.train_images=16 data.test_images=8 data.size=32 segmentation.side=32 batch_size=8
compare: [[trained, random]]
cells:
  - row: trained
    recipe: shapes-segmentation
    start: {recipe: default, overrides: epochs=1 batch_size=32 data.train_images=32 data.test_images=20
      optimizer.warmup_epochs=0 baselines=false identity.hidden=16 manipulation.hidden=16}
  - {row: random, recipe: shapes-segmentation, start: none}
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.yaml").write_text(MINE)
    return load_experiment(str(tmp_path / "mine.yaml"))


def test_the_start_is_made_once_and_every_run_is_written_down(mine, tmp_path):
    book = Book(tmp_path / "runs.jsonl")
    todo = missing(mine, book, seeds=2)
    assert len(todo) == 4
    assert not run_missing(todo, book, ["device=cpu"], {}, tmp_path / "runs", Here(), Nobody())
    assert len(book.runs) == 5  # four transfers and the pretraining
    assert not missing(mine, book, seeds=2)
    (group,) = measure(mine, book).groups
    assert [line.n("miou") for line in group.lines] == [2, 2]
    assert group.differences[0].n("miou") == 2

    again = Book(tmp_path / "again.jsonl")  # `results add` finds out by itself what a transfer started from
    for path in sorted((tmp_path / "runs").iterdir()):
        if path.is_dir():
            again.add(read_run(path, again))
    assert again.runs.keys() == book.runs.keys()

    lost = Book(tmp_path / "lost.jsonl")  # the runs are there, only not written down: nothing is repeated
    before = {path: path.stat().st_mtime for path in (tmp_path / "runs").glob("*/summary.json")}
    run_missing(missing(mine, lost, seeds=2), lost, ["device=cpu"], {}, tmp_path / "runs", Here(), Nobody())
    assert lost.runs.keys() == book.runs.keys()
    assert {path: path.stat().st_mtime for path in before} == before


def test_every_seed_can_start_from_a_run_of_its_own(mine, tmp_path):
    text = MINE.replace("start: {recipe", "start: {seed: same, recipe")
    (tmp_path / "own.yaml").write_text(text)
    own, book, runs = load_experiment(str(tmp_path / "own.yaml")), Book(tmp_path / "runs.jsonl"), tmp_path / "runs"
    trained, shared = own.cells[0], mine.cells[0]
    assert trained.at(0).hash == shared.hash, "with seed 0 it is the same run"
    assert len({trained.at(seed).hash for seed in range(3)}) == 3
    assert {shared.at(seed).hash for seed in range(3)} == {shared.hash}

    todo = missing(own, book, seeds=2)
    console = Console(width=80, file=io.StringIO())
    show_plan(console, own, book, todo, 2, runs)
    assert "4 runs missing; 2 more to start from" in console.file.getvalue()
    assert not run_missing(todo, book, ["device=cpu"], {}, runs, Here(), Nobody())
    assert len(book.runs) == 6
    assert not missing(own, book, seeds=2)
    (group,) = measure(own, book).groups
    assert [[run.seed for run in line.runs] for line in group.lines] == [[0, 1], [0, 1]]
    first, second = (run.summary["start"] for run in group.lines[0].runs)
    assert first.removesuffix("-seed0") == second.removesuffix("-seed1") == trained.start.hash
    (others,) = measure(mine, book).groups
    assert [run.seed for run in others.lines[0].runs] == [0], "the second one starts elsewhere"

    again = Book(tmp_path / "again.jsonl")
    for path in sorted(path for path in runs.iterdir() if path.is_dir()):
        again.add(read_run(path, again))
    assert again.runs.keys() == book.runs.keys()

    (tmp_path / "own.yaml").write_text(MINE.replace("start: {recipe", "start: {seed: 3, recipe"))
    with pytest.raises(UserError, match="start: seed: 3: 'same', or left out"):
        load_experiment(str(tmp_path / "own.yaml"))


def test_a_start_that_was_made_anew_is_not_the_one_of_an_earlier_transfer(tmp_path, train):
    start, _ = train("start", "epochs=1")
    small = ["epochs=1", "data.train_images=16", "data.test_images=8", "data.size=32", "segmentation.side=32"]
    config = replace(load_transfer("shapes-segmentation", small), start=str(start.path), device="cpu")
    folder = RunFolder.new(tmp_path / "transfer", "shapes-segmentation")
    transfer(config, folder, Nobody())
    book = Book(tmp_path / "runs.jsonl")
    assert read_run(folder.path, book).settings["start"] == f"{read_run(start.path, book).hash}-seed0"
    pretrain(load(str(start.path / "config.yaml"), ["method=byol"]), start, Nobody())
    with pytest.raises(UserError, match="there is another encoder in it now"):
        read_run(folder.path, book)
    start.path.joinpath("encoder.safetensors").unlink()  # config, metrics and summary are enough
    assert read_run(folder.path, book)


def test_a_start_that_fails_stops_its_own_transfers_alone(mine, tmp_path):
    book, runs = Book(tmp_path / "runs.jsonl"), tmp_path / "runs"
    trained, random = mine.cells
    assert trained.start is not None
    blocked = path_of(trained.start, 0, runs)
    blocked.parent.mkdir()
    blocked.write_text("no folder")  # a run cannot be begun there
    failures = run_missing(missing(mine, book, seeds=2), book, ["device=cpu"], {}, runs, Here(), Nobody())
    assert failures.total() == 2, "two of four runs"
    assert all(reason.startswith("nothing to start from: ") for reason in failures)
    assert {hash_ for hash_, _ in book.runs} == {random.hash}


def test_the_plan_counts_a_start_whose_folder_is_not_there(mine, tmp_path):
    def plan(mine=mine):
        console = Console(width=80, file=io.StringIO())
        show_plan(console, mine, book, missing(mine, book, 2), 2, tmp_path / "runs")
        return console.file.getvalue()

    book = Book(tmp_path / "runs.jsonl")
    (trained, _) = mine.cells
    assert trained.start is not None
    both = plan(replace(mine, cells=(*mine.cells, trained.start)))
    assert "6 runs missing" in both
    assert "to start from" not in both, "it is one of the six"
    book.add(made_up(trained.start, 0))  # its numbers are known, its weights lie elsewhere
    assert "4 runs missing; 1 more to start from" in plan()
    folder = path_of(trained.start, 0, tmp_path / "runs")
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    assert "to start from" not in plan()


def test_a_transfer_costs_what_another_seed_of_it_took_or_another_of_its_recipe(mine, tmp_path):
    book = Book(tmp_path / "runs.jsonl")
    trained, random = mine.cells
    assert cost_of_repetition(random, book) is None
    for seed, (device, seconds) in enumerate((("NVIDIA H200", 60.0), ("NVIDIA H200", 90.0), ("x86_64 CPU", 9000.0))):
        book.add(made_up(random, seed, device, seconds=seconds))
    assert cost_of_repetition(random, book) == (1.0, "NVIDIA H200", True)
    assert cost_of_repetition(trained, book) == (1.0, "NVIDIA H200", False)
    book.add(made_up(trained, 0, "NVIDIA H200", seconds=30.0))
    assert cost_of_repetition(random, book) == (1.0, "NVIDIA H200", True), "as long as the same, not as others"
    del book.runs[trained.hash, 0]
    longer = replace(trained, config=replace(trained.config, epochs=2))
    assert cost_of_repetition(longer, book) is None
    console = Console(width=80, file=io.StringIO())
    show_plan(console, mine, book, missing(mine, book, 4), 4, tmp_path / "runs")
    assert "5 of them 5 minutes on NVIDIA H200" in console.file.getvalue()


def test_another_start_or_task_is_another_setting(mine):
    one, other = mine.cells
    assert one.start is not None
    assert one.start.config.method == "stec"
    assert one.hash != other.hash
    base = {"data": "shapes", "task": "segmentation", "start": "none", "epochs": 1}
    hashes = {hash_of(base | change) for change in ({}, {"start": "x-seed0"}, {"task": "detection"}, {"epochs": 2})}
    assert len(hashes) == 4


def test_table_4_is_whole():
    table = load_experiment("table4")
    published = {(cell.recipe, cell.row): cell.published for cell in table.cells if cell.published}
    assert published["voc-detection", "S-TEC*"]["ap50_11"].mean == 82.5
    assert published["voc-detection", "ReLIC"]["ap50_11"].mean == 82.3
    assert published["voc-segmentation", "S-TEC*"]["miou"].mean == 70.5
    assert published["voc-segmentation", "ReLIC"]["miou"].mean == 69.9
    assert table.seeds == 4
    assert len({cell.hash for cell in table.cells}) == len(table.cells)
    short = [cell for cell in table.cells if cell.recipe.endswith("short") and cell.start]
    assert {cell.config.encoder for cell in short} == {"resnet18"}
    with pytest.raises(UserError, match="say where voc lies: --data voc=voc:PATH"):
        make_job(table.cells[-1], 0, [], {}, None)
    name, place = parse_place("voc=voc:/data")
    assert (name, place.source, place.root) == ("voc", "voc", "/data")
