"""Shards, as webdataset writes them."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from stec.config import DataConfig
from stec.data import load

CPU = torch.device("cpu")


def pixels(number):
    return np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)


def png(number):
    file = io.BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def write_shards(folder, shards=6, each=5, name="train", **more):
    """Image n has label n; written by the package webdataset."""
    import webdataset  # here, so that the GPU's tests in this folder run where it is not installed

    folder.mkdir(exist_ok=True)
    for shard in range(shards):
        with webdataset.TarWriter(str(folder / f"{name}-{shard:06}.tar")) as tar:
            for number in range(shard * each, shard * each + each):
                tar.write({"__key__": f"{number:06}", "png": png(number), "cls": str(number).encode(), **more})
    return folder


def open_with(root, resident="never", **more):
    return load(DataConfig("shards", str(root), 8, **{"resident": resident, "workers": 0, **more}), CPU)


def read_all(dataset):
    order = torch.arange(len(dataset.train))
    (batch,) = dataset.train.batches(order, len(order))
    return batch
