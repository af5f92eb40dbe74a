"""A step that a GPU repeats by itself: its kernels are recorded once and replayed, instead of launched one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stec.errors import UserError

WARM_UP = 3  # calls before the recording: compilers, libraries and the optimizer make up their minds in them


class Replay:
    """A function of tensors on a GPU, as a CUDA graph.

    The function must do the same work in every call, on tensors of the same shapes, and never wait for the device.
    What changes from call to call has to be in its arguments or in tensors that it reads; random numbers are drawn
    anew. The first calls run as usual.

    Args:
        function: tensors to tensors.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.function = function
        self.calls = 0
        self.stream = torch.cuda.Stream()  # recording needs one of its own
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The function's value. The next call overwrites it."""
        if self.calls < WARM_UP:
            self.calls += 1
            return self._launch(inputs)
        if self.graph is None:
            self._record(inputs)
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)
        assert self.graph is not None
        self.graph.replay()
        return self.outputs

    def _launch(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            outputs = self.function(*inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return outputs

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        """Records the kernels of one call, without running them."""
        self.inputs = tuple(given.clone() for given in inputs)
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self.graph, stream=self.stream):
                self.outputs = self.function(*self.inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"a step cannot be recorded as a CUDA graph ({reason}): train with compile=never"
            ) from error
