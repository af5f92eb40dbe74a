"""Lightning's Fabric, which starts processes and places what they compute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata


@contextmanager
def _unimported(package: str) -> Iterator[None]:
    """Within, the package seems not to be installed, unless it has been imported before."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


try:
    # Where torchmetrics is installed, Fabric imports it, and with it SciPy and Matplotlib, to look at its version:
    # two seconds at every start.
    with _unimported("torchmetrics"):
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments import LightningEnvironment
        from lightning_fabric.strategies import ModelParallelStrategy
        from lightning_fabric.utilities import imports

        if not imports._TORCHMETRICS_GREATER_EQUAL_1_0_0:  # Lightning asks, too
            found = [some.version for some in metadata.distributions(name="torchmetrics")]
            imports._TORCHMETRICS_GREATER_EQUAL_1_0_0 = any(not version.startswith("0.") for version in found)
except ImportError:  # the same code inside of the larger `lightning` package
    from lightning.fabric import Fabric  # type: ignore
    from lightning.fabric.plugins.environments import LightningEnvironment  # type: ignore
    from lightning.fabric.strategies import ModelParallelStrategy  # type: ignore

__all__ = ["Fabric", "LightningEnvironment", "ModelParallelStrategy"]
