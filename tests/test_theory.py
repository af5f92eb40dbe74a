"""The paper's appendix "Derivations and additional theory", as facts about random numbers and this code's losses.

Divergences are scipy's; the losses are those that train. a_id is 0 if x and x' show the same object, 1 if not; some of
the models add a 2 that never happens.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import entropy as divergence  # of two arguments: D_KL(p ; q)
from torch import Tensor

from stec.functional import byol, manipulation_cross_entropy, nt_xent, relic

seeds = st.integers(0, 10_000)
SAME, DIFFERENT = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]  # efference copies p_EC(a_id): perfect copies of the action


def distribution(rng: np.random.Generator, *shape: int) -> NDArray:
    """Random probabilities along the last axis."""
    return rng.dirichlet(np.ones(shape[-1]), shape[:-1])


def projections(seed: int, pairs: int = 5, dim: int = 4) -> list[Tensor]:
    """z(x), z(x'), t(x), t(x')"""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(pairs, dim, generator=generator)
    return [image + torch.randn(pairs, dim, generator=generator) for _ in range(4)]


def directions(*views: Tensor) -> NDArray:
    """All views one below the other, with length 1, in float64."""
    rows = torch.cat(views).double().numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def assignments(z: NDArray, t: NDArray, temperature: float) -> NDArray:
    """q(a_id = 0 | x, x_n) of equation (sw): every view (row) over its candidates (columns), which exclude itself."""
    logits = z @ t.T / temperature
    np.fill_diagonal(logits, -np.inf)
    return softmax(logits, axis=1)


def partner(i: int, views: int) -> int:
    return (i + views // 2) % views


@given(seed=seeds, k=st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_the_loss_decomposes_into_identity_and_manipulation(seed: int, k: int) -> None:
    """Section "Decomposition of the loss". Of another object no manipulation is known: one extra value, surely."""
    rng = np.random.default_rng(seed)
    unknown = np.eye(k + 1)[k]
    joints, parts = [], []
    for _ in ("p_EC", "q_theta"):
        identity, manipulation = distribution(rng, 2), distribution(rng, k)
        conditional = np.stack([[*manipulation, 0.0], unknown])  # of a_manip, given a_id
        joints.append((identity[:, None] * conditional).ravel())
        parts.append((identity, manipulation))
    (p_id, p_manip), (q_id, q_manip) = parts
    loss_id, loss_manip = divergence(p_id, q_id), p_id[0] * divergence(p_manip, q_manip)
    assert divergence(*joints) == pytest.approx(loss_id + loss_manip, rel=1e-9)


@given(seed=seeds, components=st.integers(1, 4), k=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_the_manipulation_loss_is_the_divergence_from_the_copy_by_the_number_of_components(
    seed: int, components: int, k: int
) -> None:
    """The action is the tuple of its bins, and q a product over components."""
    rng = np.random.default_rng(seed)
    logits, codes = rng.normal(size=(components, k)), rng.integers(k, size=components)
    q = np.ones(1)
    for row in softmax(logits, axis=1):
        q = np.multiply.outer(q, row).ravel()
    copy = np.zeros(k**components)
    copy[np.ravel_multi_index(codes, (k,) * components)] = 1
    loss = manipulation_cross_entropy(torch.tensor(logits[None]), torch.tensor(codes[None]))
    assert components * loss.item() == pytest.approx(divergence(copy, q), rel=1e-5)


@given(seed=seeds, temperature=st.floats(0.1, 2.0))
@settings(max_examples=30, deadline=None)
def test_nt_xent_bounds_the_identity_loss_whichever_object_comes_next(seed: int, temperature: float) -> None:
    """Section "Instance discrimination as an upper bound", with equality where the same object stays in focus."""
    first, second, *_ = projections(seed)
    z = directions(first, second)
    q = assignments(z, z, temperature)
    assert q.sum(axis=1) == pytest.approx(1)  # the identity is conserved

    def loss_id(i: int, chosen: int) -> float:
        same = chosen == partner(i, len(z))
        return float(divergence([same, not same], [q[i, chosen], 1 - q[i, chosen]]))

    bound = nt_xent(first, second, temperature).item()
    views, pairs = range(len(z)), len(first)
    stays = sum(loss_id(i, partner(i, len(z))) for i in views) / pairs
    worst = sum(max(loss_id(i, n) for n in views if n != i) for i in views) / pairs
    assert stays == pytest.approx(bound, rel=1e-5)
    assert worst <= bound + 1e-5


@given(seed=seeds, epsilon=st.floats(1e-6, 0.1))
@settings(max_examples=30, deadline=None)
def test_byol_is_the_divergence_of_a_normal_inverse_model(seed: int, epsilon: float) -> None:
    """Section "Recovering non-contrastive SSL (BYOL)".

    Its last line has a factor 1 - epsilon on the distance; as a logarithm is taken, -log(1 - epsilon) is added instead.
    """
    predictions, targets = projections(seed)[:2], projections(seed)[2:]
    z, t = directions(*predictions), directions(*targets)
    total = 0.0
    for i in range(len(z)):
        same = (1 - epsilon) * np.exp(-np.sum((z[i] - t[partner(i, len(z))]) ** 2))
        q = [same, epsilon, 1 - same - epsilon]
        assert min(q) >= -1e-12
        total += divergence(SAME, q) + np.log(1 - epsilon)
        assert divergence(DIFFERENT, q) == pytest.approx(-np.log(epsilon))  # nothing to learn from other objects
    assert byol(*predictions, *targets).item() == pytest.approx(total / len(predictions[0]), rel=1e-5, abs=1e-6)


@given(seed=seeds, alpha=st.floats(0.0, 3.0), temperature=st.floats(0.1, 2.0))
@settings(max_examples=30, deadline=None)
def test_relic_is_the_divergence_of_a_confidence_weighted_inverse_model(
    seed: int, alpha: float, temperature: float
) -> None:
    """Section "Recovering ReLIC and ReLICv2": q = q_NT exp(-alpha D), the rest goes to a_id = 2.

    L_id is then alpha D *plus* the divergence of q_NT; the section's last line prints a minus.
    """
    views, targets = projections(seed)[:2], projections(seed)[2:]
    q_nt = assignments(directions(*views), directions(*targets), temperature)
    total = 0.0
    for i in range(len(q_nt)):
        j = partner(i, len(q_nt))
        others = [n for n in range(len(q_nt)) if n not in (i, j)]
        of_x, of_partner = q_nt[i, [j, *others]], q_nt[j, [i, *others]]  # over the same objects, before and after
        inconsistency = divergence(of_partner, of_x)
        confidence = np.exp(-alpha * inconsistency)
        q = [q_nt[i, j] * confidence, (1 - q_nt[i, j]) * confidence, 1 - confidence]
        total += divergence(SAME, q)
        contrastive = divergence(DIFFERENT, [q_nt[i, j], 1 - q_nt[i, j], 0.0])
        assert divergence(DIFFERENT, q) == pytest.approx(alpha * inconsistency + contrastive, rel=1e-6)
    loss = relic(*views, *targets, temperature, alpha).loss
    assert loss.item() == pytest.approx(total / len(views[0]), rel=1e-5, abs=1e-5 / temperature)
