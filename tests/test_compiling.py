import pytest
import torch

from stec.compiling import start_compilers


@pytest.mark.parametrize(
    ("choice", "device", "started"),
    [("auto", "cuda", 1), ("never", "cuda", 0), ("auto", "cpu", 0), ("always", "cpu", 0)],
)
def test_processes_that_compile_for_a_gpu_start_where_they_are_needed(monkeypatch, choice, device, started):
    calls = []
    monkeypatch.setattr("torch._inductor.async_compile.maybe_warm_pool", lambda: calls.append(1))  # has to be there
    start_compilers(choice, torch.device(device))
    assert len(calls) == started
