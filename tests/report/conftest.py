"""A real browser for pages: Chromium, headless, offline."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image
from tiny_runs import Runner

from stec.report.page import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def browser():
    """The machine's Chromium, or the one that `playwright install chromium` brought."""
    reason = "playwright is not installed: pip install -e '.[test]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has none for root
    with playwright.sync_playwright() as driver:
        if path is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip("no Chromium here: apt-get install chromium, or playwright install chromium")
        found = driver.chromium.launch(executable_path=path, args=sandbox)
        yield found
        found.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> dict[str, Path]:
    """Reports of tiny runs. With PCA: UMAP takes many seconds to load."""
    root = tmp_path_factory.mktemp("runs")
    for i in range(40):
        path = root / "pictures" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (80, 40), (5 * i, 100, 200)).save(path)
    run = Runner(root)
    stec, simclr = (run(name, f"method={name}")[0].path for name in ("stec", "simclr"))
    wide = run("wide", "data.source=folder", f"data.root={root / 'pictures'}", "epochs=1")[0].path
    many = run("many", "manipulation.k=24", "epochs=1")[0].path
    bare = root / "bare"
    bare.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy(wide / name, bare)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "umap", None)
        pages = {"both": write_report([stec, simclr], root / "both.html", 30)[0]}
        pages |= {path.name: write_report([path], None, 30)[0] for path in (stec, simclr, wide, many)}
        pages["uneven"] = write_report([wide, stec], root / "uneven.html", 30)[0]
        shutil.move(root / "pictures", root / "elsewhere")
        pages["bare"] = write_report([bare], None, 30)[0]
    return pages


@pytest.fixture
def visit(browser, pages):
    """Opens a page; at the end of the test, nothing may have been wrong with it."""
    wrong, contexts = [], []

    def open_page(name: str, **settings):
        contexts.append(browser.new_context(offline=True, **settings))
        page = contexts[-1].new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
        page.goto(pages[name].as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
