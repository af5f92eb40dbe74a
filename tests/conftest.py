"""What several test files share."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import Runner


@pytest.fixture(autouse=True)
def _one_thread():
    """Small tensors are faster so, and tests do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def train(tmp_path) -> Runner:
    return Runner(tmp_path)
