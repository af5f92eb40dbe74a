"""What training on many GPUs would take: time of a step, exchange between processes, and images that have to come.

    python benchmarks/scale.py                     the tables of docs/scale.md
    python benchmarks/scale.py --measure FILE      how fast this machine reads and decodes images from shards

The tables are predictions. They rest on what was measured on one GPU (docs/speed.md, results/speed) and on one CPU core
(results/speed/input-cpu.json), on assumptions about networks that stand below in capitals, and on a simulation of
processes that wait for each other.
"""

import argparse
import io
import json
import math
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stec import provenance
from stec.config import DataConfig
from stec.data import load
from stec.data.sharding import write_shards
from stec.data.split import AHEAD
from stec.networks.encoders import create_encoder

SPEED = Path(__file__).parents[1] / "results" / "speed"

# Measured: a step of ResNet-18 at 32 px with 2,048 views on one H200, in seconds per view, before batch norms had
# kernels of their own. Today's step (docs/speed.md) would predict more for ResNet-50 than is measured.
CONVOLUTIONS, ELEMENTWISE, VIEWS, REST = (milliseconds / 1e3 / 2048 for milliseconds in (11.9, 8.2, 0.2, 0.7))
CHECKS = (("resnet50-cifar", 32, 27_131), ("resnet50", 224, 7_672))  # measured as well, and not used by the model

# Assumed: what processes reach between GPUs of one machine (NVLink 4) and between machines (400 Gbit/s per GPU).
GPUS_PER_NODE = 8
NVLINK, NETWORK = 350e9, 40e9  # bytes per second and GPU
NVLINK_LATENCY, NETWORK_LATENCY = 3e-6, 8e-6  # seconds per hop; log2(n) hops
HIDDEN = 0.6  # share of the encoder's time behind which DDP can exchange gradients: most of the backward pass


@dataclass(frozen=True)
class Plan:
    name: str
    images: float
    kilobytes: float  # of an image, as JPEG
    gpus: int
    batch: int
    epochs: int


PLANS = (
    Plan("ImageNet-1k", 1_281_167, 110, 1, 1680, 100),
    Plan("ImageNet-1k", 1_281_167, 110, 8, 1680, 100),
    Plan("ImageNet-1k", 1_281_167, 110, 8, 4096, 100),
    Plan("ImageNet-22k", 14.2e6, 92, 64, 8192, 50),
    Plan("web", 1e9, 25, 128, 16_384, 1),
    Plan("web", 1e9, 25, 1024, 65_536, 1),
)
ENCODER, SIZE, STORED, DIM = "resnet50", 224, 256, 128


# --- one GPU ---


def work(name, size):
    """Multiplications of all convolutions, outputs of all batch norms, batch norms and weights, for one view."""
    with torch.device("meta"):
        encoder = create_encoder(name).eval()
    counts = {"multiplications": 0, "outputs": 0, "norms": 0}

    def count(module, inputs, output):
        if isinstance(module, torch.nn.Conv2d):
            per_output = module.in_channels // module.groups * math.prod(module.kernel_size)
            counts["multiplications"] += output[0].numel() * per_output
        elif isinstance(module, torch.nn.BatchNorm2d):
            counts["outputs"] += output[0].numel()
            counts["norms"] += 1

    for module in encoder.modules():
        module.register_forward_hook(count)
    encoder(torch.empty(1, 3, size, size, device="meta"))
    return counts | {"weights": sum(p.numel() for p in encoder.parameters())}


def seconds_per_view(name, size):
    """As ResNet-18's, with its convolutions in proportion to multiplications and the rest to outputs and pixels."""
    known, asked = work("resnet18-cifar", 32), work(name, size)
    convolutions = CONVOLUTIONS * asked["multiplications"] / known["multiplications"]
    elementwise = ELEMENTWISE * asked["outputs"] / known["outputs"]
    return convolutions + elementwise + VIEWS * (size / 32) ** 2 + REST


def loss_cost(batch, gpus):
    """(seconds, bytes) of NT-Xent on one of the GPUs, which computes its own rows of the similarities of all images.

    As measured on one GPU for a batch with as many similarities; between two sizes along their number.
    """
    rows = {
        r["batch_size"]: r for r in json.loads((SPEED / "contrast-gpu.json").read_text())["rows"] if r["kind"] == "auto"
    }
    alike = batch / math.sqrt(gpus)
    near = min(rows, key=lambda size: abs(math.log(size / alike)))
    seconds = rows[near]["seconds"] * ((alike / near) ** 2 if alike > 2048 else 1)
    gathered = 4 * 2 * batch * DIM * 4 if gpus > 1 else 0  # as they are and normalised, and the gradients of both
    return seconds, rows[near]["bytes"] + gathered


