"""The MoCo identity model: its queue, alone and in two processes."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightly.loss import NTXentLoss
from processes import (
    PAIRS,
    PROCESSES,
    Model,
    Outcome,
    assert_same_loss,
    in_one_process,
    views_of,
)
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import stec
from stec.config import IdentityConfig
from stec.identity import MoCo
from stec.identity.queue import enqueue
from stec.networks.synchrony import GPUBatchNorm, synchronise_batch_norms


def moco(queue: int, output: int = 2, groups: int = 2) -> MoCo:
    encoder = nn.Linear(3, 4)
    encoder.dim = 4
    return MoCo(encoder, IdentityConfig(hidden=4, output=output, queue=queue, groups=groups))


def test_two_processes_have_the_queue_of_one(two_processes: dict[str, list[Outcome]]) -> None:
    """First the first views, process by process, then the second ones."""
    one = in_one_process("moco")
    assert one.state["identity.oldest"] == 2 * PAIRS * PROCESSES
    for process in two_processes["moco"]:
        torch.testing.assert_close(process.state["identity.queue"], one.state["identity.queue"])
        assert process.state["identity.oldest"] == one.state["identity.oldest"]
    model = Model("moco")
    (first, _), (other_first, other_second) = views_of(0), views_of(1)
    for row, view in ((0, first[0]), (PAIRS, other_first[0]), (3 * PAIRS, other_second[0])):
        key = nn.functional.normalize(model.identity.target(view[None]))
        torch.testing.assert_close(one.state["identity.queue"][row], key[0])


def test_groups_over_two_processes_are_those_of_one(two_processes: dict[str, list[Outcome]]) -> None:
    """Shuffled over all views and normalised in two groups: one in each process, or both in one."""
    one = in_one_process("moco, groups")
    assert_same_loss(two_processes["moco, groups"], one)
    for process in two_processes["moco, groups"]:
        torch.testing.assert_close(process.state["identity.queue"], one.state["identity.queue"])
    assert not torch.allclose(one.state["identity.queue"], in_one_process("moco").state["identity.queue"], atol=0.01)


class Recorder(nn.Module):
    """A target that passes its input on, and remembers which rows it saw together."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.seen.append(rows[:, 0].int().tolist())
        return rows


