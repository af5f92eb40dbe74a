"""Pretraining on sound, with the loop that images have, and what linear probes make of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam

from stec.audio import actions, probes
from stec.audio.loading import open_sounds
from stec.audio.method import Method
from stec.audio.network import RATE, Network
from stec.audio.sounds import Sounds, Split, split
from stec.audio.windows import Pieces, Windows
from stec.config import Config
from stec.engine import Loop, Task
from stec.fabric import Fabric
from stec.optim import warmup_cosine
from stec.reporter import Reporter
from stec.run import RunFolder


def pretrain(config: Config, fabric: Fabric, folder: RunFolder, reporter: Reporter, resume: bool) -> dict[str, Any]:
    """What `stec.training.pretrain` does with the methods that learn from sound."""
    sounds = open_sounds(config)
    parts = split(sounds, config.audio.test_speakers)
    task = Listening(config, fabric, sounds, parts)
    _note_data(sounds, parts, task.windows, reporter)
    loop = Loop(config, fabric, folder, reporter, task)
    loop.begin(resume)
    summary: dict[str, Any] = {}
    if config.baselines and fabric.is_global_zero:
        reporter.note("linear probes before training ...")
        summary |= task.baselines()
    loop.run()
    if not fabric.is_global_zero:
        return {}
    reporter.note("linear probes after training ...")
    probed = task.evaluate()
    if probed.confusion is not None:
        probes.save_confusion(folder.path, sounds.classes, probed.confusion)
    summary |= {"method": config.method, **probed.accuracies(), **loop.describe()}
    summary |= {"data": sounds.name, "skipped_files": len(sounds.skipped)}
    if summary.get("phones") is not None and "phones_untrained" in summary:
        summary["phones_gain"] = round(summary["phones"] - summary["phones_untrained"], 2)
    loop.finish(summary)
    return summary


def _note_data(sounds: Sounds, parts: Split, windows: Windows, reporter: Reporter) -> None:
    speakers = len(set(sounds.speakers))
    strangers = len({sounds.speakers[index] for index in parts.phones})
    labels = f"{len(sounds.classes)} phones" if sounds.phones is not None else "no alignment, so no phone probe"
    if sounds.phones is not None and not probes.has_phones(sounds, parts):
        labels = "no phones known of both training and test utterances, so no phone probe"
    kept = "resident" if windows.resident else "streamed"
    reporter.note(
        f"data: {sounds.name}, {len(sounds):,} utterances, {sounds.seconds / 60:,.0f} minutes, {speakers} speakers "
        f"({strangers} to test), {labels}, {kept}"
    )
    if speakers > 1 and not probes.has_speakers(sounds, parts):
        reporter.note("data: every speaker has only one utterance, so no speaker probe")
    if windows.too_short:
        reporter.note(f"data: {windows.too_short} utterance(s) shorter than a window are not trained on")
    if sounds.skipped:
        reporter.note(f"data: {len(sounds.skipped)} unreadable file(s) left out")


class Listening(Task):
    """Two windows of every utterance, what was done to them, and a method that infers it."""

    unit = "audio_seconds"

    def __init__(self, config: Config, fabric: Fabric, sounds: Sounds, parts: Split) -> None:
        self.config, self.fabric, self.sounds, self.parts = config, fabric, sounds, parts
        torch.manual_seed(config.seed)
        self.module = self.method = Method(config)
        self.metrics = self.method.models.metrics
        audio, acts = config.audio, self.method.models.actions
        near = int(actions.NEAR * audio.window) if "shift" in acts else None
        length = actions.piece_length(audio.window, acts)
        self.windows = Windows(sounds, parts.train, length, audio.window, near, fabric.device, config.data.resident)
        self.items, self.fingerprint = len(self.windows), sounds.fingerprint()
        self.units = 2 * config.batch_size * audio.window / RATE
        self.warmup = round(config.optimizer.warmup_epochs * (self.items // config.batch_size))

    def batches(self, share: Tensor, size: int) -> Iterator[Pieces]:
        """Two pieces of every utterance."""
        return self.windows.batches(share, size)

    def prepare(
        self, samples: Tensor, starts: Tensor, scales: Tensor, utterances: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Acts: windows (2, B, W), utterances (B,), and the action between the windows (B, C)."""
        pieces = samples.float() * scales[:, None]
        acts, window = self.method.models.actions, self.config.audio.window
        if not acts:
            return pieces, utterances, scales[:, None]  # no action
        first, second = (actions.draw(start, acts) for start in starts)
        heard = [
            actions.perform(piece, done, window, acts) for piece, done in zip(pieces, (first, second), strict=True)
        ]
        return torch.stack(heard), utterances, actions.egocentric(first, second, window, acts)

    def optimizer(self, rate: Tensor) -> Adam:
        """Adam."""
        settings = self.config.optimizer
        cuda = self.fabric.device.type == "cuda"  # where a step may be recorded
        return Adam(self.module.parameters(), rate, weight_decay=settings.weight_decay, fused=True, capturable=cuda)

    def rate(self, step: int, steps: int) -> float:
        """Linear warm-up, cosine decay."""
        return self.config.optimizer.rate * warmup_cosine(step, steps, self.warmup)

    def compiled(self, alone: bool) -> Iterable[nn.Module]:
        """All but the GRU, which is a single call to a library; of several processes not the losses, as for images."""
        return [self.method.network.encoder, *([self.method.models] if alone else [])]

    def publish(self, folder: RunFolder, state: dict[str, Tensor]) -> None:
        """Encoder and context."""
        about = {"stec": "audio", "encoder": self.config.encoder, "bidirectional": str(self.config.audio.bidirectional)}
        folder.save_encoder(self.state_of(self.method.network, state), about)

    # --- evaluation ---

    def baselines(self) -> dict[str, Any]:
        """What linear probes read from MFCC and from the untrained network, and what the most frequent answer gives."""
        device = self.fabric.device
        torch.manual_seed(self.config.seed)
        fresh = Network(self.config.encoder, self.config.audio.bidirectional).to(device)
        untrained = probes.probe(probes.network_features(fresh), self.sounds, self.parts, device)
        spectral = probes.probe(probes.mfcc_features, self.sounds, self.parts, device)
        return {
            **untrained.accuracies("_untrained"),
            **spectral.accuracies("_mfcc"),
            **probes.majority(self.sounds, self.parts),
        }

    def evaluate(self) -> probes.Probed:
        """Of the network as it is."""
        training = self.method.training
        try:
            features = probes.network_features(self.method.network)
            return probes.probe(features, self.sounds, self.parts, self.fabric.device)
        finally:
            self.method.train(training)
