"""Utterances from arrays, files and alignments; how they are split; and windows of them."""

import gzip
import logging
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import soxr
import torch

from stec.audio import files
from stec.audio.alignment import Aligned, labels_of, read_alignment
from stec.audio.arrays import UTTERANCES, WAVEFORMS, open_arrays, save_arrays
from stec.audio.files import open_folder, speaker_of
from stec.audio.loading import open_sounds
from stec.audio.sounds import UNKNOWN, join, split
from stec.audio.windows import Windows, waveform
from stec.config import load
from stec.data.decoding import UnreadableError
from stec.data.folder import file_names
from stec.errors import UserError

CPU = torch.device("cpu")


def _sine(seconds=0.5, rate=16_000, hertz=440.0, level=0.5):
    return level * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


# --- splits ---


def test_nothing_is_tested_that_was_heard_before(sounds):
    parts = split(sounds, 0.25)
    of = lambda indices: {sounds.speakers[index] for index in indices}  # noqa: E731
    assert len(of(parts.phones)) == 1
    assert of(parts.phones).isdisjoint(of(parts.train))
    assert set(parts.speakers).isdisjoint([*parts.train, *parts.known])
    assert of(parts.speakers) == of(parts.known) == set(sounds.speakers)
    assert sorted([*parts.speakers, *parts.known]) == list(range(len(sounds)))
    assert split(sounds, 0.25) == parts


def test_the_split_does_not_depend_on_the_order_of_utterances(sounds):
    order = np.random.default_rng(0).permutation(len(sounds))
    waveforms = [np.zeros(160, np.int16) for _ in order]
    mixed = join("x", waveforms, [sounds.names[i] for i in order], [sounds.speakers[i] for i in order], None, ())
    named = lambda which, s: {s.names[i] for i in getattr(split(s, 0.5), which)}  # noqa: E731
    for which in ("train", "phones", "speakers", "known"):
        assert named(which, mixed) == named(which, sounds)


def test_the_fingerprint_is_of_all_that_is_learnt_from(sounds):
    other = sounds.samples.copy()
    other[7] += 1
    phones, offsets = sounds.phones.copy(), sounds.offsets.copy()
    phones[7] += 1
    offsets[1] += 1
    changes = ({"samples": other}, {"phones": phones}, {"phones": None}, {"offsets": offsets},
               {"speakers": ("x", *sounds.speakers[1:])}, {"classes": ("x", *sounds.classes[1:])})  # fmt: skip
    found = {replace(sounds, **change).fingerprint() for change in ({}, *changes)}
    assert len(found) == 1 + len(changes)
    assert replace(sounds, name="elsewhere").fingerprint() == sounds.fingerprint()


# --- arrays ---


def test_arrays_give_back_what_was_saved(sounds, tmp_path):
    save_arrays(sounds, tmp_path / "new" / "folder")
    again = open_arrays(tmp_path / "new" / "folder")
    assert again.fingerprint() == sounds.fingerprint()
    assert (again.names, again.speakers, again.classes) == (sounds.names, sounds.speakers, sounds.classes)
    assert isinstance(again.samples, np.memmap)
    assert torch.equal(again.phones_of(3), sounds.phones_of(3))
    assert torch.equal(waveform(again, 3), waveform(sounds, 3))


def test_arrays_without_phones(sounds, tmp_path):
    plain = join("x", [sounds.samples[:4000]], ["one"], ["she"], None, ())
    save_arrays(plain, tmp_path)
    again = open_arrays(tmp_path)
    assert again.phones is None
    assert again.phones_of(0).tolist() == [UNKNOWN] * 25


def test_wrong_arrays_are_named(sounds, tmp_path):
    with pytest.raises(UserError, match=r"waveforms.npy: no such file; the folder should hold"):
        open_arrays(tmp_path)
    save_arrays(sounds, tmp_path)
    np.save(tmp_path / "waveforms.npy", sounds.samples[:-1])
    with pytest.raises(UserError, match="the utterances end at sample"):
        open_arrays(tmp_path)
    np.save(tmp_path / "waveforms.npy", sounds.samples.astype(np.float32))
    with pytest.raises(UserError, match="should be int16"):
        open_arrays(tmp_path)
    np.savez(tmp_path / "utterances.npz", offsets=sounds.offsets)
    with pytest.raises(UserError, match="has no 'names'"):
        open_arrays(tmp_path)
    (tmp_path / "utterances.npz").write_bytes(b"none")
    with pytest.raises(UserError, match="not NumPy files"):
        open_arrays(tmp_path)


