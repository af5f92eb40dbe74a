"""What DINO and SwAV have in common: prototypes, which can be frozen, in steps that are compiled whole."""

import copy

import pytest
import torch

import stec
from stec.networks.heads import Prototypes
from stec.views import Views


def test_prototypes_have_the_length_1_whatever_becomes_of_their_weights() -> None:
    prototypes, embeddings = Prototypes(5, 9), 4 * torch.randn(2, 3, 5)
    torch.testing.assert_close(prototypes.weight.norm(dim=1), torch.ones(9))
    expected = torch.stack([torch.cosine_similarity(embeddings, w.detach(), dim=2) for w in prototypes.weight], dim=2)
    prototypes.weight.data.mul_(torch.linspace(0.1, 10, 9)[:, None])
    torch.testing.assert_close(prototypes(embeddings), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(prototypes(embeddings), prototypes.float()(embeddings))


@pytest.mark.parametrize("name", ["dino", "swav"])
def test_frozen_prototypes_keep_their_directions_and_move_from_then_on(name: str) -> None:
    """Weight decay alone shrinks them, which changes no score."""
    views, method = Views(size=32), stec.create(name, "resnet-small", identity={"prototypes": 9, "frozen": 0.5})
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    start = method.identity.prototypes.weight.detach().clone()
    for step in range(4):
        optimizer.zero_grad()
        method(views(torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8))).total.backward()
        optimizer.step()
        weight = method.identity.prototypes.weight.detach()
        moved = (torch.cosine_similarity(weight, start, dim=1) - 1).abs().max()
        assert (moved > 1e-6) == (step >= 2), step
        assert weight.norm(dim=1).max() < 1
        method.after_step((step + 1) / 4)
    assert all(p.grad.any() for p in method.identity.projector.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["stec-dino", "stec-swav"])
def test_a_step_is_compiled_whole_and_does_the_same(name: str) -> None:
    settings = {"prototypes": 9, "hidden": 16, "output": 5, "assigned_queue": 8}
    method = stec.create(name, "resnet-small", identity=settings)
    twin, views = copy.deepcopy(method), Views(size=16, small=1, small_size=8)
    batch = views(torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8))
    compiled = torch.compile(twin, backend="aot_eager", fullgraph=True, dynamic=False)
    for progress in (0.5, 1.0, 1.0):
        losses = [each(batch).total for each in (method, compiled)]
        torch.testing.assert_close(*losses)
        for each, loss in zip((method, twin), losses, strict=True):
            loss.backward()
            each.after_step(progress)
    torch.testing.assert_close(twin.state_dict(), method.state_dict())
    assert next(b for key, b in method.identity.named_buffers() if key in ("centre", "queue")).any()
    torch.testing.assert_close([p.grad for p in twin.parameters()], [p.grad for p in method.parameters()])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"assigned_queue": -1}, "identity.assigned_queue=-1: must be at least 0"),
        ({"prototypes": 1}, "identity.prototypes=1: must be at least 2"),
        ({"target_temperature": 0.0}, "identity.target_temperature=0.0: must be above 0"),
        ({"warmup": 1.0}, "identity.warmup=1.0: is a share of training, from 0 to below 1"),
        ({"frozen": -0.1}, "identity.frozen=-0.1: is a share of training"),
    ],
)
def test_bad_settings_are_refused(settings: dict, reason: str) -> None:
    for name in ("dino", "stec-swav"):
        with pytest.raises(stec.UserError, match=reason):
            stec.create(name, "resnet-small", identity=settings)
