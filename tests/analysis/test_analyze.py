"""`stec analyze` as a person meets it."""

import json
import os
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from PIL import Image
from tiny_runs import Runner

from stec import cli, data
from stec.analysis.analyze import analyze
from stec.analysis.sample import draw_sample
from stec.analysis.study import study
from stec.config import Config
from stec.data import DataSet, ResidentSplit
from stec.errors import UserError
from stec.evaluation import health
from stec.loading import LoadedRun
from stec.views import Views


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runner:
    return Runner(tmp_path_factory.mktemp("runs"))


@pytest.mark.slow
def test_figures_and_numbers_of_two_runs(runs, monkeypatch, capsys):
    """UMAP compiles itself for some twenty seconds, once for this file."""
    paths = [runs(method, f"method={method}", "epochs=1")[0].path for method in ("stec", "simclr")]
    monkeypatch.setattr("sys.argv", ["stec", "analyze", *map(str, paths), "--images", "30"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert "views from originals" in printed
    assert "no manipulation model" in printed
    for path, names in zip(paths, ({"map", "centroids", "actions"}, {"map", "centroids"}), strict=True):
        folder = path / "analysis"
        assert {file.name for file in folder.iterdir()} == {
            "analysis.json", *(f"{name}{suffix}" for name in names for suffix in (".png", ".svg"))
        }  # fmt: skip
        for name in names:
            with Image.open(folder / f"{name}.png") as picture:
                assert len(picture.getcolors(1 << 24)) > 20
    found = json.loads((paths[0] / "analysis/analysis.json").read_text())
    assert found["projection"] == "UMAP"
    assert [len(found["points"][key]) for key in ("original", "first", "second", "magnitude")] == [30, 30, 30, 60]
    first = {file.name: file.read_bytes() for file in (paths[0] / "analysis").iterdir()}
    analyze(paths[0], images=30)
    again = {file.name: file.read_bytes() for file in (paths[0] / "analysis").iterdir()}
    assert [name for name in first if first[name] != again[name]] == []


def test_a_missing_matplotlib_is_one_line(runs, monkeypatch):
    path = runs("few", "epochs=1")[0].path
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"stec\[analysis\]"):
        analyze(path, images=5)


def test_classes_may_have_any_name(runs, monkeypatch):
    path = runs("odd", "epochs=1")[0].path
    names = ("$x^$", "_hidden", "<b>", "a b", *"cdefgh")
    monkeypatch.setattr(data, "load", lambda *a, load=data.load: replace(load(*a), classes=names))
    monkeypatch.setitem(sys.modules, "umap", None)
    analyze(path, images=40)
    drawn = (path / "analysis/map.svg").read_text()
    assert "<!--  _hidden -->" in drawn, "in the legend"
    assert all(f"<!-- {name} -->" in drawn for name in ("a b", "c"))


def test_a_folder_may_have_any_name(runs, tmp_path, monkeypatch, recwarn):
    root = tmp_path / f"$x^$ 写 {os.fsdecode(bytes([0xE9]))}"
    for i in range(40):
        path = root / ("写", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (6 * i, 99, 99)).save(path)
    path = runs("named", "data.source=folder", f"data.root={root}", "epochs=1")[0].path
    monkeypatch.setitem(sys.modules, "umap", None)
    recwarn.clear()
    analyze(path, images=2)
    assert "$x^$ 写 ?" in (path / "analysis/map.svg").read_text(encoding="utf-8")
    assert [str(warning.message) for warning in recwarn if warning.category is UserWarning] == []


@pytest.fixture
def drawn(monkeypatch):
    """Figures that were saved, by the names of their files."""
    from matplotlib.figure import Figure

    figures: dict[str, Figure] = {}
    save = Figure.savefig

    def keep(figure, file, **words):
        figures[file.name] = figure
        save(figure, file, **words)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.mark.parametrize("number", [10, 20])
def test_long_names_of_classes_fit_into_the_figures(runs, monkeypatch, drawn, number):
    path = runs(f"long{number}", "epochs=1")[0].path
    names = tuple(f"class_{i}_{'averyverylongname' * 4}"[:60] for i in range(number))
    monkeypatch.setattr(data, "load", lambda *a, load=data.load: replace(load(*a), classes=names))
    monkeypatch.setitem(sys.modules, "umap", None)
    analyze(path, images=40)
    figure = drawn["map.png"]
    legend = figure.axes[1].get_legend().get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert legend.y0 >= 0
    left, right = drawn["centroids.png"].axes
    for one, other in ((left.title, right.title), (left.xaxis.label, right.xaxis.label)):
        assert one.get_window_extent().x1 < other.get_window_extent().x0


def test_many_bins_and_values_at_the_border_are_drawn_whole(runs, monkeypatch, drawn):
    path = runs("bins", "epochs=1", "manipulation.k=24", "manipulation.action=allocentric")[0].path
    monkeypatch.setitem(sys.modules, "umap", None)
    analyze(path, images=40)
    axes = drawn["actions.png"].axes
    for above in axes[:5]:
        words = [label.get_window_extent() for label in above.get_xticklabels()]
        assert all(one.x1 < other.x0 for one, other in pairwise(words))
    mirrored = axes[9]  # is 0 or 1
    low, high = mirrored.get_xlim()
    assert low < 0 < 1 < high


def test_without_umap_the_map_is_one_of_principal_components(runs, monkeypatch, capsys):
    """And all that needs no map is measured just the same."""
    path = runs("plain", "epochs=1")[0].path
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("sys.argv", ["stec", "analyze", str(path), "--images", "30"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert "pip install 'stec[analysis]' gives UMAP" in capsys.readouterr().out
    found = json.loads((path / "analysis/analysis.json").read_text())
    assert found["projection"] == "PCA"
    assert found["centroids"]["features"]["mean_shift"] > 0


def test_an_encoder_alone_is_not_taken_for_a_method_without_a_manipulation_model(runs, monkeypatch, capsys):
    path = runs("bare", "method=stec", "epochs=1")[0].path
    for checkpoint in path.glob("checkpoint*.pt"):
        checkpoint.unlink()
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("sys.argv", ["stec", "analyze", str(path), "--images", "20"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    printed = capsys.readouterr().out
    assert "only the encoder's weights are left" in printed
    assert "no manipulation model" not in printed


def test_a_run_to_which_all_images_are_the_same(runs, monkeypatch, capsys):
    path = runs("dead", "epochs=1")[0].path
    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("stec.analysis.study.encode", lambda run, images: torch.ones(len(images), 128))
    monkeypatch.setattr("sys.argv", ["stec", "analyze", str(path), "--images", "30"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert "0.00 (the originals' spread is 0.00); in the PCA plane 0.00 (0.00)" in capsys.readouterr().out


class Means(torch.nn.Module):
    """An encoder whose features a reader can compute: the mean colour."""

    def forward(self, images):
        return images.mean(dim=(2, 3))


def test_health_is_that_of_the_views():
    images = torch.randint(0, 256, (30, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = ResidentSplit(images, torch.full((30, 2), 20.0), torch.arange(30) % 3)
    views = Views(size=16)
    sample = draw_sample(views, DataSet("made", split, None, ("a", "b", "c"), 20, "", True, ()), 30, seed=0)
    run = LoadedRun(None, Config(), views, Means(), None, torch.device("cpu"))
    found = study(run, sample, seed=0, projection="PCA")
    first, second = sample.views.images.mean(dim=(2, 3)).chunk(2)
    wanted = health.measure(torch.cat([first, second]), first)
    assert found.alignment == pytest.approx(wanted.alignment, rel=1e-4)
    assert found.uniformity == pytest.approx(wanted.uniformity, rel=1e-4)
    assert found.effective_rank == pytest.approx(wanted.effective_rank, rel=1e-4)
    assert found.feature_std == pytest.approx(wanted.feature_std, rel=1e-4)
    shift = {
        name: (torch.cat([first[sample.labels == i], second[sample.labels == i]]).mean(dim=0)
               - sample.plain[sample.labels == i].mean(dim=(0, 2, 3))).norm().item()
        for i, name in enumerate("abc")
    }  # fmt: skip
    assert found.in_features.shift == pytest.approx(shift, rel=1e-4)
    assert found.reading is None


def test_a_sample_depends_on_the_seed_alone():
    images = torch.randint(0, 256, (50, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([[20.0, 40.0]]).repeat(50, 1)
    split = ResidentSplit(images, sizes, torch.arange(50) % 3)
    dataset = DataSet("made", split, None, ("a", "b", "c"), 20, "", True, ())
    views = Views(size=16)
    torch.manual_seed(1)
    one = draw_sample(views, dataset, 12, seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = draw_sample(views, dataset, 12, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.split == "train"
    assert torch.equal(one.views.images, two.views.images)
    assert torch.equal(one.images, images[one.index])
    assert not torch.equal(one.index, draw_sample(views, dataset, 12, seed=6).index)
    # The paper's magnitude: 1 minus the relative area of the crop.
    crops = [*one.views.copy.first.crop.tolist(), *one.views.copy.second.crop.tolist()]
    expected = [1 - height * width / (20 * 40) for _, _, height, width in crops]
    assert one.magnitude.tolist() == pytest.approx(expected, abs=1e-6)
