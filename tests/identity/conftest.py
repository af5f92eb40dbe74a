"""What the tests of the identity models share."""

from __future__ import annotations

import pytest
from processes import Outcome, in_processes


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """One step of MoCo's models, in two processes each; `tests/test_processes.py` has all methods."""
    return in_processes(["moco", "moco, groups"], tmp_path_factory.mktemp("processes"))
