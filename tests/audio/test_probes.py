"""Probes of sound: MFCC as another library computes them, labels on their frames, speakers to their utterances."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.fft import dct

from stec.audio.network import Network, padded
from stec.audio.probes import (
    has_phones,
    labelled_frames,
    majority,
    mfcc,
    mfcc_features,
    network_features,
    probe,
    speaker_numbers,
    with_context,
)
from stec.audio.sounds import Sounds, join, split
from stec.evaluation.linear import fit_linear

CPU = torch.device("cpu")


def test_mfcc_are_those_of_the_textbook():
    """Frame by frame with NumPy and SciPy's cosine transform."""
    samples = np.random.default_rng(0).normal(0, 1, 1000).astype(np.float32)
    found = mfcc(torch.from_numpy(samples))
    assert found.shape == (6, 13)
    padded = np.concatenate([np.zeros(120), samples, np.zeros(400)])
    mel = lambda f: 2595 * np.log10(1 + f / 700)  # noqa: E731
    edges = np.linspace(0, mel(8000), 42)
    bins = mel(np.arange(257) * 16_000 / 512)
    hertz = lambda m: 700 * (10 ** (m / 2595) - 1)  # noqa: E731
    for t in range(6):
        n = np.arange(400)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * n / 400)
        power = np.abs(np.fft.rfft(padded[160 * t : 160 * t + 400] * window, 512)) ** 2
        energies = []
        for m in range(40):
            low, centre, high = hertz(edges[m : m + 3])
            frequency = hertz(bins)
            weights = np.interp(frequency, [low, centre, high], [0, 1, 0])
            energies.append(np.log((power * weights).sum() + 1e-6))
        assert found[t].numpy() == pytest.approx(dct(energies, norm="ortho")[:13], abs=2e-3)
    silence = dct(np.full(40, np.log(1e-6)), norm="ortho")[:13]
    assert mfcc(torch.zeros(160))[0].numpy() == pytest.approx(silence, abs=2e-3)


def test_neighbours_stand_side_by_side():
    frames = torch.arange(6.0).reshape(3, 2)
    assert with_context(frames, 3)[0].tolist() == [0, 1, 0, 1, 2, 3]
    assert with_context(frames, 3)[2].tolist() == [2, 3, 4, 5, 4, 5]


def _shifted(sounds: Sounds, frames: int) -> Sounds:
    return replace(sounds, phones=np.roll(sounds.phones, frames))


def test_labels_lie_on_their_frames(sounds):
    """With labels shifted to either side, the accuracy falls: by more the farther, and for both kinds of features."""
    parts = split(sounds, 0.25)
    sounds = replace(sounds, speakers=("one",) * len(sounds))  # no need to learn these, too
    torch.manual_seed(0)
    one_frame = lambda waveforms: [mfcc(each) for each in waveforms]  # noqa: E731
    accuracy = {shift: probe(one_frame, _shifted(sounds, shift), parts, CPU).phones.accuracy for shift in (-2, 0, 2, 6)}
    assert accuracy[0] > max(accuracy[-2], accuracy[2]) + 3
    assert accuracy[2] > accuracy[6] + 3
    encoder = Network("cpc-small").eval().encoder
    frames = lambda waveforms: [encoder(padded(each)[None])[0].detach() for each in waveforms]  # noqa: E731
    encoded = {shift: probe(frames, _shifted(sounds, shift), parts, CPU).phones.accuracy for shift in (-4, 0, 4)}
    assert encoded[0] > max(encoded[-4], encoded[4]) + 2


def test_frames_without_a_phone_are_left_out(sounds):
    unlabelled = sounds.phones.copy()
    unlabelled[::2] = -1
    partly = replace(sounds, phones=unlabelled)
    features, phones = labelled_frames(mfcc_features, partly, [0, 1], CPU)
    whole, labels = labelled_frames(mfcc_features, sounds, [0, 1], CPU)
    assert 2 * len(features) in (len(whole) - 1, len(whole), len(whole) + 1)
    assert (phones >= 0).all()
    assert len(whole) == len(labels) == sounds.lengths[:2].sum() // 160


