"""The configuration of a run: a tree of dataclasses, filled from a recipe and `key=value` words.

Every key there is stands in this file with its default. A recipe (a YAML file in `stec/recipes`, or a path) changes
some of them, words on the command line change more, and the resolved tree is saved with the run.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from stec.checking import wanted
from stec.errors import UserError, nearest
from stec.limits import CHOICES, DRAWN, NOT_OF_SOUND, PATHS, SOUND, STORED, check_values


@dataclass(frozen=True)
class DataConfig:
    """Which images, from where, kept at which size."""

    # shapes, arrays, folder, cifar10, cifar100, stl10, imagenet, shards; of sound: utterances, arrays, folder
    source: str = "shapes"
    root: str | None = None  # where the files are; `shapes` needs none
    size: int = 32  # side in pixels at which an image is kept (non-square images remember their true size)
    download: bool = False  # let torchvision download CIFAR and STL-10 into root
    resident: str = "auto"  # auto: keep all images on the training device if they fit; always; never (stream)
    workers: int = 8  # processes that decode images when streaming
    cache: str | None = None  # folder where decoded image files are kept, so that each is decoded only once
    cache_gb: float = 100.0  # shards behind addresses only: gigabytes of them that are kept in `cache` at most
    test_root: str | None = None  # shards only: those to test on, where they are not in the folder `root`
    buffer: int = 65_536  # shards only: how many images long the buffer is in which they are shuffled
    limit: int | None = None  # at most so many images to train on, always the same ones of a source; all if none
    train_images: int = 3000  # shapes only: how many are drawn
    test_images: int = 1000  # shapes only

    @property
    def name(self) -> str:
        """What these images are called: those in files of one's own by their folder."""
        folder = Path(self.root or "").name if self.source in STORED else ""
        return folder or self.source


@dataclass(frozen=True)
class ViewsConfig:
    """How views are made."""

    size: int = 32  # side of a view in pixels
    area: tuple[float, float] = (0.08, 1.0)  # of the crop, relative to the image
    aspect: tuple[float, float] = (3 / 4, 4 / 3)  # width over height of the crop, log-uniform
    mirror: float = 0.5  # probability
    # u: brightness, contrast and saturation in 1 +- u; v: hue in +- v
    jitter: tuple[float, float] = (0.4, 0.1)
    jitter_probability: float = 0.8  # of any jitter
    grey: float = 0.2  # probability
    blur: float = 0.0  # probability
    solarize: float = 0.0  # probability
    test_crop: float = 1.0  # side of the central square that evaluation sees, relative to the shorter side
    small: int = 0  # further, small views of each image (multi-crop)
    small_size: int = 16  # side of a small view in pixels
    small_area: tuple[float, float] = (0.08, 0.25)  # of its crop
    turns: int = 4  # of methods that infer turns: in how many of the four each image's third view is shown; 4, 2 or 1


@dataclass(frozen=True)
class IdentityConfig:
    """The identity inverse model: are these two views of one object?"""

    temperature: float = 0.5  # of contrastive models
    hidden: int = 512  # units of the projector's hidden layer
    output: int = 64  # dimensions in which similarity is measured
    ema: float = 0.99  # models with a target network: its decay, rising to 1 by a cosine over training
    alpha: float = 1.0  # relic: weight of the invariance term
    queue: int = 65536  # moco: target embeddings kept as negatives
    groups: int = 2  # moco: parts of a shuffled batch that the target normalises by themselves
    predictor_rate: str = "falling"  # simsiam: falling with the other rates; constant: it keeps up with the projections
    invariance: float = 25.0  # vicreg: weights of its three terms
    variance: float = 25.0
    covariance: float = 1.0
    redundancy: float = 0.005  # barlow: weight of the off-diagonal entries
    prototypes: int = 3000  # dino, swav: directions that views are assigned to
    frozen: float = 0.0  # dino, swav: share of training at whose beginning these stay as they are
    target_temperature: float = 0.04  # dino: of what the target network makes of a view, reached from 0.04
    warmup: float = 0.05  # share of training until (dino) target_temperature is reached, (swav) the queue is used
    assigned_queue: int = 0  # swav: earlier projections that are assigned with a batch that is small for the prototypes


