"""Recorded steps do what launched ones do: random numbers, rates, moving averages and queues included."""

import subprocess
import sys

import pytest
import torch

from stec import config
from stec.bench import _loop, _random_split
from stec.beside import beside
from stec.engine import make_fabric
from stec.replay import WARM_UP, Replay

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_a_recorded_function_reads_its_arguments_and_draws_anew():
    scale = torch.ones((), device="cuda")
    replay = Replay(lambda x: (x * scale, torch.rand(4, device="cuda")))
    seen = []
    for call in range(2 * WARM_UP):
        scale.fill_(call)
        product, drawn = replay(torch.full((2,), 3.0, device="cuda"))
        assert product.tolist() == [3.0 * call] * 2
        seen.append(tuple(drawn.tolist()))
    assert len(set(seen)) == len(seen)


def test_recorded_random_numbers_are_those_of_launched_calls():
    replay = Replay(lambda x: (x + torch.rand(1000, device="cuda"),))
    zero = torch.zeros(1000, device="cuda")
    torch.manual_seed(1)
    recorded = [replay(zero)[0].clone() for _ in range(2 * WARM_UP)]
    torch.manual_seed(1)
    launched = [torch.rand(1000, device="cuda") for _ in range(2 * WARM_UP)]
    assert all(torch.equal(a, b) for a, b in zip(recorded, launched, strict=True))
    torch.manual_seed(1)
    assert torch.equal(replay(zero)[0], launched[0])


WAITS = """
import torch
from stec.replay import WARM_UP, Replay

replay = Replay(lambda x: (x * x.sum().item(),))
one = torch.ones(2, device="cuda")
for _ in range(WARM_UP):
    replay(one)
replay(one)
"""


def test_a_function_that_waits_for_the_device_is_refused():
    """In a process of its own: after a recording that broke off, CUDA's random numbers are of no use any more."""
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "UserError: a step cannot be recorded" in done.stderr
    assert "compile=never" in done.stderr


@pytest.mark.parametrize(
    "method", ["stec", "stec-moco", "stec-byol", "stec-dino", "stec-swav", "e-simclr", "stec-star views.small=2"]
)
def test_training_by_replay_is_training(method):
    words = [*f"method={method}".split(), "batch_size=64", "epochs=10", "device=cuda", "identity.queue=256"]
    settings = config.load("default", words)
    fabric = make_fabric(settings)
    split = _random_split(settings, fabric.device)
    metrics = []
    for replayed in (True, False):
        torch.manual_seed(0)
        loop = _loop(settings, fabric, split)
        if not replayed:
            loop.step_on_device = loop._step
        torch.manual_seed(0)
        for batch in 5 * list(split.batches(torch.arange(128), 64)):
            loop.train(batch)
        metrics.append(torch.stack(loop.pending))
    assert len(metrics[0]) == 10
    torch.testing.assert_close(*metrics, rtol=0.02, atol=0.02)


def test_what_runs_beside_other_work_has_its_value_and_gradients():
    """In launched and in recorded steps, again and again in the same memory."""
    torch.manual_seed(0)
    weights = [torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(3)]

    def whole(x, apart):
        frames = x @ weights[0]
        other = beside(lambda f: (f @ weights[1],), frames) if apart else (lambda: (frames @ weights[1],))
        context = frames
        for _ in range(50):
            context = torch.tanh(context @ weights[2])
        loss = (context * other()[0]).mean()
        return (loss.detach(), *torch.autograd.grad(loss, weights))

    replay = Replay(lambda x: whole(x, True))
    for _ in range(3 * WARM_UP):
        x = torch.randn(512, 256, device="cuda")
        for found, wanted in zip(replay(x), whole(x, False), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))
