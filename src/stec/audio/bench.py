"""How fast sound is trained on, beside forward and backward pass of encoder and context alone."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stec import provenance
from stec.audio.actions import piece_length
from stec.audio.method import Method
from stec.audio.network import Network
from stec.audio.sounds import Sounds, Split, join
from stec.audio.training import Listening
from stec.bench import TRAINED, checkpoint_cost, recorded, take_turns, wait
from stec.compiling import compile_network, compiles
from stec.config import Config
from stec.engine import Loop
from stec.fabric import Fabric
from stec.profiling import time_by_kernel
from stec.reporter import Nobody
from stec.run import RunFolder


def measure(config: Config, fabric: Fabric, begun: float, seconds: float, profile: bool) -> dict[str, Any]:
    """A row of `stec.bench.bench`, in seconds of sound per second; its clock was started at `begun`."""
    device = fabric.device
    provenance.forget_peak()
    sounds = _noise(config)
    main = _loop(config, fabric, sounds)
    batch = next(main.task.batches(torch.arange(config.batch_size), config.batch_size))
    main.train(batch)
    wait(device)
    first_step = time.perf_counter() - begun
    parts: dict[str, Callable[[], Any]] = {"end_to_end": lambda: main.train(batch)}
    if config.method != "cpc":
        other = _loop(dataclasses.replace(config, method="cpc"), fabric, sounds)
        plain = next(other.task.batches(torch.arange(config.batch_size), config.batch_size))
        parts["without_manipulation"] = lambda: other.train(plain)
    for _ in range(TRAINED):
        main.train(batch)
    method = main.task.module
    assert isinstance(method, Method)
    ceiling = _network_alone(method.network, config, fabric)
    act = recorded(lambda *pieces: main.prepare(*pieces)[:1], config, device)
    windows = main.prepare(*batch)[0].flatten(0, 1)
    parts["ceiling"] = lambda: ceiling(windows)
    parts["augmentation"] = lambda: act(*batch)
    rates = take_turns(parts, main.task.units, seconds, device)
    plain_rate = rates.get("without_manipulation")
    return {
        "batch_size": config.batch_size,
        **{name: round(rate, 1) for name, rate in rates.items()},
        "of_ceiling": round(rates["end_to_end"] / rates["ceiling"], 4),
        "cost_of_manipulation": round(plain_rate / rates["end_to_end"] - 1, 4) if plain_rate else None,
        "seconds_to_first_step": round(first_step, 2),
        "peak_memory_bytes": provenance.peak_memory_bytes(device),
        "checkpoint": checkpoint_cost(main, lambda: main.train(batch), config.checkpoint_minutes, device),
        **({"profile": time_by_kernel(parts["end_to_end"], device)} if profile else {}),
    }


def _noise(config: Config) -> Sounds:
    """What is in the sounds does not change how long they take."""
    random = np.random.default_rng(0)
    length = 2 * piece_length(config.audio.window, ["speed"])
    number = 2 * config.batch_size
    waveforms = [random.integers(-9999, 9999, length, np.int16) for _ in range(number)]
    return join("noise", waveforms, map(str, range(number)), map(str, range(number)), None, ())


def _loop(config: Config, fabric: Fabric, sounds: Sounds) -> Loop:
    task = Listening(config, fabric, sounds, Split(list(range(len(sounds))), [], [], []))
    loop = Loop(config, fabric, RunFolder(Path(tempfile.gettempdir()), "bench"), Nobody(), task)
    loop.model.train()
    return loop


def _network_alone(trained: Network, config: Config, fabric: Fabric) -> Callable[..., Any]:
    """Forward and backward pass as in training: compiled, recorded, in that precision. Gradients are noise."""
    network = Network(config.encoder, config.audio.bidirectional).to(fabric.device)
    network.load_state_dict(trained.state_dict())
    if compiles(config.compile, fabric.device):
        compile_network(network.encoder, config.compile)

    def forward_backward(windows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with fabric.autocast():
            frames, contexts = network(windows)
        torch.autograd.backward([frames.float(), contexts.float()], gradients(frames, contexts))
        network.zero_grad()
        return ()

    kept: list[torch.Tensor] = []

    def gradients(*outputs: torch.Tensor) -> list[torch.Tensor]:
        if not kept:
            kept.extend(torch.randn_like(output, dtype=torch.float32) for output in outputs)
        return kept

    return recorded(forward_backward, config, fabric.device)
