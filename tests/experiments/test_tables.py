"""Published beside measured: the numbers, the text, the page, the pictures, the cost."""

import io
import json
import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy import stats
from synthetic import fill, made_up

from stec.errors import UserError
from stec.experiments import figures
from stec.experiments.book import Book
from stec.experiments.cost import cost_of, measured_speeds
from stec.experiments.display import show_measured, show_plan
from stec.experiments.experiment import experiment_names, load_experiment
from stec.experiments.figures import SMOOTH, draw, mean_curve
from stec.experiments.jobs import choose, missing
from stec.experiments.measured import measure
from stec.experiments.pages import write_page
from stec.experiments.settings import hash_of, settings_of
from stec.experiments.tables import markdown_of, table_of

RESULTS = Path(__file__).parents[2] / "results"
SIMCLR, STEC = [91.2, 91.6, 91.5, 91.3, 91.4], [92.1, 91.9, 92.3]


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path / "runs.jsonl")


@pytest.fixture(scope="module")
def table1():
    return choose(load_experiment("table1"), ["cifar10-resnet18"])


def cell_of(experiment, row):
    return next(cell for cell in experiment.cells if cell.row == row)


def test_the_committed_page_is_what_the_book_gives(tmp_path):
    """`stec results write` was run after the last change of the book."""
    page = tmp_path / "README.md"
    page.write_text((RESULTS / "README.md").read_text())
    shutil.copytree(RESULTS / "figures", tmp_path / "figures")
    assert write_page(page, Book(RESULTS / "runs.jsonl")) is False
    assert len(re.findall("<!-- experiment: ", page.read_text())) >= 3
    assert len(re.findall("<!-- figure: ", page.read_text())) >= 3


def test_the_committed_readme_is_what_the_book_gives(tmp_path):
    """`stec results write README.md` was, too."""
    page = tmp_path / "README.md"
    page.write_text((RESULTS.parent / "README.md").read_text())
    assert write_page(page, Book(RESULTS / "runs.jsonl")) is False
    assert "<!-- experiment: " in page.read_text()


def test_only_what_is_between_markers_is_written(tmp_path, book):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- experiment: shapes-stec -->\nold\n<!-- end -->\nafter\n")
    assert write_page(page, book) is True
    text = page.read_text()
    assert text.startswith("before\n<!-- experiment: shapes-stec -->\nS-TEC against")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    with pytest.raises(UserError, match="no such file"):
        write_page(tmp_path / "none.md", book)


@pytest.mark.parametrize("behind", ["", "<!-- figure: figure-s1 -->\nold\n<!-- end -->\n"])
def test_a_table_without_an_end_takes_no_text_with_it(tmp_path, book, behind):
    page = tmp_path / "page.md"
    page.write_text(text := f"<!-- experiment: shapes-stec -->\nold\nmine\n{behind}after\n")
    with pytest.raises(UserError, match=r"page.md: there is no <!-- end --> behind <!-- experiment: shapes-stec -->"):
        write_page(page, book)
    assert page.read_text() == text
    page.write_bytes(b"\xff<!-- experiment: shapes-stec -->\n<!-- end -->\n")
    with pytest.raises(UserError, match="not a text file"):
        write_page(page, book)


def test_a_figure_of_a_page_is_drawn_when_its_numbers_change_and_only_then(tmp_path, book):
    page, picture = tmp_path / "page.md", tmp_path / "figures/figure-s1.png"
    page.write_text("before\n<!-- figure: figure-s1 -->\n<!-- end -->\nafter\n")
    assert write_page(page, book) is True  # an empty line
    assert write_page(page, book) is False
    assert not picture.exists()
    simclr = cell_of(load_experiment("figure-s1"), "SimCLR")
    fill(book, simclr, SIMCLR[:2])
    assert write_page(page, book) is True
    assert "<!-- figure: figure-s1 -->\n\n![Figure S1: " in page.read_text()
    assert page.read_text().endswith("](figures/figure-s1.png)\n\n<!-- end -->\nafter\n")
    before = picture.read_bytes()
    assert write_page(page, book) is False
    for damage in (lambda: picture.unlink(), lambda: picture.write_bytes(b"no picture")):
        damage()
        assert write_page(page, book) is True
        assert picture.read_bytes() == before
    fill(book, simclr, SIMCLR)
    assert write_page(page, book) is True
    assert picture.read_bytes() != before
    assert [path.name for path in picture.parent.iterdir()] == ["figure-s1.png"]


