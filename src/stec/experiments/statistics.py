"""What a handful of runs tells: mean, standard deviation, 95 % interval, paired difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """A sample of independent runs."""

    n: int
    mean: float
    std: float | None  # of the sample (n - 1); None for a single run
    interval: float | None  # half the width of the 95 % t-interval of the mean; None for a single run


def spread(values: Sequence[float]) -> Spread:
    """Mean, standard deviation and interval of one value per run; there must be at least one."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return Spread(1, mean, None, None)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Spread(n, mean, std, t_quantile(0.975, n - 1) * std / math.sqrt(n))


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Spread | None:
    """Of `first - second` over the seeds that both have; None if they share none."""
    seeds = sorted(first.keys() & second.keys())
    return spread([first[seed] - second[seed] for seed in seeds]) if seeds else None


def t_quantile(p: float, freedom: int) -> float:
    """The quantile of Student's t distribution, for 0.5 < p < 1, found by halving."""
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < 2 * p - 1:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, freedom) < 2 * p - 1 else (low, middle)
    return (low + high) / 2


def _t_within(t: float, freedom: int) -> float:
    """P(|T| < t), exact for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