@pytest.mark.parametrize("name", [WAVEFORMS, UTTERANCES])
def test_arrays_that_are_damaged_or_of_the_other_kind_are_named(sounds, tmp_path, name):
    save_arrays(sounds, tmp_path)
    path, other = tmp_path / name, tmp_path / ({WAVEFORMS, UTTERANCES} - {name}).pop()
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (b"", whole[:middle], other.read_bytes(), whole[:100] + bytes(middle - 100) + whole[middle:]):
        path.write_bytes(content)
        if name == WAVEFORMS and content[100:] and len(content) == len(whole):
            continue  # other samples
        with pytest.raises(UserError, match=r"not NumPy files|should be int16|has no 'offsets'"):
            open_arrays(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"offsets": np.arange(21.0)}, "offsets should rise"), ({"offsets": np.int64(3)}, "offsets should rise"),
        ({"speakers": np.array([["a", "b"]] * 20)}, "names and speakers should be words"),
        ({"names": np.arange(20)}, "names and speakers should be words"),
        ({"phones": np.array("none")}, "phones should be"), ({"phones": np.full(6458, "AH")}, "phones should be"),
    ],
)  # fmt: skip
def test_tables_of_another_kind_are_named(sounds, tmp_path, changed, message):
    save_arrays(sounds, tmp_path)
    with np.load(tmp_path / UTTERANCES) as file:
        about = dict(file)
    np.savez(tmp_path / UTTERANCES, **(about | changed))
    with pytest.raises(UserError, match=message):
        open_arrays(tmp_path)


# --- files ---


def test_files_of_any_rate_width_and_channels_become_one_kind(tmp_path):
    """A tone stays the same tone, whatever it was stored as."""
    stereo = np.stack([_sine(rate=48_000, level=0.6), _sine(rate=48_000, level=0.2)], axis=1)
    (tmp_path / "ann").mkdir()
    (tmp_path / "bob").mkdir()
    soundfile.write(tmp_path / "ann" / "a.wav", stereo, 48_000)
    soundfile.write(tmp_path / "ann" / "b.wav", _sine(level=0.4), 16_000, subtype="PCM_U8")
    soundfile.write(tmp_path / "bob" / "c.flac", _sine(rate=44_100, level=0.4), 44_100, subtype="PCM_24")
    soundfile.write(tmp_path / "bob" / "d.ogg", _sine(rate=8_000, level=0.4), 8_000)
    soundfile.write(tmp_path / "e.wav", _sine(level=0.4), 16_000, subtype="FLOAT")
    found = open_folder(tmp_path, None, 2)
    assert found.names == ("a", "b", "c", "d", "e")
    assert found.speakers == ("ann", "ann", "bob", "bob", files.NOBODY)
    for index in range(5):
        samples = found.samples[found.offsets[index] : found.offsets[index + 1]] / 32768
        assert len(samples) == pytest.approx(8000, abs=2)
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        assert np.argmax(spectrum) * 16_000 / len(samples) == pytest.approx(440, abs=2)
        assert np.abs(samples[1000:7000]).max() == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("ending", [ending[1:] for ending in files.EXTENSIONS])
def test_files_of_every_kind_are_heard(tmp_path, ending):
    kinds = {"opus": {"format": "OGG", "subtype": "OPUS"}, "aif": {"format": "AIFF"}, "aifc": {"format": "AIFF"}}
    soundfile.write(tmp_path / f"a.{ending}", _sine(level=0.4), 16_000, **kinds.get(ending, {}))
    (name,) = file_names(tmp_path, files.EXTENSIONS, files.FOREIGN, "sound files")
    heard = files.read(tmp_path / name, soundfile, soxr) / 32768
    assert heard.shape == _sine().shape
    assert np.abs(heard - _sine(level=0.4))[400:-400].max() < 0.03  # at its ends, what is coded with loss rings


