"""The pages in docs: every block of code on them runs, page by page from top to bottom, and the site builds.

A comment in front of a block says what a reader need not see:

    <!-- test: with WORDS -->         appends words to every command of the block, to make it quick
    <!-- test: not run, REASON -->    for what cannot run everywhere
    <!-- test: first                  Python that is run at that place
    CODE -->
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$|<!-- test: (.*?)-->", re.DOTALL | re.MULTILINE)
SHOWN = {"text", "yaml"}  # languages that are only looked at
COMMANDS = re.compile(r"^(?: {4}|\t)(?:stec|pip|python|torchrun) ", re.MULTILINE)


class Block(NamedTuple):
    language: str
    code: str
    words: tuple[str, ...]  # appended to its commands
    runs: bool


def blocks(text: str) -> list[Block]:
    """What a page asks for, in its order."""
    found = []
    words: tuple[str, ...] = ()
    runs = True
    for language, code, remark in FENCE.findall(text):
        kind, _, rest = remark.partition(" ")
        if kind == "with":
            words = tuple(shlex.split(rest))
        elif kind == "not":
            assert re.fullmatch(r"run, \w.*", rest.strip()), f"a reason is missing: {remark}"
            runs = False
        elif remark.startswith("first\n"):
            found.append(Block("python", remark.removeprefix("first"), (), True))
        else:
            assert not remark, f"unknown remark: {remark}"
            assert language in {"python", "bash"} | SHOWN, f"a block of '{language}' is not run: {code}"
            found.append(Block(language, code, words, runs and language not in SHOWN))
            words, runs = (), True
    return found


def commands(code: str) -> list[str]:
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def check_extras(command: str) -> None:
    """Installing is not repeated here; what is named has to exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in re.findall(r"\[(.*?)\]", command):
        assert set(names.split(",")) <= set(known), command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_every_block_of_a_page_runs(page, stec):
    text = page.read_text()
    assert not COMMANDS.search(text), "commands stand in a ```bash block, which is run"
    torch.manual_seed(0)
    names: dict = {"__name__": "__main__"}
    for block in blocks(text):
        if not block.runs:
            continue
        if block.language == "python":
            exec(compile(block.code, f"{page.name}: {block.code[:60]!r}", "exec"), names)
            continue
        for command in commands(block.code):
            program, *words = shlex.split(command)
            if program == "pip":
                check_extras(command)
                continue
            assert program == "stec", f"{command}: only stec and pip are known here"
            code, _, err = stec(*words, *block.words)
            assert code == 0, f"{command}: {err}"


def test_the_collector_sees_what_is_there():
    page = "```python\na = 1\n```\n<!-- test: with x=1 y=2 -->\n```bash\nstec a\nstec b\n```\n```bash\nstec c\n```\n"
    page += "<!-- test: not run, needs a GPU -->\n```bash\nstec d\n```\n<!-- test: first\nb = 2\n-->\n```text\ne\n```\n"
    found = blocks(page)
    assert [(b.language, b.words, b.runs) for b in found] == [
        ("python", (), True),
        ("bash", ("x=1", "y=2"), True),
        ("bash", (), True),
        ("bash", (), False),
        ("python", (), True),
        ("text", (), False),
    ]
    assert commands(found[1].code) == ["stec a", "stec b"]
    for wrong in ("<!-- test: not run -->", "<!-- test: perhaps -->", "```\nstec a\n```\n", "```sh\nstec a\n```\n"):
        with pytest.raises(AssertionError):
            blocks(wrong)


def test_everything_in_the_reference_can_be_imported_from_where_it_says():
    """From the module that the heading names, else from `stec`."""
    for section in (ROOT / "docs/api.md").read_text().split("\n## ")[1:]:
        home = import_module(next(iter(re.findall(r"`(\S+)`", section.splitlines()[0])), "stec"))
        for path in re.findall(r"^::: (\S+)", section, re.MULTILINE):
            found = resolve_name(path)
            assert found is home or found is getattr(home, path.rpartition(".")[2]), (path, home)


def test_the_examples_in_the_reference_run():
    modules = {path.rpartition(".")[0] for path in re.findall(r"^::: (\S+)", (ROOT / "docs/api.md").read_text(), re.M)}
    tried = [doctest.testmod(import_module(name)) for name in sorted(modules - {"stec"})]
    assert sum(result.attempted for result in tried) > 10
    assert not any(result.failed for result in tried)


def test_the_site_builds_without_warnings(tmp_path):
    """Strict: a link or an anchor that leads nowhere, or a page that is in no menu, is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # the theme's news about its successor
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    assert "Measured results" in (tmp_path / "site/results/index.html").read_text()
    assert (tmp_path / "site/results/runs.jsonl").is_file()
    reference = (tmp_path / "site/api/index.html").read_text()
    assert "Makes two random views of every image and reports how" in reference
    assert "minutes between two checkpoints" in reference, "comments beside the fields of a class"
    assert "&gt;&gt;&gt;" in reference, "examples are code"
    for page in PAGES:
        name = page.relative_to(ROOT / "docs").with_suffix("")
        assert (tmp_path / "site" / ("" if name.name == "index" else name) / "index.html").is_file(), name