# --- exchange ---


def link(gpus):
    """(bytes per second, seconds of latency) between all of them."""
    if gpus == 1:
        return math.inf, 0.0
    inside = gpus <= GPUS_PER_NODE
    hops = math.log2(gpus)
    return (NVLINK, NVLINK_LATENCY * hops) if inside else (NETWORK, NETWORK_LATENCY * hops)


def all_gather(gpus, size):
    """Seconds until every GPU has all `size` bytes, of which each had one part."""
    rate, latency = link(gpus)
    return latency + (gpus - 1) / gpus * size / rate


def all_reduce(gpus, size):
    """Seconds until every GPU has the sum of `size` bytes of each."""
    rate, latency = link(gpus)
    return 2 * (latency + (gpus - 1) / gpus * size / rate)


def step(plan, per_view):
    """Seconds of all parts of a step, as the code does it today."""
    encoder, counts = per_view * 2 * plan.batch / plan.gpus, work(ENCODER, SIZE)
    half = plan.batch * DIM * 4  # bytes of the projections of one view of all images
    parts = {
        "encoder": encoder,
        "loss": loss_cost(plan.batch, plan.gpus)[0],
        # Both views and their gradient; then loss and accuracy are added up, and the gradient of the loss.
        "gather": 2 * (all_gather(plan.gpus, half) + all_reduce(plan.gpus, half)) + 3 * all_reduce(plan.gpus, 8),
        "norms": counts["norms"] * (link(plan.gpus)[1] + 2 * link(plan.gpus)[1]),  # a gather, and a sum backwards
        "gradients": max(0.0, all_reduce(plan.gpus, 4 * counts["weights"]) - HIDDEN * encoder),
    }
    return parts | {"step": sum(parts.values())}


# --- input ---


def busy_share(gpus, cores, seconds_per_image, spread, batch, step_seconds, steps=300):
    """Share of the time in which GPUs compute, when `cores` processes of each decode and read `AHEAD` batches ahead.

    A step begins when all GPUs have their batch: the slowest decides. The time of a batch varies as a sum of
    independent images does, and by `spread` from one reading process to the next, as on machines that others use too.
    """
    random = np.random.default_rng(0)
    share = batch // gpus
    mean = share * seconds_per_image
    of_core = random.lognormal(-(spread**2) / 2, spread, (gpus, cores))
    free = np.zeros((gpus, cores))  # when a core has finished its last batch
    begun = np.zeros(steps)
    now = 0.0
    for k in range(steps):
        core = k % cores
        may_start = begun[k - cores * AHEAD] if k >= cores * AHEAD else 0.0
        each = mean * of_core[:, core] * random.normal(1, 1 / math.sqrt(share), gpus).clip(0.5)
        free[:, core] = np.maximum(free[:, core], may_start) + each
        begun[k] = max(now, free[:, core].max())
        now = begun[k] + step_seconds
    late = steps // 2  # after what was read ahead is used up
    return (steps - late) * step_seconds / (now - begun[late])


# --- tables ---


