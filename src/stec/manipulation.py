"""The manipulation inverse model: q(a_manip | x, x'), which crop, mirroring or colour leads from this view to that?

Paper: section 3.2 and appendix "Manipulation-related inverse model psi".
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stec.actions import Bins, EfferenceCopy, representation
from stec.config import ManipulationConfig
from stec.errors import UserError
from stec.functional import component_mean, manipulation_cross_entropy, manipulation_regression
from stec.networks.heads import mlp
from stec.processes import mean
from stec.views import Views

QUANTILE_PAIRS = 65_536  # sampled to fit quantile bins
QUANTILE_SIDE = 1024.0  # of the imagined square image on which they are sampled: fine enough to have no grid


class ManipulationOutput(NamedTuple):
    """Loss over the valid pairs of all processes, and how many informative components fell into the right bin."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1


def informative_components(config: ManipulationConfig, views: Views | None) -> list[bool]:
    """Which components of the action can differ between pairs, as far as is known; it is refused if none can."""
    action = representation(config.action)
    constant = views.constant_components() if views is not None else set()
    known = zip(action.components, action.informative, strict=True)
    informative = [varies and name not in constant for name, varies in known]
    if not any(informative):
        raise UserError(f"manipulation.action={config.action}: the views never change any of it, nothing to infer")
    return informative


class Manipulation(nn.Module):
    """psi: an MLP on concat(f(x), f(x')) that reads the action, any representation with any readout.

    Args:
        dim: dimension of the features.
        config: representation, readout and bins; the usual ones if left out.
        views: samples the actions on which quantile bins are fitted, and says what never changes; not needed for
            uniform bins.
    """

    index: Tensor  # (C',) which components of the representation are inferred
    informative: Tensor  # which of those count in the accuracy
    unsolarized: Tensor  # (C',) bool: which are inferred only where neither view is solarized

    def __init__(self, dim: int, config: ManipulationConfig | None = None, views: Views | None = None) -> None:
        super().__init__()
        config = config or ManipulationConfig()
        self.representation = representation(config.action)
        informative = torch.tensor(informative_components(config, views))
        kept = informative if config.components == "informative" else torch.ones_like(informative)
        self.register_buffer("index", kept.nonzero().squeeze(1), persistent=False)
        self.register_buffer("informative", informative[kept].nonzero().squeeze(1), persistent=False)
        self.components = [name for name, keep in zip(self.representation.components, kept, strict=True) if keep]
        unsolarized = torch.tensor(self.representation.unsolarized)[kept]
        self.register_buffer("unsolarized", unsolarized, persistent=False)
        self.same_pairs = bool(unsolarized.all())  # for all components
        self.bins = self._bins(config, views)
        self.classifies = config.readout == "classification"
        outputs = len(self.components) * (self.bins.k if self.classifies else 1)
        self.psi = mlp(2 * dim, config.hidden, outputs)

    def _bins(self, config: ManipulationConfig, views: Views | None) -> Bins:
        if config.bins == "quantile":
            if views is None:
                raise UserError("quantile bins are fitted on sampled actions: pass the views that will be used")
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs as well
                sizes = torch.full((QUANTILE_PAIRS, 2), QUANTILE_SIDE)
                copy = views.sample_pairs(sizes)
            return Bins.quantile(self.action(copy), config.k)
        keep = self.index.tolist()
        low, high = ([limits[i] for i in keep] for limits in (self.representation.low, self.representation.high))
        return Bins.uniform(config.k, low, high)

    def action(self, copy: EfferenceCopy) -> Tensor:
        """The components to infer. (B, C')"""
        return self.representation(copy)[:, self.index]

    def predict(self, first: Tensor, second: Tensor) -> Tensor:
        """What psi reads from two feature vectors (B, D): logits (B, C', K), or values (B, C') in a regression."""
        output = self.psi(torch.cat([first, second], dim=1)).float()
        return output.unflatten(1, (len(self.components), -1)) if self.classifies else output

    def forward(self, first: Tensor, second: Tensor, copy: EfferenceCopy) -> ManipulationOutput:
        """Features of x and x' (B, D) and the copy of the action between them -> loss and accuracy."""
        action = self.action(copy)
        codes = self.bins(action)
        valid = self.valid_pairs(copy)
        predicted = self.predict(first, second)
        if self.classifies:
            loss = manipulation_cross_entropy(predicted, codes, valid, mean)
            guess = predicted.argmax(dim=2)
        else:
            loss = manipulation_regression(predicted, action, valid, mean)
            guess = self.bins(predicted)
        right = (guess == codes)[:, self.informative].float()
        counted = valid if valid.dim() == 1 else valid[:, self.informative]
        return ManipulationOutput(loss, component_mean(right, counted, mean).detach())

    def valid_pairs(self, copy: EfferenceCopy) -> Tensor:
        """The pairs that count: (B,), or (B, C') if the components differ in that."""
        # A solarized view is no longer the same sight: where things are in it is left out, as in the paper.
        valid = ~(copy.first.solarized | copy.second.solarized)
        return valid if self.same_pairs else valid[:, None] | ~self.unsolarized


def reader_of(config: ManipulationConfig, views: Views) -> Manipulation:
    """Tells the actions of views and their bins; of views that never change any of it, those of the fixed limits."""
    try:
        return Manipulation(1, config, views)
    except UserError:  # nothing to infer, which a method without psi need not
        return Manipulation(1, dataclasses.replace(config, bins="uniform"))
