"""Identity inverse models: q(a_id | x, x'), are these two views of the same object? One file each."""

from stec.identity.interface import Identity, IdentityOutput
from stec.identity.simclr import SimCLR

IDENTITIES: dict[str, type[Identity]] = {
    "simclr": SimCLR,
}

__all__ = ["IDENTITIES", "Identity", "IdentityOutput", "SimCLR"]
