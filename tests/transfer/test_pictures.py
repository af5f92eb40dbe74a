"""The sheet of predictions."""

import torch

from stec.transfer.metrics import Boxes
from stec.transfer.pictures import draw
from stec.transfer.scenes import VOID, Scenes


def test_a_sheet_of_masks_names_the_colours_in_it():
    masks = torch.zeros(1, 8, 8, dtype=torch.uint8)
    masks[0, 0], masks[0, 1] = 1, VOID
    found = torch.zeros(1, 8, 8, dtype=torch.uint8)
    found[0, 2] = 2
    none = torch.zeros(1, 0)
    images = torch.full((1, 3, 8, 8), 90, dtype=torch.uint8)
    scenes = Scenes(images, torch.tensor([[8, 8]]), none, none, none, torch.tensor([0]), masks)
    sheet = draw(scenes, found, ("background", "cat", "dog", "cow"))
    colours = {colour for _, colour in sheet.getcolors(1 << 24)}
    red, green, blue = (255, 38, 38), (38, 255, 38), (38, 38, 255)
    # In the pictures they are mixed with the image, so the pure ones are those of the legend.
    assert {red, green} <= colours, "cats are marked, dogs are found"
    assert blue not in colours, "there are no cows"


def test_an_image_of_hundreds_of_times_its_height_is_drawn():
    images, none = torch.zeros(1, 3, 512, 512, dtype=torch.uint8), torch.zeros(1, 0)
    nothing = Boxes(torch.zeros(0, 4), torch.zeros(0).long(), torch.zeros(0), torch.zeros(0).bool())
    for size in ([1, 512], [512, 1]):
        scenes = Scenes(images, torch.tensor([size]), none, none, none, torch.tensor([0]), None)
        assert draw(scenes, [nothing], ("background", "cat")).width > 0
