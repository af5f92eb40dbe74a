"""The one loop: shuffle, step, tell how it goes, keep checkpoints. What is trained is a `Task`.

    loop = Loop(config, make_fabric(config), folder, reporter, task)
    loop.begin(resume=False)
    loop.run()

Several processes: `stec pretrain RECIPE devices=8`, or `torchrun --nproc-per-node 8 -m stec pretrain RECIPE`.
What a run computes does not depend on how many there are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import Tensor

from stec import checkpoint, provenance, randomness
from stec.compiling import compile_network, compiles, quick
from stec.errors import Stopped, UserError
from stec.fabric import Fabric, LightningEnvironment, ModelParallelStrategy
from stec.faults import explained
from stec.interruption import Interruption
from stec.launching import end_with_starter, give_time_to_end, meet_again
from stec.loggers import Logger, check_logger, open_logger
from stec.networks.synchrony import synchronise_batch_norms
from stec.partition import cut_optimizer, cut_weights, join, norms, own_part, partition
from stec.processes import known_shares, launched, shares
from stec.replay import Replay
from stec.reporter import Progress, Reporter
from stec.run import RunFolder
from stec.task import Settings, Task, smaller_batches

TELL = 10.0  # seconds of silence after which a CPU tells of steps that are no line of metrics yet


def make_fabric(config: Settings) -> Fabric:
    """Device, precision and processes as the config asks for."""
    check_logger(config.logger)
    provenance.commit()  # asked before anything takes long
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda: no CUDA device is available here; use device=cpu or device=auto")
    cuda = config.device != "cpu" and torch.cuda.is_available()
    bf16 = config.precision == "bf16" or (config.precision == "auto" and cuda and torch.cuda.is_bf16_supported())
    started = launched()
    devices, machines = started or (config.devices, 1)
    parts = config.strategy == "fsdp" and devices * machines > 1
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=devices,
        num_nodes=machines,
        strategy=ModelParallelStrategy(partition, devices * machines, tensor_parallel_size=1) if parts else "auto",
        precision="bf16-mixed" if bf16 else "32-true",
        plugins=[] if started else [LightningEnvironment()],
    )
    meet_again("nccl" if cuda else "gloo")
    if not started:
        end_with_starter()
    fabric.launch()
    give_time_to_end()
    return fabric


class Loop:
    """The state of one training."""

    def __init__(self, config: Settings, fabric: Fabric, folder: RunFolder, reporter: Reporter, task: Task) -> None:
        self.config, self.fabric, self.folder, self.reporter, self.task = config, fabric, folder, reporter, task
        if config.batch_size > task.items:
            larger = f"batch_size={config.batch_size} is larger than the training set ({task.items} examples)"
            raise UserError("; ".join([f"{larger}, which makes no step", *smaller_batches(task.items)]))
        if config.batch_size < fabric.world_size:
            raise UserError(f"batch_size={config.batch_size} is less than one example for each process: raise it")
        self.shares = shares(config.batch_size, fabric.world_size)  # how many examples of a batch each process has
        # Rate and progress change from step to step on the device: the host never waits, and a step can be replayed.
        self.rate_now = torch.zeros((), device=fabric.device)
        self.progress = torch.zeros((), dtype=torch.float64, device=fabric.device)
        alone, cuda = fabric.world_size == 1, fabric.device.type == "cuda"
        self.parts = isinstance(fabric.strategy, ModelParallelStrategy)  # each process holds a part of the weights
        if not alone:
            synchronise_batch_norms(task.module, task.unsynchronised(), cuda)
        self.prepare: Callable[..., tuple[Any, ...]] = task.prepare
        self.step_on_device: Callable[..., tuple[Tensor, ...]] = self._step
        if not task.static:
            # An earlier run of this process may have left it on, and every new shape would be tried out anew.
            torch.backends.cudnn.benchmark = False
        elif compiles(config.compile, fabric.device):
            torch.backends.cudnn.benchmark = True  # of convolutions, too, the fastest kernels are picked by trying
            for network in () if self.parts else task.compiled(alone):
                compile_network(network, config.compile)
            self.prepare = torch.compile(task.prepare, dynamic=False, options=quick())
            if cuda and alone:
                self.step_on_device = Replay(self._step)
        self.model = fabric.setup_module(task.module)
        self.optimizer: Any = fabric.setup_optimizers(task.optimizer(self.rate_now))
        self.steps_per_epoch = task.items // config.batch_size
        self.steps = self.steps_per_epoch * config.epochs
        self.step = 0
        self.seconds = 0.0  # spent training, over all resumptions
        self.unfetched = 0.0  # the same, for the pending metrics of a run that is resumed
        self.peak = 0  # bytes of memory, by all resumptions
        self.origins = [provenance.origin(fabric.device)]  # hardware, commit and versions, of all resumptions
        self.pending: list[Tensor] = []  # metrics not yet fetched from the device
        self.shown: tuple[Tensor, ...] = ()  # by the last step
        self.random: dict[str, Any] | None = None  # state to go on from in the middle of an epoch
        self.warned = False  # of what is wrong
        self.since = self.saved = self.told = 0.0  # when metrics were fetched, a checkpoint begun, progress reported
        self.kept: int | None = None  # step of the last checkpoint that is on the disk
        self.writer, self.interruption = checkpoint.Writer(), Interruption(fabric.is_global_zero)
        self.logger: Logger | None = None

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self.step // self.steps_per_epoch

    # --- training ---

    def begin(self, resume: bool) -> None:
        """Makes the run folder, or continues with what is in it."""
        with explained(self._consequence):
            if resume:
                self._resume()
            elif self.fabric.is_global_zero:
                self.folder.begin(self.config)
            if self.fabric.is_global_zero:
                self.logger = self._open_logger(resume)
        if self.logger is not None:
            self.reporter.note(f"metrics: {self.logger.place}")

    def _open_logger(self, resume: bool) -> Logger | None:
        try:
            return open_logger(self.config.logger, self.folder, self.step)
        except UserError:
            if not resume:
                self.folder.abandon()
            raise

    def run(self) -> None:
        """All steps that are left. Stopped, if a signal asks for it: after a step, with everything saved."""
        self.model.train()
        self.saved = time.perf_counter()
        self.since, self.told = self.saved - self.unfetched, self.saved
        with explained(self._consequence), self.interruption, self.writer:
            while self.step < self.steps:
                for batch in self._batches():
                    self.train(batch)
                    milestone = self._at_milestone()
                    if milestone or len(self.pending) >= self.config.log_every:  # a resumed run may tell more often
                        self._fetch()
                    elif self.fabric.device.type == "cpu" and time.perf_counter() - self.told >= TELL:
                        self._tell()
                    self._attend(milestone)
        if self.parts:
            join(self.task.module)  # so that the first process can evaluate it by itself
        if self.interruption.name is not None and self.fabric.is_global_zero:
            self._stop()  # the signal came while the last checkpoint was written; the others have nothing left to do

    def _at_milestone(self) -> bool:
        """Whether the epochs done ask for a checkpoint."""
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        return rest == 0 and (epoch % self.config.checkpoint_every == 0 or self.step == self.steps)

    def _attend(self, milestone: bool) -> None:
        """Saves when it is time to, and stops after that if a signal asks for it."""
        self.writer.check()
        due = milestone or time.perf_counter() - self.saved >= 60 * self.config.checkpoint_minutes
        stop = self.interruption.name is not None
        if self.fabric.world_size > 1:
            if self.pending:
                return  # processes agree with each other only where they wait for the device anyway
            wish = torch.tensor([due, stop], dtype=torch.float32, device=self.fabric.device)
            due, stop = self.fabric.all_reduce(wish, reduce_op="max").bool().tolist()  # type: ignore[union-attr]
        if due or stop:
            self.save()
        if stop:
            self.writer.wait()
            self._stop()

    def _stop(self) -> None:
        what = f"stopped by {self.interruption.name or 'a signal'} after step {self.step} of {self.steps}"
        raise Stopped(f"{what}, all is saved; {self.folder.command} goes on" if self.fabric.is_global_zero else "")

    def _batches(self) -> Iterator[tuple[Any, ...]]:
        """What is left of this process's share of an epoch, in an order that seed and epoch alone decide."""
        seed, rank, size = self.config.seed, self.fabric.global_rank, self.config.batch_size
        epoch, done = divmod(self.step, self.steps_per_epoch)
        shuffle = torch.Generator().manual_seed(randomness.mix(seed, epoch))
        order = self.task.order(shuffle, size)
        # The actions: a resumed run repeats them exactly. All processes draw the same, and each takes its rows.
        randomness.seed(randomness.mix(seed, epoch, 1))
        if self.random is not None:
            randomness.restore(self.random, self.fabric.device)
            self.random = None
        left = order[: self.steps_per_epoch * size].view(-1, size)[done:]
        yield from self.task.batches(left.split(self.shares, dim=1)[rank].flatten(), self.shares[rank])

    def train(self, batch: tuple[Any, ...]) -> None:
        """One step."""
        self.rate_now.fill_(self._rate())
        self.step += 1
        self.progress.fill_(self.step / self.steps)
        values, *self.shown = self.step_on_device(*batch)  # type: ignore[assignment]
        self.pending.append(values.clone())

    def _step(self, *batch: Any) -> tuple[Tensor, ...]:
        """All that the device does in a step: the task's metrics, and what its module shows."""
        with known_shares(self.shares):
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
        if not all(good):
            self._diverged("loss", self.step - len(good) + good.index(False) + 1)
        self.pending = []
        metrics = dict(zip(self.task.metrics, mean, strict=True)) | self._watch()
        metrics |= {"rate": self._rate(), f"{self.task.unit}_per_second": self.task.units * len(good) / elapsed}
        if self.fabric.is_global_zero:
            epoch, seconds = round(self.step / self.steps_per_epoch, 4), round(self.seconds, 3)
            self.folder.add_metrics({"step": self.step, "epoch": epoch, "seconds": seconds, **metrics})
            if self.logger is not None:
                self.logger.metrics({"epoch": epoch, **metrics}, self.step)
        self._report(metrics, self.seconds)

    def _tell(self) -> None:
        """Where a step takes seconds: how it goes, and the time left, long before a line of metrics is full."""
        elapsed = time.perf_counter() - self.since
        metrics = dict(zip(self.task.metrics, torch.stack(self.pending).mean(dim=0).tolist(), strict=True))
        metrics[f"{self.task.unit}_per_second"] = self.task.units * len(self.pending) / elapsed
        self._report(metrics, self.seconds + elapsed)

    def _report(self, metrics: dict[str, float], seconds: float) -> None:
        self.told = time.perf_counter()
        if self.fabric.is_global_zero:
            begun = -(-self.step // self.steps_per_epoch)
            self.reporter.progress(Progress(begun, self.config.epochs, self.step, self.steps, seconds, metrics))

    def _watch(self) -> dict[str, float]:
        """The task's look at the last step, in all processes. What is wrong and outlasts the warm-up is noted once."""
        measured, wrong = self.task.watch(*self.shown)
        if wrong and not self.warned and self.step > self.task.warmup:
            self.reporter.note(wrong)
            self.warned = True
        return measured

    def describe(self) -> dict[str, Any]:
        """How the training went and where it comes from, for the summary of a run."""
        metrics, speed = self.folder.metrics(), f"{self.task.unit}_per_second"
        speeds = [record[speed] for record in metrics if speed in record]
        return {
            "recipe": self.folder.recipe,
            "seed": self.config.seed,
            "epochs": self.config.epochs,
            "final_metrics": metrics[-1] if metrics else None,
            speed: round(median(speeds)) if speeds else None,  # so that compilation does not count
            "seconds": round(self.seconds, 1),
            "peak_memory_bytes": self._peak(),
            "processes": self.fabric.world_size,
            "data_fingerprint": self.task.fingerprint,
            **provenance.in_turn(self.origins),
        }

    def _peak(self) -> int:
        return max(self.peak, provenance.peak_memory_bytes(self.fabric.device))

    def finish(self, summary: dict[str, Any]) -> None:
        """Writes what became of the run, which is done."""
        self.folder.save_summary(summary)
        if self.logger is not None:
            self.logger.end(summary)

    def _diverged(self, what: str, step: int) -> None:
        """The first step is step 1."""
        rate = self.task.rate(step - 1, self.steps)
        raise UserError(
            f"the {what} became NaN or infinite at step {step} (learning rate {rate:.4g}; {self._consequence()}): "
            "lower optimizer.rate or lengthen optimizer.warmup_epochs"
        )

    def _consequence(self) -> str:
        """What is left of a run that fails."""
        self.writer.join()
        if self.kept is None:
            return f"{self.folder.path} has no checkpoint yet"
        if not any(map(os.path.isfile, (self.folder.checkpoint, self.folder.previous))):
            return f"{self.folder.path} has lost the checkpoint of step {self.kept}"
        return f"the checkpoint of step {self.kept} is kept, {self.folder.command} goes on from it"

    # --- checkpoints ---

    def _state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, in main memory of the first process."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "unfetched": time.perf_counter() - self.since,
            "peak_memory_bytes": self._peak(),
            "origins": self.origins,
            "pending": torch.stack(self.pending) if self.pending else None,
            "random": randomness.capture(self.fabric.device),  # the same in all processes
            "data_fingerprint": self.task.fingerprint,
        }
        return checkpoint.to_host(state, self.fabric.is_global_zero)

    def save(self) -> None:
        """A checkpoint: the state is copied now, and written while training goes on."""
        self._check_finite()
        step, state = self.step, self._state()
        self.saved = time.perf_counter()
        if not self.fabric.is_global_zero:
            return

        def write() -> None:
            self.task.publish(self.folder, state["model"])
            self.folder.sync_metrics()
            checkpoint.write(state, self.folder)  # last: a run that has it has all
            self.kept = step

        self.writer.start(write)

    def _check_finite(self) -> None:
        """A checkpoint is a good state or it is not made."""
        if self.pending and not torch.stack(self.pending)[:, 0].isfinite().all():
            self._fetch()  # says at which step
        weights = [own_part(weight.detach()) for weight in self.model.parameters()]
        if not norms(weights, self.parts).isfinite().all():
            self._diverged("weights", self.step)

    def _resume(self) -> None:
        """Continues from the last checkpoint, if there is one."""
        found = checkpoint.read_newest(self.folder, lambda text: self.reporter.note(f"warning: {text}"))
        if found is None:
            self.reporter.note("no checkpoint yet: starting from the beginning")
            if self.fabric.is_global_zero:
                self.folder.forget_metrics_after(0)
            return
        state, path = found
        try:
            self._restore(state)
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path} is no checkpoint of this run: {type(error).__name__}: {reason}") from None
        self.fabric.barrier()
        if self.fabric.is_global_zero:
            if path != self.folder.checkpoint:
                path.replace(self.folder.checkpoint)  # else the next one would push the good one out
            logged = self.folder.forget_metrics_after(self.step)
            if logged + len(self.pending) != self.step:
                self.reporter.note(f"warning: metrics.jsonl lacks what was measured after step {logged}")
        self.kept = self.step
        self.reporter.note(f"resumed at epoch {self.epoch} of {self.config.epochs}, step {self.step} of {self.steps}")

    def _restore(self, state: dict[str, Any]) -> None:
        if state["data_fingerprint"] != self.task.fingerprint:
            raise UserError(f"the data changed since {self.folder.checkpoint} was written; start a new run")
        self.model.load_state_dict(cut_weights(state["model"], self.model))
        optimizer = cut_optimizer(state["optimizer"], self.optimizer)
        for saved, own in zip(optimizer["param_groups"], self.optimizer.param_groups, strict=True):
            # How steps are computed is up to the device, which may be another one now.
            saved.update((key, value) for key, value in own.items() if key != "params")
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(optimizer)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # loading has put another tensor in its place
        self.step, self.seconds, self.unfetched = int(state["step"]), state["seconds"], state["unfetched"]
        self.peak = state.get("peak_memory_bytes", 0)  # which older ones lack, as they do the next
        self.origins = [*state.get("origins", []), *self.origins]
        if state["pending"] is not None:
            self.pending = list(state["pending"].to(self.fabric.device))
        if self.step % self.steps_per_epoch:
            self.random = state["random"]