@dataclass(frozen=True)
class ManipulationConfig:
    """The manipulation inverse model: which action leads from x to x'?"""

    action: str = "egocentric"  # egocentric, paper, official, allocentric, colour; or several, as egocentric+colour
    readout: str = "classification"  # classification, regression
    bins: str = "uniform"  # uniform (the paper's fixed limits), quantile (fitted on sampled actions)
    k: int = 6  # bins per component
    components: str = "all"  # all, informative (leaves out those that the views never change)
    hidden: int = 512


@dataclass(frozen=True)
class TurnConfig:
    """The turn inverse model: by how much has this small view been turned?"""

    hidden: int = 2048  # units of both hidden layers


@dataclass(frozen=True)
class AudioConfig:
    """Learning from sound: contrastive predictive coding, for the methods in SOUND."""

    window: int = 20480  # samples at 16 kHz of a window; every utterance in a batch gives two
    steps: int = 12  # frames that are predicted
    negatives: str = "same"  # frames to tell the true one from: of the same window; of other utterances; both
    pool: int = 512  # frames of other utterances that are drawn for that
    bidirectional: bool = False  # also a context that runs backwards, and predicts the past
    lambda_identity: float = 1.0  # weight of the time-insensitive identity model, in methods that have it
    pieces: str = "windows"  # what that one compares: the means of two windows, or a frame of each: frames
    alignment: str | None = None  # folder only: file with the phones of all utterances, for the probe
    test_speakers: float = 0.25  # share of the speakers that are held out to test phones
    speakers: int = 16  # utterances only
    utterances: int = 240  # utterances only


@dataclass(frozen=True)
class OptimizerConfig:
    """Which steps, with linear warm-up and cosine decay."""

    # lars: SGD with momentum, scaled by layer; larc: the same, limited by layer; adamw: for vision transformers.
    name: str = "lars"  # Sound: always Adam
    rate: float = 1.0  # learning rate per 256 images in the batch; for sound the rate itself
    momentum: float = 0.9  # adamw: decay of the mean gradient
    weight_decay: float = 1e-6
    decayed: str = "weights"  # what weight_decay shrinks: weights; all: norms and biases, too
    trust: float = 0.001  # lars: steps relative to the weights, by the rate; larc: the most of them; 0 is plain SGD
    probe_rate: float | None = None  # lars, larc: that of the online probe, by plain SGD; null: rate
    probe_decay: float | None = None  # what shrinks the online probe; null: weight_decay
    warmup_epochs: float = 10


