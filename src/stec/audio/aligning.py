"""Phones of recordings whose words are known: forced alignment by pocketsphinx, which brings a model of English.

Words are LibriSpeech's (`*.trans.txt`: a line per utterance, its name and its words) or in `NAME.txt` beside
`NAME.flac`. Pronunciations are those of the CMU dictionary that pocketsphinx has; an utterance with a word that it does
not have is left out.
"""

from __future__ import annotations

import gzip
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stec.audio.files import EXTENSIONS, FOREIGN, package, read
from stec.audio.network import RATE
from stec.checking import require_folder
from stec.data.decoding import UnreadableError
from stec.data.folder import file_names, names_below
from stec.errors import UserError
from stec.run import make_room, replacing

SILENCE = "SIL"
LIKE = "stec data align reads words from LibriSpeech's *.trans.txt, or from NAME.txt beside NAME.flac"


class Alignment(NamedTuple):
    """What became of one recording: its phones, or why it has none."""

    name: str
    samples: int
    phones: list[tuple[str, int]]  # with frames of 10 ms
    unknown: list[str]  # words without a pronunciation
    error: str | None


class Written(NamedTuple):
    """What was written."""

    aligned: int
    phones: int  # different ones
    wordless: int  # recordings of which nobody says what is spoken
    unknown: dict[str, list[str]]  # utterance -> its words without a pronunciation
    failed: dict[str, str]  # utterance -> why


def write_alignment(
    root: Path, out: Path, workers: int, extra: Path | None = None, count: Callable[[int, int], None] | None = None
) -> Written:
    """Aligns all recordings below a folder, in several processes, and writes a file for `audio.alignment`.

    Args:
        root: the folder.
        out: the file, compressed if its name ends in .gz.
        workers: processes.
        extra: further pronunciations, a line per word: word PHONE PHONE ...
        count: told how many recordings are done, of how many.
    """
    require_folder(root, "data.root=")
    for needed in ("soundfile", "soxr"):
        package(needed)
    package("pocketsphinx", "words are aligned with", "align")
    if out.exists():
        raise UserError(f"{out} exists: remove it, or name another file")
    make_room(out)
    added = read_pronunciations(extra) if extra is not None else {}
    Aligner(added)  # a mistake in them is found before other processes are started
    paths = file_names(root, EXTENSIONS, FOREIGN, "sound files")
    words = transcripts(root)
    jobs = [(root / path, words[Path(path).stem]) for path in paths if Path(path).stem in words]
    if not jobs:
        raise UserError(f"{root} has no words of any of its {len(paths):,} recordings: {LIKE}")
    for name, number in Counter(path.stem for path, _ in jobs).items():
        if number > 1:
            same = ", ".join(path for path in paths if Path(path).stem == name)
            raise UserError(
                f"several recordings are named {name} ({same}): rename them, as words and phones go by name"
            )
    found: list[Alignment] = []
    for each in _all(jobs, added, min(workers, len(jobs))):
        found.append(each)
        if count is not None:
            count(len(found), len(jobs))
    aligned = sorted(each for each in found if each.phones)
    if not aligned:
        first = found[0]
        reason = first.error or f"no pronunciation of {first.unknown[0]}"
        raise UserError(f"none of {len(jobs):,} recordings could be aligned; {first.name}: {reason}")
    lines = "".join(f"{a.name} {a.samples} dict {' '.join(f'{p}:{n}' for p, n in a.phones)}\n" for a in aligned)
    with replacing(out) as part:
        content = lines.encode(errors="surrogateescape")  # names of files may be no UTF-8
        part.write_bytes(gzip.compress(content, mtime=0) if out.suffix == ".gz" else content)
    return Written(
        len(aligned),
        len({phone for each in aligned for phone, _ in each.phones}),
        len(paths) - len(jobs),
        {each.name: each.unknown for each in found if each.unknown},
        {each.name: each.error for each in found if each.error},
    )


