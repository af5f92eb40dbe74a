"""Pairs of views as `stec views` draws them."""

import numpy as np
import torch
from PIL import ImageColor

from stec.actions import Glimpse
from stec.analysis.figures import FIRST, PANEL, SECOND, _on_canvas_of, draw_views
from stec.config import load


def _crop(left: float, side: float) -> Glimpse:
    crop, source, no = torch.tensor([[0.0, left, side, side]]), torch.tensor([[100.0, 100.0]]), torch.tensor([False])
    colour, order, blur = torch.tensor([[1.0, 1.0, 1.0, 0.0]]), torch.arange(4)[None], torch.zeros(1)
    return Glimpse(crop, source, mirrored=no, colour=colour, order=order, grey=no, blur=blur, solarized=no)


def _where(panel, colour):
    """Left, top, right and bottom end of what has that colour."""
    ys, xs = np.nonzero((np.asarray(panel) == ImageColor.getrgb(colour)).all(axis=2))
    return xs.min(), ys.min(), xs.max(), ys.max()


def test_a_second_view_far_from_the_first_is_drawn_whole_and_at_its_place():
    image = torch.zeros(3, 8, 8)
    near = _on_canvas_of(_crop(0, 40), image, [], _crop(10, 40))
    assert abs(_where(near, FIRST)[0] - PANEL / 4) <= 2  # a ground twice as large is enough
    far = _on_canvas_of(_crop(0, 40), image, [], _crop(60, 40))
    first, second = _where(far, FIRST), _where(far, SECOND)
    side = first[2] - first[0]
    assert side < PANEL / 4
    assert abs((second[2] - first[2]) - 1.5 * side) <= 2  # 60 of 40 pixels to the right
    assert second[2] < PANEL - 1


def test_views_of_a_method_that_infers_no_action_need_not_move():
    still = ["views.area=[1,1]", "views.aspect=[1,1]", "views.mirror=0", "data.train_images=8", "data.test_images=8"]
    assert draw_views(load("default", ["method=simclr", *still]), 2).width > 6 * PANEL
