"""The one loop: shuffle, step, tell how it goes, keep checkpoints. What is trained is a `Task`.

    loop = Loop(config, make_fabric(config), folder, reporter, task)
    loop.begin(resume=False)
    loop.run()

Several processes: `torchrun --nproc-per-node 8 -m stec pretrain RECIPE devices=8`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stec import provenance
from stec.compiling import compile_network, compiles
from stec.errors import UserError
from stec.networks.synchrony import synchronise_batch_norms
from stec.replay import Replay
from stec.reporter import Progress, Reporter
from stec.run import RunFolder, publish

try:
    from lightning_fabric import Fabric
except ImportError:  # the same code inside of the larger `lightning` package
    from lightning.fabric import Fabric  # type: ignore


class Settings(Protocol):
    """What the loop reads of a config; see `stec.config.Config` for the meanings."""

    @property
    def epochs(self) -> int: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def device(self) -> str: ...  # noqa: D102
    @property
    def devices(self) -> int: ...  # noqa: D102
    @property
    def precision(self) -> str: ...  # noqa: D102
    @property
    def compile(self) -> str: ...  # noqa: D102
    @property
    def log_every(self) -> int: ...  # noqa: D102
    @property
    def checkpoint_every(self) -> int: ...  # noqa: D102


class Task(ABC):
    """What a loop trains: a module with its loss, the examples that it learns from, and how it is optimised."""

    module: (
        nn.Module
    )  # all that has weights: prepared batch -> the loss, `metrics` as one tensor, what `watch` is shown
    metrics: tuple[str, ...]  # what the module measures in every step; the loss comes first
    items: int  # examples to train on
    fingerprint: str  # of these; a run is resumed with the same ones only
    unit: str = "images"  # what the speed counts,
    units: float  # and how many of them a step takes
    static: bool = True  # all steps do the same work on the same shapes: they can be compiled and replayed
    warmup: int = 0  # steps

    @abstractmethod
    def batches(self, share: Tensor, size: int) -> Iterator[tuple[Any, ...]]:
        """The examples with these numbers, on the device, `size` at a time."""

    def order(self, shuffle: torch.Generator, batch_size: int) -> Tensor:
        """The numbers of all examples in the order of an epoch. A process takes neighbours out of each batch."""
        return torch.randperm(self.items, generator=shuffle)

    def prepare(self, *batch: Any) -> tuple[Any, ...]:
        """What the device does to a batch before the module sees it."""
        return batch

    @abstractmethod
    def optimizer(self, rate: Tensor) -> Optimizer:
        """Of the module's weights. The learning rate is a tensor on the device, which the loop fills."""

    @abstractmethod
    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step."""

    def compiled(self, alone: bool) -> Iterable[nn.Module]:
        """The modules that are compiled, each as one; `alone`: there are no other processes."""
        return [self.module] if alone else []

    def unsynchronised(self) -> Iterable[nn.Module]:
        """Modules whose batch norms see the batch of their own process alone."""
        return ()

    def after_step(self, progress: Tensor) -> None:  # noqa: B027
        """What follows the optimizer's step, such as moving averages; `progress` reaches 1 at the last one."""

    def watch(self, *shown: Tensor) -> tuple[dict[str, float], str | None]:
        """Further metrics, from what the module showed of the last step; and what is wrong, if anything is."""
        return {}, None

    def publish(self, folder: RunFolder) -> None:  # noqa: B027
        """Writes what others may want of an unfinished run, such as the encoder."""


