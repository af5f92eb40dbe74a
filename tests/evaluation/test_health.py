"""Signs of collapse: against slow versions, by hand, and in runs that collapse and that do not."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.utils.debug import std_of_l2_normalized
from tiny_runs import Silent
from torch import Tensor

from stec.evaluation.health import (
    PAIRS,
    alignment,
    describe_collapse,
    effective_rank,
    measure,
    relative_std,
    uniformity,
)

SIZES = {"rows": st.integers(2, 24), "dim": st.integers(1, 24), "seed": st.integers(0, 10_000)}


def random(rows: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=generator) * torch.rand(dim, generator=generator) + 0.3


@given(**SIZES)
@settings(max_examples=50, deadline=None)
def test_the_standard_deviation_is_lightlys_times_the_root_of_the_dimension(rows: int, dim: int, seed: int) -> None:
    features = random(rows, dim, seed)
    expected = std_of_l2_normalized(features) * math.sqrt(dim)
    torch.testing.assert_close(relative_std(features), expected, rtol=1e-6, atol=1e-7)


def test_the_standard_deviation_of_an_evenly_filled_sphere_is_1() -> None:
    torch.manual_seed(0)
    assert float(relative_std(torch.randn(4000, 64))) == pytest.approx(1, abs=0.02)
    assert float(relative_std(torch.ones(8, 64))) == pytest.approx(0, abs=1e-6)


@given(**SIZES)
@settings(max_examples=50, deadline=None)
def test_the_effective_rank_is_rankmes_by_singular_values(rows: int, dim: int, seed: int) -> None:
    features = random(rows, dim, seed)
    values = np.linalg.svd(features.double().numpy(), compute_uv=False)
    p = values / values.sum()
    expected = math.exp(-sum(q * math.log(q) for q in p if q > 0))
    assert float(effective_rank(features)) == pytest.approx(expected, rel=1e-5)


def test_the_effective_rank_by_hand() -> None:
    assert float(effective_rank(torch.eye(7))) == pytest.approx(7)
    assert float(effective_rank(torch.ones(9, 5))) == pytest.approx(1, abs=1e-5)
    assert float(effective_rank(torch.diag(torch.tensor([3.0, 1.0])))) == pytest.approx(4 / 3**0.75)
    assert float(effective_rank(torch.zeros(4, 3))) == 1


@given(**SIZES)
@settings(max_examples=30, deadline=None)
def test_alignment_and_uniformity_equal_their_loops(rows: int, dim: int, seed: int) -> None:
    """Wang and Isola 2020, section 4.1, one pair at a time in float64."""
    first, second = random(rows, dim, seed), random(rows, dim, seed + 1)
    x, y = ([row / row.norm() for row in z.double()] for z in (first, second))
    aligned = sum(float((a - b).square().sum()) for a, b in zip(x, y, strict=True)) / rows
    potentials = [math.exp(-2 * float((x[i] - x[j]).square().sum())) for i in range(rows) for j in range(i)]
    uniform = math.log(sum(potentials) / len(potentials))
    assert float(alignment(first, second)) == pytest.approx(aligned, abs=1e-5)
    assert float(uniformity(first)) == pytest.approx(uniform, abs=1e-5)


def test_alignment_and_uniformity_by_hand() -> None:
    square = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -5.0]])  # 4 sides of length sqrt(2), 2 diagonals
    assert float(uniformity(square)) == pytest.approx(math.log((4 * math.exp(-4) + 2 * math.exp(-8)) / 6))
    assert float(alignment(square, square.roll(1, 0))) == pytest.approx(2)
    assert float(alignment(square, 3 * square)) == pytest.approx(0, abs=1e-6)


def test_a_measurement_looks_at_the_first_views_of_at_most_so_many_pairs() -> None:
    torch.manual_seed(0)
    features, embeddings = torch.randn(2 * (PAIRS + 10), 6), torch.randn(2 * (PAIRS + 10), 4)
    features[PAIRS + 10 :] *= torch.arange(1, 7)  # second views have another spread
    health = measure(features, embeddings)
    first, second = features[:PAIRS], features[PAIRS + 10 : -10]
    assert health.effective_rank == pytest.approx(float(effective_rank(first)))
    assert health.feature_std == pytest.approx(float(relative_std(first)))
    assert health.alignment == pytest.approx(float(alignment(first, second)), rel=1e-5)
    assert health.uniformity == pytest.approx(float(uniformity(first)), rel=1e-5)
    assert health.embedding_rank == pytest.approx(float(effective_rank(embeddings[:PAIRS])))
    assert not health.collapsed
    few = measure(features, embeddings[[0, 1, -2, -1]])
    assert few.embedding_rank == pytest.approx(float(effective_rank(embeddings[:2]))), "first views alone"


def test_features_of_half_precision_are_measured_in_full() -> None:
    features, embeddings = (random(32, dim, seed).bfloat16() for dim, seed in ((6, 0), (4, 1)))
    assert measure(features, embeddings) == measure(features.float(), embeddings.float())


def test_either_rank_tells_of_a_collapse() -> None:
    torch.manual_seed(0)
    spread, alike = torch.randn(32, 6), torch.ones(32, 6)
    assert not measure(spread, spread).collapsed
    assert measure(spread, alike).collapsed
    assert measure(alike, spread).collapsed
    identity, encoder = (describe_collapse(measure(*pair)) for pair in ((spread, alike), (alike, spread)))
    assert "alike to the identity model: its embeddings use 1.0 directions" in identity
    assert "alike to the encoder: its features use 1.0 directions" in encoder
    assert "optimizer.rate" in encoder


LONGER = ("epochs=14", "log_every=3", "optimizer.rate=8")  # 42 steps


def collapses(reporter: Silent) -> list[str]:
    return [note for note in reporter.notes if note.startswith("collapse")]


def test_a_run_that_collapses_says_so_once(train) -> None:
    reporter = Silent()
    folder, _ = train("run", "method=gaussian", *LONGER, reporter=reporter)
    records = folder.metrics()
    assert records[0]["embedding_rank"] > 5
    assert sum(record["embedding_rank"] < 2 for record in records) > 1
    (note,) = collapses(reporter)
    assert "all images look alike" in note
    assert "squared distance is least when all images are alike" in note


@pytest.mark.parametrize("method", ["simclr", "simsiam", "byol", "vicreg"])
def test_a_healthy_run_does_not(train, method) -> None:
    reporter = Silent()
    quick = ["optimizer.name=lars", "optimizer.trust=0.001", "optimizer.rate=1"] if method == "vicreg" else []
    folder, _ = train("run", f"method={method}", *quick, *LONGER, reporter=reporter)
    assert not collapses(reporter)
    assert all(min(r["embedding_rank"], r["effective_rank"]) > 3 for r in folder.metrics())
    assert all(0 < r["feature_std"] < 1 and r["alignment"] > 0 and r["uniformity"] < 0 for r in folder.metrics())


def test_low_ranks_during_the_warm_up_are_not_a_collapse(train) -> None:
    reporter = Silent()
    train("run", "method=gaussian", *LONGER, "optimizer.warmup_epochs=14", reporter=reporter)
    assert not collapses(reporter)
