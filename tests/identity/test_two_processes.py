"""Every identity model in two real processes, under DDP, against one process that has all their rows."""

import pytest
import torch
from processes import (
    Outcome,
    assert_same_gradients,
    assert_same_loss_in_each,
    assert_same_mean_loss,
    in_one_process,
)

from stec.identity import IDENTITIES

# Those that compare all rows of the batch compute its whole loss in every process; the others that of their own pairs.
WHOLE_BATCH = {"simclr", "relic", "vicreg", "barlow"}


@pytest.mark.parametrize("small", ["", ", small"])
@pytest.mark.parametrize("name", IDENTITIES)
def test_two_processes_give_loss_and_gradients_of_one(
    name: str, small: str, two_processes: dict[str, list[Outcome]]
) -> None:
    processes, one = two_processes[name + small], in_one_process(name + small)
    assert not small or one.loss != in_one_process(name).loss
    (assert_same_loss_in_each if name in WHOLE_BATCH else assert_same_mean_loss)(processes, one)
    assert_same_gradients(processes, one)


@pytest.mark.parametrize("name", ["byol", "simsiam", "gaussian"])
def test_partners_are_searched_among_the_rows_of_all(name: str, two_processes: dict[str, list[Outcome]]) -> None:
    one = in_one_process(name)
    for process in two_processes[name]:
        torch.testing.assert_close(process.accuracy, one.accuracy)
