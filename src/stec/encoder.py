"""A trained encoder, ready to use: `stec.load("run-or-file").features(images)`.

An encoder's file is a safetensors file: its tensors are the weights, under the names that torchvision or timm gives
them, and its metadata are the fields of `Description`. Reading one can run no code.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from stec.config import Config
from stec.errors import UserError
from stec.limits import SOUND
from stec.networks.encoders import create_encoder, library_module
from stec.run import ENCODER, RunFolder, make_room, read_weights, save_weights
from stec.views import Views


@dataclass(frozen=True)
class Description:
    """What has to be known beside the weights."""

    encoder: str  # its name, as `create_encoder` knows it
    method: str  # that trained it
    size: int  # side in pixels of what it sees
    image_size: int  # side at which image files are kept before that
    test_crop: float  # side of the central square that it sees, relative to the shorter side of the image

    @classmethod
    def of(cls, config: Config) -> Description:
        """Of the encoder that a run with this config trains."""
        return cls(config.encoder, config.method, config.views.size, config.data.size, config.views.test_crop)

    @classmethod
    def parse(cls, metadata: dict[str, str]) -> Description:
        """From a file's metadata; KeyError or ValueError if something is missing or is no number."""
        whole = {name: int(metadata[name]) for name in ("size", "image_size")}
        return cls(metadata["encoder"], metadata["method"], **whole, test_crop=float(metadata["test_crop"]))

    def metadata(self) -> dict[str, str]:
        """For a file; `parse` reads it back."""
        return {name: str(value) for name, value in dataclasses.asdict(self).items()}


class Encoder(nn.Module):
    """A trained encoder, in evaluation mode and frozen; `.train()` and `.requires_grad_()` undo that for fine-tuning.

    Args:
        network: The encoder itself: views (B, 3, S, S) in [0, 1] to features (B, D).
        description: Of the network.
    """

    def __init__(self, network: nn.Module, description: Description) -> None:
        super().__init__()
        self.network = network.to(memory_format=torch.channels_last)
        self.description = description
        self.views = Views(size=description.size, test_crop=description.test_crop)
        self.dim: int = int(network.dim)  # type: ignore[arg-type]
        self.requires_grad_(False).eval()

    def features(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """What the encoder makes of the central square of every image, resized to the size that it was trained on.

        Args:
            images: RGB (B, 3, H, W), uint8, or float in [0, 1], on the device of the encoder.
            sizes: (B, 2) true height and width of images that were squashed to H x W; theirs if left out.

        Returns:
            (B, D) float32
        """
        if images.ndim != 4 or images.shape[1] != 3:
            raise UserError(f"images are {tuple(images.shape)}, expected (B, 3, H, W)")
        views = self.views.plain(images, sizes)
        precision = next(self.network.parameters(), views).dtype  # half, after `.half()`
        return self.network(views.to(precision, memory_format=torch.channels_last)).float()

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """`features`."""
        return self.features(images, sizes)

    def save(self, path: str | Path) -> None:
        """Writes a file that `load` reads; its folder is made if there is none."""
        path = Path(path).expanduser()
        make_room(path)
        save_weights(path, library_module(self.network).state_dict(), self.description.metadata())


def load(path: str | Path) -> Encoder:
    """The encoder of a run folder, or of one file: `encoder.safetensors`, or what `stec export --to safetensors` wrote.

    It is on the CPU; `.to("cuda")` moves it, as any module.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        return _read(path, None)
    folder = RunFolder.open(path)
    config = folder.config()
    if config.method in SOUND:
        raise UserError(f"{path} is a run on sound: its probes are in summary.json, stec.audio.load opens its encoder")
    description = Description.of(config)
    if not (path / ENCODER).is_file():
        raise UserError(f"{path} has no {ENCODER} yet: {folder.command} goes on to write it")
    return _read(path / ENCODER, description)


def _read(path: Path, description: Description | None) -> Encoder:
    """The encoder in a file, which describes itself unless somebody else does."""
    weights, metadata = read_weights(path)
    if metadata.get("stec") == "audio":
        raise UserError(f"{path} is an encoder of sound: stec.audio.load opens it")
    if description is None:
        try:
            description = Description.parse(metadata)
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{path} does not say which encoder it is ({error} in its metadata); "
                "'stec export RUN --to safetensors' writes files that do"
            ) from None
    network = create_encoder(description.encoder)
    try:
        library_module(network).load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).splitlines()[1:2]).strip()
        raise UserError(f"the weights in {path} are not those of '{description.encoder}': {reason}") from None
    return Encoder(network, description)
