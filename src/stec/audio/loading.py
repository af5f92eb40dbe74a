"""From a config to utterances."""

from __future__ import annotations

from pathlib import Path

from stec.audio import synthesis
from stec.audio.arrays import open_arrays
from stec.audio.files import open_folder
from stec.audio.sounds import Sounds, join
from stec.config import Config
from stec.data.loading import SOURCES as IMAGES
from stec.data.loading import worker_count
from stec.errors import UserError, nearest

SOURCES = {
    "utterances": "utterances of twelve phones, synthesised on the spot; needs no files",
    "arrays": "root/waveforms.npy and utterances.npz, as 'stec data RECIPE data.root=PATH --save FOLDER' writes them",
    "folder": "a tree of FLAC, WAV, MP3 or OGG files; its first folders are speakers, as in LibriSpeech",
}
_SECONDS = 3.0  # of a synthesised utterance, about


def open_sounds(config: Config) -> Sounds:
    """All utterances of the config's source."""
    source = config.data.source
    if source not in SOURCES:
        hint = "start from a recipe such as audio/cpc" if source in IMAGES else nearest(source, SOURCES)
        raise UserError(f"data.source={source}: method={config.method} learns from sound; {hint}")
    if source != "folder" and config.audio.alignment:
        raise UserError(f"audio.alignment: data.source={source} holds its phones itself; leave it out")
    if source == "utterances":
        return synthesise(config.audio.speakers, config.audio.utterances)
    if config.data.root is None:
        raise UserError(f"data.source={source} needs data.root, the folder of its files")
    root = Path(config.data.root).expanduser()
    alignment = Path(config.audio.alignment).expanduser() if config.audio.alignment else None
    if source == "folder":
        return open_folder(root, alignment, worker_count(config.data))
    return open_arrays(root)


def synthesise(speakers: int, utterances: int) -> Sounds:
    """Always with the same seed: the data do not change with the seed of a training run."""
    made = [synthesis.utterance(number % speakers, number, _SECONDS) for number in range(utterances)]
    return join(
        "utterances",
        [each.samples for each in made],
        [f"utterance{number:04d}" for number in range(utterances)],
        [each.speaker for each in made],
        [each.phones for each in made],
        synthesis.CLASSES,
    )
