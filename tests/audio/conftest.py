"""Sounds for tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stec.audio.loading import synthesise

SHARED = Path(__file__).parents[3] / "shared" / "data" / "fixtures"


@pytest.fixture(scope="session")
def sounds():
    """Twenty utterances of four speakers."""
    return synthesise(4, 20)


@pytest.fixture(scope="session")
def librispeech() -> Path:
    """A few files of LibriSpeech, in its layout, with their phones."""
    root = Path(os.environ.get("STEC_FIXTURES", SHARED)) / "librispeech"
    if not root.is_dir():
        pytest.skip(f"no files of LibriSpeech at {root}")
    return root
