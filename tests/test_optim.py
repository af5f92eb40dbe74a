import copy
import dataclasses

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from timm.optim import Lars
from torch import nn

from stec import optim
from stec.config import OptimizerConfig
from stec.networks import create_encoder, mlp, projector
from stec.optim import LARS, create_optimizer, parameter_groups, scaled_rate, warmup_cosine

SHAPES = [(4, 3), (5,), (2, 3, 3, 3), (1, 7), ()]


def tensors(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def parameters(dtype=torch.float32):
    return [nn.Parameter(tensor) for tensor in tensors(0, dtype)]


def rate(step):
    return 0.5 / (1 + step)  # changes each step, as under a schedule


def train(optimizer, steps):
    for step in steps:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for weight, gradient in zip(weights, tensors(100 + step, weights[0].dtype), strict=True):
            weight.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()


def slow_lars(steps, momentum, weight_decay, trust, clip=False):
    """The formula, one tensor after the other, in float64."""
    weights = tensors(0, torch.float64)
    buffers = [torch.zeros_like(w) for w in weights]
    for step in steps:
        for w, g, v in zip(weights, tensors(100 + step, torch.float64), buffers, strict=True):
            d = g + weight_decay * w
            w_norm, d_norm = w.square().sum().sqrt().item(), d.square().sum().sqrt().item()
            local = trust * w_norm / d_norm if trust and w_norm > 0 and d_norm > 0 else 1.0
            local = min(local / rate(step), 1.0) if clip else local
            v.copy_(momentum * v + local * d)
            w.sub_(rate(step) * v)
    return weights


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("trust", [0.001, 0.5, 0.0, None])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-6, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lars_follows_the_formula(dtype, tolerance, trust, weight_decay, momentum):
    weights = parameters(dtype)
    train(LARS(weights, lr=1.0, momentum=momentum, weight_decay=weight_decay, trust=trust), range(6))
    expected = slow_lars(range(6), momentum, weight_decay, trust)
    for found, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(found.detach().double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("trust", [0.02, 0.3, 0.0])  # all tensors are clipped, some, and none
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_larc_follows_the_formula_whatever_the_scale_of_the_loss(trust, scale):
    """A loss 20 times as large, with a 20th of the rate and 20 times the decay, makes the same steps; trust stays."""
    weights = [nn.Parameter(tensor) for tensor in tensors(0, torch.float64)]
    optimizer = LARS(weights, lr=1.0, momentum=0.9, weight_decay=0.1 * scale, trust=trust, clip=True)
    for step in range(6):
        for weight, gradient in zip(weights, tensors(100 + step, torch.float64), strict=True):
            weight.grad = scale * gradient
        optimizer.param_groups[0]["lr"] = rate(step) / scale
        optimizer.step()
    for found, wanted in zip(weights, slow_lars(range(6), 0.9, 0.1, trust, clip=True), strict=True):
        torch.testing.assert_close(found.detach(), wanted, rtol=1e-9, atol=1e-9)


def test_larc_stands_still_at_a_rate_of_zero():
    weights = parameters()
    before = copy.deepcopy(weights)
    for weight, gradient in zip(weights, tensors(1), strict=True):
        weight.grad = gradient
    LARS(weights, lr=0.0, trust=0.02, clip=True).step()
    for now, then in zip(weights, before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)


@pytest.mark.parametrize("trust", [0.0, None])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_trust_it_is_sgd(trust, weight_decay):
    ours, theirs = parameters(), parameters()
    train(LARS(ours, lr=1.0, momentum=0.9, weight_decay=weight_decay, trust=trust), range(5))
    train(torch.optim.SGD(theirs, lr=1.0, momentum=0.9, weight_decay=weight_decay, foreach=False), range(5))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


def test_lightly_agrees_where_the_decay_is_small():
    from lightly.utils.lars import LARS as LightlyLARS  # here, so that the GPU's test runs where it is not installed

    # lightly divides by |g| + wd |w|, ours (and google's) by |g + wd w|: the same to the order of wd.
    ours, theirs = parameters(), parameters()
    train(LARS(ours, lr=1.0, momentum=0.9, weight_decay=1e-6, trust=0.1), range(5))
    train(LightlyLARS(theirs, lr=1.0, momentum=0.9, weight_decay=1e-6, trust_coefficient=0.1), range(5))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_timm_agrees_without_decay_when_told_to_adapt_all_the_same():
    ours, theirs = parameters(), parameters()
    train(LARS(ours, lr=1.0, momentum=0.9, weight_decay=0.0, trust=0.1), range(5))
    train(Lars(theirs, lr=1.0, momentum=0.9, trust_coeff=0.1, eps=0.0, always_adapt=True), range(5))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "gradient", "weight_decay", "expected"),
    [
        ([3.0, 4.0], [0.0, 0.0], 0.0, [3.0, 4.0]),  # no gradient: stays
        ([0.0, 0.0], [3.0, 4.0], 0.1, [-3.0, -4.0]),  # no weight: a plain step
        ([0.0, 0.0], [0.0, 0.0], 0.1, [0.0, 0.0]),
        ([3.0, 4.0], [0.0, 0.0], 0.1, [2.7, 3.6]),  # decay alone: d = 0.1 w, so the step is trust * w
        ([3.0, 4.0], [-1.5, -2.0], 0.5, [3.0, 4.0]),  # gradient and decay cancel
        ([3.0, 4.0], [4.0, -3.0], 0.0, [2.6, 4.3]),  # step of length trust * |w| against g
    ],
)
def test_corners(weight, gradient, weight_decay, expected):
    parameter = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
    parameter.grad = torch.tensor(gradient, dtype=torch.float64)
    LARS([parameter], lr=1.0, weight_decay=weight_decay, trust=0.1).step()
    torch.testing.assert_close(parameter.detach(), torch.tensor(expected, dtype=torch.float64))