def test_measured_numbers_are_those_of_scipy(book, table1):
    fill(book, cell_of(table1, "SimCLR"), SIMCLR)
    fill(book, cell_of(table1, "S-TEC"), STEC)
    (group,) = measure(table1, book).groups
    table = table_of(group)
    assert table.header[:6] == ["", "published", "online linear", "std", "95 %", "n"]
    rows = {row[0]: row[1:6] for row in table.rows}

    def expected(values):
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        return [f"{np.std(values, ddof=1):.2f}", f"± {(high - low) / 2:.2f}", str(len(values))]

    assert rows["SimCLR"] == ["91.5 ± 0.1", "91.40", *expected(SIMCLR)]
    assert rows["S-TEC"] == ["92.0 ± 0.2", "92.10", *expected(STEC)]
    assert rows["ReLIC"] == ["91.5 ± 0.2", "-", "-", "-", "0"]
    differences = np.array(STEC) - np.array(SIMCLR[:3])
    assert rows["S-TEC - SimCLR"] == ["+0.5", f"{differences.mean():+.2f}", *expected(differences)]
    assert rows["S-TEC* - ReLIC"] == ["+1.1", "-", "-", "-", "0"]


def test_a_run_without_the_metric_is_not_counted(book, tmp_path):
    """As an older run is, from before there was such a metric."""
    points = choose(load_experiment("figure-s1"), ["cifar10-resnet18"])
    simclr, stec = points.cells
    fill(book, simclr, SIMCLR[:2])
    book.add(made_up(simclr, 2, knn=80.0))
    book.add(made_up(stec, 0, knn=80.0))
    (group,) = measure(points, book).groups
    assert [row[-1] for row in table_of(group).rows] == ["2", "0", "0"]
    assert draw(measure(points, book), tmp_path)


def test_a_number_of_fewer_runs_than_the_row_has_says_so(book, table1):
    simclr, stec = (cell_of(table1, row) for row in ("SimCLR", "S-TEC"))
    for seed, online in enumerate(SIMCLR):
        book.add(made_up(simclr, seed, linear_online=online, **({"knn": 90.0 + seed} if seed < 2 else {})))
    book.add(made_up(stec, 0, linear_online=92.0, knn=87.0))
    book.add(made_up(stec, 1, linear_online=92.1))
    rows = {row[0]: row[-2:] for row in table_of(measure(table1, book).groups[0]).rows}
    assert rows["SimCLR"] == ["-", "90.5 ± 6.4 (n = 2)"]
    assert rows["S-TEC"] == ["-", "87.00 (n = 1)"]
    assert rows["S-TEC - SimCLR"] == ["-", "-3.00 (n = 1)"]


def test_runs_on_different_data_are_named(book, table1):
    """As under one name on two machines: a difference between rows may be one between the images."""
    simclr, star = (cell_of(table1, row) for row in ("SimCLR", "S-TEC*"))
    fill(book, simclr, SIMCLR[:2])
    assert "same data" not in markdown_of(measure(table1, book))
    book.add(made_up(star, 0, linear_online=92.0, data_fingerprint="g"))
    told = "The runs of CIFAR-10, ResNet-18 are not all on the same data, from which differences may come "
    assert f"- {told}(SimCLR: f; S-TEC\\*: g)." in markdown_of(measure(table1, book))
    console = Console(file=io.StringIO(), width=80)
    show_measured(console, measure(table1, book))
    assert f"{told}(SimCLR: f; S-TEC*: g)." in " ".join(console.file.getvalue().split())


