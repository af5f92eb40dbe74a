"""What psi is said to know, against slow counting and against models whose knowledge is known."""

import dataclasses

import pytest
import torch
from tiny_runs import Runner

from stec.actions import EfferenceCopy, egocentric
from stec.analysis.knowledge import SAMPLED, SIDE, bin_values, judge, read
from stec.analysis.sample import draw_sample
from stec.config import ManipulationConfig
from stec.loading import encode, open_data, open_run
from stec.manipulation import Manipulation
from stec.views import Views


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, _ = Runner(tmp_path_factory.mktemp("runs"))("stec", "views.solarize=0.2", "epochs=1")
    return open_run(folder.path, torch.device("cpu"))


@pytest.fixture(scope="module")
def sample(run):
    return draw_sample(run.views, open_data(run.folder), images=40, seed=0)


def reading(run, sample, psi=None):
    run = run if psi is None else dataclasses.replace(run, manipulation=psi)
    return read(run, sample, encode(run, sample.views.first), encode(run, sample.views.second))


def test_counts_and_errors_are_those_of_a_slow_loop(run, sample):
    found = reading(run, sample)
    copy = sample.views.copy
    kept = [i for i in range(40) if not (copy.first.solarized[i] or copy.second.solarized[i])]
    assert 0 < len(kept) < 40
    true = egocentric(copy).flatten(1)
    for c, component in enumerate(judge(found)):
        confusion = [[0] * 6 for _ in range(6)]
        errors = []
        for i in kept:
            confusion[found.codes[i, c]][found.guess_codes[i, c]] += 1
            errors.append(abs(found.guess[i, c].item() - true[i, c].item()))
        assert component.confusion == confusion
        assert component.pairs == len(kept)
        assert component.accuracy == pytest.approx(100 * sum(confusion[k][k] for k in range(6)) / len(kept))
        assert component.chance == pytest.approx(100 * max(map(sum, confusion)) / len(kept))
        assert component.error == pytest.approx(sum(errors) / len(kept), abs=1e-6)
        kept_values = true[kept, c]
        median = kept_values.sort().values[(len(kept) - 1) // 2]
        assert component.error_chance == pytest.approx((kept_values - median).abs().mean().item(), abs=1e-6)
        for group in component.by_value:  # a mirrored view is as wide as -1, another as 1, and none as 0
            assert (kept_values - group["median"]).abs().min() < 1e-6, "a point of the figure lies where pairs are"
        groups = [group["error"] for group in component.by_value]
        assert min(groups) - 1e-9 <= component.error <= max(groups) + 1e-9
        assert component.informative == (component.name in ("xx", "x", "yy", "y"))


class Oracle(Manipulation):
    """Knows what was done."""

    def predict(self, first, second):
        if not self.classifies:
            return self.action(self.copy)
        return torch.nn.functional.one_hot(self.bins(self.action(self.copy)), self.bins.k).float()


@pytest.mark.parametrize("action", ["egocentric", "paper", "official", "allocentric"])
@pytest.mark.parametrize("readout", ["classification", "regression"])
def test_an_oracle_is_always_right(run, sample, action, readout):
    config = ManipulationConfig(action=action, readout=readout, k=64, bins="quantile")
    oracle = Oracle(1, config, run.views)
    oracle.copy = sample.views.copy
    changed = dataclasses.replace(run, config=dataclasses.replace(run.config, manipulation=config))
    found = reading(changed, sample, oracle)
    for component in judge(found):
        assert component.accuracy == 100
        assert component.error == pytest.approx(component.error_bins or 0, abs=1e-6)
    # Fine bins place x' nearly where it is, a regression exactly there.
    distance = (found.placed - egocentric(sample.views.copy)).abs()
    assert distance.max() < 1e-4 if readout == "regression" else distance.mean() < 0.1


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ("xx", "x", "yy", "y")),
        ({"area": (0.25, 0.25), "aspect": (1.0, 1.0)}, ("xx", "x", "y")),
        ({"area": (0.25, 0.25), "aspect": (1.0, 1.0), "mirror": 0.0}, ("x", "y")),
    ],
)
def test_components_that_are_not_inferred_have_their_only_value_in_the_place(run, settings, names):
    views = Views(size=32, **settings)
    sample = draw_sample(views, open_data(run.folder), images=40, seed=0)
    psi = Oracle(1, ManipulationConfig(readout="regression", components="informative"), views)
    psi.copy = sample.views.copy
    found = reading(run, sample, psi)
    assert found.names == names
    torch.testing.assert_close(found.placed, egocentric(sample.views.copy), rtol=0, atol=1e-5)


def test_the_value_of_a_bin_is_the_mean_of_what_falls_into_it():
    views = Views(area=(0.35, 1.0))
    psi = Manipulation(1, ManipulationConfig(), views)
    values = bin_values(psi, views)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = torch.full((SAMPLED, 2), SIDE)
        actions = egocentric(EfferenceCopy(views.sample(sizes), views.sample(sizes))).flatten(1)
    edges = [[low + (high - low) * i / 6 for i in range(1, 6)] for low, high in [(-2, 2), (-0.5, 0.5)]]
    xx, x = actions[:, 0], actions[:, 2]
    inner = (xx >= edges[0][3]) & (xx < edges[0][4])
    assert values[0, 4].item() == pytest.approx(xx[inner].mean().item(), abs=1e-4)
    assert values[2, 5].item() == pytest.approx(x[x >= edges[1][4]].mean().item(), abs=1e-4)
    # yy is never negative: an empty bin stands for its middle, an empty outer one for its edge.
    assert values[4, 1].item() == pytest.approx(-1)
    assert values[4, 0].item() == pytest.approx(edges[0][0])


def test_without_psi_nothing_is_read(run, sample):
    assert read(dataclasses.replace(run, manipulation=None), sample, torch.zeros(40, 8), torch.zeros(40, 8)) is None
