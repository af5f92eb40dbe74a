"""Sound files: a tree of any that libsndfile reads, of any rate and number of channels, as LibriSpeech or any other.

The first folder below the root names the speaker, or the first number of a name as LibriSpeech has them
(1089-134686-0000.flac), wherever the file lies. An utterance is named as its file.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np

from stec.audio.alignment import labels_of, phone_names, read_alignment
from stec.audio.network import RATE
from stec.audio.sounds import FRAME, UNKNOWN, Sounds, join
from stec.checking import require_folder
from stec.data.decoding import UnreadableError
from stec.data.folder import file_names
from stec.data.pictures import Failure
from stec.data.split import check_failures, report_failures
from stec.errors import UserError

EXTENSIONS = (".flac", ".wav", ".mp3", ".ogg", ".opus", ".aif", ".aiff", ".aifc", ".au", ".w64")
# Recordings that libsndfile does not read.
FOREIGN = (".m4a", ".aac", ".wma", ".amr", ".ape", ".wv", ".oga", ".mka", ".ac3")
NOBODY = "nobody"  # who speaks in a file that lies in no folder
SILENCE = 1e-4  # samples farther apart than twice this make a recording
UNTOLD = 2**63 - 1  # libsndfile's number of samples where a header has none, past whose end it cannot read then
# How libsndfile tells of samples that end too early, in WAV, RF64, W64, AIFF and AU, any of which may be named .wav.
TRUNCATED = re.compile(r"^ *(?:data|Riff size|riff|SSND|Data Size) *: (\d+) \(should be", re.MULTILINE)

logger = logging.getLogger("stec")


def open_folder(root: Path, alignment: Path | None, workers: int) -> Sounds:
    """Reads all files into memory, at 16 kHz; what cannot be used is named and left out, if it is little."""
    soundfile, soxr = package("soundfile"), package("soxr")
    require_folder(root, "data.root=")
    labels = read_alignment(alignment) if alignment is not None else None
    paths = file_names(root, EXTENSIONS, FOREIGN, "sound files")

    def attempt(name: str) -> np.ndarray | Failure:
        try:
            return read(root / name, soundfile, soxr)
        except UnreadableError as error:
            return Failure(str(root / name), str(error))

    with ThreadPoolExecutor(max(1, workers)) as pool:
        results = list(pool.map(attempt, paths))
    failures = [result for result in results if isinstance(result, Failure)]
    report_failures(failures, "left out")
    check_failures(failures, len(paths), "recordings")
    kept = [(name, result) for name, result in zip(paths, results, strict=True) if isinstance(result, np.ndarray)]
    waveforms = [waveform for _, waveform in kept]
    names = [Path(name).stem for name, _ in kept]
    speakers = [speaker_of(Path(name)) for name, _ in kept]
    skipped = [failure.name for failure in failures]
    if labels is None:
        return join(f"folder:{root}", waveforms, names, speakers, None, (), skipped)
    classes = phone_names(labels)
    phones, missing, number = [], [], Counter(names)
    for name, waveform in zip(names, waveforms, strict=True):
        own = name in labels and number[name] == 1  # of several with that name, nobody knows which is meant
        known = labels_of(labels[name], len(waveform), classes) if own else None
        if known is None:
            missing.append(name)
            known = np.full(len(waveform) // FRAME, UNKNOWN, np.int16)
        phones.append(known)
    if len(missing) == len(names):
        them = f"the utterances in {root}, such as {names[0]}, by a name that one has alone, and its length"
        raise UserError(f"audio.alignment={alignment} knows none of {them}")
    if missing:
        more = ", ..." if len(missing) > 3 else ""
        logger.warning(
            "%s has no phones for %d of %d utterances, or several or others have that name (%s%s): they are learnt "
            "from, and left out of the phone probe",
            alignment, len(missing), len(names), ", ".join(missing[:3]), more,
        )  # fmt: skip
    return join(f"folder:{root}", waveforms, names, speakers, phones, classes, skipped)


def speaker_of(path: Path) -> str:
    """Who speaks in a file, from its path below the root."""
    match = re.fullmatch(r"(\d+)-\d+-\d+", path.stem)
    return match[1] if match else path.parts[0] if len(path.parts) > 1 else NOBODY


def read(path: Path, soundfile: ModuleType, soxr: ModuleType) -> np.ndarray:
    """A recording as int16 (S,) at 16 kHz, its channels averaged; UnreadableError if it is broken, empty or silent."""
    try:
        with soundfile.SoundFile(os.fsencode(path)) as file:  # of a word, it would not take bytes that are no UTF-8
            expected, rate, log = file.frames, file.samplerate, file.extra_info
            if expected == UNTOLD:
                raise UnreadableError("it does not say how long it is, as FLAC from a pipe: decode and encode it again")
            samples = file.read(dtype="float32", always_2d=True).mean(axis=1)
    except (soundfile.SoundFileError, RuntimeError, OSError, ValueError, MemoryError) as error:
        reason = getattr(error, "error_string", str(error))  # without the name, in bytes
        raise UnreadableError(" ".join(reason.split())) from None
    if len(samples) == 0:
        raise UnreadableError("it has no samples")
    if len(samples) < expected or any(is_known(int(length)) for length in TRUNCATED.findall(log)):
        raise UnreadableError("it is truncated")
    if not np.isfinite(samples).all():
        raise UnreadableError("it has samples that are no numbers")
    if np.ptp(samples) < 2 * SILENCE:
        raise UnreadableError("it is silent")
    if rate != RATE:
        samples = soxr.resample(samples, rate, RATE)
    if len(samples) == 0:
        raise UnreadableError("it has no samples at 16 kHz")
    samples = samples / max(1, np.abs(samples).max())  # of a file of floats they may be any
    return np.clip(np.rint(samples * 32768), -32768, 32767).astype(np.int16)


def is_known(length: int) -> bool:
    """Whether a WAV can have so many bytes of samples: one that is written to a pipe says 2 GB (SoX, arecord) or 4."""
    return not (2**31 - 2**13 <= length <= 2**31 or length == 2**32 - 1)


def package(name: str, use: str = "sound files are read with", extra: str = "audio") -> ModuleType:
    """One that only sound needs."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # OSError: soundfile without its library
        raise UserError(f"{use} {name}: pip install 'stec[{extra}]'") from None
