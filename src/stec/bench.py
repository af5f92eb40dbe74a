"""How fast: training end to end beside the ceiling that the encoder alone sets, in one process and one run.

Every rate is in views per second. What is compared takes turns, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stec import provenance
from stec.compiling import compile_network, compiles, start_compilers
from stec.config import Config
from stec.data import DataSet, ResidentSplit
from stec.data.loading import worker_count
from stec.data.pictures import ArrayPictures
from stec.data.split import AHEAD, StreamedSplit
from stec.engine import Loop, make_fabric
from stec.errors import UserError
from stec.limits import SOUND
from stec.method import METHODS, build
from stec.networks.encoders import create_encoder
from stec.profiling import time_by_kernel
from stec.replay import WARM_UP, Replay
from stec.reporter import Nobody
from stec.run import RunFolder
from stec.training import Pretraining, Trainee

CLASSES = 10  # of the random labels
STREAMED = 4  # batches in the file that is streamed, over and over
CHECKPOINTS = 5  # of which the cost is measured
TRAINED = 10  # steps before the encoder is measured alone


def bench(
    config: Config,
    batch_sizes: list[int],
    seconds: float = 4.0,
    compare: str | None = None,
    profile: bool = False,
    streamed: bool = False,
) -> dict[str, Any]:
    """Measures ceiling, augmentation, and training with and without the manipulation model, for every batch size.

    Args:
        config: what would be trained; its data are replaced by random images of the same size, kept on the device.
        batch_sizes: images per step.
        seconds: how long each part is measured.
        compare: "lightly" adds that library's SimCLR parts with the same encoder.
        profile: adds the time of every kernel of a training step.
        streamed: adds training on images that worker processes read from a memory map.
    """
    if compare not in (None, "lightly"):
        raise UserError(f"--compare {compare}: choose lightly")
    sound = config.method in SOUND
    if sound and (compare or streamed):
        raise UserError("--compare and --streamed measure images; leave them out for sound")
    if config.strategy == "fsdp":
        raise UserError("stec bench measures with all weights in one place: use strategy=ddp")
    if config.devices > 1:
        raise UserError(f"devices={config.devices}: stec bench measures one; a run tells its own speed on several")
    begun = time.perf_counter()
    fabric = make_fabric(config)
    start_compilers(config.compile, fabric.device)
    rows = []
    for batch_size in batch_sizes:
        sized = dataclasses.replace(config, batch_size=batch_size)
        if sound:
            from stec.audio.bench import measure

            row = measure(sized, fabric, begun, seconds, profile)
        else:
            row = _measure(sized, fabric, begun, seconds, profile, streamed)
        if compare == "lightly":
            from stec.peers import lightly_simclr

            row["lightly"] = lightly_simclr(config, batch_size, fabric.device, seconds)
        rows.append(row)
        gc.collect()  # the loops hold each other in circles
        begun = time.perf_counter()
    return {
        "method": config.method,
        "encoder": config.encoder,
        "size": config.audio.window if sound else config.views.size,
        "unit": "seconds of sound" if sound else "views",
        "precision": str(fabric._precision.precision),
        "compile": config.compile,
        **provenance.origin(fabric.device),
        "rows": rows,
    }


def _measure(
    config: Config, fabric: Any, begun: float, seconds: float, profile: bool, streamed: bool
) -> dict[str, Any]:
    device = fabric.device
    split = _random_split(config, device)
    batch = next(split.batches(torch.arange(config.batch_size), config.batch_size))
    provenance.forget_peak()
    main = _loop(config, fabric, split)
    main.train(batch)
    wait(device)
    first_step = time.perf_counter() - begun
    parts: dict[str, Callable[[], Any]] = {"end_to_end": lambda: main.train(batch)}

    plain = _without_manipulation(config)
    if plain is not None:
        other = _loop(plain, fabric, split)
        parts["without_manipulation"] = lambda: other.train(batch)

    for _ in range(TRAINED):
        main.train(batch)
    trained: Any = main.task.module
    ceiling = _encoder_alone(trained.method.encoder, config, fabric)
    act = recorded(lambda *batch: (main.prepare(*batch)[0].images,), config, device)
    views = main.prepare(*batch)[0].images
    parts["ceiling"] = lambda: ceiling(views)
    parts["augmentation"] = lambda: act(*batch)

    rates = take_turns(parts, 2 * config.batch_size, seconds, device)
    memory = provenance.peak_memory_bytes(device)
    return {
        "batch_size": config.batch_size,
        **{name: round(rate) for name, rate in rates.items()},
        "of_ceiling": round(rates["end_to_end"] / rates["ceiling"], 4),
        "cost_of_manipulation": round(rates["without_manipulation"] / rates["end_to_end"] - 1, 4) if plain else None,
        "seconds_to_first_step": round(first_step, 2),
        "peak_memory_bytes": memory,
        "checkpoint": checkpoint_cost(main, lambda: main.train(batch), config.checkpoint_minutes, device),
        **({"streamed": round(_streamed_rate(main, config, device, seconds))} if streamed else {}),
        **({"profile": time_by_kernel(parts["end_to_end"], device)} if profile else {}),
    }


def _random_split(config: Config, device: torch.device) -> ResidentSplit:
    """Noise: what is in the images does not change how long they take."""
    number, size = 2 * config.batch_size, config.data.size
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8, generator=generator)
    sizes = torch.full((number, 2), float(size))
    return ResidentSplit(images.to(device), sizes, torch.arange(number) % CLASSES)


def _streamed_rate(loop: Loop, config: Config, device: torch.device, seconds: float) -> float:
    """Views per second of training on images that are streamed from a file, once what was read ahead is used up."""
    number, size, workers = STREAMED * config.batch_size, config.data.size, worker_count(config.data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noise.npy"
        np.save(path, np.random.default_rng(0).integers(0, 256, (number, size, size, 3), np.uint8))
        pictures = ArrayPictures(np.load(path, mmap_mode="r"), torch.arange(number) % CLASSES, size)
        split = StreamedSplit(pictures, size, device, workers)
        epochs = (split.batches(torch.randperm(number).repeat(100), config.batch_size) for _ in itertools.count())
        batches = itertools.chain.from_iterable(epochs)
        for _ in range(1 + workers * AHEAD):
            loop.train(next(batches))
        wait(device)
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            loop.train(next(batches))
            steps += 1
        wait(device)
        return 2 * config.batch_size * steps / (time.perf_counter() - begun)


def checkpoint_cost(loop: Loop, step: Callable[[], None], minutes: float, device: torch.device) -> dict[str, Any]:
    """How much longer training takes for a checkpoint, while it is copied and written: the median of a few.

    Each is compared with as many steps without one, right after it.
    """
    costs, stalls, writing = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        loop.folder = RunFolder(Path(folder), "bench")
        for _ in range(CHECKPOINTS):
            loop.pending.clear()
            wait(device)
            begun, steps = time.perf_counter(), 0
            loop.save()
            stalls.append(time.perf_counter() - begun)
            while loop.writer.busy or not steps:
                _time(step, 1, device)
                steps += 1
            writing.append(time.perf_counter() - begun)
            loop.writer.wait()
            costs.append(writing[-1] - steps * _time(lambda: _time(step, 1, device), steps, device))
        size = loop.folder.checkpoint.stat().st_size
    cost = max(median(costs), median(stalls))  # it takes at least as long as training stands still
    return {
        "seconds": round(cost, 4),
        "seconds_of_writing": round(median(writing), 4),
        "bytes": size,
        "share": round(cost / (60 * minutes), 6) if minutes else None,
        "minutes": minutes,
    }


def _loop(config: Config, fabric: Any, split: ResidentSplit) -> Loop:
    views, method = build(config)
    classes = tuple(str(label) for label in range(CLASSES))
    dataset = DataSet("noise", split, None, classes, config.data.size, "", True, ())
    folder = RunFolder(Path(tempfile.gettempdir()), "bench")
    task = Pretraining(config, fabric, dataset, views, Trainee(method, CLASSES))
    loop = Loop(config, fabric, folder, Nobody(), task)
    loop.model.train()
    return loop


def _without_manipulation(config: Config) -> Config | None:
    """The same identity model alone, if the method has a manipulation model."""
    pairing = METHODS[config.method]
    if not pairing.manipulation:
        return None
    alone = next(n for n, p in METHODS.items() if p.identity == pairing.identity and not p.manipulation)
    return dataclasses.replace(config, method=alone)


def _encoder_alone(trained: nn.Module, config: Config, fabric: Any) -> Callable[..., Any]:
    """Forward and backward pass of the encoder as it is trained: compiled, recorded, in that precision and layout.

    With weights that have been trained a little, and gradients that are noise. At the start the last norm of every
    block is zero, and so are half of all gradients, which is not what training computes.
    """
    encoder = create_encoder(config.encoder).to(fabric.device).to(memory_format=torch.channels_last)
    encoder.load_state_dict(trained.state_dict())
    if compiles(config.compile, fabric.device):
        compile_network(encoder, config.compile)
    gradient = torch.randn(2 * config.batch_size, int(encoder.dim), device=fabric.device)  # type: ignore[arg-type]

    def forward_backward(views: Tensor) -> tuple[Tensor, ...]:
        with fabric.autocast():
            features = encoder(views)
        features.float().backward(gradient)
        encoder.zero_grad()
        return ()

    return recorded(forward_backward, config, fabric.device)


def recorded(function: Callable[..., Any], config: Config, device: torch.device) -> Callable[..., Any]:
    """The function as it runs in training: replayed as a CUDA graph where a step is."""
    return Replay(function) if device.type == "cuda" and compiles(config.compile, device) else function


def take_turns(
    parts: dict[str, Callable[[], Any]], views: float, seconds: float, device: torch.device, turns: int = 6
) -> dict[str, float]:
    """Views, or whatever a call takes, per second of every part: the median over turns.

    Each turn is as long as it takes to fill its share of seconds.

    Every second turn goes backwards: what a part leaves behind, a warm chip above all, would always hit the next one.
    """
    times: dict[str, list[float]] = {name: [] for name in parts}
    calls = {}
    for name, part in parts.items():
        for _ in range(WARM_UP + 1):
            part()
        calls[name] = max(1, round(seconds / turns / max(1e-9, _time(part, 2, device))))
    for turn in range(turns):
        for name, part in reversed(parts.items()) if turn % 2 else parts.items():
            times[name].append(_time(part, calls[name], device))
    return {name: views / median(seconds) for name, seconds in times.items()}


def _time(part: Callable[[], Any], calls: int, device: torch.device) -> float:
    """Seconds per call."""
    wait(device)
    begun = time.perf_counter()
    for _ in range(calls):
        part()
    wait(device)
    return (time.perf_counter() - begun) / calls


def wait(device: torch.device) -> None:
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
