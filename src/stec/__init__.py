"""stec: self-supervised learning through efference copies. Act, keep a copy of the action, and learn to infer it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stec import actions, config, functional, networks, transforms
    from stec.actions import Bins, EfferenceCopy, Glimpse
    from stec.encoder import Encoder, load
    from stec.errors import UserError
    from stec.manipulation import Manipulation
    from stec.method import Losses, Method, create, list_methods
    from stec.views import ViewBatch, Views

__version__ = "0.1.0"

__all__ = [
    "Bins",
    "EfferenceCopy",
    "Encoder",
    "Glimpse",
    "Losses",
    "Manipulation",
    "Method",
    "UserError",
    "ViewBatch",
    "Views",
    "actions",
    "config",
    "create",
    "functional",
    "list_methods",
    "load",
    "networks",
    "transforms",
]

_HOMES = {
    "stec.actions": ("Bins", "EfferenceCopy", "Glimpse"),
    "stec.encoder": ("Encoder", "load"),
    "stec.errors": ("UserError",),
    "stec.manipulation": ("Manipulation",),
    "stec.method": ("Losses", "Method", "create", "list_methods"),
    "stec.views": ("ViewBatch", "Views"),
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, so that the command line answers before PyTorch is loaded."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    if name in __all__:
        return import_module(f"stec.{name}")
    raise AttributeError(f"module 'stec' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
