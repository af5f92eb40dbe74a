"""A loss of ours against an independent one in float64: values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def related_views(pairs: int, dim: int, seed: int) -> list[Tensor]:
    """(B, D), (B, D): related, as the views of one image are, with dimensions of different size and mean."""
    generator = torch.Generator().manual_seed(seed)
    scale, shift = 0.3 + torch.rand(dim, generator=generator), torch.randn(dim, generator=generator)
    first = torch.randn(pairs, dim, generator=generator)
    second = first + 0.7 * torch.randn(pairs, dim, generator=generator)
    return [first * scale + shift, second * scale + shift]


def assert_equal(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], inputs: list[Tensor], rounding: float = 0.0
) -> None:
    """To 1e-5, gradients relative to the largest of them; `rounding`: what float32 leaves of some that cancel."""
    single = [x.detach().clone().requires_grad_() for x in inputs]
    double = [x.detach().double().requires_grad_() for x in inputs]
    value, expected = ours(*single), theirs(*double)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(value, single, materialize_grads=True)
    wanted = torch.autograd.grad(expected, double, materialize_grads=True)
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    assert largest > 0
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), want, rtol=0, atol=1e-5 * largest + rounding)


def assert_exact_under_autocast(loss: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = loss(*inputs)
    assert torch.equal(mixed, loss(*inputs))


def partners_found(embeddings: Tensor) -> float:
    """The share of the views (2B, D) whose partner is the nearest other one in direction, one view at a time."""
    views = len(embeddings)
    found = 0
    for i in range(views):
        similarity = torch.cosine_similarity(embeddings[i], embeddings, dim=1)
        similarity[i] = -2
        found += int(similarity.argmax()) == (i + views // 2) % views
    return found / views
