"""The networks of CPC: which samples a frame is made of, and what a context has heard."""

import pytest
import torch

from stec.audio.network import LAYERS, Encoder, FirstConvolution, Layer, Network, frame_count, geometry, padded
from stec.errors import UserError


@pytest.mark.parametrize("layers", [LAYERS, LAYERS[:3], (Layer(7, 3), Layer(5, 2))])
def test_receptive_field_and_hop_are_what_gradients_reach(layers):
    """Plain convolutions with positive weights: a sample has a gradient if and only if a frame is made of it."""
    net = torch.nn.Sequential(*(torch.nn.Conv1d(1, 1, *layer) for layer in layers))
    for parameter in net.parameters():
        parameter.data.fill_(1.0)
    samples = torch.zeros(1, 1, 4000, requires_grad=True)
    frames = net(samples)[0, 0]
    found = geometry(layers)
    assert len(frames) == frame_count(4000, layers)
    for t in (len(frames) // 2, len(frames) // 2 + 1):
        (gradient,) = torch.autograd.grad(frames[t], samples, retain_graph=True)
        reached = gradient[0, 0].nonzero().squeeze(1)
        assert (int(reached[0]), len(reached)) == (t * found.hop, found.field)


def test_the_encoder_has_the_geometry_that_is_computed():
    torch.manual_seed(0)
    encoder = Encoder(8)
    samples = torch.randn(1, 3200, requires_grad=True)
    frames = encoder(samples)
    assert frames.shape == (1, frame_count(3200), 8) == (1, 18, 8)
    (gradient,) = torch.autograd.grad(frames[0, 10].square().sum(), samples)
    reached = gradient[0].nonzero().squeeze(1)
    found = geometry()
    assert found == (465, 160), "van den Oord et al. 2018: 465 samples, 10 ms"
    assert found.seconds == 0.01
    assert (int(reached[0]), int(reached[-1])) == (1600, 1600 + 464)


@pytest.mark.parametrize(("kernel", "stride"), [(10, 5), (8, 4), (3, 2), (17, 1)])
@pytest.mark.parametrize("length", [17, 18, 100, 103])
def test_the_first_convolution_is_one(kernel, stride, length):
    torch.manual_seed(0)
    conv = FirstConvolution(1, 6, (1, kernel), (1, stride)).double()
    waveforms = torch.randn(2, length, dtype=torch.float64, requires_grad=True)
    found = conv(waveforms)
    expected = torch.nn.functional.conv2d(waveforms[:, None, None], conv.weight, conv.bias, (1, stride))
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)
    weights = [waveforms, conv.weight, conv.bias]
    gradient = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(y, weights, gradient) for y in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("length", [100, 160, 465, 3199, 3200, 3201])
def test_there_is_a_frame_for_every_label_centred_on_it(length):
    samples = torch.zeros(length, requires_grad=True)
    frames = max(1, length // 160)
    assert frame_count(len(padded(samples))) == frames
    pieces = padded(samples).unfold(0, 465, 160)
    assert len(pieces) == frames
    if length > 1000:
        (gradient,) = torch.autograd.grad(pieces[5].sum(), samples)
        reached = gradient.nonzero().squeeze(1).float()
        assert abs(float(reached.mean()) - (5 * 160 + 79.5)) <= 0.5


def test_a_causal_context_has_not_heard_the_future_and_halves_of_the_other_hear_one_side_each():
    torch.manual_seed(0)
    frames = torch.randn(1, 12, 64)
    changed = frames.clone()
    changed[:, 7:] += 1
    causal, both = Network("cpc-small").context, Network("cpc-small", bidirectional=True).context
    assert torch.equal(causal(frames)[:, :7], causal(changed)[:, :7])
    assert not torch.allclose(causal(frames)[:, 7], causal(changed)[:, 7])
    past, future = (both(changed) - both(frames)).split(both.units, dim=2)
    assert both.dim == 2 * both.units
    assert past[:, :7].abs().max() == 0
    assert future[:, :7].abs().amax(dim=2).min() > 0


@pytest.mark.parametrize("bidirectional", [False, True])
def test_features_of_an_utterance_do_not_depend_on_its_company(bidirectional):
    torch.manual_seed(0)
    network = Network("cpc-small", bidirectional).eval()
    waveforms = [torch.randn(length) for length in (3000, 8000, 100, 4801)]
    together = network.features(waveforms)
    assert [len(each) for each in together] == [18, 50, 1, 30]
    for waveform, features in zip(waveforms, together, strict=True):
        assert torch.allclose(network.features([waveform])[0], features, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(network(padded(waveforms[1])[None])[1][0], together[1], atol=1e-6)


@pytest.mark.parametrize("length", [6 * 160, 7 * 160, 12 * 160 + 159, 13 * 160 + 1])
def test_a_long_recording_is_heard_in_parts_and_has_the_same_features(monkeypatch, length):
    torch.manual_seed(0)
    network, waveform = Network("cpc-small").eval(), torch.randn(length)
    (whole,) = network.features([waveform])
    forward, heard = network.encoder.forward, []
    monkeypatch.setattr(network.encoder, "forward", lambda x: (heard.append(x.shape[1]), forward(x))[1])
    monkeypatch.setattr("stec.audio.network.MOST", 6)
    (parts,) = network.features([waveform])
    assert max(heard) == 5 * 160 + 465
    assert torch.allclose(parts, whole, atol=1e-5)


def test_an_unknown_size_is_named():
    with pytest.raises(UserError, match="encoder=cpc-smal: did you mean 'cpc-small'"):
        Network("cpc-smal")


def test_gradients_lie_in_memory_as_their_weights_do():
    """Several processes add them up where they lie, and warn of others."""
    network = Network("cpc-small", bidirectional=True)
    frames, contexts = network(torch.randn(2, 3200))
    (frames.sum() + contexts.sum()).backward()
    layouts = {name: (weight.stride(), weight.grad.stride()) for name, weight in network.named_parameters()}
    assert {name for name, (own, gradient) in layouts.items() if own != gradient} == set()
