import io

import pytest
from rich.console import Console

from stec.progress import Watcher, clock, describe
from stec.reporter import Progress

METRICS = {
    "identity": 8.154,
    "identity_accuracy": 0.163,
    "manipulation": 0.641,
    "manipulation_accuracy": 0.6,
    "probe_accuracy": 0.571,
    "views_per_second": 4081.2,
}


def progress(step=100, metrics=METRICS):
    return Progress(10, 40, step, 400, 30.0, metrics)


def test_the_line_says_how_it_goes():
    line = describe(progress())
    assert line == "1:30 left  identity 8.15 (16 %)  manipulation 0.64 (60 %)  probe 57 %  4,081 views/s"
    assert describe(progress(step=400)).startswith("done  identity")


def test_what_a_run_has_not_is_not_shown():
    only = {k: v for k, v in METRICS.items() if k.startswith(("identity", "views"))}
    assert describe(progress(metrics=only)) == "1:30 left  identity 8.15 (16 %)  4,081 views/s"


@pytest.mark.parametrize(("width", "lines"), [(60, 2), (80, 2), (100, 1), (160, 1)])
def test_a_terminal_has_a_live_line_of_which_nothing_is_cut_off(width, lines):
    screen = io.StringIO()
    with Watcher(Console(file=screen, force_terminal=True, width=width)) as watcher:
        watcher.note("a note")
        watcher.progress(progress())
        seen = watcher.console.render_lines(watcher.bar.get_renderable())
    assert len(seen) == lines
    told = " ".join("".join(part.text for part in line).strip() for line in seen)
    assert told.split()[-13:] == f"epoch 10/40 {describe(progress())}".split()[-13:]
    assert "epoch 10/40  1:30 left" in screen.getvalue()
    assert "a note" in screen.getvalue()


def test_elsewhere_lines_are_plain_and_rare():
    out = io.StringIO()
    with Watcher(Console(file=out, width=80)) as watcher:
        for step in range(1, 401):
            watcher.progress(progress(step=step))
    lines = out.getvalue().splitlines()
    assert len(lines) == 1, "well under ten seconds: only the end is written"
    assert lines[0].startswith("epoch 10/40  done  identity 8.15")
    assert "\x1b" not in out.getvalue()


def test_clock():
    assert [clock(s) for s in (5, 65, 3600, 7384.4)] == ["0:05", "1:05", "1:00:00", "2:03:04"]
