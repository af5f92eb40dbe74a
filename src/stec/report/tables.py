"""The parts of the page that need no script: results, setting, and what the manipulation model knows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from html import escape
from typing import Any

from stec.analysis.knowledge import Component
from stec.audio.figures import BASELINES
from stec.audio.method import METHODS as SOUNDS
from stec.config import to_yaml
from stec.evaluation.health import COLLAPSED_RANK
from stec.method import METHODS
from stec.report.frame import listing
from stec.report.material import Material, has_manipulation
from stec.report.settings import used

_PERCENT = "{:.1f} %".format
FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "linear": ("linear accuracy", _PERCENT),
    "linear_online": ("online probe", _PERCENT),
    "knn": ("nearest neighbours", _PERCENT),
    "linear_untrained": ("linear, untrained", _PERCENT),
    "linear_pixels": ("linear, pixels", _PERCENT),
    **{
        f"{what}{suffix}": (f"{what}, {beside}", _PERCENT)
        for what in ("phones", "speakers")
        for suffix, beside in BASELINES.items()
    },
    "manipulation_accuracy": ("right action, training", lambda share: f"{100 * share:.1f} %"),
    "turn_accuracy": ("right turn, training", lambda share: f"{100 * share:.1f} %"),
    "views_per_second": ("views per second", "{:,}".format),
    "audio_seconds_per_second": ("seconds of sound per second", "{:,}".format),
    "seconds": ("training", lambda s: f"{s:.0f} s" if s < 120 else f"{s / 60:.1f} min"),
    "peak_memory_bytes": ("peak memory", lambda n: f"{n / 2**30:.2f} GiB"),
}
_RANKS = {"effective_rank": "features", "embedding_rank": "embeddings"}
HEADLINE = ("linear", "linear_online", "knn", "phones", "speakers", "manipulation_accuracy", "seconds")
PROVENANCE = ("device", "processes", "commit", "stec", "torch", "data_fingerprint")
NUMBERED = 12  # columns of a matrix for whose numbers there is room
SETTING = (
    "method", "encoder", "data.source", "data.size", "views.size", "views.area", "epochs", "batch_size", "seed",
    "lambda_manip", "lambda_turn", "manipulation.action", "manipulation.readout", "manipulation.k",
    "identity.temperature", "audio.window", "audio.negatives", "audio.lambda_identity", "optimizer.rate",
)  # fmt: skip

EGOCENTRIC = (
    '<p class="lead">xx and yy tell how many times as wide and high x′ is as x (below 0: mirrored), x and y how far '
    "its middle lies to the right and below, in half widths and heights of x.</p>"
)


def figures(run: Material) -> dict[str, str]:
    """The results that a run has, by key, as text."""
    final = run.summary.get("final_metrics") or {}
    values = {key: run.summary.get(key, final.get(key)) for key in FIGURES}
    return {key: FIGURES[key][1](value) for key, value in values.items() if value is not None}


def headline(run: Material) -> str:
    """The few numbers that one looks for first."""
    found = figures(run)
    items = "".join(
        f"<div><dt>{escape(FIGURES[key][0])}</dt><dd>{escape(found[key])}</dd></div>"
        for key in HEADLINE
        if key in found
    )
    return f'<dl class="headline">{items}</dl>' if items else ""


def results(runs: list[Material]) -> str:
    """Accuracies, speed, and where they come from."""
    found = [figures(run) for run in runs]
    rows = [["method", *(run.config.method for run in runs)]] if len({run.config.method for run in runs}) > 1 else []
    rows += [[FIGURES[key][0], *(f.get(key, "–") for f in found)] for key in FIGURES if any(key in f for f in found)]
    for key in PROVENANCE:
        if any(key in run.summary for run in runs):
            rows.append([key.replace("_", " "), *(str(run.summary.get(key, "–")) for run in runs)])
    return _by_run(runs, rows)


def setting(runs: list[Material]) -> str:
    """The main settings; with several runs also every other one in which they differ."""
    values = [used(run.config) for run in runs]
    known = dict.fromkeys(key for v in values for key in v)
    differing = [key for key in known if len({str(v[key]) for v in values if key in v}) > 1]
    keys = [key for key in SETTING if any(v.get(key) is not None for v in values)]
    keys += [key for key in differing if key not in keys and key != "data.root"]
    rows = [[key, *(_word(v.get(key)) for v in values)] for key in keys]
    listings = "".join(listing(run.name, to_yaml(run.config)) for run in runs)
    marked = {i for i, key in enumerate(keys) if key in differing}
    return _by_run(runs, rows, marked) + listings


def describe(runs: list[Material]) -> str:
    """What was trained, in a line."""
    configs = [run.config for run in runs]
    if len(runs) > 1:
        methods, sources = (
            sorted(set(words)) for words in zip(*((c.method, c.data.name) for c in configs), strict=True)
        )
        return f"{', '.join(methods)} on {', '.join(sources)}."
    c = configs[0]
    about = f"{c.method}: {(METHODS | SOUNDS)[c.method].about}. {c.encoder}, {c.epochs:,} epochs of {c.data.name}"
    return f"{about} in batches of {c.batch_size:,}, seed {c.seed}."


def knowledge(run: Material) -> str:
    """Per component of the action a confusion matrix and its errors."""
    components = [part for part in run.study.components if part.informative] if run.study is not None else []
    if not components:
        why = "Its weights or images are not at hand." if has_manipulation(run) else "This method has none."
        return f'<p class="quiet">No manipulation model to look into. {why}</p>'
    names = EGOCENTRIC if "egocentric" in run.config.manipulation.action else ""
    return f'{names}<div class="matrices">{"".join(map(_matrix, components))}</div>'


def _matrix(component: Component) -> str:
    k = len(component.confusion)
    step = -(-k // NUMBERED)  # of the columns that are numbered
    rows = []
    for true, row in enumerate(component.confusion):
        total = sum(row)
        cells = []
        for count in row:
            share = count / total if total else 0
            text = f"{100 * share:.0f}" if share >= 0.005 and step == 1 else ""
            cells.append(f'<td style="--share:{share:.3f}" title="{count} of {total}">{text}</td>')
        rows.append(f'<tr{"" if total else " class=empty"}><th scope="row">{true}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th scope="col">{"" if i % step else i}</th>' for i in range(k))
    best = "" if component.error_bins is None else f", right bins {component.error_bins:.2f}"
    return (
        f'<figure class="matrix{"" if step == 1 else " fine"}"><figcaption><b>{escape(component.name)}</b> '
        f"{component.accuracy:.0f} % in the right bin"
        f'<span class="quiet">guessing {component.chance:.0f} %; {component.pairs:,} pairs</span></figcaption>'
        f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f'<p class="quiet">mean error {component.error:.2f}{best}, guessing {component.error_chance:.2f}</p></figure>'
    )


def centroids(run: Material) -> str:
    """The paper's distances between the centroids of views and of originals."""
    if run.study is None:
        return ""
    spaces = {"feature space": run.study.in_features, f"{run.study.projection.method} plane": run.study.in_projection}
    rows = [
        [
            space,
            f"{found.mean_shift:.2f}",
            f"{found.scale:.2f}",
            f"{found.mean_shift / found.scale:.2f}" if found.scale else "–",
            "–" if found.between is None else f"{found.between:.2f}",
        ]
        for space, found in spaces.items()
    ]
    images = f"{len(run.study.sample.index):,} {run.study.sample.split} images"
    return table([images, "views from originals", "spread of originals", "ratio", "between classes"], rows)