def test_floats_beyond_one_are_scaled_and_not_cut_off(tmp_path):
    soundfile.write(tmp_path / "loud.wav", _sine(level=20_000), 16_000, subtype="FLOAT")
    heard = files.read(tmp_path / "loud.wav", soundfile, soxr) / 32768
    assert np.allclose(heard, _sine(level=1) / np.abs(_sine(level=1)).max(), atol=1e-3)


@pytest.mark.parametrize("kind", ["PCM_16", "PCM_24", "FLOAT"])
@pytest.mark.parametrize("most", [0xFFFFFFFF, 0x7FFFF000, 0x7FFFFF00])
def test_a_recording_that_was_written_to_a_pipe_is_whole(tmp_path, kind, most):
    """As ffmpeg, SoX and arecord do, which cannot go back there to say how long it became."""
    path = tmp_path / "pipe.wav"
    soundfile.write(path, _sine(), 16_000, subtype=kind)
    expected, content = files.read(path, soundfile, soxr), bytearray(path.read_bytes())
    place = content.index(b"data") + 4
    frame = soundfile.info(path).channels * {"PCM_16": 2, "PCM_24": 3, "FLOAT": 4}[kind]
    length = most if most == 0xFFFFFFFF else most - most % frame  # SoX names whole frames
    content[place : place + 4] = length.to_bytes(4, "little")
    content[4:8] = min(length + place - 4, 0xFFFFFFFF).to_bytes(4, "little")
    path.write_bytes(content)
    assert np.array_equal(files.read(path, soundfile, soxr), expected)
    path.write_bytes(content[:place] + len(content).to_bytes(4, "little") + content[place + 4 :])
    with pytest.raises(UnreadableError, match="truncated"):
        files.read(path, soundfile, soxr)


@pytest.mark.parametrize("wrong", ["bytes per second", "end of the file"])
def test_a_recording_is_whole_if_all_of_its_samples_are_there_whatever_else_its_header_says(tmp_path, wrong):
    path = tmp_path / "careless.wav"
    soundfile.write(path, _sine()[:7999], 16_000, subtype="PCM_U8")
    expected, content = files.read(path, soundfile, soxr), bytearray(path.read_bytes())
    if wrong == "bytes per second":
        content[28:32] = (64_000).to_bytes(4, "little")
    else:
        content = content[:-1]  # the byte that makes the number of samples even, which is counted
    path.write_bytes(content)
    assert np.array_equal(files.read(path, soundfile, soxr), expected)


