"""Identity inverse models: q(a_id | x, x'), are these two views of the same object? One file each."""

from stec.identity.barlow import BarlowTwins
from stec.identity.byol import BYOL
from stec.identity.dino import DINO
from stec.identity.gaussian import Gaussian
from stec.identity.interface import Identity, IdentityOutput
from stec.identity.moco import MoCo
from stec.identity.relic import ReLIC
from stec.identity.simclr import SimCLR
from stec.identity.simsiam import SimSiam
from stec.identity.swav import SwAV
from stec.identity.vicreg import VICReg

IDENTITIES: dict[str, type[Identity]] = {
    "barlow": BarlowTwins,
    "byol": BYOL,
    "dino": DINO,
    "gaussian": Gaussian,
    "moco": MoCo,
    "relic": ReLIC,
    "simclr": SimCLR,
    "simsiam": SimSiam,
    "swav": SwAV,
    "vicreg": VICReg,
}

__all__ = [
    "BYOL",
    "DINO",
    "IDENTITIES",
    "BarlowTwins",
    "Gaussian",
    "Identity",
    "IdentityOutput",
    "MoCo",
    "ReLIC",
    "SimCLR",
    "SimSiam",
    "SwAV",
    "VICReg",
]