def verdict(runs: list[Material]) -> str:
    """Whether features and embeddings of the last logged batch have collapsed."""
    lines = []
    for run in runs:
        last = run.metrics[-1] if run.metrics else {}
        ranks = {of: last[key] for key, of in _RANKS.items() if math.isfinite(last.get(key, math.nan))}
        if ranks:
            collapsed = [of for of, rank in ranks.items() if rank < COLLAPSED_RANK]
            whose = " to the identity model" if collapsed == ["embeddings"] else ""
            text = f"collapsed: all images look alike{whose}" if collapsed else "no sign of collapse"
            numbers = ", ".join(f"{rank:.1f} of the {of}" for of, rank in ranks.items())
            kind = ' class="notes"' if collapsed else ""
            lines.append(f"<p{kind}><b>{escape(run.name)}</b>: {text} (rank {numbers}).</p>")
    return "".join(lines)


def _by_run(runs: list[Material], rows: list[list[str]], marked: Collection[int] = ()) -> str:
    """Facts about one run as a list; about several as a table, a column each."""
    if len(runs) > 1:
        return table(["", *(run.name for run in runs)], rows, marked)
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
    return f'<dl class="facts">{"".join(items)}</dl>'


def table(head: list[str], rows: list[list[str]], marked: Collection[int] = ()) -> str:
    """Rows of text, the first word of each its name; some of them marked."""
    columns = "".join(f'<th scope="col">{_breakable(name)}</th>' for name in head)
    body = []
    for i, (name, *cells) in enumerate(rows):
        kind = ' class="differs"' if i in marked else ""
        inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        body.append(f'<tr{kind}><th scope="row">{_breakable(name)}</th>{inner}</tr>')
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _breakable(name: str) -> str:
    """A narrow screen may break a key or the name of a run, but no number."""
    return re.sub(r"(?<=[._])(?=[^\W\d_])", "<wbr>", escape(name))


def _word(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(f"{v:g}" for v in value)
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
