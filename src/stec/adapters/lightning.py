"""A run as a Lightning module, for those who keep a `Trainer`: `trainer.fit(LitStec(config), loader)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stec import randomness
from stec.actions import EfferenceCopy
from stec.config import Config
from stec.encoder import Description
from stec.errors import UserError
from stec.method import build
from stec.networks.encoders import library_module
from stec.networks.synchrony import adopt_batch_norms
from stec.optim import create_optimizer, scaled_rate, warmup_cosine
from stec.processes import processes
from stec.run import make_room, save_weights
from stec.views import ViewBatch


def _find() -> Any:
    for home in ("lightning.pytorch", "pytorch_lightning"):  # one library by two names
        with suppress(ImportError):
            return import_module(home).LightningModule
    raise UserError("stec.adapters.lightning needs Lightning: pip install 'stec[lightning]'")


LightningModule: Any = _find()


class LitStec(LightningModule):
    """Views, method, optimizer and schedule of a config; data, devices and epochs are the trainer's.

    A batch is a tensor of images (B, 3, H, W), uint8 or in [0, 1], of which two views are made on the device that
    trains; or it is what a `DataLoader` makes of `stec.transforms.PairWithAction`. Either alone, or first in a tuple.

    Args:
        config: As `stec.config.load` makes it. The rate is scaled by its `batch_size`, the images per step over all
            devices, and warms up for its `warmup_epochs`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.views, self.method = build(config)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch; its parts are logged under the names of `stec.Losses`."""
        losses = self.method(self._act(batch).channels_last())
        parts = losses._asdict()
        shown = ["total", "identity", "identity_accuracy"]
        if self.method.manipulation is not None:
            shown += ["manipulation", "manipulation_accuracy"]
        if self.method.turn is not None:
            shown += ["turn", "turn_accuracy"]
        self.log_dict({name: parts[name].detach() for name in shown}, batch_size=len(losses.features) // 2)
        return losses.total

    def _act(self, batch: Any) -> ViewBatch:
        if isinstance(batch, Tensor):
            # Else processes with the same seed, as Lightning gives them, would do the same to their images.
            with randomness.of_this_process(batch.device):
                return self.views(batch)
        if len(batch) == 3 and isinstance(batch[2], EfferenceCopy):
            return ViewBatch(torch.cat([batch[0], batch[1]]), batch[2])
        return self._act(batch[0])  # and labels, or names

    def on_fit_start(self) -> None:
        """Puts right what `Trainer(sync_batchnorm=True)` has done, which just converts all batch norms."""
        adopt_batch_norms(self.method, self.method.identity.unsynchronised())

    def optimizer_step(self, *step: Any, **named: Any) -> None:
        """Takes it, once for all batches whose gradients are accumulated; then targets and queues follow."""
        super().optimizer_step(*step, **named)
        done = self.trainer.global_step + 1  # which counts a step when this has returned
        self.method.after_step(done / self.trainer.estimated_stepping_batches)

    def configure_optimizers(self) -> dict[str, Any]:
        """The config's, with its schedule in steps."""
        settings = self.config.optimizer
        peak = scaled_rate(settings.rate, self.config.batch_size)
        optimizer = create_optimizer(
            settings, self.method, peak, steady=self.method.identity.steady(), steady_rate=peak
        )
        total = self._total_steps()
        warmup = min(total, round(settings.warmup_epochs * self._steps_per_epoch())) if settings.warmup_epochs else 0

        def factor(step: int) -> float:
            return warmup_cosine(step, total, warmup)

        factors: list[Callable[[int], float]] = [
            _constant if group.get("steady") else factor for group in optimizer.param_groups
        ]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _total_steps(self) -> int:
        steps = self.trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:  # -1, too, says that there is no end
            raise UserError("the rate falls until training ends, which is not known here: give the Trainer max_steps")
        return int(steps)

    def _steps_per_epoch(self) -> int:
        self.trainer.fit_loop.setup_data()  # which is not done yet where max_steps alone ends the training
        batches = self.trainer.num_training_batches
        if batches == math.inf:
            raise UserError(
                "the rate warms up for epochs, and this loader does not say how long one is: "
                "give the Trainer limit_train_batches=N, or the config optimizer.warmup_epochs=0"
            )
        return math.ceil(batches / self.trainer.accumulate_grad_batches)

    def save_encoder(self, path: str | Path) -> None:
        """Writes a file that `stec.load` and all `stec` commands read; its folder is made if there is none.

        Of several processes that call it, the first one writes.
        """
        if processes()[0] > 0:
            return
        path = Path(path).expanduser()
        make_room(path)
        weights = library_module(self.method.encoder).state_dict()
        save_weights(path, weights, Description.of(self.config).metadata())


def _constant(step: int) -> float:
    return 1.0
