"""What the manipulation model knows: the action it reads from pairs of views, beside what was done."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stec.actions import EfferenceCopy
from stec.analysis.placing import place
from stec.analysis.sample import Sample
from stec.loading import LoadedRun
from stec.manipulation import Manipulation
from stec.views import Views

SAMPLED = 16_384  # pairs on which the value of a bin is measured
SIDE = 1024.0  # of the imagined square image on which they are sampled
GROUPS = 8  # of equally many pairs, by true value, in which errors are averaged


@dataclass(frozen=True)
class Reading:
    """True and inferred action of N pairs of views."""

    names: tuple[str, ...]  # of the C components
    informative: tuple[bool, ...]
    k: int
    true: Tensor  # (N, C) values
    codes: Tensor  # (N, C) their bins
    guess: Tensor  # (N, C) values that psi infers; with a classifier those of the most probable bins
    guess_codes: Tensor  # (N, C)
    right: Tensor | None  # (N, C) what `guess` would be if every bin were right; None in a regression
    valid: Tensor  # (N, C) bool: pairs that training counts
    placed: Tensor | None  # (N, 2, 3) where psi thinks x' lies on the canvas of x


@dataclass(frozen=True)
class Component:
    """How well one component of the action is known, over the pairs that count."""

    name: str
    informative: bool
    pairs: int
    accuracy: float  # percent in the right bin
    chance: float  # percent that always naming the most frequent bin would get right
    error: float  # mean distance of the inferred value from the true one
    error_bins: float | None  # the same if every bin were right; None in a regression
    error_chance: float  # the same if the median were always inferred
    confusion: list[list[int]]  # [true bin][inferred bin]
    by_value: list[dict[str, float]]  # groups of equally many pairs: true value from, to, its median, and mean error


@torch.no_grad()
def read(run: LoadedRun, sample: Sample, first: Tensor, second: Tensor) -> Reading | None:
    """What psi infers from the features (N, D) of the views of a sample; None without psi."""
    psi = run.manipulation
    if psi is None:
        return None
    copy = sample.views.copy
    on_device = EfferenceCopy(*(type(g)(*(value.to(run.device) for value in g)) for g in copy))
    true, valid = psi.action(on_device), psi.valid_pairs(on_device)
    codes = psi.bins(true)
    output = psi.predict(first.to(run.device), second.to(run.device))
    right = None
    if psi.classifies:
        values = bin_values(psi, run.views).to(run.device)  # (C, K)
        guess_codes = output.argmax(dim=2)
        guess, right = (values.gather(1, code.T).T for code in (guess_codes, codes))
    else:
        guess, guess_codes = output, psi.bins(output)
    # Components that psi leaves out are the same for all pairs, but not always 0: crops of one size have xx = 1.
    whole = psi.representation(on_device).median(dim=0).values.repeat(len(guess), 1)
    whole[:, psi.index] = guess
    placed = place(run.config.manipulation.action, whole, on_device.first)
    varies = set(psi.informative.tolist())
    return Reading(
        names=tuple(psi.components),
        informative=tuple(i in varies for i in range(len(psi.components))),
        k=psi.bins.k,
        true=true.cpu(),
        codes=codes.cpu(),
        guess=guess.cpu(),
        guess_codes=guess_codes.cpu(),
        right=None if right is None else right.cpu(),
        valid=(valid if valid.dim() == 2 else valid[:, None].expand_as(true)).cpu(),
        placed=None if placed is None else placed.cpu(),
    )


def bin_values(psi: Manipulation, views: Views) -> Tensor:
    """The value that a bin stands for: the mean of the actions in it, over many sampled ones. (C, K) on the CPU

    A bin that no action falls into stands for its middle, or for its edge where it is open.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        sizes = torch.full((SAMPLED, 2), SIDE)
        copy = EfferenceCopy(views.sample(sizes), views.sample(sizes))
    index, edges = psi.index.cpu(), psi.bins.edges.cpu()
    actions = psi.representation(copy)[:, index]  # (SAMPLED, C)
    codes = (actions.unsqueeze(-1) >= edges).sum(dim=-1)
    members = torch.nn.functional.one_hot(codes, edges.shape[1] + 1).to(actions)  # (SAMPLED, C, K)
    count = members.sum(dim=0)
    mean = (members * actions.unsqueeze(-1)).sum(dim=0) / count.clamp(min=1)
    middle = (torch.cat([edges[:, :1], edges], dim=1) + torch.cat([edges, edges[:, -1:]], dim=1)) / 2
    return torch.where(count > 0, mean, middle)


def judge(reading: Reading) -> list[Component]:
    """How well each component is known. Those of which no pair counts are left out."""
    return [_component(reading, i) for i in range(len(reading.names)) if reading.valid[:, i].any()]


def _component(reading: Reading, i: int) -> Component:
    rows = reading.valid[:, i]
    true, guess = reading.true[rows, i].double(), reading.guess[rows, i].double()
    codes, guessed = reading.codes[rows, i], reading.guess_codes[rows, i]
    k, n = reading.k, len(true)
    confusion = torch.bincount(codes * k + guessed, minlength=k * k).view(k, k)
    error = (guess - true).abs()
    groups = [group for group in true.argsort(stable=True).tensor_split(GROUPS) if len(group)]
    return Component(
        name=reading.names[i],
        informative=reading.informative[i],
        pairs=n,
        accuracy=100 * confusion.diagonal().sum().item() / n,
        chance=100 * confusion.sum(dim=1).max().item() / n,
        error=error.mean().item(),
        error_bins=None if reading.right is None else (reading.right[rows, i] - true).abs().mean().item(),
        error_chance=(true - true.median()).abs().mean().item(),
        confusion=confusion.tolist(),
        by_value=[
            {
                "from": true[g].min().item(),
                "to": true[g].max().item(),
                "median": true[g].median().item(),
                "error": error[g].mean().item(),
            }
            for g in groups
        ],
    )
