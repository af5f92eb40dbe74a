"""The kernels behind `stec.networks.normalising`.

Images are matrices (rows, channels) with one row per pixel, N H W of them. What reads a matrix for the second time
starts at its end, which is still in the cache.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 64  # of a tile
OPTIONS = {"num_warps": 8, "enable_fp_fusion": True}  # products and sums in one, as was measured, whatever the default
MEASURED, TILES = 2048, 4  # elements of a tile where nothing but sums is needed, and how many are read at a time
TILE = 4096  # elements of any other
MEASURING, ADDING = 512, 256  # programs that share the rows at most
NARROW = 16  # channels of which their sums are added at a time


@triton.jit(do_not_specialize=["turns"])
def norm_measure(
    x, sums, squares, rows, channels, turns, TILES: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Sums of distances to the first row, and of their squares, over every n-th run of TILES tiles of n programs."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    offset = tl.arange(0, ROWS)[:, None]
    pivot = tl.load(x + channel).to(tl.float32)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    square = tl.zeros((ROWS, CHANNELS), tl.float32)
    for turn in range(turns):
        first = (turn * tl.num_programs(0) + tl.program_id(0)) * TILES * ROWS
        start = x + first.to(tl.int64) * channels
        for tile in tl.static_range(TILES):
            row = tile * ROWS + offset
            inside = first + row < rows
            distance = tl.load(start + (row * channels + channel), mask=inside, other=0.0).to(tl.float32) - pivot
            distance = tl.where(inside, distance, 0.0)
            total += distance
            square += distance * distance
    place = tl.program_id(0) * channels + tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(sums + place, tl.sum(total, axis=0))
    tl.store(squares + place, tl.sum(square, axis=0))


@triton.jit(do_not_specialize=["parts"])
def norm_conclude(
    x, sums, squares, mean, rstd, variance, parts, rows, channels, eps, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """The statistics, from the sums of all programs."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    total, square = _total(sums, squares, parts, channels, channel, PARTS)
    away = total / rows
    biased = tl.maximum(square / rows - away * away, 0.0)
    tl.store(mean + channel, tl.load(x + channel).to(tl.float32) + away)
    tl.store(rstd + channel, 1 / tl.sqrt(biased + eps))
    tl.store(variance + channel, biased * (rows / tl.maximum(rows - 1, 1)))


@triton.jit
def _total(first, second, parts, channels, channel, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)[:, None]
    place = part * channels + channel[None, :]
    one = tl.load(first + place, mask=part < parts, other=0.0)
    other = tl.load(second + place, mask=part < parts, other=0.0)
    return tl.sum(one, axis=0), tl.sum(other, axis=0)


