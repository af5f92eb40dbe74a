"""Many small images as one, to be shown piece by piece on a page."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import torch
from PIL import Image
from torch import Tensor


def atlas(images: Tensor, side: int) -> dict[str, Any]:
    """Square images (N, 3, S, S), uint8 or in [0, 1], as tiles of at most this side in one JPEG.

    Returns:
        `src`, a data URL; `tile`, the side of a tile; `columns`.
    """
    pixels = images if images.dtype == torch.uint8 else (images * 255).round().byte()
    side = min(side, pixels.shape[-1])
    columns = math.ceil(math.sqrt(len(pixels)))
    sheet = Image.new("RGB", (columns * side, math.ceil(len(pixels) / columns) * side))
    for i, each in enumerate(pixels):
        tile = Image.fromarray(each.permute(1, 2, 0).contiguous().numpy())
        if tile.width != side:
            tile = tile.resize((side, side), Image.Resampling.BOX)
        sheet.paste(tile, (i % columns * side, i // columns * side))
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=85, subsampling=0, optimize=True)
    encoded = base64.b64encode(file.getvalue()).decode()
    return {"src": f"data:image/jpeg;base64,{encoded}", "tile": side, "columns": columns}
