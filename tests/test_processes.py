"""Two real processes do what one does that has all their images: every method as a whole, rows even and uneven."""

import pytest
import torch
from torch import nn
from whole_methods import NORMS, SHARES, Outcome, in_two_processes, normalise, train
from whole_tasks import KINDS, step

from stec import UserError
from stec.method import METHODS
from stec.networks.synchrony import synchronise_batch_norms
from stec.processes import shares


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory):
    return in_two_processes(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def two_processes(both) -> dict[tuple[str, str], list[Outcome]]:
    return both[0]


@pytest.fixture(scope="module")
def one_process() -> dict[str, Outcome]:
    torch.set_num_threads(1)
    return {name: train(name) for name in METHODS}


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_those_of_one_process(name, kind, two_processes, one_process):
    wanted = one_process[name].gradients
    assert len(wanted) > 15
    for key, gradient in wanted.items():
        largest = float(gradient.abs().max())
        assert largest > 1e-5, key
        for process in two_processes[name, kind]:
            torch.testing.assert_close(process.gradients[key], gradient, rtol=0, atol=1e-5 * largest, msg=key)


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("name", METHODS)
def test_metrics_of_each_process_are_those_of_all_images(name, kind, two_processes, one_process):
    for process in two_processes[name, kind]:
        torch.testing.assert_close(process.metrics, one_process[name].metrics, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("name", METHODS)
def test_weights_targets_queues_and_optimizer_stay_the_same_in_all_processes(name, kind, two_processes, one_process):
    first, second = (process.state for process in two_processes[name, kind])
    assert first.keys() == one_process[name].state.keys()
    for key, wanted in one_process[name].state.items():
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(first[key], wanted, rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize("name", METHODS)
def test_in_parts_the_processes_together_hold_what_one_holds(name, two_processes, one_process):
    wanted = one_process[name].held
    assert [process.held for process in two_processes[name, "uneven"]] == [wanted, wanted]
    held = [process.held for process in two_processes[name, "in parts"]]
    assert sum(held) == wanted
    assert max(held) < 0.6 * wanted  # most of these weights are a few rows, often an odd number


@pytest.mark.parametrize("kind", NORMS)
def test_a_batch_norm_on_a_cpu_is_that_of_all_rows(kind, both):
    wanted, processes = normalise(kind), [norms[kind] for norms in both[1]]
    tolerance = {"rtol": 0.02, "atol": 0.05} if kind == "bfloat16" else {"rtol": 1e-4, "atol": 1e-4}
    for key in ("output", "inputs"):
        rows = torch.cat([process[key] for process in processes])
        assert rows.dtype == wanted[key].dtype
        torch.testing.assert_close(rows, wanted[key], **tolerance)
    for key in ("weight", "bias"):
        torch.testing.assert_close(processes[0][key] + processes[1][key], wanted[key], **tolerance)
    for key in ("mean", "variance", "batches"):
        assert torch.equal(processes[0][key], processes[1][key])
        torch.testing.assert_close(processes[0][key], wanted[key], **tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_sound_and_scenes_are_prepared_as_in_one_process_and_measured_for_all(kind, both):
    first, second = (tasks[kind] for tasks in both[2])
    torch.testing.assert_close(torch.cat([first["rows"], second["rows"]]), step(kind)["rows"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first["metrics"], second["metrics"])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "detection"])  # which samples regions at random
def test_gradients_of_sound_and_segmentation_are_those_of_one_process(kind, both):
    wanted, (first, second) = step(kind), (tasks[kind] for tasks in both[2])
    torch.testing.assert_close(first["metrics"], wanted["metrics"], rtol=1e-4, atol=1e-5)
    assert len(wanted["gradients"]) > 15
    largest = max(float(gradient.abs().max()) for gradient in wanted["gradients"].values())
    for key, gradient in wanted["gradients"].items():
        for process in (first, second):
            torch.testing.assert_close(process["gradients"][key], gradient, rtol=1e-3, atol=1e-4 * largest, msg=key)


def test_a_batch_norm_of_an_unknown_kind_is_refused():
    class Other(nn.BatchNorm2d):
        pass

    with pytest.raises(UserError, match="Other is a batch norm that several processes cannot share"):
        synchronise_batch_norms(nn.Sequential(Other(3)))


def test_shares_are_as_even_as_can_be():
    assert shares(8, 2) == (4, 4)
    assert shares(8, 3) == (3, 3, 2)
    assert [len(part) for part in torch.arange(11).tensor_split(4)] == list(shares(11, 4))
