"""What a contrastive loss costs as the batch grows: time and memory of NT-Xent, whole and in blocks.

    python benchmarks/contrast.py [--device cuda] [--largest 65536] [--dim 128] [--json FILE]

One line per batch size: seconds of a forward and backward pass, and the memory that it takes beyond the projections and
their gradients. "whole" holds all similarities of the 2B views at once, "blocks" some rows of them, "auto" is what
training uses, and "own 1/8" what it uses in each of eight processes, without their exchange.
"""

import argparse
import gc
import json
import time
from statistics import median

import torch

from stec import functional, provenance

SMALLEST = 1024
WHOLE_AT_MOST = 32_768  # views: beyond, the whole matrix would take many gigabytes
BLOCKS = (2**24, 2**26, 2**28)  # similarities held at once
PROCESSES = (8, 64)


def cost(views, dim, device, block, processes=1):
    """(seconds, bytes) of one forward and backward pass."""
    half = views // 2
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(half, dim, generator=generator).to(device).requires_grad_() for _ in range(2))

    def run():
        loss = functional.contrast_pairs(first, second, 0.5, block, slice(half // processes)).loss
        torch.autograd.grad(loss, (first, second))

    def wait():
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    gc.collect()
    memory = None
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        memory = torch.cuda.max_memory_allocated(device) - before
    times = []
    while len(times) < 3 or (sum(times) < 0.3 and len(times) < 50):
        wait()
        begun = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - begun)
    return median(times), memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--largest", type=int, default=65_536, help="images per batch")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    rows = []
    batch = SMALLEST
    while batch <= arguments.largest:
        views = 2 * batch
        kinds = {"auto": (None, 1)}
        if views <= WHOLE_AT_MOST:
            kinds["whole"] = (views, 1)
        kinds |= {f"blocks of 2^{n.bit_length() - 1}": (n // views, 1) for n in BLOCKS if n < views**2}
        kinds |= {f"own 1/{n}": (None, n) for n in PROCESSES}
        for kind, (block, processes) in kinds.items():
            seconds, memory = cost(views, arguments.dim, device, block, processes)
            rows.append({"batch_size": batch, "kind": kind, "seconds": seconds, "bytes": memory})
            shown = "" if memory is None else f"{memory / 2**20:9,.0f} MiB"
            print(f"B = {batch:6,}  {kind:15} {1000 * seconds:10.2f} ms {shown}", flush=True)
        batch *= 2
    if arguments.json:
        with open(arguments.json, "w") as file:
            facts = {"device_name": provenance.hardware(device), "commit": provenance.commit(), **provenance.versions()}
            settings = {key: value for key, value in vars(arguments).items() if key != "json"}
            json.dump({**settings, **facts, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