def test_every_speaker_belongs_to_its_utterance():
    """Utterances of many lengths, some of a single frame, whose level tells the speaker."""
    random = np.random.default_rng(0)
    speakers = [f"s{i % 3}" for i in range(60)]
    waveforms = [
        (random.normal(0, 1, 800 + 160 * int(random.integers(20))) * 3000 * (-1 if s == "s0" else 1)).astype(np.int16)
        for s in speakers
    ]
    sounds = join("x", waveforms, [str(i) for i in range(60)], speakers, None, ())
    tell = {int(each.sum()): float(s[1]) for each, s in zip(waveforms, speakers, strict=True)}
    scale = [np.sqrt(np.mean(each.astype(np.float32) ** 2)) for each in waveforms]

    def oracle(batch):
        found = []
        for each in batch:
            index = next(
                i for i, w in enumerate(waveforms) if len(w) == len(each) and abs(w[0] / scale[i] - each[0]) < 1e-3
            )
            found.append(torch.full((1 + index % 5, 2), tell[int(waveforms[index].sum())]))
        return found

    assert speaker_numbers(sounds).tolist() == [i % 3 for i in range(60)]
    result = probe(oracle, sounds, split(sounds, 0.3), CPU)
    assert result.speakers.accuracy == 100
    assert result.phones is None
    assert result.accuracies("_x") == {"phones_x": None, "speakers_x": 100.0}


def test_every_utterance_is_heard_once_for_both_probes(sounds):
    """And phones are read as from features that were made for them alone."""
    heard = []

    def features(waveforms):
        heard.extend(len(each) for each in waveforms)
        return [mfcc(each) for each in waveforms]

    parts = split(sounds, 0.25)
    found = probe(features, sounds, parts, CPU)
    assert sorted(heard) == sorted(sounds.lengths)
    alone = (labelled_frames(features, sounds, part, CPU) for part in (parts.train, parts.phones))
    (train, train_phones), (test, test_phones) = alone
    assert found.phones == fit_linear(train, train_phones, test, test_phones, len(sounds.classes))


def test_the_most_frequent_answer(sounds):
    parts = split(sounds, 0.25)
    train, test = (np.concatenate([sounds.phones_of(i).numpy() for i in part]) for part in (parts.train, parts.phones))
    expected = 100 * np.mean(test == np.bincount(train).argmax())
    found = majority(sounds, parts)
    assert found["phones_majority"] == pytest.approx(expected, abs=0.01)
    assert found["speakers_majority"] == 25.0
    unknown = sounds.phones.copy()
    first = sounds.frame_offsets[parts.phones[0]]
    unknown[first : first + 9] = -1
    kept = np.concatenate([unknown[sounds.frame_offsets[i] : sounds.frame_offsets[i + 1]] for i in parts.phones])
    expected = 100 * np.mean(kept[kept >= 0] == np.bincount(train).argmax())
    found = majority(replace(sounds, phones=unknown), parts)
    assert found["phones_majority"] == pytest.approx(expected, abs=0.01)
    one = join("x", [sounds.samples[:3200]], ["a"], ["s"], None, ())
    assert majority(one, split(one, 0.5)) == {"phones_majority": None, "speakers_majority": None}


def test_phones_of_a_lone_speaker_are_tested_on_unheard_utterances_and_unknown_ones_not_at_all(sounds):
    alone = replace(sounds, speakers=("she",) * len(sounds))
    parts = split(alone, 0.25)
    assert len(parts.phones) == 2
    assert set(parts.phones).isdisjoint(parts.train)
    assert len(parts.train) == len(sounds) - 2
    assert has_phones(alone, parts)
    unknown = sounds.phones.copy()
    for index in parts.phones:
        first, last = sounds.frame_offsets[index : index + 2]
        unknown[first:last] = -1
    partly = replace(alone, phones=unknown)
    assert not has_phones(partly, parts)
    assert probe(mfcc_features, partly, parts, CPU).phones is None
    assert majority(partly, parts)["phones_majority"] is None


def test_features_come_from_a_network_in_evaluation_mode():
    network = Network("cpc-small").train()
    network_features(network)
    assert not network.training
