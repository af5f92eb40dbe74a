import copy

import pytest
import torch
from torch import nn

from stec.networks import mlp, projector


def test_projector_layers():
    kinds = [type(layer) for layer in projector(8, 16, 4)]
    assert kinds == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear, nn.BatchNorm1d]
    assert len(projector(8, 16, 4, output_norm=False)) == 4
    assert projector(8, 16, 4)(torch.rand(5, 8)).shape == (5, 4)


def test_projector_matches_the_formula():
    torch.manual_seed(0)
    head = projector(8, 16, 4)
    nn.init.uniform_(head[4].weight, 0.5, 2)
    x = torch.randn(32, 8)

    def normalise(z):
        return (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()

    hidden = (normalise(x @ head[0].weight.T) * head[1].weight + head[1].bias).relu()
    expected = normalise(hidden @ head[3].weight.T) * head[4].weight
    torch.testing.assert_close(head(x), expected, rtol=1e-5, atol=1e-5)


def test_output_norm_trains_a_scale_and_has_no_bias():
    head = projector(8, 16, 4)
    head(torch.randn(32, 8)).pow(3).sum().backward()
    assert [name for name, _ in head.named_parameters()] == [
        "0.weight", "1.weight", "1.bias", "3.weight", "4.weight",
    ]  # fmt: skip
    assert head[4].weight.grad.count_nonzero() == 4


@pytest.mark.parametrize("training", [True, False])
def test_output_norm_keeps_its_form_in_copies_checkpoints_and_sync_conversion(training):
    torch.manual_seed(0)
    head = projector(8, 16, 4)
    head(torch.randn(32, 8) + 3)  # running statistics that are not the initial ones
    nn.init.uniform_(head[4].weight, 0.5, 2)
    head.train(training)

    restored = projector(8, 16, 4).train(training)
    restored.load_state_dict(head.state_dict())
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(head))
    assert isinstance(converted[4], nn.SyncBatchNorm)

    x = torch.randn(32, 8)
    expected = copy.deepcopy(head)(x)
    for other in (copy.deepcopy(head), restored, converted):
        assert other[4].bias is None
        assert list(other.state_dict()) == list(head.state_dict())
        if not training or not isinstance(other[4], nn.SyncBatchNorm):  # sync batch norm trains on GPUs only
            torch.testing.assert_close(other(x), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_output_norm_is_the_same_on_a_gpu():
    torch.manual_seed(0)
    head, x = projector(8, 16, 4), torch.randn(32, 8)
    results = []
    for network in (head, copy.deepcopy(head).cuda()):
        output = network(x.to(network[0].weight.device))
        output.pow(3).sum().backward()
        results.append([output.detach().cpu(), *(p.grad.cpu() for p in network.parameters())])
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-3, atol=1e-3)


def test_mlp():
    head = mlp(8, 16, 5)
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert head[0].bias is None
    assert head[3].bias.shape == (5,)
    assert head(torch.rand(4, 8)).shape == (4, 5)