def test_a_single_run_has_no_interval(book, table1):
    fill(book, cell_of(table1, "S-TEC"), [91.82])
    (group,) = measure(table1, book).groups
    table = table_of(group)
    assert "std" not in table.header
    assert "95 %" not in table.header
    assert table.rows[4][:4] == ["S-TEC", "92.0 ± 0.2", "91.82", "1"]


def test_the_best_row_of_a_group_carries_what_was_published(book):
    ablation = load_experiment("figure3a")
    for cell in ablation.cells:
        fill(book, cell, [60 + cell.config.lambda_manip, 60.5 + cell.config.lambda_manip])
    for group in measure(ablation, book).groups:
        assert group.best.row == "best: lambda 2.0"
        published = {"Egocentric, classification": 66.6, "Allocentric, regression": 66.1}.get(group.column)
        assert (group.best.published["linear_online"].mean if group.best.published else None) == published
        assert group.best.measured["linear_online"].mean == 62.25


def test_json_holds_every_run(book, table1):
    fill(book, cell_of(table1, "SimCLR"), SIMCLR)
    content = json.loads(json.dumps(measure(table1, book).to_json()))
    (row,) = (row for row in content["groups"][0]["rows"] if row["row"] == "SimCLR")
    assert [run["linear_online"] for run in row["runs"]] == SIMCLR
    assert row["published"]["linear_online"] == {"mean": 91.5, "std": 0.1}
    assert row["measured"]["linear_online"]["n"] == 5


def test_markdown_has_no_emphasis_by_accident(book, table1):
    fill(book, cell_of(table1, "S-TEC*"), [92.0])
    assert "| S-TEC\\* |" in markdown_of(measure(table1, book))


@pytest.mark.parametrize("name", experiment_names())
def test_everything_fits_into_80_columns(name, book, tmp_path):
    experiment = load_experiment(name)
    for cell in experiment.cells:
        for seed in range(min(2, experiment.seeds)):
            metrics = dict.fromkeys(cell.metrics, 90.123 + seed) | {"peak_memory_bytes": 5e9}
            book.runs |= {(cell.hash, seed): made_up(cell, seed, rate=84_237, **metrics)}
    console = Console(width=80, file=io.StringIO())
    show_measured(console, measure(experiment, book))
    show_plan(console, experiment, book, missing(experiment, book, 9), 9, tmp_path)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for cell in experiment.cells:
        assert max(cell.row.split(), key=len) in text, "no word is broken"
    assert "…" not in text


def test_what_does_not_fit_is_not_cut_off(book, table1):
    fill(book, cell_of(table1, "SimCLR"), [91.25, 91.75, 91.25])
    for width in (30, 60, 200):
        console = Console(width=width, file=io.StringIO())
        show_measured(console, measure(table1, book))
        assert re.search(r"SimCLR +91.5 ± 0.1 +91.42 +0.29 +± 0.72 +3 ", console.file.getvalue())


def test_what_has_not_been_run_is_one_line(book):
    experiment = load_experiment("table1")
    fill(book, cell_of(choose(experiment, ["cifar10-resnet18"]), "SimCLR"), [91.25])
    console = Console(width=300, file=io.StringIO())
    show_measured(console, measure(experiment, book))
    lines = console.file.getvalue().splitlines()
    assert "CIFAR-10, ResNet-18" in lines
    assert not any(line.startswith("CIFAR-100") for line in lines)
    (absent,) = (line for line in lines if "CIFAR-100, ResNet-18" in line)
    assert absent.startswith("Not run yet: ")
    assert "STL-10, ResNet-50" in absent


def test_an_interval_of_runs_that_are_all_alike_is_nothing(book, table1):
    for seed in range(3):
        book.add(made_up(cell_of(table1, "SimCLR"), seed, linear_online=90.0 + seed, knn=99.16))
    assert "| 99.16 ± 0 |" in markdown_of(measure(table1, book))


def plan_of(experiment, book):
    console = Console(width=80, file=io.StringIO())
    show_plan(console, experiment, book, missing(experiment, book, 1), 1, book.path.parent / "runs")
    return console.file.getvalue()