@dataclass(frozen=True)
class Config:
    """A whole run."""

    method: str = "stec"  # `stec methods` lists them
    # resnet18, resnet50, with -cifar or -stl for the stem of smaller images; resnet-small; timm:NAME, any of timm.
    encoder: str = "resnet18-cifar"  # Sound: cpc, cpc-small
    lambda_manip: float = 1.0  # weight of the manipulation loss
    lambda_turn: float | None = None  # weight of the turn loss, 0: none; null: as the method's name implies
    epochs: int = 1000  # of all training images, but for the last incomplete batch
    batch_size: int = 1024  # images per step over all devices; each gives two views
    seed: int = 0  # of the first weights, the order of the images, and the views
    data: DataConfig = field(default_factory=DataConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    identity: IdentityConfig = field(default_factory=IdentityConfig)
    manipulation: ManipulationConfig = field(default_factory=ManipulationConfig)
    turn: TurnConfig = field(default_factory=TurnConfig)
    audio: AudioConfig = field(default_factory=AudioConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    device: str = "auto"  # auto, cpu, cuda
    devices: int = 1  # how many on this machine, each with its process; torchrun and SLURM bring their own number
    strategy: str = "ddp"  # of several processes: each has all weights (ddp), or a part of them (fsdp)
    precision: str = "auto"  # auto: bf16 on a GPU that has it, else 32; or bf16, 32
    compile: str = "auto"  # auto: on a GPU; always; never; tuned: takes minutes, once, for a few percent of speed
    log_every: int = 50  # steps between two lines of metrics.jsonl
    checkpoint_every: int = 10  # epochs between two checkpoints; the last epoch always has one
    checkpoint_minutes: float = 10  # minutes between two checkpoints, if the epochs are longer; 0: after every step
    logger: str = "none"  # where metrics go besides metrics.jsonl: none, tensorboard, wandb
    baselines: bool = False  # also fit linear classifiers on the untrained encoder and on pixels or MFCC


def foreign_groups(config: Config) -> tuple[str, ...]:
    """Groups of keys that belong to the other kind of data, images or sound."""
    return ("views", "turn") if config.method in SOUND else ("audio",)


def to_yaml(config: Any) -> str:
    """The tree as YAML, readable by `load`; without groups of keys that mean nothing to this run."""
    tree: Any = OmegaConf.to_container(OmegaConf.structured(config))
    for group in foreign_groups(config) if isinstance(config, Config) else ():
        del tree[group]
    # By PyYAML itself, whose dumper in Python writes names of files that are no UTF-8; OmegaConf 2.4 takes that in C.
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def recipe_names(of: str = "") -> list[str]:
    """The recipes that come with the package: for pretraining, or for what a folder of them is named after.

    Those for pretraining on sound are in a folder, too, which is part of their names: `audio/cpc`.
    """
    folders = {"": of} if of else {"": "", "audio/": "audio"}
    return sorted(
        prefix + path.name.removesuffix(".yaml")
        for prefix, folder in folders.items()
        for path in (resources.files("stec") / "recipes" / folder).iterdir()
        if path.name.endswith(".yaml")
    )


def load(recipe: str = "default", words: Sequence[str] = ()) -> Config:
    """A recipe (its name, or the path of a YAML file) with `key=value` words laid over it."""
    config: Config = load_as(Config, recipe, words)
    given = _dotlist(words)
    for key, reason in NOT_OF_SOUND.items() if config.method in SOUND else ():
        if OmegaConf.select(given, key) is not None:
            raise UserError(f"{key}: {reason}")
    for key in DRAWN if config.data.source != "shapes" else ():
        if OmegaConf.select(given, key) is not None:
            fewer = "; data.limit=N trains on fewer images of any source"
            raise UserError(f"{key}: only the built-in shapes are drawn in any number{fewer}")
    for group in foreign_groups(config):
        if group in given:
            data = "sound" if config.method in SOUND else "images"
            raise UserError(f"{group}: method={config.method} learns from {data}, for which these keys mean nothing")
    check_values(config)
    return config


def load_as(kind: type, recipe: str, words: Sequence[str] = (), of: str = "") -> Any:
    """The same for another tree of dataclasses, whose recipes are in a folder of their own; values are not checked."""
    tree, given = _schema(kind), _dotlist(words)
    for word in words:  # a group's own word would be lost among those of its keys
        _check_keys(_dotlist([word]), kind)
    place, layer = f"{recipe}: ", given
    try:
        for place, layer in [*_layers(recipe, given.get("method"), of), ("", given)]:
            _check_keys(layer, kind, place)
            tree = OmegaConf.unsafe_merge(tree, layer)  # type: ignore[assignment]
        return _tuples(OmegaConf.to_object(tree))
    except OmegaConfBaseException as error:
        key = (getattr(error, "full_key", None) or "").partition("[")[0] or _unfitting(layer, kind)
        if isinstance(error, ValidationError) and key in _keys(kind):
            raise UserError(f"{place}{key}={OmegaConf.select(layer, key)}: expected {wanted(kind, key)}") from None
        raise UserError(f"{place}{key}{': ' if key else ''}{str(error).splitlines()[0]}") from None
    except (ValueError, TypeError, RecursionError) as error:  # what strange YAML makes of itself
        raise UserError(f"{recipe}: {error}") from None


def read_recipe(recipe: str, of: str = "") -> dict[str, Any]:
    """One recipe file as it stands, before its base and the defaults are laid under it."""
    path = Path(recipe)
    if recipe in recipe_names(of):
        text = (resources.files("stec") / "recipes" / of / f"{recipe}.yaml").read_text()
    elif path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"{recipe}: no such file")
        text = read_text(path)
    else:
        meant = nearest(recipe, recipe_names(of)) if of else _intended(recipe)
        raise UserError(f"unknown recipe '{recipe}': {meant} ('stec recipes' lists them)")
    try:
        content = yaml.safe_load(text) or {}
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{recipe}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{recipe}: a recipe is a mapping of keys to values")
    return content


def _intended(word: str) -> str:
    """What somebody may have meant by a word that is no recipe."""
    from stec.method import METHODS

    if Path(word).is_dir():
        return f"it is a folder; 'folder {shlex.quote(f'data.root={word}')}' reads your own images"
    for key, names in {"method": [*METHODS, *SOUND], "data.source": CHOICES["data.source"]}.items():
        if word.lower() in names:
            return f"did you mean {key}={word.lower()}?"
    return nearest(word, recipe_names())


def read_text(path: Path) -> str:
    """What a text file holds; UserError if it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file: {error}") from None


def _layers(recipe: str, method: str | None, of: str) -> Iterator[tuple[str, DictConfig]]:
    """What the recipe is based on first, the recipe itself last; each followed by what it has for the method alone.

    Before each, where it is from, to begin a message with.
    """
    contents: dict[str, dict[str, Any]] = {}
    name: str | None = recipe
    while name:
        if name in contents:
            raise UserError(f"recipe '{recipe}' is based on itself")
        contents[name] = read_recipe(name, of)
        name = contents[name].pop("base", None)
        if not isinstance(name, str | None):
            raise UserError(f"{recipe}: 'base' is the name of a recipe")
    method = method or next((content["method"] for content in contents.values() if "method" in content), Config.method)
    for place, content in reversed(contents.items()):
        content.pop("about", None)
        methods = content.pop("methods", {})
        if not (isinstance(methods, dict) and all(isinstance(keys, dict) for keys in methods.values())):
            raise UserError(f"{recipe}: 'methods' maps names of methods to keys that differ for them")
        own: dict[str, Any] = methods.get(str(method), {})
        yield from ((f"{place}: ", OmegaConf.create(keys)) for keys in (content, own))


def _unfitting(layer: DictConfig, kind: type) -> str:
    """The first key whose value does not fit its type; OmegaConf 2.4 does not say which where a tuple is meant."""
    for key in _keys(kind):
        value = OmegaConf.select(layer, key)
        if value is not None and not isinstance(value, DictConfig):
            try:
                OmegaConf.update(_schema(kind), key, value)
            except OmegaConfBaseException:
                return key
    return ""


def _schema(kind: type) -> DictConfig:
    schema = OmegaConf.structured(kind)
    OmegaConf.set_readonly(schema, False)
    for section in dataclasses.fields(kind):
        if dataclasses.is_dataclass(section.default_factory):
            OmegaConf.set_readonly(schema[section.name], False)
    return schema


def _dotlist(words: Sequence[str]) -> DictConfig:
    given = OmegaConf.create()
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key.startswith("["):
            raise UserError(f"'{word}': expected key=value")
        try:
            if key in PATHS and _is_literal(value):
                OmegaConf.update(given, key, value)
            else:
                given.merge_with_dotlist([word])
        except (OmegaConfBaseException, yaml.YAMLError) as error:
            raise UserError(f"cannot read {word}: {str(error).splitlines()[0]}") from None
    return given


def _is_literal(path: str) -> bool:
    """Whether a path is to be taken as it stands: YAML makes a number of 2024_05, and `photos` of `photos #2`."""
    quoted = len(path) > 1 and path[0] == path[-1] and path[0] in "'\""
    return path not in ("", "null", "~") and not quoted


def _keys(kind: type = Config, prefix: str = "") -> Iterator[str]:
    for item in dataclasses.fields(kind):
        yield prefix + item.name
        if isinstance(item.default_factory, type):
            yield from _keys(item.default_factory, f"{prefix}{item.name}.")


def known_keys() -> set[str]:
    """All keys that a run has."""
    return set(_keys(Config))


def _check_keys(layer: DictConfig, kind: type, place: str = "") -> None:
    known = list(_keys(kind))

    def walk(node: DictConfig, prefix: str) -> None:
        for name in node:
            key = f"{prefix}{name!s}"
            if key not in known:
                tails = {k.rpartition(".")[2]: k for k in known}
                tail = str(name)
                hint = f"did you mean '{tails[tail]}'?" if tail in tails else nearest(key, known)
                raise UserError(f"{place}unknown key '{key}': {hint} (--print-config shows all)")
            child = node._get_node(name)
            inner = [k for k in known if k.startswith(f"{key}.")]
            if isinstance(child, DictConfig):
                walk(child, f"{key}.")
            elif inner:
                raise UserError(f"{place}'{key}' is a group of keys, such as {inner[0]}=...")

    walk(layer, "")


def _tuples(config: Any) -> Any:
    """OmegaConf returns lists where the dataclasses say tuples."""
    changed = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            changed[item.name] = _tuples(value)
        elif isinstance(value, list):
            changed[item.name] = tuple(value)
    return dataclasses.replace(config, **changed)