def make_fabric(config: Settings) -> Fabric:
    """Device, precision and processes as the config asks for."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: no CUDA device is available here; use device=cpu or device=auto")
    cuda = config.device != "cpu" and torch.cuda.is_available()
    bf16 = config.precision == "bf16" or (config.precision == "auto" and cuda and torch.cuda.is_bf16_supported())
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=config.devices,
        precision="bf16-mixed" if bf16 else "32-true",
    )
    fabric.launch()
    return fabric


class Loop:
    """The state of one training."""

    def __init__(self, config: Settings, fabric: Fabric, folder: RunFolder, reporter: Reporter, task: Task) -> None:
        self.config, self.fabric, self.folder, self.reporter, self.task = config, fabric, folder, reporter, task
        if config.batch_size > task.items:
            larger = f"batch_size={config.batch_size} is larger than the training set ({task.items} examples)"
            raise UserError(f"{larger}: lower batch_size")
        if config.batch_size % fabric.world_size:
            raise UserError(f"batch_size={config.batch_size} does not divide over {fabric.world_size} processes")
        # Rate and progress change from step to step on the device: the host never waits, and a step can be replayed.
        self.rate_now = torch.zeros((), device=fabric.device)
        self.progress = torch.zeros((), dtype=torch.float64, device=fabric.device)
        optimizer = task.optimizer(self.rate_now)
        alone, cuda = fabric.world_size == 1, fabric.device.type == "cuda"
        if cuda and not alone:  # PyTorch has no synchronised batch norm for CPUs
            synchronise_batch_norms(task.module, task.unsynchronised())
        self.prepare: Callable[..., tuple[Any, ...]] = task.prepare
        self.step_on_device: Callable[..., tuple[Tensor, ...]] = self._step
        if task.static and compiles(config.compile, fabric.device):
            torch.backends.cudnn.benchmark = True  # of convolutions, too, the fastest kernels are picked by trying
            for network in task.compiled(alone):
                compile_network(network, config.compile)
            self.prepare = torch.compile(task.prepare, dynamic=False)
            if cuda and alone:
                self.step_on_device = Replay(self._step)
        self.model, self.optimizer = fabric.setup(task.module, optimizer)
        self.steps_per_epoch = task.items // config.batch_size
        self.steps = self.steps_per_epoch * config.epochs
        self.epoch = self.step = 0
        self.seconds = 0.0  # spent training, over all resumptions
        self.steady: list[float] = []  # seconds per step in every interval
        self.pending: list[Tensor] = []  # metrics not yet fetched from the device
        self.shown: tuple[Tensor, ...] = ()  # by the last step
        self.warned = False  # of what is wrong
        self.since = 0.0

    # --- training ---

    def begin(self, resume: bool) -> None:
        """Makes the run folder, or continues with what is in it."""
        if resume:
            self._resume()
        elif self.fabric.is_global_zero:
            self.folder.begin(self.config)

    def run(self) -> None:
        """All epochs that are left."""
        self.model.train()
        self.since = time.perf_counter()
        while self.epoch < self.config.epochs:
            for batch in self._batches():
                self.train(batch)
                if len(self.pending) == self.config.log_every:
                    self._fetch()
            self.epoch += 1
            if self.epoch % self.config.checkpoint_every == 0 or self.epoch == self.config.epochs:
                self._fetch()
                self._save()

    def _batches(self) -> Iterator[tuple[Any, ...]]:
        """This process's share of an epoch, in an order that seed and epoch alone decide."""
        seed, rank, world = self.config.seed, self.fabric.global_rank, self.fabric.world_size
        shuffle = torch.Generator().manual_seed(_mix(seed, self.epoch))
        order = self.task.order(shuffle, self.config.batch_size)
        torch.manual_seed(_mix(seed, self.epoch, rank + 1))  # the actions; a resumed run repeats them exactly
        each = self.config.batch_size // world
        share = order[: self.steps_per_epoch * self.config.batch_size].view(-1, world, each)[:, rank].flatten()
        yield from self.task.batches(share, each)

    def train(self, batch: tuple[Any, ...]) -> None:
        """One step."""
        self.rate_now.fill_(self._rate())
        self.step += 1
        self.progress.fill_(self.step / self.steps)
        values, *self.shown = self.step_on_device(*batch)  # type: ignore[assignment]
        self.pending.append(values.clone())

    def _step(self, *batch: Any) -> tuple[Tensor, ...]:
        """All that the device does in a step: the task's metrics, and what its module shows."""
        loss, *shown = self.model(*self.prepare(*batch))
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        self.optimizer.step()
        self.task.after_step(self.progress)
        return tuple(shown)

    def _rate(self) -> float:
        return self.task.rate(self.step, self.steps)

    def _fetch(self) -> None:
        """Brings the metrics of the last steps to the host: the only place where the loop waits for the device."""
        if not self.pending:
            return
        values = torch.stack(self.pending)  # (steps, metrics)
        finite = values[:, 0].isfinite()
        mean, good = values.mean(dim=0).tolist(), finite.tolist()
        now = time.perf_counter()
        elapsed, self.since = now - self.since, now
        self.seconds += elapsed
        self.steady.append(elapsed / len(good))
        if not all(good):
            self._diverged(self.step - len(good) + good.index(False))
        self.pending = []
        metrics = dict(zip(self.task.metrics, mean, strict=True)) | self._watch()
        metrics |= {"rate": self._rate(), f"{self.task.unit}_per_second": self.task.units / self.steady[-1]}
        if self.fabric.is_global_zero:
            epoch, seconds = round(self.step / self.steps_per_epoch, 4), round(self.seconds, 3)
            self.folder.add_metrics({"step": self.step, "epoch": epoch, "seconds": seconds, **metrics})
            begun = -(-self.step // self.steps_per_epoch)
            progress = Progress(begun, self.config.epochs, self.step, self.steps, self.seconds, metrics)
            self.reporter.progress(progress)

    def _watch(self) -> dict[str, float]:
        """The task's look at the last step in this process. What is wrong and outlasts the warm-up is noted once."""
        measured, wrong = self.task.watch(*self.shown)
        if wrong and not self.warned and self.step > self.task.warmup:
            self.reporter.note(wrong)
            self.warned = True
        return measured

    def speed(self) -> float | None:
        """Units per second: the median over all intervals, so that compilation does not count."""
        return self.task.units / sorted(self.steady)[len(self.steady) // 2] if self.steady else None

    def describe(self) -> dict[str, Any]:
        """How the training went and where it comes from, for the summary of a run."""
        metrics, speed = self.folder.metrics(), self.speed()
        return {
            "recipe": self.folder.recipe,
            "seed": self.config.seed,
            "epochs": self.config.epochs,
            "final_metrics": metrics[-1] if metrics else None,
            f"{self.task.unit}_per_second": round(speed) if speed else None,
            "seconds": round(self.seconds, 1),
            "peak_memory_bytes": provenance.peak_memory_bytes(self.fabric.device),
            "device": provenance.hardware(self.fabric.device),
            "processes": self.fabric.world_size,
            "data_fingerprint": self.task.fingerprint,
            "commit": provenance.commit(),
            **provenance.versions(),
        }

    def _diverged(self, step: int) -> None:
        rate = self.task.rate(step, self.steps)
        kept = f"{self.folder.checkpoint} is from before" if self.folder.checkpoint.exists() else "no checkpoint yet"
        raise UserError(
            f"the loss became NaN or infinite at step {step} (learning rate {rate:.4g}; {kept}): "
            "lower optimizer.rate or lengthen optimizer.warmup_epochs"
        )

    # --- checkpoints ---

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "epoch": self.epoch,
            "step": self.step,
            "seconds": self.seconds,
            "data_fingerprint": self.task.fingerprint,
        }

    def _save(self) -> None:
        part = self.folder.checkpoint.with_name(".checkpoint.pt.part")
        self.fabric.save(part, self._state())
        if self.fabric.is_global_zero:
            self.task.publish(self.folder)
            publish(part, self.folder.checkpoint)  # last: a run that has it has all

    def _resume(self) -> None:
        """Continues from the last checkpoint, if there is one."""
        if not self.folder.checkpoint.exists():
            self.reporter.note("no checkpoint yet: starting from the beginning")
            self._forget_metrics()
            return
        state = self._state()
        try:
            self.fabric.load(self.folder.checkpoint, state)
        except (RuntimeError, KeyError, EOFError) as error:
            raise UserError(f"{self.folder.checkpoint} cannot be read: {str(error).splitlines()[0]}") from None
        if state["data_fingerprint"] != self.task.fingerprint:
            raise UserError(f"the data changed since {self.folder.checkpoint} was written; start a new run")
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_now  # loading has put another tensor in its place
        self.epoch, self.step, self.seconds = state["epoch"], state["step"], state["seconds"]
        self._forget_metrics()
        self.reporter.note(f"resumed at epoch {self.epoch} of {self.config.epochs}")

    def _forget_metrics(self) -> None:
        if self.fabric.is_global_zero:  # the one that writes
            self.folder.forget_metrics_after(self.step)


def _mix(*numbers: int) -> int:
    """One seed from several numbers, well apart from its neighbours."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])