def test_tensors_do_not_influence_each_other():
    together, apart = parameters(), parameters()
    train(LARS(together, lr=1.0, weight_decay=0.1), range(4))
    train(LARS([{"params": [weight]} for weight in apart], lr=1.0, weight_decay=0.1), range(4))
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


def test_a_step_leaves_gradients_alone_and_skips_what_has_none():
    weights = parameters()
    before = copy.deepcopy(weights)
    weights[0].grad = torch.ones(4, 3)
    optimizer = LARS(weights, lr=1.0, weight_decay=0.1)
    optimizer.step()
    assert weights[0].grad.eq(1).all()
    assert not torch.equal(weights[0], before[0])
    assert all(torch.equal(a, b) for a, b in zip(weights[1:], before[1:], strict=True))
    assert list(optimizer.state) == [weights[0]]


def test_step_returns_the_loss_of_its_closure():
    weight = nn.Parameter(torch.ones(3))

    def closure():
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert LARS([weight], lr=0.1).step(closure).item() == 3
    assert (weight < 1).all()


def test_a_resumed_run_is_bit_for_bit_the_same(tmp_path):
    straight = parameters()
    train(LARS(straight, lr=1.0, weight_decay=0.1), range(6))

    first = parameters()
    optimizer = LARS(first, lr=1.0, weight_decay=0.1)
    train(optimizer, range(3))
    torch.save([optimizer.state_dict(), [w.detach() for w in first]], tmp_path / "checkpoint.pt")
    state, values = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = [nn.Parameter(value) for value in values]
    optimizer = LARS(resumed, lr=123.0, momentum=0.1, trust=0.5)
    optimizer.load_state_dict(state)
    train(optimizer, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


@pytest.mark.parametrize("wrong", [{"lr": -1}, {"momentum": 1.0}, {"weight_decay": -1e-6}, {"trust": -0.1}])
def test_impossible_settings(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LARS(parameters(), **{"lr": 1.0, **wrong})


@pytest.mark.parametrize("trust", [0.001, 0.0])
def test_one_pass_follows_the_formula(trust, monkeypatch):
    monkeypatch.setattr(optim, "_move", optim._move_in_one_pass)  # as on a GPU
    weights = parameters()
    train(LARS(weights, lr=1.0, weight_decay=0.1, trust=trust), range(6))
    for found, wanted in zip(weights, slow_lars(range(6), 0.9, 0.1, trust), strict=True):
        torch.testing.assert_close(found.detach().double(), wanted, rtol=1e-5, atol=1e-5)


def test_layouts_are_the_same_or_not():
    images = torch.rand(2, 3, 4, 5)
    other = images.contiguous(memory_format=torch.channels_last)
    assert optim._share_layout([images, other], [images.clone(), other.clone()])
    assert not optim._share_layout([images, other], [images, images])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_gives_the_same_weights_without_being_waited_for():
    weights = [nn.Parameter(w.cuda()) for w in tensors(0)]
    lr = torch.zeros((), device="cuda")
    optimizer = LARS(weights, lr=lr, weight_decay=0.1)
    for step in range(6):
        for weight, gradient in zip(weights, tensors(100 + step), strict=True):
            weight.grad = gradient.cuda()
        lr.fill_(rate(step))
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for found, wanted in zip(weights, slow_lars(range(6), 0.9, 0.1, 0.001), strict=True):
        torch.testing.assert_close(found.detach().cpu().double(), wanted, rtol=1e-5, atol=1e-5)


class Everything(nn.Module):
    """An encoder, heads, an online classifier, and parameters that a module owns directly."""

    def __init__(self):
        super().__init__()
        self.encoder = create_encoder("resnet-small")
        self.identity = projector(128, 32, 16)
        self.manipulation = mlp(256, 32, 36)
        self.head = nn.Linear(128, 10)
        self.single = nn.Linear(8, 1)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.positions = nn.Parameter(torch.zeros(1, 4, 8))
        self.gamma = nn.Parameter(torch.ones(8))
        self.norms = nn.ModuleList(
            [nn.LayerNorm([4, 4]), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.InstanceNorm2d(4, affine=True)]
        )
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.tied = self.head.weight


def ids(tensors):
    return [id(tensor) for tensor in tensors]


def by_kind(groups):
    """Parameter ids of the LARS, the plain and the free group."""
    kinds = {"lars": [], "plain": [], "free": []}
    for group in groups:
        kind = "lars" if group["trust"] else "plain" if group["weight_decay"] else "free"
        kinds[kind] += ids(group["params"])
    return kinds


def test_groups_hold_every_trained_parameter_exactly_once():
    model = Everything()
    groups = parameter_groups(model, 1e-6, 0.001, plain=[model.head])
    found = [i for group in groups for i in ids(group["params"])]
    assert len(found) == len(set(found))
    assert set(found) == set(ids(p for p in model.parameters() if p.requires_grad))
    assert [(g["weight_decay"], g["trust"]) for g in groups] == [(1e-6, 0.001), (1e-6, 0.0), (0.0, 0.0)]
    LARS(groups, lr=1.0)  # refuses doubles


def test_each_kind_of_parameter_is_in_its_group():
    model = Everything()
    kinds = by_kind(parameter_groups(model, 1e-6, 0.001, plain=[model.head]))
    assert kinds["plain"] == [id(model.head.weight)]
    convolutions = [m.weight for m in model.encoder.modules() if isinstance(m, nn.Conv2d)]
    linear = [m.weight for part in (model.identity, model.manipulation) for m in part if isinstance(m, nn.Linear)]
    assert set(kinds["lars"]) == set(ids([*convolutions, *linear, model.single.weight, model.positions]))
    free = [model.head.bias, model.single.bias, model.token, model.gamma, *model.norms.parameters()]
    assert set(ids(free)) <= set(kinds["free"])


def test_plain_modules_may_stand_beside_the_model():
    model, head = nn.Linear(4, 3, bias=False), nn.Linear(3, 2)
    kinds = by_kind(parameter_groups(model, 0.1, 0.001, plain=[head]))
    assert kinds == {"lars": [id(model.weight)], "plain": [id(head.weight)], "free": [id(head.bias)]}


def test_decay_of_all_parameters_makes_the_steps_of_torch_sgd():
    torch.manual_seed(0)
    model = mlp(6, 8, 4)
    for p in model.parameters():
        p.data = torch.randn_like(p)
    other = copy.deepcopy(model)
    settings = OptimizerConfig(weight_decay=0.1, decayed="all", trust=0.0)
    ours = create_optimizer(settings, model, rate=0.05)
    theirs = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        x = torch.randn(16, 6)
        for each, optimizer in ((model, ours), (other, theirs)):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
    for found, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)
    free = create_optimizer(dataclasses.replace(settings, decayed="weights"), model, rate=0.05).param_groups[-1]
    assert free["weight_decay"] == 0


@pytest.mark.parametrize("decayed", ["weights", "all"])
@pytest.mark.parametrize(("name", "decay"), [("lars", None), ("larc", None), ("lars", 0.0), ("lars", 0.3)])
def test_a_probe_with_a_rate_and_decay_of_its_own_makes_the_steps_of_torch_sgd(name, decay, decayed):
    torch.manual_seed(0)
    model, probe = mlp(6, 8, 4), nn.Linear(6, 3)
    alone = copy.deepcopy(probe)
    settings = OptimizerConfig(
        name=name, rate=0.5, weight_decay=0.1, decayed=decayed, probe_rate=2.0, probe_decay=decay
    )
    rate = torch.tensor(0.5)
    ours = create_optimizer(settings, nn.ModuleList([model, probe]), rate, plain=[probe])
    other = copy.deepcopy(model)
    others = create_optimizer(dataclasses.replace(settings, probe_rate=None), other, rate)
    its = 0.1 if decay is None else decay
    decays = [
        {"params": [alone.weight], "weight_decay": its},
        {"params": [alone.bias], "weight_decay": its if decayed == "all" else 0.0},
    ]
    theirs = torch.optim.SGD(decays, lr=1.0, momentum=0.9)
    for now in (0.5, 0.4, 0.1):  # its schedule is that of all
        rate.fill_(now)
        for group in theirs.param_groups:
            group["lr"] = 4 * now
        x = torch.randn(16, 6)
        for optimizer in (ours, others, theirs):
            optimizer.zero_grad()
        (model(x).square().mean() + probe(x).square().mean()).backward()
        other(x).square().mean().backward()
        alone(x).square().mean().backward()
        for optimizer in (ours, others, theirs):
            optimizer.step()
    torch.testing.assert_close(list(probe.parameters()), list(alone.parameters()))
    torch.testing.assert_close(list(model.parameters()), list(other.parameters()))


def test_there_are_no_empty_groups():
    assert len(parameter_groups(nn.Linear(4, 3, bias=False), 0.1, 0.001)) == 1
    assert len(parameter_groups(nn.BatchNorm1d(3), 0.1, 0.001)) == 1


def test_batch_norms_are_found_by_type_where_their_name_does_not_tell():
    model = torchvision.models.resnet18()
    norms = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    free = set(by_kind(parameter_groups(model, 1e-6, 0.001))["free"])
    assert norms <= free
    assert free - norms == {id(model.fc.bias)}

    # What matching "bn" and "bias" in the names, as is often done, would have rescaled and decayed:
    missed = [n for n, p in model.named_parameters() if id(p) in free and "bn" not in n and "bias" not in n]
    assert missed == [f"layer{stage}.0.downsample.1.weight" for stage in (2, 3, 4)]


def test_converted_batch_norms_are_still_norms():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(projector(8, 16, 4))
    kinds = by_kind(parameter_groups(model, 1e-6, 0.001))
    assert kinds["lars"] == ids([model[0].weight, model[3].weight])
    assert kinds["free"] == ids([model[1].weight, model[1].bias, model[4].weight])


def test_groups_of_a_vision_transformer():
    encoder = create_encoder("timm:test_vit")
    free = set(by_kind(parameter_groups(encoder, 0.1, 0.001))["free"])
    names = {name: id(p) in free for name, p in encoder.model.named_parameters()}
    assert names["cls_token"]
    assert names["blocks.0.norm1.weight"]
    assert not names["pos_embed"]
    assert not names["blocks.0.attn.qkv.weight"]


@pytest.mark.parametrize(
    ("step", "total", "warmup", "factor"),
    [
        (0, 100, 10, 0.1),
        (4, 100, 10, 0.5),
        (9, 100, 10, 1.0),
        (10, 100, 10, 1.0),
        (55, 100, 10, 0.5),
        (100, 100, 10, 0.0),
        (0, 100, 0, 1.0),
        (0, 100, 1, 1.0),
        (25, 100, 0, 0.5 + 0.5**1.5),
        (9, 10, 10, 1.0),
        (10, 10, 10, 0.0),
        (0, 1, 0, 1.0),
    ],
)
def test_schedule(step, total, warmup, factor):
    assert warmup_cosine(step, total, warmup) == pytest.approx(factor, abs=1e-15)


@given(st.integers(1, 500), st.data())
def test_the_schedule_rises_to_one_and_falls_to_zero(total, data):
    warmup = data.draw(st.integers(0, total))
    factors = [warmup_cosine(step, total, warmup) for step in range(total + 1)]
    assert all(0 < factor <= 1 for factor in factors[:-1])
    assert factors[-1] == 0
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)