def test_names_of_any_bytes_are_names(tmp_path):
    folder = os.fsencode(tmp_path) + b"/j\xf6rg"
    os.mkdir(folder)
    for number in range(4):
        soundfile.write(folder + b"/\xff%d.wav" % number, _sine(), 16_000)
    (tmp_path / "ann").mkdir()
    soundfile.write(tmp_path / "ann" / "a.wav", _sine(), 16_000)
    found = open_folder(tmp_path, None, 1)
    assert found.speakers == ("ann", *[os.fsdecode(b"j\xf6rg")] * 4)
    assert len(split(found, 0.25).known) == 4
    save_arrays(found, tmp_path / "arrays")
    assert open_arrays(tmp_path / "arrays").fingerprint() == found.fingerprint()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty.wav", "no samples"), ("silent.wav", "silent"), ("short.flac", "Error"), ("short.wav", "truncated"),
        ("text.wav", "not recognised"), ("zero.flac", "not recognised"), ("nan.wav", "no numbers"),
        ("constant.wav", "silent"), ("instant.wav", "no samples"), ("long.flac", "Unable to allocate|truncated"),
        ("piped.flac", "does not say how long it is"),
    ],
)  # fmt: skip
def test_what_cannot_be_heard_is_unreadable(tmp_path, name, reason):
    path = tmp_path / name
    content = {"empty.wav": [], "silent.wav": np.zeros(8000), "nan.wav": np.full(800, np.nan)}
    content |= {"constant.wav": np.full(8000, -1 / 128), "instant.wav": [0.5, -0.5]}
    if name == "text.wav":
        path.write_text("no sound")
    elif name == "zero.flac":
        path.write_bytes(b"")
    else:
        subtype, rate = ("FLOAT" if name == "nan.wav" else None), (192_000 if name == "instant.wav" else 16_000)
        soundfile.write(path, content.get(name, np.random.default_rng(0).normal(0, 0.1, 16_000)), rate, subtype)
    if name.startswith("short"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if name in ("long.flac", "piped.flac"):  # in its header, the length
        content = bytearray(path.read_bytes())
        length = [content[21] | 0x0F, *b"\xff\xff\xff\xff"] if name == "long.flac" else [content[21] & 0xF0, 0, 0, 0, 0]
        content[21:26] = bytes(length)
        path.write_bytes(content)
    with pytest.raises(UnreadableError, match=reason):
        files.read(path, soundfile, soxr)


def test_a_few_unreadable_files_are_named_and_left_out_and_many_are_refused(tmp_path, caplog):
    for number in range(100):
        soundfile.write(tmp_path / f"{number:03d}.wav", _sine(0.05), 16_000)
    (tmp_path / "050.wav").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "stec"):
        found = open_folder(tmp_path, None, 2)
    assert len(found) == 99
    assert found.skipped == (str(tmp_path / "050.wav"),)
    assert "050.wav" in caplog.text
    soundfile.write(tmp_path / "051.wav", np.zeros(800), 16_000)
    with pytest.raises(UserError, match=r"more than 1 % of 100 recordings cannot be read \(.*050.wav, .*051.wav\)"):
        open_folder(tmp_path, None, 2)


def test_folders_without_sound_or_without_the_extra_are_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UserError, match=r"read with soundfile: pip install 'stec\[audio\]'"):
        open_folder(tmp_path, None, 1)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"holds no sound files: none of its files ends in .flac .wav .mp3 .ogg"):
        open_folder(tmp_path, None, 1)
    with pytest.raises(UserError, match="no such folder"):
        open_folder(tmp_path / "none", None, 1)


@pytest.mark.parametrize(
    ("path", "speaker"),
    [("1089/134686/1089-134686-0000.flac", "1089"), ("test-clean/61/70968/61-70968-0001.flac", "61"),
     ("ann/deep/a.wav", "ann"), ("a.wav", files.NOBODY)],
)  # fmt: skip
def test_speakers_are_found_in_paths(path, speaker):
    from pathlib import Path

    assert speaker_of(Path(path)) == speaker


def test_librispeech_is_read_with_its_phones(librispeech):
    found = open_folder(librispeech, librispeech / "phones_10ms.txt", 2)
    assert len(found) == 8
    assert set(found.speakers) == {"1089", "1188", "121", "1221"}
    first = found.names.index("1089-134691-0000")
    assert found.lengths[first] == 33360
    phones = [found.classes[label] for label in found.phones_of(first).tolist() if label >= 0]
    assert phones[:52] == ["SIL"] * 52
    assert phones[52:61] == ["HH"] * 9
    assert len(found.phones_of(first)) == 33360 // 160
    quiet, loud = [], []
    for index in range(len(found)):
        power = waveform(found, index)[: len(found.phones_of(index)) * 160].unflatten(0, (-1, 160)).square().mean(1)
        silent = found.phones_of(index) == found.classes.index("SIL")
        quiet.append(power[silent].mean())
        loud.append(power[~silent & (found.phones_of(index) >= 0)].mean())
    assert sum(quiet) < 0.05 * sum(loud), "silence is where the labels say"


# --- alignments ---


def test_an_alignment_that_would_not_be_read_is_refused():
    with pytest.raises(UserError, match=r"audio.alignment: data.source=utterances holds its phones itself"):
        open_sounds(load("audio/cpc", ["audio.alignment=phones.txt"]))