def test_costs_come_from_runs_of_the_same_kind(book, table1):
    simclr, stec, byol = (cell_of(table1, row) for row in ("SimCLR", "S-TEC", "BYOL"))
    assert cost_of(stec, measured_speeds(book)) is None
    for seed, rate in enumerate((80_000, 100_000, 90_000)):
        book.add(made_up(stec, seed, "NVIDIA H200", rate))
    book.add(made_up(stec, 3, "x86_64 CPU, 2 threads", 100))
    speeds = measured_speeds(book)
    views = 2 * 1000 * 48 * 1024  # 48 whole batches of 1024 in 50,000 images
    assert cost_of(simclr, speeds) == (pytest.approx(views / 100_000 / 60), "NVIDIA H200", True), "the fastest"
    other = choose(load_experiment("table1"), ["cifar10-resnet50", "S-TEC"]).cells[0]
    assert cost_of(other, speeds) is None, "another encoder"
    assert cost_of(byol, speeds).exact is False, "its target network sees every view too"
    book.add(made_up(byol, 0, "NVIDIA H200", 60_000))
    assert cost_of(byol, measured_speeds(book)) == (pytest.approx(views / 60_000 / 60), "NVIDIA H200", True)


def test_costs_of_a_like_run_are_reckoned_by_its_work(book, table1):
    book.add(made_up(cell_of(table1, "SimCLR"), 0, "NVIDIA H200", 90_000))
    speeds, views = measured_speeds(book), 2 * 200 * 48 * 1024
    methods = {cell.row: cell for cell in load_experiment("methods").cells}

    def passes(row):
        return cost_of(methods[row], speeds).minutes * 60 * 90_000 / views * 2 * 3  # for every image

    assert passes("stec") == pytest.approx(2 * 3)
    assert passes("stec*") == pytest.approx(2 * 3 + 2), "the target's two, forward only"
    assert passes("stec + turn") == pytest.approx(3 * 3), "four turned views, each a quarter of a view"
    many = choose(load_experiment("search"), ["sgd", "stec + turn, 2 small views"]).cells[0]
    assert cost_of(many, speeds).minutes * 60 * 90_000 / (2 * many.config.epochs * 97 * 512) * 6 == pytest.approx(
        3 * 3.5
    )
    text = plan_of(load_experiment("search"), book)
    assert "~" in text
    assert "unknown" not in text


def changed(cell, **settings):
    config = replace(cell.config, **settings)
    return replace(cell, config=config, hash=hash_of(settings_of(config, cell.data)))


def test_what_is_like_a_run_has_its_precision_and_as_much_work(book, table1):
    simclr, byol = (cell_of(table1, row) for row in ("SimCLR", "BYOL"))
    book.add(made_up(simclr, 0, "NVIDIA H200", 90_000))
    book.add(made_up(changed(byol, batch_size=512), 0, "NVIDIA H200", 30_000))
    speeds = measured_speeds(book)
    minutes = 2 * 1000 * 97 * 512 / 90_000 / 60
    assert cost_of(changed(simclr, batch_size=512), speeds) == (pytest.approx(minutes), "NVIDIA H200", False)
    assert cost_of(changed(simclr, precision="32"), speeds) is None
    few = changed(simclr, data=replace(simclr.config.data, limit=3000))
    assert cost_of(few, speeds).minutes == pytest.approx(2 * 1000 * 2 * 1024 / 90_000 / 60)


def test_costs_also_come_from_benchmarks(book, table1):
    (book.path.parent / "speed").mkdir()
    bench = {"method": "simclr", "encoder": "resnet18-cifar", "size": 32, "device": "NVIDIA H200"}
    rows = [{"batch_size": 1024, "end_to_end": 100_000}, {"batch_size": 256, "end_to_end": 50_000}]
    (book.path.parent / "speed" / "bench.json").write_text(json.dumps(bench | {"rows": rows}))
    others = ('{"views_per_second": {"ours": 3}}', '{"rows": [{"end_to_end": 3}]}', '{"rows": {"a": 3}}', '{"rows": [')
    for number, text in enumerate(others):
        (book.path.parent / "speed" / f"other-{number}.json").write_text(text)
    cost = cost_of(cell_of(table1, "S-TEC"), measured_speeds(book))
    assert cost == (pytest.approx(98_304_000 / 100_000 / 60), "NVIDIA H200", True)


