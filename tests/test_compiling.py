import importlib.util

import pytest
import torch

from stec import compiling
from stec.compiling import one_operation, start_compilers


@pytest.mark.parametrize(
    ("choice", "device", "started"),
    [("auto", "cuda", 1), ("never", "cuda", 0), ("auto", "cpu", 0), ("always", "cpu", 0)],
)
def test_processes_that_compile_for_a_gpu_start_where_they_are_needed(monkeypatch, choice, device, started):
    calls = []
    monkeypatch.setattr("torch._inductor.async_compile.maybe_warm_pool", lambda: calls.append(1))  # has to be there
    start_compilers(choice, torch.device(device))
    assert len(calls) == started


@one_operation("(Tensor x, Tensor(a!)[] seen, int times) -> Tensor")
def _tripled(x, seen, times):
    torch._foreach_add_(seen, 1)
    return sum(x * x for _ in range(times))


def test_an_operation_is_one_to_the_compiler_and_what_it_was_to_all_else():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    x, seen = torch.rand(5, requires_grad=True), [torch.zeros(()), torch.ones(())]
    result = torch.compile(lambda x: _tripled(x, seen, 3), backend=backend, fullgraph=True)(x)
    result.sum().backward()
    torch.testing.assert_close(result, 3 * x * x)
    torch.testing.assert_close(x.grad, 6 * x)
    assert [value.item() for value in seen] == [1, 2]
    calls = [node for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [node.target for node in calls] == [_tripled]
    torch.testing.assert_close(_tripled(x, seen, 2), 2 * x * x)


def test_an_operation_has_another_name_where_its_code_is_another(tmp_path):
    """PyTorch knows compiled code by the names of operations: what an older version compiled must not be found."""
    names = []
    for factor in (2, 3):
        path = tmp_path / f"times_{factor}.py"
        path.write_text(f"def scale(x):\n    return {factor} * x\n")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        scale = one_operation("(Tensor x) -> Tensor")(module.scale)
        assert scale(torch.tensor(1.0)) == factor
        names.append(str(scale))
    assert names[0] != names[1]


def test_options_that_this_pytorch_does_not_know_are_left_out(monkeypatch):
    assert compiling.quick() == compiling.QUICK, "this one has forgotten an option: find what became of it"
    monkeypatch.setitem(compiling.QUICK, "forgotten", True)
    assert "forgotten" not in compiling.quick()
