"""The manipulation inverse model: q(a_manip | x, x'), which crop and mirroring leads from this view to that one?

Paper: section 3.2 and appendix "Manipulation-related inverse model psi".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stec.actions import Bins, EfferenceCopy, representation
from stec.config import ManipulationConfig
from stec.errors import UserError
from stec.functional import manipulation_cross_entropy, manipulation_regression, masked_mean
from stec.networks.heads import mlp
from stec.views import Views

QUANTILE_PAIRS = 65_536  # sampled to fit quantile bins
QUANTILE_SIDE = 1024.0  # of the imagined square image on which they are sampled: fine enough to have no grid


class ManipulationOutput(NamedTuple):
    """Loss over valid pairs, and the share of informative components that fell into the right bin."""

    loss: Tensor  # ()
    accuracy: Tensor  # (), from 0 to 1


class Manipulation(nn.Module):
    """psi: an MLP on concat(f(x), f(x')) that reads the action, any representation with any readout.

    Args:
        dim: dimension of the features.
        config: representation, readout and bins.
        views: samples the actions on which quantile bins are fitted; not needed for uniform bins.
    """

    index: Tensor  # (C',) which components of the representation are inferred

    def __init__(self, dim: int, config: ManipulationConfig, views: Views | None = None) -> None:
        super().__init__()
        self.representation = representation(config.action)
        informative = torch.tensor(self.representation.informative)
        kept = informative if config.components == "informative" else torch.ones_like(informative)
        self.register_buffer("index", kept.nonzero().squeeze(1), persistent=False)
        self.register_buffer("informative", informative[kept].nonzero().squeeze(1), persistent=False)
        self.components = [name for name, keep in zip(self.representation.components, kept, strict=True) if keep]
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
                copy = EfferenceCopy(views.sample(sizes), views.sample(sizes))
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
        # A solarized view is no longer the same sight: those pairs are left out, as in the paper.
        valid = ~(copy.first.solarized | copy.second.solarized)
        predicted = self.predict(first, second)
        if self.classifies:
            loss = manipulation_cross_entropy(predicted, codes, valid)
            guess = predicted.argmax(dim=2)
        else:
            loss = manipulation_regression(predicted, action, valid)
            guess = self.bins(predicted)
        right = (guess == codes)[:, self.informative].float().mean(dim=1)
        return ManipulationOutput(loss, masked_mean(right, valid).detach())
