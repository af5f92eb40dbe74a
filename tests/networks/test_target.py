"""The target network against a slow loop over its state, and what must not move it."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from stec.networks import create_encoder, projector
from stec.networks.target import Target, rising_decay


class Pair(nn.Module):
    """An online network and its target, as an identity model holds them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = create_encoder("resnet-small")
        self.projector = projector(self.encoder.dim, 16, 8)
        self.target = Target(self.encoder, self.projector)

    def online(self) -> dict[str, Tensor]:
        return {k: v for k, v in self.state_dict().items() if not k.startswith("target.")}

    def followers(self) -> dict[str, Tensor]:
        return {k.removeprefix("target."): v for k, v in self.state_dict().items() if k.startswith("target.")}

    def learn(self) -> None:
        """Other weights, and other statistics of batches."""
        for parameter in (*self.encoder.parameters(), *self.projector.parameters()):
            parameter.data.add_(torch.randn_like(parameter))
        self.projector(self.encoder(torch.rand(8, 3, 16, 16)))


def snapshot(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def test_it_starts_as_a_copy() -> None:
    pair = Pair()
    assert same(pair.followers(), pair.online())
    images = torch.rand(8, 3, 16, 16)
    assert torch.equal(pair.target(images), pair.projector(pair.encoder(images)))


def test_it_follows_as_a_loop_over_all_weights_and_statistics_says() -> None:
    pair = Pair()
    expected = {name: tensor.double() for name, tensor in pair.followers().items()}
    for decay in (0.9, 0.5, 0.99):
        pair.learn()
        pair.target.update(decay)
        for name, online in pair.online().items():
            expected[name] = decay * expected[name] + (1 - decay) * online.double()
            if name.endswith("num_batches_tracked"):
                expected[name] = online.double()
    kinds = {name.rpartition(".")[2] for name in expected}
    assert kinds == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    for name, tensor in pair.followers().items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert pair.followers()["encoder.bn1.num_batches_tracked"] == 3


def test_a_decay_of_1_stands_still_and_of_0_copies() -> None:
    pair = Pair()
    before = snapshot({k: v for k, v in pair.followers().items() if v.is_floating_point()})
    pair.learn()
    pair.target.update(1.0)
    assert same({k: v for k, v in pair.followers().items() if v.is_floating_point()}, before)
    pair.target.update(0.0)
    assert same(pair.followers(), pair.online())


def test_only_update_moves_it() -> None:
    """Neither its own batches, nor a gradient, nor an optimizer that was given everything."""
    pair = Pair()
    optimizer = torch.optim.SGD(pair.parameters(), lr=1.0, weight_decay=0.1)
    before = snapshot(pair.followers())
    images = torch.rand(8, 3, 16, 16, requires_grad=True)
    output = pair.target(images)
    assert not output.requires_grad
    (pair.projector(pair.encoder(images)) - output).square().sum().backward()
    assert all(parameter.grad is None for parameter in pair.target.parameters())
    optimizer.step()
    after = pair.followers()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert all(name.endswith("num_batches_tracked") for name in moved)
    assert not same(pair.online(), before)


def test_it_normalises_by_the_batch_while_training_and_by_running_statistics_otherwise() -> None:
    pair = Pair()
    images = torch.rand(8, 3, 16, 16)
    output = pair.target(images)
    assert output.mean(dim=0).abs().max() < 1e-5
    pair.eval()
    assert pair.target(images).mean(dim=0).abs().max() > 1e-3


def test_the_online_network_is_no_part_of_it() -> None:
    pair = Pair()
    assert len(list(pair.target.children())) == 2
    assert len(pair.state_dict()) == 2 * len(pair.online())
    assert not any(parameter.requires_grad for parameter in pair.target.parameters())


def test_it_follows_after_batch_norms_were_synchronised() -> None:
    pair = nn.SyncBatchNorm.convert_sync_batchnorm(Pair())
    assert any(isinstance(module, nn.SyncBatchNorm) for module in pair.target.modules())
    pair.learn()
    pair.target.update(0.0)
    assert same(pair.followers(), pair.online())
    assert all(m.momentum == 0 for m in pair.target.modules() if isinstance(m, nn.SyncBatchNorm))


def test_a_copy_of_the_whole_follows_its_own_online_network() -> None:
    pair = Pair()
    twin = copy.deepcopy(pair)
    before = snapshot(pair.state_dict())
    twin.learn()
    twin.target.update(0.0)
    assert same(twin.followers(), twin.online())
    assert not same(twin.online(), pair.online())
    assert same(pair.state_dict(), before)


def test_it_goes_through_a_checkpoint_and_still_follows(tmp_path) -> None:
    pair = Pair()
    pair.learn()
    pair.target.update(0.7)
    torch.save(pair.state_dict(), tmp_path / "state.pt")
    other = Pair()
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    for each in (pair, other):
        torch.manual_seed(1)
        each.learn()
        each.target.update(0.6)
    assert same(pair.state_dict(), other.state_dict())


def test_it_follows_where_the_method_moves() -> None:
    """`to` replaces buffers by new tensors: they must be looked up at every update."""
    pair = Pair().to(torch.float64).to(torch.float32)
    pair.learn()
    pair.target.update(0.0)
    assert same(pair.followers(), pair.online())


@pytest.mark.parametrize("initial", [0.0, 0.9, 0.996, 1.0])
def test_the_decay_rises_along_half_a_cosine(initial: float) -> None:
    """Grill et al. 2020, section 3.2: tau = 1 - (1 - tau_base) (cos(pi k / K) + 1) / 2."""
    assert rising_decay(initial, 0.0) == pytest.approx(initial)
    assert rising_decay(initial, 0.5) == pytest.approx((1 + initial) / 2)
    assert rising_decay(initial, 1.0) == 1.0
    steps = [rising_decay(initial, k / 20) for k in range(21)]
    assert steps == sorted(steps)
    assert steps[5] == pytest.approx(1 - (1 - initial) * (1 + math.sqrt(0.5)) / 2)
