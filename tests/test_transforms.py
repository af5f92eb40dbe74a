import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.transforms import v2

import stec
from stec.data import shapes


def test_a_data_loader_gives_what_a_method_takes():
    images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in shapes.render(12, 32).images]
    transform = v2.Compose([v2.RandomRotation(5), stec.transforms.PairWithAction(size=24, solarize=0.5)])
    loader = DataLoader([transform(image) for image in images], batch_size=6)
    first, second, copy = next(iter(loader))
    assert first.shape == second.shape == (6, 3, 24, 24)
    assert isinstance(copy, stec.EfferenceCopy)
    assert copy.second.crop.shape == (6, 4)
    method = stec.create("stec", encoder="resnet-small")
    losses = method(stec.ViewBatch(torch.cat([first, second]), copy))
    losses.total.backward()
    assert losses.total.isfinite()


@pytest.mark.parametrize("mode", ["L", "LA", "1", "P", "I;16", "CMYK", "RGBA"])
def test_pictures_of_any_mode_are_seen_as_rgb(mode):
    """Data sets such as MNIST and Caltech101 hold grey ones. White as paper in all modes but for CMYK's inks."""
    white = {"1": 1, "I;16": 65535, "CMYK": (0, 0, 0, 0), "LA": (255, 255), "RGBA": (255, 255, 255, 255)}.get(mode, 255)
    picture = Image.new(mode, (40, 30), white)
    if mode == "P":
        picture.putpalette([255] * 768)
    first, second, copy = stec.transforms.PairWithAction(size=16, jitter_probability=0, grey=0)(picture)
    assert first.shape == second.shape == (3, 16, 16)
    torch.testing.assert_close(first, torch.ones(3, 16, 16))
    assert copy.first.source.tolist() == [30, 40]


def test_the_copy_belongs_to_the_views():
    """Warping x by its action gives x' where they overlap, on a smooth picture that is not square."""
    y, x = np.mgrid[0:60, 0:90]
    picture = np.stack([x * 2.5, y * 4, 120 + 60 * np.sin(x / 15)], axis=-1).astype(np.uint8)
    torch.manual_seed(0)
    transform = stec.transforms.PairWithAction(size=48, area=(0.4, 1.0), jitter_probability=0.0, grey=0.0)
    for _ in range(20):
        first, second, copy = transform(Image.fromarray(picture))
        batched = stec.EfferenceCopy(*(stec.Glimpse(*(v[None] for v in glimpse)) for glimpse in copy))
        warped, inside = stec.actions.warp(first[None], stec.actions.egocentric(batched))
        error = ((warped - second[None]).abs() * inside).sum() / inside.sum() / 3
        assert error < 2 / 255


def test_tensors_and_pictures_give_the_same_views():
    image = shapes.render(1, 32).images[0]
    results = []
    for source in (image, Image.fromarray(image.permute(1, 2, 0).numpy())):
        torch.manual_seed(1)
        results.append(stec.transforms.PairWithAction(size=32)(source)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("more", [{"small": 2}, {"turn": True}])
def test_more_than_pairs_is_refused(more):
    with pytest.raises(stec.UserError, match="pairs alone"):
        stec.transforms.PairWithAction(size=32, **more)
