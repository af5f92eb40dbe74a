"""Views per second of SimCLR's augmentation, ours beside lightly's, torchvision's and kornia's.

    python benchmarks/augmentation.py [--device cpu|cuda] [--size 32] [--images 256] [--threads 1] [--json FILE]

Crop, mirror, colour jitter (0.4, 0.1) and grey, as for CIFAR. lightly and torchvision work on one image at a time, as a
DataLoader's worker calls them; kornia and stec on whole batches. What is not installed is left out.
"""

import argparse
import json
import time
from statistics import median

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

import stec
from stec import provenance


def ours(images, size):
    views = stec.Views(size=size, jitter=(0.4, 0.1))
    return lambda: views(images)


def ours_compiled(images, size):
    views = torch.compile(stec.Views(size=size, jitter=(0.4, 0.1)))
    return lambda: views(images)


def lightly(images, size):
    from lightly.transforms import SimCLRTransform

    transform = SimCLRTransform(input_size=size, cj_strength=0.5, gaussian_blur=0.0, normalize=None)
    pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).cpu().numpy()]
    return lambda: [transform(picture) for picture in pictures]


def torchvision(images, size):
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    singles = list(images)
    return lambda: [(transform(image), transform(image)) for image in singles]


def kornia(images, size):
    from kornia import augmentation

    transform = augmentation.AugmentationSequential(
        augmentation.RandomResizedCrop((size, size), scale=(0.08, 1.0)),
        augmentation.RandomHorizontalFlip(),
        augmentation.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        augmentation.RandomGrayscale(p=0.2),
    )
    floats = images.float() / 255
    return lambda: transform(torch.cat([floats, floats]))


def rate(call, views, device, turns=5, seconds=1.0):
    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()
    times = []
    for _ in range(turns):
        wait()
        begun, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - begun < seconds / turns:
            call()
            calls += 1
        wait()
        times.append((time.perf_counter() - begun) / calls)
    return views / median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    shape = (arguments.images, 3, arguments.size, arguments.size)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, np.uint8)).to(device)
    rates = {}
    for make in (ours, ours_compiled, lightly, torchvision, kornia):
        try:
            rates[make.__name__] = rate(make(images, arguments.size), 2 * arguments.images, device)
        except ImportError as missing:
            print(f"{make.__name__:15} left out: {missing}")
            continue
        measured = rates[make.__name__]
        print(f"{make.__name__:15} {measured:10,.0f} views/s  ours / this = {rates['ours'] / measured:.1f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            facts = {"device_name": provenance.hardware(device), "commit": provenance.commit(), **provenance.versions()}
            json.dump({**vars(arguments), **facts, "views_per_second": rates}, file, indent=2)


if __name__ == "__main__":
    main()
