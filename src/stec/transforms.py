"""For those who keep a CPU `DataLoader`: the two views and the efference copy of one image, as a transform."""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from stec.actions import EfferenceCopy
from stec.data.decoding import to_rgb
from stec.errors import UserError
from stec.views import Views


class PairWithAction(nn.Module):
    """Turns an image into (x, x', efference copy). Fits into `torchvision.transforms.v2.Compose`.

    The default collate function of a `DataLoader` stacks all three; `ViewBatch(torch.cat([x, x']), copy)` is then what
    a method takes. `Views` on the training device does the same to whole batches, many times faster.

    Args:
        **settings: as for `stec.Views`, without its further views.

    Examples:
        >>> import torch
        >>> first, second, copy = PairWithAction(size=32)(torch.zeros(3, 40, 50, dtype=torch.uint8))
        >>> first.shape, copy.first.crop.shape
        (torch.Size([3, 32, 32]), torch.Size([4]))
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        for more in ("small", "turn"):
            if settings.get(more):
                raise UserError(
                    f"PairWithAction makes pairs alone: leave out {more}, or use stec.Views on whole batches"
                )
        self.views = Views(**settings)

    def forward(self, image: Any) -> tuple[Tensor, Tensor, EfferenceCopy]:
        """A PIL image of any mode or a (3, H, W) tensor -> two (3, S, S) views in [0, 1] and their copy."""
        if isinstance(image, Image.Image):
            image = to_rgb(image)
        batch = self.views(F.to_image(image).as_subclass(Tensor).unsqueeze(0))
        first, second = (glimpse.rows(0) for glimpse in batch.copy)
        return batch.first[0], batch.second[0], EfferenceCopy(first, second)
