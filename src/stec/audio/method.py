"""CPC alone, with the time-insensitive identity model (S-TEC), and with actions: what is computed for a batch.

windows -> z, c -> time-sensitive identity   which frame comes k steps later?          L_id
                -> time-insensitive identity  is this a piece of the same utterance?   lambda_identity
                -> manipulation               what was done between these two windows? lambda_manip
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stec.actions import Bins
from stec.audio import actions
from stec.audio.functional import contrast_utterances, info_nce
from stec.audio.network import Network, frame_count
from stec.beside import beside
from stec.config import Config
from stec.errors import UserError, nearest
from stec.functional import component_mean, manipulation_cross_entropy
from stec.networks.heads import mlp
from stec.processes import average, gather, mean, rows_to_draw

PARTS = 4  # of a window, whose means the manipulation model reads: one mean has no time


class Pairing(NamedTuple):
    """Which inverse models a method has beside CPC's own."""

    identity: bool  # the time-insensitive one
    manipulation: bool
    about: str


METHODS = {
    "cpc": Pairing(False, False, "sound: contrastive predictive coding, which is the time-sensitive identity model"),
    "stec-cpc": Pairing(True, False, "sound: CPC + the time-insensitive identity model, as in the paper"),
    "stec-cpc-actions": Pairing(True, True, "sound: stec-cpc + actions on waveforms (shift, speed, band, noise, gain)"),
}


def pairing_of(name: str) -> Pairing:
    """By its name."""
    if name not in METHODS:
        raise UserError(f"method={name}: {nearest(name, METHODS)} (for sound)")
    return METHODS[name]


class Method(nn.Module):
    """Network and inverse models."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.network = Network(config.encoder, config.audio.bidirectional)  # first: the seed alone decides its weights
        self.models = InverseModels(config, self.network)

    def forward(self, windows: Tensor, utterances: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both windows of every utterance, the utterances, and the action between the windows -> loss and metrics.

        Args:
            windows: (2, B, W)
            utterances: (B,)
            action: (B, C)
        """
        frames = self.network.encoder(windows.flatten(0, 1))  # (2B, T, D)
        matches = beside(self.models.match, frames)  # the many small steps of the GRU leave most of a GPU idle
        contexts = self.network.context(frames)  # (2B, T, H)
        return self.models(matches(), contexts, utterances, action)