def test_a_warmup_longer_than_the_run():
    with pytest.raises(ValueError, match="warmup=11"):
        warmup_cosine(0, 10, 11)


def test_the_rate_grows_with_the_batch():
    assert scaled_rate(1.0, 1024) == 4.0
    assert scaled_rate(0.3, 128) == pytest.approx(0.15)


def test_adamw_is_pytorchs_and_decays_matrices_alone():
    """Compared with one AdamW for the weights and one for all that is not decayed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    other = copy.deepcopy(model)
    settings = OptimizerConfig(name="adamw", momentum=0.8, weight_decay=0.3)
    rate = torch.zeros(())
    optimizer = create_optimizer(settings, model, rate)
    weights = [other[0].weight, other[2].weight]
    free = [other[0].bias, *other[1].parameters(), other[2].bias]
    others = [
        torch.optim.AdamW(weights, betas=(0.8, 0.999), weight_decay=0.3),
        torch.optim.AdamW(free, betas=(0.8, 0.999), weight_decay=0.0),
    ]
    for step in range(3):
        images = torch.rand(5, 4, generator=torch.Generator().manual_seed(step))
        rate.fill_(0.01 / (1 + step))  # as the loop does
        for one in others:
            one.param_groups[0]["lr"] = 0.01 / (1 + step)
        for network, steps in ((model, [optimizer]), (other, others)):
            network.zero_grad()
            network(images).square().sum().backward()
            for one in steps:
                one.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(other.named_parameters()))


def test_lars_is_the_default():
    optimizer = create_optimizer(OptimizerConfig(momentum=0.7, trust=0.02), nn.Linear(3, 2), 0.1)
    assert isinstance(optimizer, LARS)
    assert [(group["momentum"], group["trust"]) for group in optimizer.param_groups] == [(0.7, 0.02), (0.7, 0.0)]
