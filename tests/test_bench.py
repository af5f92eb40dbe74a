"""The benchmark measures what it says."""

import json

import pytest

from stec import UserError
from stec.bench import bench
from stec.config import load
from stec.peers import lightly_simclr


@pytest.fixture(scope="module")
def result():
    return bench(load("default"), [16, 32], seconds=0.2)


def test_rates_and_their_ratios(result):
    assert [row["batch_size"] for row in result["rows"]] == [16, 32]
    for row in result["rows"]:
        assert row["of_ceiling"] == pytest.approx(row["end_to_end"] / row["ceiling"], rel=0.01)
        cost = row["without_manipulation"] / row["end_to_end"] - 1
        assert row["cost_of_manipulation"] == pytest.approx(cost, abs=0.01)
        assert row["end_to_end"] < row["ceiling"]  # training does what the ceiling does, and more
        assert row["augmentation"] > row["end_to_end"]
        assert row["seconds_to_first_step"] > 0
    json.dumps(result)


def test_a_method_without_a_manipulation_model_has_no_cost_of_one():
    (row,) = bench(load("default", ["method=simclr"]), [16], seconds=0.05)["rows"]
    assert row["cost_of_manipulation"] is None
    assert "without_manipulation" not in row


def test_lightly_beside_us():
    import torch

    rates = lightly_simclr(load("default"), 16, torch.device("cpu"), seconds=0.2)
    assert rates["loader"] > 0
    assert rates["tensors"] > 0


def test_an_unknown_library_is_refused():
    with pytest.raises(UserError, match="choose lightly"):
        bench(load("default"), [16], compare="darkly")
