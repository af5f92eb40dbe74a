"""For mkdocs: `results/` becomes a page of the site, with the files that it links to."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "results"


def on_files(files: Files, config: Any) -> Files:
    """Adds the folder, its README as the page; what links to `../docs/` there links to its neighbours here."""
    for path in sorted(RESULTS.rglob("*.*")):
        name = path.relative_to(RESULTS.parent).as_posix()
        if path.name == "README.md":
            page = path.read_text().replace("](../docs/", "](../")
            files.append(File.generated(config, name.replace("README", "index"), content=page))
        else:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pages link to where the file is in the repository."""
    return markdown.replace("](../results/README.md", "](results/index.md")
