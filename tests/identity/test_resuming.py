"""Models with a state of their own are saved and resumed whole."""

import pytest
import torch
from tiny_runs import Silent

from stec.run import RunFolder

WITH_TARGET = ("relic", "stec-star", "moco", "stec-moco", "byol", "stec-byol", "dino", "stec-dino")


class Interrupted(Exception):
    pass


class InterruptsAt(Silent):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def progress(self, progress) -> None:
        if progress.step >= self.step:
            raise Interrupted


@pytest.mark.parametrize("method", WITH_TARGET)
def test_a_resumed_run_ends_bit_for_bit_as_if_it_had_never_stopped(train, method: str) -> None:
    words = (f"method={method}", "identity.queue=100")  # 64 keys a step do not divide it
    whole, _ = train("whole", *words)
    with pytest.raises(Interrupted):
        train("broken", *words, reporter=InterruptsAt(10))  # past the checkpoint of epoch 2, at step 6
    broken = RunFolder.open(train.path / "broken")
    train.resume(broken)
    ours, theirs = (torch.load(folder.checkpoint)["model"] for folder in (broken, whole))
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    assert any("identity.target.encoder" in name for name in theirs)
    assert ("method.identity.queue" in theirs) == ("moco" in method)
    losses = [[record["loss"] for record in folder.metrics()] for folder in (broken, whole)]
    assert losses[0] == losses[1]


def test_a_constant_rate_of_the_predictor_is_kept_by_a_resumed_run(train) -> None:
    words = ("method=simsiam", "identity.predictor_rate=constant")
    whole, _ = train("whole", *words)
    falling, _ = train("falling", "method=simsiam")
    with pytest.raises(Interrupted):
        train("broken", *words, reporter=InterruptsAt(10))
    broken = RunFolder.open(train.path / "broken")
    train.resume(broken)
    ours, theirs, others = (torch.load(folder.checkpoint) for folder in (broken, whole, falling))
    torch.testing.assert_close(ours["model"], theirs["model"], rtol=0, atol=0)
    predictor = "method.identity.predictor.0.weight"
    assert not torch.equal(theirs["model"][predictor], others["model"][predictor])
    rates = {bool(group.get("steady")): float(group["lr"]) for group in theirs["optimizer"]["param_groups"]}
    assert rates[True] > 10 * rates[False]  # at the last of its steps


@pytest.mark.parametrize("method", ["relic", "moco", "byol", "dino"])
def test_after_training_the_target_is_behind_the_encoder_and_neither_is_where_it_began(train, method: str) -> None:
    folder, summary = train("run", f"method={method}", "identity.queue=100", "identity.ema=0.5", "epochs=1")
    state = torch.load(folder.checkpoint)["model"]
    online = state["method.encoder.conv1.weight"]
    target = state["method.identity.target.encoder.conv1.weight"]
    assert 0 < (online - target).norm() < 0.5 * online.norm()
    assert 0 <= summary["final_metrics"]["identity_accuracy"] <= 1
    records = folder.metrics()
    assert all(record["identity"] > 0 for record in records)
