"""Phones of speech whose words are known."""

import gzip
import itertools
import os
import sys

import numpy as np
import pytest
import soundfile

from stec.audio import synthesis
from stec.audio.aligning import Aligner, read_pronunciations, transcripts, words_of, write_alignment
from stec.audio.alignment import labels_of, phone_names, read_alignment
from stec.errors import UserError

WORDS = {
    "1089-134691-0000": "HE COULD WAIT NO LONGER",
    "1089-134691-0003": "THE UNIVERSITY",
    "1188-133604-0006": "THEN HE COMES TO THE BEAK OF IT",
    "121-127105-0021": "WON'T YOU TELL DOUGLAS",
    "1221-135766-0015": "IF SPOKEN TO SHE WOULD NOT SPEAK AGAIN",
}


@pytest.fixture(scope="module")
def aligner():
    return Aligner({})


@pytest.fixture(scope="module")
def speech():
    """Nobody says this, but what has formants can be forced to be words."""
    return np.asarray(synthesis.utterance(1, 1, 3.0).samples)


@pytest.fixture
def folder(tmp_path, speech):
    """Two recordings of one speaker with words, and one without."""
    (tmp_path / "ann").mkdir()
    for number in range(3):
        soundfile.write(tmp_path / "ann" / f"{number}.wav", speech, 16000)
    (tmp_path / "ann" / "ann.trans.txt").write_text("0 SEE YOU\n1 SEE BRILLIGS\n")
    return tmp_path


def test_recordings_of_one_name_cannot_be_told_apart(folder):
    (folder / "bob").mkdir()
    (folder / "bob" / "0.flac").write_bytes(b"")
    with pytest.raises(UserError, match=r"several recordings are named 0 \(ann/0.wav, bob/0.flac\): rename them"):
        write_alignment(folder, folder / "phones.txt", 1)


def test_recordings_of_any_name_are_found_again_in_what_is_written(tmp_path, speech):
    names = ["my own 2", os.fsdecode(b"j\xf6rg")]
    for name in names:
        soundfile.write(os.fsencode(tmp_path / f"{name}.wav"), speech, 16000)
        (tmp_path / f"{name}.txt").write_text("see you")
    write_alignment(tmp_path, tmp_path / "phones.txt.gz", 1)
    assert sorted(read_alignment(tmp_path / "phones.txt.gz")) == sorted(names)


def test_words_are_as_the_dictionary_has_them():
    assert words_of("WON'T  you, Tell Dr. O'Neil's?\n") == ["won't", "you", "tell", "dr", "o'neil's"]
    assert words_of("the boys' 'tis été_x --") == ["the", "boys'", "'tis", "été", "x"]
    typeset = "\u2018Won\u2019t you?\u2019 the boys\u2019 uncle said."
    assert words_of(typeset) == ["won't", "you", "the", "boys", "uncle", "said"]


def test_a_number_is_a_word_that_has_no_pronunciation(folder):
    (folder / "ann" / "ann.trans.txt").write_text("0 SEE YOU\n1 SEE 12\n")
    assert write_alignment(folder, folder / "phones.txt", 1).unknown == {"1": ["12"]}


def test_transcripts_of_librispeech_and_beside_a_file(tmp_path):
    (tmp_path / "7-8.trans.txt").write_text("7-8-0000 A B\n7-8-0001\n\n7-8-0002 C\n")
    (tmp_path / "hello.txt").write_text("Hello,\nWorld!")
    (tmp_path / "empty.txt").write_text(" \n")
    assert transcripts(tmp_path) == {"7-8-0000": ["a", "b"], "7-8-0002": ["c"], "hello": ["hello", "world"]}


def test_words_are_found_wherever_recordings_are(folder, tmp_path_factory):
    linked = tmp_path_factory.mktemp("linked")
    (linked / "to").symlink_to(folder / "ann")
    assert transcripts(linked) == transcripts(folder) == {"0": ["see", "you"], "1": ["see", "brilligs"]}


def test_words_may_begin_with_a_mark_of_their_encoding(tmp_path):
    (tmp_path / "7-8.trans.txt").write_text("7-8-0000 A B\n", "utf-8-sig")
    assert transcripts(tmp_path) == {"7-8-0000": ["a", "b"]}
    (tmp_path / "words").write_text("BRILLIGS B\n", "utf-8-sig")
    assert read_pronunciations(tmp_path / "words") == {"brilligs": "B"}


def test_phones_are_those_of_the_words_and_last_as_long_as_the_recording(aligner, speech):
    found = aligner.align(speech, ["see", "you"])
    assert [phone for phone, _ in found if phone != "SIL"] == ["S", "IY", "Y", "UW"]
    assert all(count >= 3 for _, count in found), "a state each at least"
    assert 0 <= len(speech) // 160 - sum(count for _, count in found) <= 3
    assert aligner.align(speech[:1600], ["universities"] * 9) == [], "too much for a tenth of a second"
    assert aligner.align(speech, ["see", "you"]) == found, "and no harm done"
    assert aligner.unknown(["see", "brilligs", "you"]) == ["brilligs"]


