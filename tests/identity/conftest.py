"""What the tests of the identity models share."""

from __future__ import annotations

import pytest
from processes import Outcome, in_two_processes

from stec.identity import IDENTITIES


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """One step of every model, in two processes each."""
    names = [name + small for name in IDENTITIES for small in ("", ", small")]
    names.append("moco, groups")
    return in_two_processes(names, tmp_path_factory.mktemp("processes"))
