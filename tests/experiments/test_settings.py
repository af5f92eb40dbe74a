"""Two runs are repetitions of each other if, and only if, nothing that decides the result differs."""

import dataclasses

import pytest

from stec.config import Config, _keys, load
from stec.experiments import settings
from stec.experiments.settings import NEUTRAL, differences, hash_of, settings_of
from stec.transfer.config import load_transfer

OTHER = {
    "method": "stec-byol", "encoder": "resnet50", "data.root": "elsewhere", "data.source": "arrays", "data.cache": "x",
    "data.test_root": "elsewhere", "data.limit": "100", "logger": "tensorboard",
    "data.download": "true", "data.resident": "never", "views.area": "[0.2,1.0]", "views.aspect": "[0.5,2.0]",
    "views.jitter": "[0.8,0.2]", "manipulation.action": "paper", "manipulation.readout": "regression",
    "manipulation.bins": "quantile", "manipulation.components": "informative", "device": "cpu", "precision": "32",
    "compile": "never", "baselines": "true", "optimizer.momentum": "0.8", "identity.ema": "0.5", "lambda_turn": "0.3",
    "views.test_crop": "0.875", "views.small_area": "[0.1,0.3]", "audio.negatives": "other", "audio.pieces": "frames",
    "audio.bidirectional": "true", "optimizer.name": "adamw", "optimizer.decayed": "all",
    "optimizer.probe_rate": "0.5", "optimizer.probe_decay": "0.5", "views.turns": "2",
    "identity.predictor_rate": "constant", "audio.alignment": "elsewhere", "strategy": "fsdp",
}  # fmt: skip
LEAVES = [key for key in _keys() if not any(other.startswith(f"{key}.") for other in _keys())]


def hash_with(*words, data="shapes"):
    config = load("default", ["method=stec", "lambda_turn=0.8", *words])
    return hash_of(settings_of(config, data))


def hash_of_sound(*words, data="utterances"):
    config = load("audio/stec-cpc-actions", ["audio.negatives=both", *words])
    return hash_of(settings_of(config, data))


@pytest.mark.parametrize("key", LEAVES)
def test_every_key_either_decides_the_result_or_is_known_not_to(key):
    """A new key has to be considered: it decides the result unless it is put on the list."""
    hashed, value = (hash_of_sound if key.startswith("audio.") else hash_with), load("default")
    for name in key.split("."):
        value = getattr(value, name)
    other = OTHER.get(key) or (value + 1 if isinstance(value, int) else value + 0.01)
    assert (hashed(f"{key}={other}") == hashed()) == (key in NEUTRAL)


def test_which_images_decides_and_where_they_lie_does_not():
    assert hash_with(data="cifar10") != hash_with(data="cifar100")
    assert hash_with("data.source=arrays", "data.root=a", data="cifar10") == hash_with(data="cifar10")
    assert hash_of_sound(data="librispeech") != hash_of_sound(data="mine")
    drawn = ("data.train_images=9", "data.test_images=9")
    assert hash_with(*drawn, data="cifar10") == hash_with(data="cifar10"), "how many shapes are drawn"
    assert hash_with(*drawn) != hash_with()


def test_settings_of_models_that_are_not_there_do_not_count():
    plain = hash_with("method=simclr", "lambda_turn=0")
    unused = ("manipulation.k=9", "lambda_manip=3", "turn.hidden=9", "views.turns=2")
    assert hash_with("method=simclr", "lambda_turn=0", *unused) == plain
    for word in unused:
        assert hash_with(word) != hash_with()
    assert hash_with("method=simclr", "manipulation.k=9", "turn.hidden=9") != plain


def test_a_pool_counts_where_negatives_are_drawn_from_it():
    assert hash_of_sound("audio.negatives=same", "audio.pool=9") == hash_of_sound("audio.negatives=same")
    assert hash_of_sound("audio.pool=9") != hash_of_sound()


def test_settings_of_sound_count_where_a_model_has_them():
    identity = ("audio.pieces=frames", "audio.lambda_identity=3", "identity.hidden=9", "identity.temperature=0.3")
    for method in ("cpc", "stec-cpc"):
        plain = hash_of_sound(f"method={method}")
        assert hash_of_sound(f"method={method}", "lambda_manip=3", "manipulation.k=9") == plain
        for word in identity:
            assert (hash_of_sound(f"method={method}", word) == plain) == (method == "cpc"), word


def test_a_method_counts_by_what_it_is():
    assert hash_with("method=stec*") == hash_with("method=stec-star")
    assert hash_with("method=e-simclr", "lambda_turn=null") == hash_with("method=simclr", "lambda_turn=0.8")
    explicit = ("manipulation.action=allocentric", "manipulation.readout=regression")
    assert hash_with("method=augself") == hash_with("method=stec-simsiam", *explicit)


def test_a_new_key_leaves_old_hashes_as_they_are(monkeypatch):
    """Old lines of the book do not have it; its default stands for what was before."""
    old = settings_of(load("default"), "shapes")
    monkeypatch.setitem(settings._DEFAULTS, "views.new", 0.0)
    assert hash_of({**old, "views.new": 0.0}) == hash_of(old)
    assert hash_of({**old, "views.new": 0.5}) != hash_of(old)


def test_a_new_key_of_a_transfer_leaves_old_hashes_as_they_are(monkeypatch):
    old = settings_of(load_transfer("shapes-segmentation"), "shapes", "none")
    monkeypatch.setitem(settings._TRANSFER_DEFAULTS, "segmentation.new", 0.0)
    assert hash_of({**old, "segmentation.new": 0.0}) == hash_of(old)
    assert hash_of({**old, "segmentation.new": 0.5}) != hash_of(old)


def test_differences_are_the_words_that_lead_there():
    base = load("default")
    changed = dataclasses.replace(base, epochs=7, views=dataclasses.replace(base.views, area=(0.1, 0.9)))
    words = differences(settings_of(changed, "shapes"), settings_of(base, "shapes"))
    assert sorted(words) == ["epochs=7", "views.area=[0.1, 0.9]"]
    assert load("default", words) == changed
    assert isinstance(changed, Config)
    (word,) = differences(
        settings_of(base, "shapes"), settings_of(load("default", ["optimizer.probe_rate=1"]), "shapes")
    )
    assert load("default", ["optimizer.probe_rate=1", word]) == base


def test_differences_name_a_model_that_only_one_of_two_runs_has():
    turning, plain, stec = (
        settings_of(load("cifar10-resnet18-simclr", words), "cifar10")
        for words in (["lambda_turn=0.8"], [], ["method=stec", "lambda_manip=0.3"])
    )
    assert differences(turning, plain) == ["lambda_turn=0.8"]
    assert differences(plain, turning) == ["lambda_turn=0"]
    assert differences(stec, plain) == ["method=stec", "lambda_manip=0.3"]
    assert differences(plain, stec) == ["method=simclr"]
