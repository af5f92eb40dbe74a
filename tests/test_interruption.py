"""Signals while something is being done that ends in order."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from stec.interruption import Interruption


@pytest.fixture(autouse=True)
def terminal():
    """SIGHUP as it is in a terminal, whatever runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_signals_are_as_before_when_a_run_has_ended():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    for number in numbers:
        with Interruption() as held:
            os.kill(os.getpid(), number)
        assert held.name == number.name
    assert [signal.getsignal(number) for number in numbers] == before


def test_of_repeated_signals_ctrl_c_alone_stops_at_once(capfd):
    with Interruption(speaks=True) as held:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            pytest.fail("it was stopped at once")
        assert held.name == "SIGTERM"
        assert capfd.readouterr().err == "", "a scheduler has no use for an answer about Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_counts_though_nobody_reads_the_answer():
    reader, writer = os.pipe()
    os.close(reader)
    errors = os.dup(2)
    os.dup2(writer, 2)
    try:
        with Interruption(speaks=True) as held:
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(writer)
    assert held.name == "SIGINT"


def test_in_another_thread_signals_are_left_to_the_main_one():
    def looked_at():
        with Interruption():
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(looked_at).result() == signal.getsignal(signal.SIGTERM)
