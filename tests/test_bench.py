"""The benchmark measures what it says."""

import json

import pytest
import torch

from stec import UserError
from stec.bench import bench, take_turns
from stec.config import load
from stec.peers import lightly_simclr
from stec.profiling import group_of


@pytest.fixture(scope="module")
def result():
    return bench(load("default"), [16, 32], seconds=0.2)


def test_rates_and_their_ratios(result):
    assert [row["batch_size"] for row in result["rows"]] == [16, 32]
    for row in result["rows"]:
        assert row["of_ceiling"] == pytest.approx(row["end_to_end"] / row["ceiling"], rel=0.01)
        cost = row["without_manipulation"] / row["end_to_end"] - 1
        assert row["cost_of_manipulation"] == pytest.approx(cost, abs=0.01)
        assert min(row["augmentation"], row["seconds_to_first_step"], row["peak_memory_bytes"]) > 0
        checkpoint = row["checkpoint"]
        assert checkpoint["bytes"] > 2e6
        assert 0 < checkpoint["seconds"] < 6
        assert checkpoint["share"] == pytest.approx(checkpoint["seconds"] / 600, abs=1e-6)
        assert checkpoint["share"] <= 0.01, "what a run may spend on being safe"
    json.dumps(result)


def test_a_rate_is_the_median_over_turns(monkeypatch):
    """With a clock of our own: parts take 1 and 4 ticks a call, and once, in one turn, a hundred more."""
    now = [0.0]
    monkeypatch.setattr("stec.bench.time.perf_counter", lambda: now[0])
    disturbed = iter([0] * 30 + [100] + [0] * 1000)

    def part(ticks):
        def call():
            now[0] += ticks + next(disturbed)

        return call

    rates = take_turns({"quick": part(1), "slow": part(4)}, views=8, seconds=40, device=torch.device("cpu"))
    assert rates == {"quick": 8.0, "slow": 2.0}


def test_a_method_without_a_manipulation_model_has_no_cost_of_one():
    (row,) = bench(load("default", ["method=simclr"]), [16], seconds=0.05)["rows"]
    assert row["cost_of_manipulation"] is None
    assert "without_manipulation" not in row


def test_a_profile_accounts_for_the_step():
    (row,) = bench(load("default"), [32], seconds=0.05, profile=True)["rows"]
    profile = row["profile"]
    assert sum(profile["groups"].values()) == pytest.approx(profile["milliseconds"], abs=0.01)
    step = 1000 * 2 * 32 / row["end_to_end"]
    assert 0.3 * step < profile["milliseconds"] < 5 * step  # on a busy machine, neither is exact
    assert profile["groups"]["convolutions"] > 0.1 * profile["milliseconds"]
    assert profile["kernels"][0]["milliseconds"] == max(kernel["milliseconds"] for kernel in profile["kernels"])


def test_streamed_images_train_about_as_fast_on_a_cpu():
    for _ in range(3):  # others may take the machine while one of the two is measured
        (row,) = bench(load("default", ["data.workers=1"]), [32], seconds=0.3, streamed=True)["rows"]
        if 0.2 * row["end_to_end"] < row["streamed"] < 2 * row["end_to_end"]:
            return
    raise AssertionError(row)


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x64x32", "convolutions"),
        ("aten::convolution_backward", "convolutions"),
        ("triton_red_fused__native_batch_norm_legit_functional_2", "batch norm, ReLU, residuals"),
        ("triton_poi_fused_add_threshold_backward_34", "batch norm, ReLU, residuals"),
        ("triton_poi_fused_convolution_backward_native_batch_norm_backward_36", "batch norm, ReLU, residuals"),
        ("nvjet_sm90_tst_128x64_64x8_1x2_h_bz_NNT", "matrix products"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", "optimizer"),
        ("triton_poi_fused_abs_add_addcmul_clamp", "the rest"),
    ],
)
def test_kernels_are_grouped_by_what_they_do(kernel, group):
    assert group_of(kernel) == group


def test_lightly_beside_us():
    rates = lightly_simclr(load("default"), 16, torch.device("cpu"), seconds=0.2)
    assert rates["loader"] > 0
    assert rates["tensors"] > 0


def test_an_unknown_library_is_refused():
    with pytest.raises(UserError, match="choose lightly"):
        bench(load("default"), [16], compare="darkly")


def test_several_devices_are_refused():
    with pytest.raises(UserError, match="devices=2: stec bench measures one;"):
        bench(load("default", ["devices=2"]), [16])
