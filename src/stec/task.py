"""What a loop trains: the interface between the loop and pretraining, detection, segmentation, sound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stec.run import RunFolder

FEW_STEPS = 3  # an epoch: below, much of it may be an incomplete batch, which is dropped, and the run is short


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
    def strategy(self) -> str: ...  # noqa: D102
    @property
    def precision(self) -> str: ...  # noqa: D102
    @property
    def compile(self) -> str: ...  # noqa: D102
    @property
    def log_every(self) -> int: ...  # noqa: D102
    @property
    def checkpoint_every(self) -> int: ...  # noqa: D102
    @property
    def checkpoint_minutes(self) -> float: ...  # noqa: D102
    @property
    def logger(self) -> str: ...  # noqa: D102


class Task(ABC):
    """What a loop trains: a module with its loss, the examples that it learns from, and how it is optimised."""

    module: nn.Module  # all that has weights; a prepared batch -> the loss, `metrics` as one tensor, what `watch` sees
    metrics: tuple[str, ...]  # what the module measures in every step; the loss comes first
    items: int  # examples to train on
    fingerprint: str  # of these; a run is resumed with the same ones only
    unit: str = "images"  # what the speed counts,
    units: float  # and how many of them a step takes
    static: bool = True  # all steps do the same work on the same shapes: they can be compiled and replayed
    warmup: int = 0  # steps

    @abstractmethod
    def batches(self, share: Tensor, size: int) -> Iterator[tuple[Any, ...]]:
        """The examples with these numbers, on the device, `size` at a time.

        A run that continues in the middle of an epoch is given those that are left.
        """

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

    def publish(self, folder: RunFolder, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Writes what others may want of an unfinished run, such as the encoder, while training goes on.

        Args:
            folder: of the run.
            state: of the module, a copy in main memory.
        """

    def state_of(self, part: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the state of the module holds of a part of it, by the part's own names."""
        prefix = next(f"{name}." for name, module in self.module.named_modules() if module is part)
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def smaller_batches(items: int, steps: int = 0) -> list[str]:
    """For the person whose batches are too large: a size of which so many items make more steps, if there is one."""
    size = 2 ** max(1, (items // FEW_STEPS).bit_length() - 1)
    return [f"batch_size={size} makes {items // size} an epoch"] if items // size > steps else []