class InverseModels(nn.Module):
    """Of a method, and their losses."""

    def __init__(self, config: Config, network: Network) -> None:
        super().__init__()
        audio, pairing = config.audio, pairing_of(config.method)
        self.config, self.pairing = config, pairing
        self.frames = frame_count(audio.window)
        if self.frames <= audio.steps:
            raise UserError(f"audio.window={audio.window} has {self.frames} frames, too few to predict {audio.steps}")
        context, dim = network.context, network.encoder.dim
        self.units = context.units
        directions = 2 if audio.bidirectional else 1
        self.predictors = nn.ModuleList(Predictor(context.units, audio.steps, dim) for _ in range(directions))
        identity = config.identity
        self.projector = _projector(context.dim, identity.hidden, identity.output) if pairing.identity else None
        self.actions = actions.parse(config.manipulation.action) if pairing.manipulation else []
        if pairing.manipulation:
            if self.frames < PARTS:
                few = f"audio.window={audio.window} has {self.frames} frames, too few for the actions"
                raise UserError(f"{few}, which are inferred from {PARTS} parts of it")
            limits = [component.limit for component in actions.components(self.actions)]
            self.bins = Bins.uniform(config.manipulation.k, [-limit for limit in limits], limits)
            outputs = len(limits) * config.manipulation.k
            self.psi = mlp(2 * PARTS * context.dim, config.manipulation.hidden, outputs)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What every step measures."""
        names = ["loss", "identity", "identity_accuracy"]
        names += ["utterance", "utterance_accuracy"] if self.pairing.identity else []
        names += ["manipulation", "manipulation_accuracy"] if self.pairing.manipulation else []
        return (*names, *(f"identity_step{k}" for k in range(1, self.config.audio.steps + 1)))

    def match(self, frames: Tensor) -> tuple[Tensor, ...]:
        """What contexts are compared with for frames (2B, T, D) of both windows, one of each direction."""
        return tuple(predictor(frames) for predictor in self.predictors)

    def forward(
        self, matches: tuple[Tensor, ...], contexts: Tensor, utterances: Tensor, action: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What `match` made of the frames, contexts (2B, T, H) of both windows, and the rest as for the method."""
        steps, accuracy = (average(each, len(utterances)) for each in self._predict(matches, contexts, utterances))
        measured = {"identity": steps.mean(), "identity_accuracy": accuracy.mean()}
        total = measured["identity"]
        first, second = contexts.unflatten(0, (2, -1))
        if self.projector is not None:
            pieces = torch.cat([self._piece(first), self._piece(second)])
            one, other = (gather(half) for half in self.projector(pieces).float().chunk(2))
            contrast = contrast_utterances(one, other, gather(utterances), self.config.identity.temperature)
            measured["utterance"], measured["utterance_accuracy"] = contrast
            total = total + self.config.audio.lambda_identity * contrast.loss
        if self.pairing.manipulation:
            codes = self.bins(action)
            logits = (
                self.psi(torch.cat([_parts(first), _parts(second)], dim=1)).float().unflatten(1, (codes.shape[1], -1))
            )
            measured["manipulation"] = manipulation_cross_entropy(logits, codes, mean=mean)
            measured["manipulation_accuracy"] = component_mean((logits.argmax(dim=2) == codes).float(), mean=mean)
            total = total + self.config.lambda_manip * measured["manipulation"]
        measured["loss"] = total
        named = [measured[name] for name in self.metrics[: -len(steps)]]
        return total, torch.cat([torch.stack(named), steps]).detach()

    def _predict(self, matches: tuple[Tensor, ...], contexts: Tensor, utterances: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy per step (K,) of these windows, of both directions if the context has two."""
        audio, utterances = self.config.audio, utterances.repeat(2)
        number, length, _ = contexts.shape
        pool = None
        if audio.negatives != "same":
            pool = torch.randint(number * length, (audio.pool,), device=contexts.device)
        losses, accuracies = [], []
        for way, candidates in enumerate(matches):
            heard = contexts[..., way * self.units : (way + 1) * self.units]
            ahead, here = (candidates.flip(1), heard.flip(1)) if way else (candidates, heard)  # the past comes next
            found = info_nce(here[:, : length - audio.steps], ahead, utterances, audio.negatives, pool)
            losses.append(found.loss)
            accuracies.append(found.accuracy)
        return torch.stack(losses).mean(0), torch.stack(accuracies).mean(0)

    def _piece(self, contexts: Tensor) -> Tensor:
        """What the time-insensitive identity model hears of a window (B, T, H): (B, H)."""
        if self.config.audio.pieces == "windows":
            return contexts.mean(dim=1)
        number, own = rows_to_draw(len(contexts))
        times = torch.randint(contexts.shape[1], (number, 1, 1), device=contexts.device)[own]
        return contexts.gather(1, times.expand(-1, 1, contexts.shape[2])).squeeze(1)


class Predictor(nn.Linear):
    """W_1 ... W_K of CPC's scores c_t^T W_k z / sqrt(D): what each frame is to the contexts 1 ... K steps before it.

    W_k c_t, the frame that is predicted, is the weight's own way; W_k meets z instead, as contexts are shorter vectors,
    and z is known before them.
    """

    def __init__(self, units: int, steps: int, dim: int) -> None:
        super().__init__(units, steps * dim, bias=False)
        self.steps = steps

    def forward(self, frames: Tensor) -> Tensor:
        """Frames (B, T, D) -> (B, T, K, H)."""
        each = self.weight.unflatten(0, (self.steps, -1)).mT * frames.shape[2] ** -0.5  # (K, H, D)
        return F.linear(frames, each.flatten(0, 1)).unflatten(2, (self.steps, -1))


def _projector(dim: int, hidden: int, output: int) -> nn.Sequential:
    """Contexts (B, dim) to the space (B, output) in which the identity of utterances is compared.

    Without batch norm: untrained contexts are nearly alike, and it would enlarge their differences. The gradient of
    this model was then tens of times CPC's, at a weight of 0.1.
    """
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, output))


def _parts(contexts: Tensor) -> Tensor:
    """Means over the parts of windows (B, T, H), side by side: (B, PARTS H)."""
    return torch.cat([part.mean(dim=1) for part in contexts.tensor_split(PARTS, dim=1)], dim=1)
