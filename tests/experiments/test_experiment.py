"""The experiments that come with the package, and those that somebody writes."""

import re

import pytest

from stec.config import read_recipe
from stec.errors import UserError
from stec.experiments.experiment import Published, experiment_names, load_experiment, parse_published


@pytest.fixture(scope="module")
def experiments():
    return {name: load_experiment(name) for name in experiment_names()}


def test_no_two_rows_of_a_group_are_the_same_run(experiments):
    for experiment in experiments.values():
        for column in experiment.columns:
            hashes = [cell.hash for cell in experiment.cells if cell.column == column]
            assert len(set(hashes)) == len(hashes), (experiment.name, column)


def test_published_numbers_are_those_that_the_recipes_name(experiments):
    """The recipes' descriptions were written from the paper independently of the experiments."""
    compared = 0
    for name in ("table1", "table2", "table3", "figure-s1"):
        for cell in experiments[name].cells:
            named = re.search(r"published: ([\d.]+)(?: \+- ([\d.]+))?", str(read_recipe(cell.recipe)["about"]))
            if cell.published:
                (number,) = cell.published.values()
                assert number == Published(float(named[1]), float(named[2]) if named[2] else None), (name, cell.row)
                compared += 1
    assert compared == 30 + 8 + 6 + 12


def test_imagenette_is_named_as_such_and_claims_no_published_number(experiments):
    for experiment in experiments.values():
        for cell in experiment.cells:
            assert (cell.data == "imagenette") == ("Imagenette" in cell.column)
            assert not (cell.data == "imagenette" and cell.published)


def test_table_2_has_the_views_of_those_who_published(experiments):
    """200 epochs: Lee et al.'s own numbers; 1,000: trained by the paper, with "the same image augmentations"."""
    for cell in experiments["table2"].cells:
        lees = "SimSiam" in cell.row and "200" in cell.column
        views = cell.config.views
        expected = ((0.2, 1.0), (0.4, 0.1), 0.5, 0.0) if lees else ((0.08, 1.0), (0.8, 0.2), 0.5, 0.2)
        assert (views.area, views.jitter, views.blur, views.solarize) == expected, (cell.column, cell.row)


def test_experiments_share_runs(experiments):
    """What Table 1 has, Figure S1 and the learning curves need not train again."""
    table = {cell.hash for cell in experiments["table1"].cells}
    for name in ("figure-s1", "curves"):
        assert {cell.hash for cell in experiments[name].cells} <= table
    actions = {cell.hash for cell in experiments["actions"].cells}
    assert {cell.hash for cell in experiments["figure4"].cells} <= table | actions
    assert experiments["actions"].cells[1].hash in table, "egocentric is what the recipe says"


def test_figure_3a_crosses_actions_readouts_and_lambdas(experiments):
    cells = experiments["figure3a"].cells
    crossed = {(c.config.manipulation.action, c.config.manipulation.readout, c.config.lambda_manip) for c in cells}
    assert crossed == {
        (action, readout, weight)
        for action in ("egocentric", "allocentric")
        for readout in ("classification", "regression")
        for weight in (0.1, 0.2, 0.5, 1.0, 2.0)
    }
    assert all(cell.config.epochs == 1000 for cell in cells)
    assert all(cell.config.epochs == 200 for cell in experiments["figure3a-200"].cells)


def test_published_numbers_are_parsed():
    assert parse_published("91.5 +- 0.1") == (91.5, 0.1)
    assert parse_published(86.32) == (86.32, None)
    with pytest.raises(UserError, match="expected a number"):
        parse_published("about 90")


CELL = "{row: a, recipe: default}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cells: [", "not valid YAML"),
        ("- a", "mapping"),
        ("about: x", "needs cells"),
        (f"sedes: 3\ncells: [{CELL}]", "unknown key 'sedes': did you mean 'seeds'"),
        ("cells: [{row: a, recipee: default}]", "unknown key 'recipee'"),
        ("cells: [{row: a}]", "without 'recipe'"),
        ("cells: [a]", "should be a mapping"),
        ("cells: [{row: a, recipe: defualt}]", "did you mean 'default'"),
        ("cells: [{row: a, recipe: default, overrides: epoch=3}]", "unknown key 'epoch'"),
        (f"compare: [[a, b]]\ncells: [{CELL}]", "no row 'b'"),
        (f"cells: [{CELL}, {CELL}]", "two cells are called 'a'"),
        (f"columns: {{STL10: {{metric: knn}}}}\ncells: [{{column: STL-10, {CELL[1:]}]", "did you mean 'STL-10'"),
        (f"figure: pionts\ncells: [{CELL}]", "did you mean 'points'"),
        ("base: nothing\nseeds: 1", "unknown experiment 'nothing'"),
        (f"columns: {{x: {{matric: a}}}}\ncells: [{CELL}]", "unknown key 'matric'"),
        (f"columns: {{x: {{metrics: a}}}}\ncells: [{CELL}]", "metrics: a: should be a list"),
        (f"columns: {{x: {{metric: [a]}}}}\ncells: [{CELL}]", "metric: ['a']: should be text"),
        (f"columns: [x]\ncells: [{CELL}]", "mapping"),
        (f"seeds: many\ncells: [{CELL}]", "seeds"),
        (f"seeds: 0\ncells: [{CELL}]", "seeds: 0: should be at least 1"),
        (f"metrics: []\ncells: [{CELL}]", "metrics: []: should be a list of texts"),
        (f"metrics: [5]\ncells: [{CELL}]", "metrics: [5]: should be a list of texts"),
        (f"notes: [5]\ncells: [{CELL}]", "notes: [5]: should be a list of texts"),
        (f"about:\ncells: [{CELL}]", "about: None: should be text"),
        (f"overrides: [epochs=2, seed=1]\ncells: [{CELL}]", "overrides: ['epochs=2', 'seed=1']: should be text"),
        ("cells: [{row: yes, recipe: default}]", "row: True: should be text, in quotes where YAML takes it for"),
        ("cells: [{row: , recipe: default}]", "row: None: should be text"),
        ("cells: [{column: [x], row: a, recipe: default}]", "column: ['x']: should be text"),
        (f"compare: [a]\ncells: [{CELL}]", "compare: a: should be a list of two rows"),
        (f"compare: [[a]]\ncells: [{CELL}]", "compare: ['a']: should be a list of two rows"),
        (f"base: [a]\ncells: [{CELL}]", "base: ['a']: should be text"),
        ("base: mine.yaml", "mine.yaml: the experiment is based on itself"),
    ],
)
def test_a_mistake_in_an_experiment_is_named(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        load_experiment("mine.yaml")


def test_rows_and_columns_may_be_numbers(tmp_path):
    cells = "{column: 2, row: 0.1, recipe: default}, {column: 2, row: 1, recipe: default, overrides: method=simclr}"
    (tmp_path / "mine.yaml").write_text(f"columns: {{2: {{metric: knn}}}}\ncompare: [[0.1, 1]]\ncells: [{cells}]")
    experiment = load_experiment(str(tmp_path / "mine.yaml"))
    assert [(cell.column, cell.row, cell.metrics[0]) for cell in experiment.cells] == [
        ("2", "0.1", "knn"),
        ("2", "1", "knn"),
    ]
    assert experiment.compare == (("0.1", "1"),)


def test_an_experiment_that_is_no_text_is_one_line(tmp_path):
    (tmp_path / "mine.yaml").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not a text file"):
        load_experiment(str(tmp_path / "mine.yaml"))


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="did you mean 'table1'"):
        load_experiment("tabel1")
    with pytest.raises(UserError, match="no such file"):
        load_experiment("nowhere.yaml")