def tables(views_per_second=None):
    """All lines that docs/scale.md quotes."""
    for name, size, measured in CHECKS:
        predicted = 1 / seconds_per_view(name, size)
        off = predicted / measured - 1
        yield f"{name} at {size} px: {predicted:,.0f} views/s predicted, {measured:,} measured ({off:+.0%})"
    per_view = 1 / views_per_second if views_per_second else seconds_per_view(ENCODER, SIZE)
    yield ""
    parts = "encoder", "loss", "gather", "norms", "gradients", "step"
    yield f"| data | GPUs | batch | {' | '.join(parts)} | views/s | of linear | time |"
    yield "|---" + "|---:" * 11 + "|"
    for plan in PLANS:
        took = step(plan, per_view)
        rate = 2 * plan.batch / took["step"]
        hours = plan.images * plan.epochs * 2 / rate / 3600
        long = f"{hours / 24:,.1f} d" if hours > 48 else f"{hours:,.1f} h"
        cells = " | ".join(f"{1e3 * took[part]:,.1f}" for part in parts)
        linear = took["encoder"] / took["step"]
        yield (
            f"| {plan.name}, {plan.epochs} ep | {plan.gpus:,} | {plan.batch:,} | {cells} "
            f"| {rate:,.0f} | {linear:.0%} | {long} |"
        )
    yield ""
    facts = json.loads((SPEED / "input-cpu.json").read_text())
    decode = facts["core_seconds_per_image"]
    yield "| data | GPUs | stored | images/s | GB/s per machine | cores per GPU | loss memory | index, order |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for plan in PLANS:
        rate = plan.batch / step(plan, per_view)["step"]
        nodes = math.ceil(plan.gpus / GPUS_PER_NODE)
        memory = loss_cost(plan.batch, plan.gpus)[1] / 2**30
        index = (24 + 16) * plan.images / 1e9  # bytes per image, in every process
        yield (
            f"| {plan.name} | {plan.gpus:,} | {plan.images * plan.kilobytes / 1e9:,.2f} TB | {rate:,.0f} "
            f"| {rate * plan.kilobytes / 1e6 / nodes:,.2f} | {rate / plan.gpus * decode:,.1f} "
            f"| {memory:.1f} GiB | {index:,.2f} GB |"
        )
    yield ""
    plans = [PLANS[0], PLANS[2], PLANS[3], PLANS[4]]
    yield "| cores per GPU, of those needed | " + " | ".join(f"{plan.gpus} GPU(s)" for plan in plans) + " |"
    yield "|---" + "|---:" * len(plans) + "|"
    for factor in (0.8, 1.0, 1.2, 1.5, 2.0):
        shares = []
        for plan in plans:
            seconds = step(plan, per_view)["step"]
            needed = plan.batch / plan.gpus * decode / seconds
            cores = max(1, round(factor * needed))
            shares.append(busy_share(plan.gpus, cores, decode * cores / (factor * needed), 0.1, plan.batch, seconds))
        yield f"| {factor:g} | " + " | ".join(f"{share:.0%}" for share in shares) + " |"


# --- measurement ---


def photograph(random, width=500, height=375):
    """Noise of all scales: about as many bytes as a photograph of ImageNet."""
    canvas = np.zeros((height, width, 3), np.float32)
    for scale in (1, 4, 16, 64, 256):
        coarse = random.normal(0, 1, (height // scale + 2, width // scale + 2, 3)).astype(np.float32)
        channels = [
            np.asarray(Image.fromarray(coarse[:, :, c]).resize((width, height), Image.Resampling.BICUBIC))
            for c in range(3)
        ]
        canvas += np.stack(channels, axis=2) * scale**0.1
    canvas = 127 + 40 * (canvas - canvas.mean()) / canvas.std()
    return Image.fromarray(canvas.clip(0, 255).astype(np.uint8))


def measure(images=400):
    """Seconds of one core per image that is read from a shard, decoded and squashed, and what that rests on."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images"
        path.mkdir()
        for number in range(images):
            file = io.BytesIO()
            photograph(random).save(file, "JPEG", quality=92)
            (path / f"{number}.jpg").write_bytes(file.getvalue())
        size = sum(file.stat().st_size for file in path.iterdir()) / images
        shards = Path(folder) / "shards"
        write_shards(DataConfig("folder", str(path)), shards, 10, lambda done, total: None)
        times = {}
        for name, config in {
            "core_seconds_per_image": DataConfig("shards", str(shards), STORED, resident="never", workers=0),
            "core_seconds_per_image_of_files": DataConfig("folder", str(path), STORED, resident="never", workers=0),
        }.items():
            split = load(config, torch.device("cpu")).train
            found = []
            for _ in range(5):
                begun = time.process_time()
                for _batch in split.batches(torch.arange(images), 50):
                    pass
                found.append((time.process_time() - begun) / images)
            times[name] = sorted(found)[2]
    facts = {
        "device_name": provenance.hardware(torch.device("cpu")),
        "commit": provenance.commit(),
        **provenance.versions(),
    }
    return times | {"jpeg_bytes": round(size), "jpeg": "500 x 375", "stored": STORED, "images": images, **facts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views-per-second", type=float, help=f"of {ENCODER} at {SIZE} px on one GPU, where measured")
    parser.add_argument("--measure", metavar="FILE", help="measure the input of this machine, and write it down")
    arguments = parser.parse_args()
    if arguments.measure:
        torch.set_num_threads(1)
        found = measure()
        Path(arguments.measure).write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps(found, indent=2))
        return
    for line in tables(arguments.views_per_second):
        print(line)


if __name__ == "__main__":
    main()
