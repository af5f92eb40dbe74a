"""stec: self-supervised learning through efference copies. Act, keep a copy of the action, and learn to infer it."""

from stec import actions, functional, transforms
from stec.actions import Bins, EfferenceCopy, Glimpse
from stec.errors import UserError
from stec.method import Losses, Method, create, list_methods
from stec.views import ViewBatch, Views

__version__ = "0.1.0"

__all__ = [
    "Bins",
    "EfferenceCopy",
    "Glimpse",
    "Losses",
    "Method",
    "UserError",
    "ViewBatch",
    "Views",
    "actions",
    "create",
    "functional",
    "list_methods",
    "transforms",
]