def test_an_alignment_may_be_compressed_and_its_mistakes_are_named(tmp_path):
    path = tmp_path / "phones.txt.gz"
    path.write_bytes(gzip.compress(b"a-1 1600 dict SIL:4 AH:5\n"))
    assert read_alignment(path) == {"a-1": Aligned(1600, ["SIL", "AH"], [4, 5])}
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfa-1 1600 dict SIL:4\r\n\r\n"))  # as some editors begin and end a file
    assert list(read_alignment(path)) == ["a-1"]
    path = tmp_path / "phones.txt"
    for text, message in (
        ("a 1600 dict SIL", "line 1: expected"), ("a b c", "line 1: expected"), ("", "no utterance"),
        ("a 1600 dict SIL:4\nb 1600 dict SIL:4 AH:-5", "line 2: expected"),
        ("a 1600 dict SIL:4\na 1600 dict SIL:5", "line 2: a is there twice"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_alignment(path)
    with pytest.raises(UserError, match="no such file"):
        read_alignment(tmp_path / "none")
    content = bytearray(gzip.compress(" ".join(f"{number:x}" for number in range(5000)).encode()))
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    (tmp_path / "phones.txt.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"phones.txt.gz: cannot be read"):
        read_alignment(tmp_path / "phones.txt.gz")


def test_names_in_an_alignment_are_as_files_have_them(tmp_path):
    path = tmp_path / "phones.txt"
    path.write_bytes(b"my own 2 1600 dict SIL:4 AH:5\nj\xf6rg 1600 lexicon\n")
    assert read_alignment(path) == {
        "my own 2": Aligned(1600, ["SIL", "AH"], [4, 5]),
        os.fsdecode(b"j\xf6rg"): Aligned(1600, [], []),
    }


def test_labels_cover_every_whole_frame_or_are_of_another_recording():
    aligned = Aligned(1700, ["B", "A"], [4, 5])
    assert labels_of(aligned, 1700, ("A", "B")).tolist() == [1] * 4 + [0] * 5 + [UNKNOWN]
    assert labels_of(aligned, 1280 + 300, ("A", "B")).tolist() == [1] * 4 + [0] * 5
    assert labels_of(aligned, 3200, ("A", "B")) is None
    assert labels_of(Aligned(320, ["A"], [10**30]), 320, ("A", "B")).tolist() == [0, 0]


def test_utterances_without_phones_are_named_and_kept(tmp_path, caplog):
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", _sine(0.1), 16_000)
    (tmp_path / "phones.txt").write_text("a 1600 dict AH:9\n")
    with caplog.at_level(logging.WARNING, "stec"):
        found = open_folder(tmp_path, tmp_path / "phones.txt", 1)
    assert found.phones_of(0).tolist() == [0] * 9 + [UNKNOWN]
    assert found.phones_of(1).tolist() == [UNKNOWN] * 10
    assert "no phones for 1 of 2 utterances" in caplog.text
    (tmp_path / "phones.txt").write_text("c 1600 dict AH:9\n")
    with pytest.raises(UserError, match="knows none of the utterances"):
        open_folder(tmp_path, tmp_path / "phones.txt", 1)


def test_recordings_of_one_name_have_no_phones(tmp_path, caplog):
    """Nobody knows whose they are."""
    for name in ("ann/1", "ann/2", "bob/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / f"{name}.wav", _sine(0.1), 16_000)
    (tmp_path / "phones.txt").write_text("1 1600 dict AH:10\n2 1600 dict AH:10\n")
    with caplog.at_level(logging.WARNING, "stec"):
        found = open_folder(tmp_path, tmp_path / "phones.txt", 1)
    assert [int(found.phones_of(index)[0]) for index in range(3)] == [UNKNOWN, 0, UNKNOWN]
    assert "no phones for 2 of 3 utterances" in caplog.text


# --- windows ---


def _counting(lengths):
    """Utterance i has the samples 1000 i, 1000 i + 1, ..., so that a window tells where it is from."""
    waveforms = [np.arange(1000 * i, 1000 * i + length, dtype=np.int16) for i, length in enumerate(lengths)]
    return join("x", waveforms, [str(i) for i in range(len(lengths))], ["s"] * len(lengths), None, ())


def test_windows_are_whole_pieces_of_one_utterance():
    sounds = _counting([300, 40, 100, 99, 250])
    windows = Windows(sounds, [0, 1, 2, 3], 100, 100, None, CPU)
    assert windows.too_short == 2
    assert windows.items.tolist() == [0, 1]
    seen = set()
    torch.manual_seed(0)
    for samples, starts, _, utterances in windows.batches(torch.tensor([0, 1] * 200), 4):
        assert samples.shape == (2, 4, 100)
        source = torch.tensor([0, 2])[utterances]
        assert torch.equal(samples.long(), (1000 * source + starts)[..., None] + torch.arange(100))
        seen |= set(starts[:, source == 0].flatten().tolist())
    assert min(seen) < 5
    assert max(seen) > 195
    assert max(seen) <= 200


def test_an_epoch_is_about_as_long_as_the_utterances():
    windows = Windows(_counting([1000, 399, 100]), [0, 1, 2], 100, 100, None, CPU)
    assert windows.items.tolist() == [0] * 5 + [1] + [2]
    longer = Windows(_counting([1000, 399, 100]), [0, 1, 2], 120, 100, None, CPU)  # as for windows that may be faster
    assert longer.items.tolist() == windows.items[windows.items < 2].tolist()


def test_the_second_window_can_be_kept_near():
    windows = Windows(_counting([900]), [0], 100, 100, 50, CPU)
    torch.manual_seed(0)
    distances = torch.cat([b.starts[1] - b.starts[0] for b in windows.batches(torch.zeros(500, dtype=torch.long), 50)])
    assert 40 < distances.abs().max() <= 50
    assert distances.float().mean().abs() < 5


@pytest.mark.parametrize("near", [None, 50])
def test_windows_begin_wherever_they_fit_and_nowhere_else(near):
    windows, seen = Windows(_counting([100, 102]), [0, 1], 100, 100, near, CPU), set()
    torch.manual_seed(0)
    for pieces in windows.batches(torch.tensor([0, 1] * 100), 4):
        seen |= {
            (u, start)
            for starts in pieces.starts.tolist()
            for u, start in zip(pieces.utterances.tolist(), starts, strict=True)
        }
    assert seen == {(0, 0), (1, 0), (1, 1), (1, 2)}


def test_streamed_windows_are_those_that_resident_ones_would_be(sounds, tmp_path):
    save_arrays(sounds, tmp_path)
    batches = []
    for source, residence in ((sounds, "always"), (open_arrays(tmp_path), "never"), (open_arrays(tmp_path), "always")):
        windows = Windows(source, range(10), 3200, 3200, None, CPU, residence)
        assert windows.resident == (residence == "always")
        torch.manual_seed(0)
        batches.append(next(windows.batches(torch.arange(6), 6)))
    for other in batches[1:]:
        assert all(torch.equal(one, two) for one, two in zip(batches[0], other, strict=True))


def test_utterances_shorter_than_a_window_cannot_be_learnt_from():
    with pytest.raises(UserError, match=r"has 500 samples, the longest 300: lower audio.window"):
        Windows(_counting([300, 200]), [0, 1], 500, 500, None, CPU)


def test_an_utterance_is_brought_to_a_power_of_one_unless_it_is_silent():
    tone = (3000 * _sine() + 2000).astype(np.int16)
    hum = np.zeros(800, np.int16)
    hum[::100] = 2
    sounds = join("x", [tone, hum], ["a", "b"], ["s", "s"], None, ())
    assert float(waveform(sounds, 0).square().mean()) == pytest.approx(1, rel=1e-5)
    assert float(waveform(sounds, 1).max()) == 2, "what nobody hears is not made loud"
    windows = Windows(sounds, [0, 1], 400, 400, None, CPU)
    (pieces,) = windows.batches(torch.arange(len(windows)), len(windows))
    for utterance, scale in zip(pieces.utterances.tolist(), pieces.scales.tolist(), strict=True):
        assert scale == pytest.approx([1 / np.sqrt(np.mean(tone.astype(float) ** 2)), 1][utterance], rel=1e-5)
