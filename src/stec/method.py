"""A method is a pairing: an identity model, with or without a manipulation and a turn model, found by name.

L = L_id + lambda_manip L_manip + lambda_turn L_turn          (L_reg is weight decay, in the optimizer)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stec.config import Config, IdentityConfig, ManipulationConfig, TurnConfig
from stec.errors import UserError, nearest
from stec.identity import IDENTITIES, Identity
from stec.limits import check_values
from stec.manipulation import Manipulation, informative_components
from stec.networks.encoders import check_encoder, check_size, create_encoder
from stec.turn import Turn
from stec.views import ViewBatch, Views, pair_up

# Published: 0.4, beside the mean of the two directions of L_id (Dangovski et al. 2022). Our L_id is their sum.
E_SSL = 0.8


@dataclass(frozen=True)
class Pairing:
    """Which identity model, and which other inverse models join it."""

    identity: str
    manipulation: bool
    about: str
    fixed: Mapping[str, str] = field(default_factory=dict)  # settings of the manipulation model that the name implies
    turn: float = 0.0  # weight of the turn model, unless another is given


METHODS: dict[str, Pairing] = {
    "simclr": Pairing("simclr", False, "contrast with all other views of the batch (Chen et al. 2020)"),
    "stec": Pairing("simclr", True, "SimCLR + the manipulation model (Scherr et al. 2022)"),
    "e-simclr": Pairing(
        "simclr", False, "SimCLR + the turn of a small third view (E-SSL, Dangovski et al. 2022)", turn=E_SSL
    ),
    "relic": Pairing("relic", False, "contrast with a target network, and agreement about it (Mitrovic et al. 2021)"),
    "stec*": Pairing("relic", True, "ReLIC + the manipulation model (Scherr et al. 2022)"),
    "stec-star": Pairing("relic", True, "stec*, by a name that a shell leaves alone"),
    "moco": Pairing("moco", False, "contrast with a queue of earlier views (MoCo v2, Chen et al. 2020)"),
    "stec-moco": Pairing("moco", True, "MoCo + the manipulation model"),
    "byol": Pairing("byol", False, "predict what a target network makes of the other view (Grill et al. 2020)"),
    "stec-byol": Pairing("byol", True, "BYOL + the manipulation model"),
    "simsiam": Pairing("simsiam", False, "predict the other view's projection, taken as given (Chen and He 2021)"),
    "stec-simsiam": Pairing("simsiam", True, "SimSiam + the manipulation model"),
    "e-simsiam": Pairing(
        "simsiam", False, "SimSiam + the turn of a small third view (E-SSL, Dangovski et al. 2022)", turn=E_SSL
    ),
    "augself": Pairing(
        "simsiam",
        True,
        "SimSiam + regression of the allocentric action, always (after Lee et al. 2021)",
        {"action": "allocentric", "readout": "regression"},
    ),
    "vicreg": Pairing("vicreg", False, "alike within a pair, spread and decorrelated over all (Bardes et al. 2022)"),
    "stec-vicreg": Pairing("vicreg", True, "VICReg + the manipulation model"),
    "barlow": Pairing("barlow", False, "cross-correlation of the views to the identity (Zbontar et al. 2021)"),
    "stec-barlow": Pairing("barlow", True, "Barlow Twins + the manipulation model"),
    "dino": Pairing("dino", False, "assign views to prototypes as a target network does the other (Caron et al. 2021)"),
    "stec-dino": Pairing("dino", True, "DINO + the manipulation model"),
    "swav": Pairing("swav", False, "predict to which prototypes the other view is assigned (Caron et al. 2020)"),
    "stec-swav": Pairing("swav", True, "SwAV + the manipulation model"),
    "gaussian": Pairing("gaussian", False, "squared distance alone, with nothing against collapse: it collapses"),
    "stec-gaussian": Pairing("gaussian", True, "squared distance + the manipulation model, the paper's conjecture"),
}


class Losses(NamedTuple):
    """What one batch gives. All but the last two are scalars on the device."""

    total: Tensor
    identity: Tensor
    manipulation: Tensor  # 0 without a manipulation model
    identity_accuracy: Tensor  # from 0 to 1
    manipulation_accuracy: Tensor  # from 0 to 1; 0 without a manipulation model
    turn: Tensor  # 0 without a turn model
    turn_accuracy: Tensor  # from 0 to 1; 0 without a turn model
    features: Tensor  # (2B, D), detached, for probes
    embeddings: Tensor  # (2B, E), detached, of the identity model; the features where it shows none


class Method(nn.Module):
    """An encoder and the inverse models that train it."""

    def __init__(
        self,
        encoder: nn.Module,
        identity: Identity,
        manipulation: Manipulation | None,
        lambda_manip: float,
        turn: Turn | None = None,
        lambda_turn: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.identity = identity
        self.manipulation = manipulation
        self.lambda_manip = lambda_manip
        self.turn = turn
        self.lambda_turn = lambda_turn

    def forward(self, batch: ViewBatch) -> Losses:
        """Both views of every image in one forward pass, small and turned ones in others, then the inverse models."""
        features = self.encoder(batch.images)  # (2B, D)
        _check_features(self.encoder, features)
        first, second = features.chunk(2)
        identity = self.identity(features, batch)
        identity_loss = identity.loss
        if batch.small is not None:
            small = _in_passing(self.encoder, batch.small.images)  # (nB, D)
            identity_loss = self.identity.with_small(identity, small.unflatten(0, (-1, len(first))))
            first, second = pair_up(first, second, small)  # ((1 + 2n)B, D)
        total, zero = identity_loss, torch.zeros_like(identity_loss.detach())
        manipulation_loss = manipulation_accuracy = zero
        if self.manipulation is not None:
            manipulation_loss, manipulation_accuracy = self.manipulation(first, second, batch.pairs())
            total = total + self.lambda_manip * manipulation_loss
        turn_loss = turn_accuracy = zero
        if self.turn is not None:
            if batch.turned is None:
                raise UserError("the turn model needs a small third view: make the batch with Views(turn=True)")
            turn_loss, turn_accuracy = self.turn(_in_passing(self.encoder, batch.turned.images), batch.turned.turns)
            total = total + self.lambda_turn * turn_loss
        embeddings = features if identity.embeddings is None else identity.embeddings
        return Losses(
            total,
            identity_loss.detach(),
            manipulation_loss.detach(),
            identity.accuracy,
            manipulation_accuracy,
            turn_loss.detach(),
            turn_accuracy,
            features.detach(),
            embeddings.detach(),
        )

    def after_step(self, progress: Tensor | float) -> None:
        """To be called after every optimizer step with the share of training done, from 0 to 1."""
        self.identity.after_step(progress)


def _check_features(encoder: nn.Module, features: Tensor) -> None:
    """Refuses what no identity model can take: maps, tokens, several outputs, or another dimension than announced."""
    shape = tuple(features.shape) if isinstance(features, Tensor) else None
    dim = getattr(encoder, "dim", None)
    if shape is None or len(shape) != 2 or shape[1] != (dim or shape[1]):
        found = shape or f"a {type(features).__name__}"
        raise UserError(f"the encoder {type(encoder).__name__} gives {found}, expected (2B, {dim or 'D'})")


def _in_passing(encoder: nn.Module, images: Tensor) -> Tensor:
    """Features of views that batch norms do not remember: their running statistics are for images of full size."""
    norms = [module for module in encoder.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        return encoder(images)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def pairing_of(name: str) -> Pairing:
    """The pairing of that name."""
    if name not in METHODS:
        raise UserError(f"unknown method '{name}': {nearest(name, METHODS)} ('stec methods' lists them)")
    return METHODS[name]


def list_methods() -> list[str]:
    """The names that `create` takes."""
    return sorted(METHODS)


def create(
    name: str,
    encoder: str | nn.Module = "resnet18-cifar",
    lambda_manip: float = 1.0,
    identity: IdentityConfig | dict[str, Any] | None = None,
    manipulation: ManipulationConfig | dict[str, Any] | None = None,
    views: Views | None = None,
    lambda_turn: float | None = None,
    turn: TurnConfig | dict[str, Any] | None = None,
) -> Method:
    """Builds a method by name.

    Args:
        name: one of `list_methods()`.
        encoder: the name of an encoder, or a module that maps images to (B, D) and has D as its attribute `dim`.
        lambda_manip: weight of the manipulation loss.
        identity: settings of the identity model, e.g. `{"temperature": 0.2}`.
        manipulation: settings of the manipulation model, e.g. `{"action": "paper"}`. Those that the name implies, as
            `augself` does its action and readout, need not be given and cannot be changed.
        views: the views that will be used; only quantile bins need them, and informative components profit.
        lambda_turn: weight of the turn loss; 0 for none, what the name implies if left out. The views then need
            `turn=True`.
        turn: settings of the turn model, e.g. `{"hidden": 512}`.

    Examples:
        >>> method = create("stec", encoder="resnet-small")
        >>> losses = method(Views(size=32)(torch.zeros(8, 3, 32, 32, dtype=torch.uint8)))
        >>> losses.total.backward()
    """
    pairing = pairing_of(name)
    settings = Config(
        lambda_manip=lambda_manip,
        lambda_turn=lambda_turn,
        identity=_settings(IdentityConfig, identity),
        manipulation=fix_settings(name, _settings(ManipulationConfig, manipulation)),
        turn=_settings(TurnConfig, turn),
    )
    check_values(settings)
    network = create_encoder(encoder) if isinstance(encoder, str) else encoder
    dim = getattr(network, "dim", None)
    if not isinstance(dim, int):
        raise UserError(f"the encoder {type(network).__name__} needs an integer attribute 'dim', its feature dimension")
    identity_model = IDENTITIES[pairing.identity](network, settings.identity)
    manipulation_model = Manipulation(dim, settings.manipulation, views) if pairing.manipulation else None
    weight = turn_weight(name, lambda_turn)
    turn_model = Turn(dim, settings.turn) if weight > 0 else None
    return Method(network, identity_model, manipulation_model, lambda_manip, turn_model, weight)


def build(config: Config) -> tuple[Views, Method]:
    """The views and the method of a run, with encoders laid out for convolutions on a GPU."""
    views = _views(config)
    method = create(
        config.method,
        config.encoder,
        config.lambda_manip,
        config.identity,
        config.manipulation,
        views,
        config.lambda_turn,
        config.turn,
    )
    _check_sizes(config.encoder, method.encoder, views)
    for encoder in (method.encoder, *method.identity.target_encoders()):
        encoder.to(memory_format=torch.channels_last)
    return views, method


def _check_sizes(name: str, encoder: nn.Module, views: Views) -> None:
    """Refuses views that the encoder cannot take."""
    check_size(encoder, views.size, name, f"views.size={views.size}")
    if views.small_views is not None:
        check_size(encoder, views.small_views.size, name, f"views.small_size={views.small_views.size}")
    if views.third_view is not None:
        half = f"views.size={views.size}, of which turned views have half"
        check_size(encoder, views.third_view.size, name, half)


def check_pairing(config: Config) -> None:
    """Refuses an unknown encoder, and a method with nothing to infer, before anything is built or loaded."""
    check_encoder(config.encoder)
    if pairing_of(config.method).manipulation:
        informative_components(config.manipulation, _views(config))


def _views(config: Config) -> Views:
    return Views(**dataclasses.asdict(config.views), turn=turn_weight(config.method, config.lambda_turn) > 0)


def turn_weight(name: str, given: float | None) -> float:
    """Of a method, unless another is given; 0 for no turn model."""
    return pairing_of(name).turn if given is None else given


def fix_settings(name: str, settings: ManipulationConfig) -> ManipulationConfig:
    """The settings of the manipulation model with those that the method's name implies."""
    fixed, default = pairing_of(name).fixed, ManipulationConfig()
    for key, value in fixed.items():
        if getattr(settings, key) not in (value, getattr(default, key)):
            raise UserError(f"manipulation.{key}={getattr(settings, key)}: {name} always has {key}={value}")
    return dataclasses.replace(settings, **dict(fixed))  # type: ignore[arg-type]


def _settings(kind: type, given: Any) -> Any:
    if given is None or isinstance(given, kind):
        return given or kind()
    known = [f.name for f in dataclasses.fields(kind)]
    for key in given:
        if key not in known:
            raise UserError(f"unknown setting '{key}': {nearest(key, known)}")
    return kind(**given)