@pytest.mark.parametrize("name", ["figure-s1", "figure3a", "figure3b", "curves", "shapes-demo", "table1"])
def test_figures_are_drawn_where_runs_exist(name, book, tmp_path):
    experiment = load_experiment(name)
    assert draw(measure(experiment, book), tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()
    for cell in experiment.cells[:6]:
        for seed in range(3):
            book.runs |= {(cell.hash, seed): made_up(cell, seed, linear_online=90 + seed, linear=91 + seed)}
    files = draw(measure(experiment, book), tmp_path / "figures")
    if name == "table1":
        assert files == []
        return
    assert files
    assert sorted(files) == sorted((tmp_path / "figures").iterdir())
    for file in files:
        if file.suffix == ".png":
            pixels = np.asarray(Image.open(file).convert("L"))
            assert pixels.std() > 5, "not empty"
            assert (pixels[:, [0, -1]] == 255).all(), "no words are cut off"
        else:
            ElementTree.parse(file)
    before = {file: file.read_bytes() for file in files}
    draw(measure(experiment, book), tmp_path / "figures")
    assert {file: file.read_bytes() for file in files} == before, "the same runs, the same files"


def test_names_of_many_rows_stand_beside_each_other(book):
    experiment = load_experiment("cifar10-few")
    for cell in experiment.cells:
        book.runs |= {(cell.hash, seed): made_up(cell, seed, linear=50 + seed) for seed in range(2)}
    measured = measure(experiment, book)
    figure = figures._points(measured, measured.groups)
    figure.canvas.draw()
    for panel in figure.axes:
        boxes = [name.get_window_extent() for name in panel.get_xticklabels()]
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


@pytest.mark.parametrize(("seeds", "beside"), [(1, 0.0), (2, figures.BESIDE)])
def test_a_sweep_joins_its_single_runs_or_the_means_beside_several(seeds, beside, book):
    """K, of which one value has been run alone, has no panel."""
    experiment = load_experiment("figure3b")
    swept = [cell for cell in experiment.cells if cell.column == "lambda"][:4]
    for cell in swept:
        book.runs |= {(cell.hash, seed): made_up(cell, seed, linear_online=60 + seed) for seed in range(seeds)}
    measured = measure(experiment, book)
    (panel,) = figures._sweep(measured, measured.groups).axes
    assert panel.lines[0].get_xdata().tolist() == [x + beside for x in range(len(swept))]


def test_learning_curves_of_more_rows_than_colours_are_all_drawn(tmp_path, book):
    path = tmp_path / "many.yaml"
    cells = "".join(f"  - {{row: row {i}, recipe: default, overrides: lambda_manip={i}}}\n" for i in range(1, 8))
    path.write_text(f"about: many\nfigure: curves\ncells:\n{cells}")
    experiment = load_experiment(str(path))
    for cell in experiment.cells:
        book.add(made_up(cell, 0, linear_online=90.0))
    (picture,) = draw(measure(experiment, book), tmp_path, ("svg",))
    assert all(f"<!-- row {i} (n = 1) -->" in picture.read_text() for i in range(1, 8))


def test_the_bold_curve_is_the_mean_of_the_runs(table1):
    runs = [made_up(cell_of(table1, "S-TEC"), seed) for seed in range(3)]
    epochs, mean = mean_curve(runs, "identity")
    assert epochs == runs[0].curve["epoch"]
    plain = np.mean([run.curve["identity"] for run in runs], axis=0)
    half = SMOOTH // 2
    reach = [min(half, i, len(plain) - 1 - i) for i in range(len(plain))]
    slow = [plain[i - r : i + r + 1].mean() for i, r in enumerate(reach)]
    assert mean == pytest.approx(slow)
    assert (mean[0], mean[-1]) == pytest.approx((plain[0], plain[-1])), "where runs begin and end is not smoothed away"
