"""Against scipy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stec.experiments.statistics import paired, spread, t_quantile

VALUES = st.floats(min_value=0, max_value=100)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 100, 999])
@pytest.mark.parametrize("p", [0.9, 0.975, 0.995])
def test_quantiles_are_those_of_scipy(p, freedom):
    assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-9)


@given(st.lists(VALUES, min_size=2, max_size=12))
def test_mean_std_and_interval_are_those_of_scipy(values):
    found = spread(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(stats.tmean(values), abs=1e-9)
    assert found.std == pytest.approx(stats.tstd(values), abs=1e-6)
    if found.std > 1e-6:  # scipy has no interval without a spread
        low, high = stats.t.interval(0.95, len(values) - 1, stats.tmean(values), stats.sem(values))
        assert found.interval == pytest.approx((high - low) / 2, rel=1e-6)


def test_a_single_run_has_no_interval():
    assert spread([91.82]) == (1, 91.82, None, None)


@given(st.dictionaries(st.integers(0, 8), VALUES, min_size=3), st.dictionaries(st.integers(0, 8), VALUES, min_size=3))
def test_a_paired_difference_is_over_the_seeds_that_both_have(first, second):
    shared = sorted(first.keys() & second.keys())
    found = paired(first, second)
    if not shared:
        assert found is None
        return
    assert found.n == len(shared)
    assert found.mean == pytest.approx(sum(first[s] - second[s] for s in shared) / len(shared), abs=1e-9)
    if found.std and found.std > 1e-6:
        test = stats.ttest_rel([first[s] for s in shared], [second[s] for s in shared])
        low, high = test.confidence_interval(0.95)
        assert found.interval == pytest.approx((high - low) / 2, rel=1e-6)
        assert math.isclose(found.mean, (low + high) / 2, abs_tol=1e-6)