@triton.jit
def norm_apply(
    x, residual, y, mean, rstd, weight, bias, rows, channels,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y = relu((x - mean) rstd weight + bias + residual)"""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    offset = tl.arange(0, ROWS)[:, None]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    place, inside = first.to(tl.int64) * channels + (offset * channels + channel), first + offset < rows
    value = tl.load(x + place, mask=inside).to(tl.float32)
    value = (value - tl.load(mean + channel)) * (tl.load(rstd + channel) * tl.load(weight + channel))
    value += tl.load(bias + channel)
    if RESIDUAL:
        value += tl.load(residual + place, mask=inside).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + place, value, mask=inside)


@triton.jit(do_not_specialize=["turns"])
def norm_add_up(
    gradient, second, x, y, passed, mean, rstd, weight, bias, sums, products, rows, channels, turns,
    SECOND: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient behind ReLU, and of its products with x - mean; where it is needed again, it is kept."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    offset = tl.arange(0, ROWS)[:, None]
    m, b = tl.load(mean + channel), tl.load(bias + channel)
    scale = tl.load(rstd + channel) * tl.load(weight + channel)
    total = tl.zeros((ROWS, CHANNELS), tl.float32)
    product = tl.zeros((ROWS, CHANNELS), tl.float32)
    for turn in range(turns):
        first = (turn * tl.num_programs(0) + tl.program_id(0)) * ROWS
        inside = first + offset < rows
        place = first.to(tl.int64) * channels + (offset * channels + channel)
        away = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - m
        value = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
        if SECOND:
            value += tl.load(second + place, mask=inside, other=0.0).to(tl.float32)
        if RESIDUAL:
            value = tl.where(tl.load(y + place, mask=inside, other=0.0) > 0, value, 0.0)
        elif RELU:
            value = tl.where(away * scale + b > 0, value, 0.0)
        if SECOND or RESIDUAL:
            tl.store(passed + place, value, mask=inside)
        total += value
        product += value * away
    place = tl.program_id(0) * channels + tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(sums + place, tl.sum(total, axis=0))
    tl.store(products + place, tl.sum(product, axis=0))


@triton.jit(do_not_specialize=["parts"])
def norm_add_parts(
    sums, products, rstd, of_bias, of_weight, parts, channels, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """The gradients of weight and bias, from the sums of all programs."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    total, product = _total(sums, products, parts, channels, channel, PARTS)
    tl.store(of_bias + channel, total)
    tl.store(of_weight + channel, product * tl.load(rstd + channel))


@triton.jit
def norm_return(
    gradient, x, of_x, mean, rstd, weight, bias, of_weight, of_bias, rows, channels,
    RELU: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """of_x = weight rstd (g - mean g - normal mean(g normal)), g the gradient behind ReLU, normal (x - mean) rstd"""
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    offset = tl.arange(0, ROWS)[:, None]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    place, inside = first.to(tl.int64) * channels + (offset * channels + channel), first + offset < rows
    r, part = tl.load(rstd + channel), 1 / rows
    scale = tl.load(weight + channel) * r
    away = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - tl.load(mean + channel)
    value = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(away * scale + tl.load(bias + channel) > 0, value, 0.0)
    value -= tl.load(of_bias + channel) * part + away * (tl.load(of_weight + channel) * r * part)
    tl.store(of_x + place, value * scale, mask=inside)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, relu: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `stec.networks.normalising.norm_forward`; x and residual are channels-last."""
    rows, channels, blocks = _sides(x)
    parts, turns = _share(MEASURING, rows, blocks, TILES * MEASURED // CHANNELS)
    y = torch.empty_like(x)
    mean, rstd, variance = (torch.empty_like(weight) for _ in range(3))
    sums, squares = weight.new_empty(parts, channels), weight.new_empty(parts, channels)
    tile = {"ROWS": MEASURED // CHANNELS, "CHANNELS": CHANNELS} | OPTIONS
    norm_measure[(parts, blocks)](x, sums, squares, rows, channels, turns, TILES=TILES, **tile)
    norm_conclude[(channels // NARROW,)](
        x,
        sums,
        squares,
        mean,
        rstd,
        variance,
        parts,
        rows,
        channels,
        eps,
        PARTS=MEASURING,
        CHANNELS=NARROW,
        **OPTIONS,
    )
    added = x if residual is None else residual
    tile = {"ROWS": TILE // CHANNELS, "CHANNELS": CHANNELS} | OPTIONS
    norm_apply[(triton.cdiv(rows, tile["ROWS"]), blocks)](
        x, added, y, mean, rstd, weight, bias, rows, channels, RELU=relu, RESIDUAL=residual is not None, **tile
    )
    return y, mean, rstd, variance


def backward(
    gradient: Tensor,
    second: Tensor | None,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `stec.networks.normalising.norm_backward`."""
    rows, channels, blocks = _sides(x)
    parts, turns = _share(ADDING, rows, blocks, TILE // CHANNELS)
    of_x, of_weight, of_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    sums, products = weight.new_empty(parts, channels), weight.new_empty(parts, channels)
    kept = second is not None or y is not None
    passed = torch.empty_like(x) if kept else x.new_empty(0)
    tile = {"ROWS": TILE // CHANNELS, "CHANNELS": CHANNELS} | OPTIONS
    norm_add_up[(parts, blocks)](
        gradient, x if second is None else second, x, x if y is None else y, passed, mean, rstd, weight, bias,
        sums, products, rows, channels, turns,
        SECOND=second is not None, RELU=relu, RESIDUAL=y is not None, **tile,
    )  # fmt: skip
    norm_add_parts[(channels // NARROW,)](
        sums, products, rstd, of_bias, of_weight, parts, channels, PARTS=ADDING, CHANNELS=NARROW, **OPTIONS
    )
    norm_return[(triton.cdiv(rows, tile["ROWS"]), blocks)](
        passed if kept else gradient, x, of_x, mean, rstd, weight, bias, of_weight, of_bias, rows, channels,
        RELU=relu and not kept, **tile,
    )  # fmt: skip
    return of_x, of_weight, of_bias, passed


def _sides(x: Tensor) -> tuple[int, int, int]:
    """Rows, channels, and how many tiles lie beside each other."""
    channels = x.shape[1]
    return x.numel() // channels, channels, channels // CHANNELS


def _share(programs: int, rows: int, blocks: int, run: int) -> tuple[int, int]:
    """How many of the programs share the rows, and how many runs of so many rows each of them has."""
    runs = triton.cdiv(rows, run)
    parts = min(runs, max(1, programs // blocks))
    return parts, triton.cdiv(runs, parts)