def transcripts(root: Path) -> dict[str, list[str]]:
    """Utterance -> its words, as the dictionary writes them."""
    found: dict[str, list[str]] = {}
    for path in (root / name for name in names_below(root, (".txt",))):
        text = path.read_text("utf-8-sig", errors="replace")
        if path.name.endswith(".trans.txt"):
            named = (line.split(maxsplit=1) for line in text.splitlines())
            found |= {line[0]: words_of(line[1]) for line in named if len(line) == 2}
        else:
            found[path.stem] = words_of(text)
    return {name: words for name, words in found.items() if words}


def words_of(text: str) -> list[str]:
    """In small letters, without marks but the apostrophe. Numbers are words, too, though no dictionary has them."""
    words = re.findall(r"[^\W_]+(?:['\u2019][^\W_]+)*'?|'[^\W_]+", text.lower())
    return [word.replace("\u2019", "'") for word in words]


def read_pronunciations(path: Path) -> dict[str, str]:
    """Word -> its phones."""
    if not path.is_file():
        raise UserError(f"--pronunciations {path}: no such file")
    found = {}
    for number, line in enumerate(path.read_text("utf-8-sig", errors="replace").splitlines(), 1):
        parts = line.split()
        if len(parts) == 1:
            raise UserError(f"{path}, line {number}: expected 'word PHONE PHONE ...'")
        if parts:
            found[parts[0].lower()] = " ".join(parts[1:]).upper()
    return found


class Aligner:
    """pocketsphinx, for one process."""

    def __init__(self, added: dict[str, str]) -> None:
        self.added, self.sphinx = added, package("pocketsphinx")
        self.decoder = self._start()

    def _start(self) -> Any:
        # With a search for a better path among the words' ends, the phones of every seventh utterance cannot be found.
        decoder = self.sphinx.Decoder(lm=None, samprate=RATE, bestpath=False, loglevel="FATAL")
        for word, phones in self.added.items():
            try:
                decoder.add_word(word, phones, False)
            except RuntimeError:
                if decoder.lookup_word(word) is None:
                    raise UserError(f"--pronunciations: {word} cannot be pronounced as {phones}") from None
        return decoder

    def unknown(self, words: list[str]) -> list[str]:
        """Words without a pronunciation."""
        return [word for word in words if self.decoder.lookup_word(word) is None]

    def align(self, samples: np.ndarray, words: list[str]) -> list[tuple[str, int]]:
        """Phones and their frames of 10 ms: first where the words are, then, within each, its phones.

        Args:
            samples: int16 (S,) at 16 kHz.
            words: all that is said.
        """
        try:
            self.decoder.reinit_feat()  # or else the noise that it takes off would be that of what it heard before
            self.decoder.set_align_text(" ".join(words))
            self._hear(samples)
            if self.decoder.hyp() is None:
                return []
            self.decoder.set_alignment()
            self._hear(samples)
            return [(_plain(phone.name), phone.duration) for word in self.decoder.get_alignment() for phone in word]
        except RuntimeError:  # "Failed to stop utterance processing": the words do not fit to what is heard
            self.decoder = self._start()
            return []

    def _hear(self, samples: np.ndarray) -> None:
        self.decoder.start_utt()
        self.decoder.process_raw(samples.tobytes(), full_utt=True)
        self.decoder.end_utt()


def _plain(phone: str) -> str:
    """Noises and breaths are silence."""
    return SILENCE if phone.startswith("+") else phone


def _all(jobs: list[tuple[Path, list[str]]], added: dict[str, str], workers: int) -> Iterator[Alignment]:
    if workers <= 1:
        _begin(added)
        yield from map(_align, jobs)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (added,)) as pool:
        yield from pool.map(_align, jobs)


_aligner: Aligner  # of this process


def _begin(added: dict[str, str]) -> None:
    global _aligner
    _aligner = Aligner(added)


def _align(job: tuple[Path, list[str]]) -> Alignment:
    path, words = job
    unknown = _aligner.unknown(words)
    if unknown:
        return Alignment(path.stem, 0, [], unknown, None)
    try:
        samples = read(path, package("soundfile"), package("soxr"))
    except UnreadableError as error:
        return Alignment(path.stem, 0, [], [], str(error))
    phones = _aligner.align(samples, words)
    return Alignment(path.stem, len(samples), phones, [], None if phones else "its words do not fit to what is heard")
