"""Signals that ask a run to stop: it ends its step and saves first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

ANSWER = b"\nstec: ending this step, then all is saved; Ctrl-C again stops at once\n"


def stopping() -> list[signal.Signals]:
    """The signals that end a run. A terminal that is closed sends SIGHUP, which `nohup` asks to be ignored."""
    gone = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    return [signal.SIGTERM, signal.SIGINT, *gone]


class Interruption:
    """Notes such a signal instead of dying of it, as a context manager; a further SIGINT stops at once.

    Outside of the main thread, where Python delivers no signals, it notes nothing. With `speaks`, Ctrl-C is answered at
    once, as the step that has to end may take a minute.
    """

    def __init__(self, speaks: bool = False) -> None:
        self.speaks = speaks
        self.name: str | None = None  # of the signal that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in stopping()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.name is not None:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
        if self.speaks and number == signal.SIGINT:
            with suppress(OSError):  # the same Ctrl-C may have ended who reads this
                os.write(2, ANSWER)  # whatever was being printed when the signal came: no lock, no buffer


def serve(worker: int = 0) -> None:
    """For processes that read data: they get the same signals, and end when the run that they work for does."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # of all threads: one of them looks who sent it
        threading.Thread(target=_end_by_parent, daemon=True).start()
    else:  # macOS does not tell who
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Also if it is killed: PyTorch looks for that every five seconds, and in vain where a server forks processes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end_by_parent() -> None:
    """A run whose error still holds the loader sends SIGTERM as it ends, and waits; that of others is for the run."""
    parent = multiprocessing.parent_process()
    while parent is not None:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == parent.pid:
            os._exit(0)
