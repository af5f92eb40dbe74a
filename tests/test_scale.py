"""The page about scale quotes what its script prints."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def scale(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import scale

    yield scale
    sys.modules.pop("scale")


def test_the_page_quotes_the_tables(scale):
    page = (ROOT / "docs" / "scale.md").read_text().splitlines()
    lines = [line for line in scale.tables() if line]
    assert len(lines) > 20
    for line in lines:
        assert line in page, "python benchmarks/scale.py prints another table than docs/scale.md shows"


def test_exchange(scale):
    assert scale.all_gather(1, 1e9) == scale.all_reduce(1, 1e9) == 0
    assert scale.all_gather(8, 0) == pytest.approx(9e-6)
    assert scale.all_gather(8, 350e9) == pytest.approx(7 / 8, abs=1e-4), "each already has an eighth"
    assert scale.all_reduce(64, 1e9) == pytest.approx(2 * scale.all_gather(64, 1e9))


def test_the_loss_of_own_rows_costs_what_as_many_similarities_do(scale):
    whole, seconds = scale.loss_cost(65_536, 1)[0], scale.loss_cost(8192, 1)[0]
    assert whole == pytest.approx(0.947, abs=1e-3), "as measured"
    assert scale.loss_cost(65_536, 64)[0] == pytest.approx(seconds)
    assert scale.loss_cost(65_536, 1024)[1] < scale.loss_cost(65_536, 1)[1]


def test_readers_that_are_fast_enough_keep_gpus_busy(scale):
    def share(cores, spread=0.0):
        return scale.busy_share(4, cores, 0.01, spread, 4 * 100, 0.25)  # a batch of one GPU is a second of one core

    assert share(8) == pytest.approx(1)
    assert share(2) == pytest.approx(0.5, abs=0.06)
    assert share(1) == pytest.approx(0.25, abs=0.03)
    assert share(4, spread=0.3) < share(4) < 1.001


def test_work_is_what_others_count(scale):
    """4.09 billion multiplications and 25.6 million weights, less the classifier's 2.05: torchvision's ResNet-50."""
    counts = scale.work("resnet50", 224)
    assert counts["multiplications"] == pytest.approx(4.09e9, rel=0.005)
    assert counts["weights"] == 25_557_032 - 2_049_000
    assert counts["norms"] == 53