def test_the_target_sees_shuffled_groups_and_the_order_is_restored_exactly() -> None:
    model = moco(queue=100, groups=8)
    model.target = Recorder()
    rows = torch.stack([torch.arange(40.0), torch.ones(40)], dim=1)
    torch.manual_seed(0)
    for _ in range(2):
        assert torch.equal(model._keys(rows, [len(rows) // 2]), nn.functional.normalize(rows))
    first, second = model.target.seen[:8], model.target.seen[8:]
    for groups in (first, second):
        assert [len(group) for group in groups] == [5] * 8
        assert sorted(row for group in groups for row in group) == list(range(40))
    assert sorted(map(sorted, first)) != sorted(map(sorted, second)), "other groups in every step"


def test_a_group_has_at_least_two_views() -> None:
    model = moco(queue=4, groups=8)
    model.target = Recorder()
    model._keys(torch.arange(10.0).view(5, 2), [2])
    assert sorted(map(len, model.target.seen)) == [2, 3]


def test_the_targets_batch_norms_are_not_synchronised() -> None:
    for name, apart in (("moco", True), ("byol", False)):
        method = stec.create(name, "resnet-small", identity={"queue": 4})
        before = dict(method.named_parameters())
        synchronise_batch_norms(method, method.identity.unsynchronised())
        kinds = {key: type(module) for key, module in method.named_modules() if isinstance(module, _BatchNorm)}
        assert kinds["encoder.bn1"] == kinds["identity.projector.1"] == GPUBatchNorm
        expected = nn.BatchNorm2d if apart else GPUBatchNorm
        assert kinds["identity.target.encoder.bn1"] == expected
        assert kinds["identity.target.encoder.stages.0.bn2"] == expected
        assert all(before[key] is parameter for key, parameter in method.named_parameters())
        method.after_step(0.5)  # the target still follows the networks that were changed


def test_the_loss_is_lightlys_with_the_queue_as_memory_bank() -> None:
    model = Model("moco")
    model.identity.target.update(0.4)  # so close to the online network that some find their partner
    views = torch.cat(views_of(0))
    loss, accuracy = model(views)
    first, second = model.identity.projector(model.encoder(views)).chunk(2)
    first_keys, second_keys = model.identity.target(views).chunk(2)
    expected, found = torch.zeros(()), []
    for queries, keys in ((first, second_keys), (second, first_keys)):
        theirs = NTXentLoss(temperature=0.2, memory_bank_size=(40, 5))
        theirs.memory_bank.bank = model.identity.queue.clone()
        expected = expected + theirs(queries, keys)
        negatives = torch.cosine_similarity(queries[:, None], model.identity.queue, dim=2).amax(dim=1)
        found.append(int((torch.cosine_similarity(queries, keys) > negatives).sum()))
    torch.testing.assert_close(loss, expected)
    assert float(accuracy) == pytest.approx(sum(found) / (2 * PAIRS))
    assert found[0] != found[1], "either direction counts"


def test_the_queue_starts_with_random_directions() -> None:
    queue = moco(queue=2000, output=3).queue
    torch.testing.assert_close(queue.norm(dim=1), torch.ones(2000))
    assert queue.mean(dim=0).abs().max() < 0.1


@given(size=st.integers(1, 12), batches=st.lists(st.integers(1, 15), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_first_in_first_out(size: int, batches: list[int]) -> None:
    """Whatever the batches, also ones that do not divide the queue or are larger: the newest keys are in it."""
    model = moco(queue=size)
    arrived = [tuple(key) for key in model.queue.tolist()]  # the oldest first
    count = 0
    for batch in batches:
        keys = torch.arange(count, count + 2 * batch, dtype=torch.float32).view(batch, 2)
        count += 2 * batch
        arrived += [tuple(key) for key in keys.tolist()]
        enqueue(model.queue, model.oldest, keys)
    oldest = int(model.oldest)
    in_order = [tuple(key) for key in model.queue.roll(-oldest, dims=0).tolist()]
    assert in_order == arrived[-size:]


def step(model: Model, views: Tensor, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss, _ = model(views)
    loss.backward()
    optimizer.step()
    model.identity.after_step(0.1)
    return loss.item()


def test_the_queue_stays_until_the_step_is_done_then_takes_the_keys_of_both_views() -> None:
    model = Model("moco")
    views = torch.cat(views_of(0))
    before = model.identity.queue.clone()
    loss, _ = model(views)
    assert torch.equal(model.identity.queue, before)
    loss.backward()
    keys = nn.functional.normalize(model.identity.target(views))
    model.identity.after_step(0.5)
    torch.testing.assert_close(model.identity.queue[: 2 * PAIRS], keys)
    assert torch.equal(model.identity.queue[2 * PAIRS :], before[2 * PAIRS :])
    model.identity.after_step(0.6)
    assert model.identity.oldest == 2 * PAIRS, "no keys, no change"


def test_keys_of_all_batches_whose_gradients_are_accumulated_join_the_queue() -> None:
    model = Model("moco")
    keys = []
    for number in range(3):
        views = torch.cat(views_of(number))
        model(views)[0].backward()
        keys.append(nn.functional.normalize(model.identity.target(views)))
    with torch.no_grad():
        model(views)  # a look in between is no batch
    model.identity.after_step(0.5)
    torch.testing.assert_close(model.identity.queue[: 3 * 2 * PAIRS], torch.cat(keys))
    assert model.identity.oldest == 3 * 2 * PAIRS


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_keys_join_a_queue_of_another_precision(precision: torch.dtype) -> None:
    model = Model("moco").to(precision)
    model(torch.cat(views_of(0)).to(precision))[0].backward()
    model.identity.after_step(0.5)
    assert model.identity.queue.dtype == precision
    torch.testing.assert_close(model.identity.queue[0].norm().item(), 1.0, rtol=0, atol=0.01)
    assert model.identity.oldest == 2 * PAIRS


def test_a_saved_queue_continues_bit_for_bit(tmp_path) -> None:
    """40 rows, 12 keys a step: it is saved in the middle and wraps around afterwards."""
    model = Model("moco")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(3):
        step(model, torch.cat(views_of(i)), optimizer)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other = Model("moco")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    twin = copy.deepcopy(model)
    results = []
    for each in (model, other, twin):
        torch.manual_seed(5)  # for the shuffling, as a run does at every epoch
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        losses = [step(each, torch.cat(views_of(i)), optimizer) for i in range(3, 6)]
        results.append((losses, each.state_dict()))
    for losses, state in results[1:]:
        assert losses == results[0][0]
        assert all(torch.equal(state[name], tensor) for name, tensor in results[0][1].items())
    assert model.identity.oldest == 6 * 12 % 40


@pytest.mark.parametrize("name", ["queue", "oldest"])
def test_queue_and_position_are_in_the_checkpoint(name: str) -> None:
    assert name in moco(queue=4).state_dict()