def test_a_file_for_the_alignment_of_audio(folder, speech):
    told = []
    out = folder / "phones.txt.gz"
    written = write_alignment(folder, out, 2, count=lambda *numbers: told.append(numbers))
    assert written == (1, written.phones, 1, {"1": ["brilligs"]}, {})
    assert told == [(1, 2), (2, 2)]
    alignment = read_alignment(out)
    assert list(alignment) == ["0"]
    assert alignment["0"].samples == len(speech)
    assert written.phones == len(phone_names(alignment))
    labels = labels_of(alignment["0"], len(speech), phone_names(alignment))
    assert (labels >= 0).sum() == sum(alignment["0"].frames)
    with pytest.raises(UserError, match="exists"):
        write_alignment(folder, out, 1)


@pytest.mark.parametrize("between", [" ", "\t"])
def test_pronunciations_can_be_added(folder, between):
    (folder / "more.dict").write_text(f"BRILLIGS{between}m uw  n\n\n")
    written = write_alignment(folder, folder / "phones.txt", 1, folder / "more.dict")
    assert written.unknown == {}
    phones = read_alignment(folder / "phones.txt")["1"].phones
    assert [phone for phone in phones if phone != "SIL"] == ["S", "IY", "M", "UW", "N"]


def test_what_cannot_be_aligned_is_named(folder):
    (folder / "ann" / "1.wav").write_bytes(b"RIFF")
    (folder / "ann" / "ann.trans.txt").write_text("0 SEE YOU\n1 SEE YOU\n2 " + 60 * "UNIVERSITY " + "\n")
    written = write_alignment(folder, folder / "phones.txt", 1)
    assert written.aligned == 1
    assert sorted(written.failed) == ["1", "2"]
    assert written.failed["2"] == "its words do not fit to what is heard"


@pytest.mark.parametrize(
    ("text", "message"),
    [("BRILLIGS\n", "line 1: expected 'word PHONE PHONE ...'"), (None, "no such file")],
)
def test_pronunciations_are_checked(tmp_path, text, message):
    if text is not None:
        (tmp_path / "words").write_text(text)
    with pytest.raises(UserError, match=message):
        read_pronunciations(tmp_path / "words")


def test_a_phone_that_there_is_not(folder):
    (folder / "more.dict").write_text("BRILLIGS b qq\n")
    with pytest.raises(UserError, match="brilligs cannot be pronounced as B QQ"):
        write_alignment(folder, folder / "phones.txt", 2, folder / "more.dict")


def test_a_folder_without_words(folder):
    (folder / "ann" / "ann.trans.txt").unlink()
    with pytest.raises(UserError, match=r"no words of any of its 3 recordings.*trans\.txt"):
        write_alignment(folder, folder / "phones.txt", 1)
    (folder / "ann" / "0.txt").write_text("brilligs")
    with pytest.raises(UserError, match="none of 1 recordings could be aligned; 0: no pronunciation of brilligs"):
        write_alignment(folder, folder / "phones.txt", 1)
    assert not (folder / "phones.txt").exists()


def test_the_package_is_named_if_it_is_missing(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(UserError, match=r"pocketsphinx: pip install 'stec\[align\]'"):
        write_alignment(folder, folder / "phones.txt", 1)


def test_real_speech_whatever_was_heard_before(librispeech, aligner):
    known = read_alignment(librispeech / "phones_10ms.txt")
    recordings = {path.stem: path for path in librispeech.rglob("*.flac") if path.stem in WORDS}
    samples = {name: soundfile.read(path, dtype="int16")[0] for name, path in recordings.items()}
    assert len(samples) == len(WORDS)
    orders = itertools.islice(itertools.permutations(sorted(WORDS)), 0, 120, 59)
    found = [{name: aligner.align(samples[name], words_of(WORDS[name])) for name in order} for order in orders]
    assert found[0] == found[1] == found[2]
    for name, phones in found[0].items():
        mine = np.repeat(*zip(*phones, strict=True))
        theirs = np.repeat(known[name].phones, known[name].frames)
        assert len(mine) == len(theirs)
        assert (mine == theirs).mean() > 0.95, f"{name}: of pocketsphinx, too, by other hands"


def test_the_command(folder, capsys):
    from stec import cli

    with pytest.raises(SystemExit) as end:
        cli.app(["data", "align", "audio/librispeech", f"data.root={folder}", "-o", str(folder / "p.txt")])
    assert end.value.code == 0
    assert (folder / "p.txt").is_file()
    text = " ".join(capsys.readouterr().out.split())
    assert "left out: 1 whose words are nowhere" in text
    assert "1 with words that have no pronunciation, brilligs" in text


def test_compressed_or_not_it_is_the_same(folder):
    for name in ("a.txt", "b.txt.gz"):
        write_alignment(folder, folder / name, 1)
    assert gzip.decompress((folder / "b.txt.gz").read_bytes()) == (folder / "a.txt").read_bytes()
