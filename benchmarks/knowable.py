"""What two views can tell of an action: how often its bins are right for who knows the egocentric action and no more.

    python benchmarks/knowable.py

Two views show where one lies on the canvas of the other, and nothing of the image around them, unless what it shows
tells: a horizon, or an object that photographers put in the middle. Every cell of a fine grid of egocentric actions
votes for the commonest bin of each component in one half of sampled pairs, and is tested on the other half. "Guessing"
always names the commonest bin of all.
"""

import argparse

import torch

from stec.actions import REPRESENTATIONS, Bins, egocentric
from stec.views import Views

CELLS = 24  # of the grid, in each of its four directions
BATCH = 2**18


def sample(views: Views, pairs: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Egocentric actions (N, 4), and the codes of every representation (N, C)."""
    known, codes = [], {name: [] for name in NAMES}
    for _ in range(pairs // BATCH):
        copy = views.sample_pairs(torch.full((BATCH, 2), 1024.0))
        action = egocentric(copy)
        xx, x, yy, y = action[:, 0, 0], action[:, 0, 2], action[:, 1, 1], action[:, 1, 2]
        known.append(torch.stack([xx.sign() * (1 + xx.abs().log() / 4), x, yy.log(), y], dim=1))
        for name in NAMES:
            representation = REPRESENTATIONS[name]
            bins = Bins.uniform(6, representation.low, representation.high)
            codes[name].append(bins(representation(copy)).to(torch.uint8))
    return torch.cat(known), {name: torch.cat(parts) for name, parts in codes.items()}


def right(cells: torch.Tensor, codes: torch.Tensor, k: int = 6) -> tuple[float, float]:
    """Percent of the second half for which the vote of the first is right: of its cell, and of all."""
    half = len(codes) // 2
    votes = torch.zeros(int(cells.max()) + 1, k)
    votes.index_put_((cells[:half], codes[:half].long()), torch.ones(half), accumulate=True)
    commonest = votes.sum(dim=0).argmax()
    best = torch.where(votes.sum(dim=1) > 0, votes.argmax(dim=1), commonest)
    test = codes[half:]
    return tuple(100 * (guess == test).float().mean().item() for guess in (best[cells[half:]], commonest))


NAMES = ("egocentric", "paper", "official", "allocentric")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=2**24)
    parser.add_argument("--area", type=float, nargs=2, default=(0.08, 1.0))
    options = parser.parse_args()
    torch.manual_seed(0)
    known, codes = sample(Views(area=tuple(options.area)), options.pairs)
    edges = torch.quantile(known[: 2**20].double(), torch.arange(1, CELLS).double() / CELLS, dim=0).float()
    digits = torch.stack([torch.bucketize(known[:, i].contiguous(), edges[:, i].contiguous()) for i in range(4)])
    cells = (digits * CELLS ** torch.arange(4)[:, None]).sum(dim=0)
    for name in NAMES:
        representation = REPRESENTATIONS[name]
        print(name)
        for i, component in enumerate(representation.components):
            if representation.informative[i]:
                known_bins, guessed = right(cells, codes[name][:, i])
                print(f"  {component:8} {known_bins:.0f} %   (guessing {guessed:.0f} %)")
