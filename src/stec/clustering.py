"""The equations of identity models that assign views to prototypes, as pure functions in float32.

Scores are cosines between a view's embedding and K prototypes. Losses sum both directions, x -> x' and x' -> x, as the
paper's L_id does: twice what the methods' own code gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FIRST_TEMPERATURE = 0.04  # of DINO's targets at the beginning of training, as in its code


def swapped_prediction(scores: Sequence[Tensor], assignments: Sequence[Tensor], temperature: float) -> Tensor:
    """From either view, how the other is assigned is predicted. Both directions summed, averaged over pairs.

        loss(x) = - sum over prototypes k of q(k | x') log p(k | x),    p( . | x) = softmax(scores of x / tau)

    Caron et al. 2020 (SwAV), equations 1 and 2; 2021 (DINO), equation 3. They differ in where the assignments q come
    from, which get no gradient.

    Args:
        scores: (B, K) of x, and (B, K) of x'.
        assignments: (B, K) probabilities q( . | x), and (B, K) q( . | x').
        temperature: tau.
    """
    with torch.autocast(scores[0].device.type, enabled=False):
        first, second = (each.float() / temperature for each in scores)
        of_first, of_second = (each.detach().float() for each in assignments)
        return F.cross_entropy(first, of_second) + F.cross_entropy(second, of_first)


@torch.no_grad()
def sharpened(scores: Tensor, centre: Tensor, temperature: Tensor | float) -> Tensor:
    """DINO's assignments: softmax((scores - centre) / temperature), which is centring and sharpening. (N, K)

    Sharpening keeps assignments from becoming uniform, centring keeps a prototype from getting all views.

    Args:
        scores: (N, K) what the target network makes of views.
        centre: (K,) mean of what it made of earlier ones.
        temperature: a low one makes them sharp.
    """
    with torch.autocast(scores.device.type, enabled=False):
        return ((scores.float() - centre.float()) / temperature).softmax(dim=1)


def warming(temperature: float, progress: Tensor | float, warmup: float) -> Tensor:
    """DINO's temperature of the targets: from 0.04 in a straight line to `temperature`, where it stays. (), float64

    Args:
        temperature: the last one.
        progress: share of training done, from 0 to 1; as a tensor, the temperature is on its device.
        warmup: share of training until then.
    """
    done = torch.as_tensor(progress, dtype=torch.float64)
    way = (done / warmup).clamp(max=1) if warmup else torch.ones_like(done)
    return FIRST_TEMPERATURE + (temperature - FIRST_TEMPERATURE) * way


@torch.no_grad()
def equal_shares(
    scores: Tensor,
    earlier: Tensor | None = None,
    counts: Tensor | float = 1.0,
    epsilon: float = 0.05,
    iterations: int = 3,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """SwAV's assignments: views go where they are near, but each prototype gets the same share of them. (..., B, K)

    Sinkhorn-Knopp (Cuturi 2013; Caron et al. 2020, equation 3 and appendix A): of exp(scores / epsilon), the columns of
    prototypes and the rows of views are normalised in turn. Rows come last, so they are probabilities.

    Args:
        scores: (..., B, K) cosines of views and prototypes; with several processes, of the views of this one.
        earlier: (..., N, K) those of views that are assigned with them, the same in all processes.
        counts: (), whether these count; 0 or 1.
        epsilon: how far assignments are from hard ones.
        iterations: how often they are normalised.
        total: adds up what the processes have, as `stec.processes.total` does; left out where there is one.
    """
    with torch.autocast(scores.device.type, enabled=False):
        views = scores if earlier is None else torch.cat([scores, earlier], dim=-2)
        number, shares = scores.shape[-2], ((views.float() - 1) / epsilon).exp()  # of cosines, so at most 1 and never 0
        for _ in range(iterations):
            of_own, of_earlier = (part.sum(dim=-2, keepdim=True) for part in shares.tensor_split([number], dim=-2))
            of_all = of_own if total is None else total(of_own)
            shares = shares / (of_all + counts * of_earlier)
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares.narrow(-2, 0, number)
