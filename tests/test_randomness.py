"""Seeds and states of all random numbers."""

import random

import numpy as np
import torch

from stec import randomness


def test_all_random_numbers_go_on_where_they_were_or_begin_anew():
    cpu = torch.device("cpu")

    def draw():
        return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()

    randomness.seed(5)
    draw()
    state = randomness.capture(cpu)
    expected = draw()
    randomness.seed(6)
    assert draw() != expected
    randomness.restore(state, cpu)
    assert draw() == expected
    randomness.seed(5)
    first = draw()
    randomness.seed(5)
    assert draw() == first


def test_a_seed_of_several_numbers_depends_on_each_and_on_their_order():
    seeds = [randomness.mix(seed, epoch) for seed in range(10) for epoch in range(10)]
    assert len({*seeds}) == 100
    assert randomness.mix(0, 1) not in (randomness.mix(1), randomness.mix(0, 1, 1))


def test_processes_that_draw_numbers_of_their_own_draw_alike_afterwards(monkeypatch):
    def drawn(process, number, world):
        monkeypatch.setattr(randomness, "processes", lambda: (process, world))
        randomness.seed(5)
        with randomness.of_this_process(torch.device("cpu")):
            own = torch.rand(number)
        return own, torch.rand(3)

    (first, after), (second, after_too) = drawn(0, 4, 2), drawn(1, 9, 2)
    assert torch.equal(after, after_too)
    assert not torch.equal(first, second[:4])
    with randomness.of_this_process(torch.device("cpu")):
        assert not torch.equal(torch.rand(9), second), "others every time"
    alone = torch.cat(drawn(0, 4, 1))
    randomness.seed(5)
    assert torch.equal(alone, torch.rand(7)), "one process goes on as ever"
