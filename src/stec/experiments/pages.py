"""Tables and figures of a Markdown page, made from the book; the text around them stays.

A table stands between `<!-- experiment: NAME -->` and `<!-- end -->`, a figure between `<!-- figure: NAME -->` and
`<!-- end -->`; its pictures lie in the folder `figures` beside the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from stec.config import read_text
from stec.errors import UserError
from stec.experiments.book import Book
from stec.experiments.experiment import load_experiment
from stec.experiments.figures import draw, is_drawn, pictures_of
from stec.experiments.measured import measure
from stec.experiments.tables import markdown_of

FIGURES = "figures"
_END = "<!-- end -->"
_BEGIN = re.compile(r"<!-- (experiment|figure): (\S+) -->\n")
_MARK = re.compile(f"{_BEGIN.pattern}|{_END}")
_BLOCK = re.compile(f"({_BEGIN.pattern}).*?({_END})", re.DOTALL)


def write_page(page: Path, book: Book) -> bool:
    """Makes all tables and figures of a page anew that are not what the book gives. -> whether there were any."""
    if not page.is_file():
        raise UserError(f"{page}: no such file; a table is made between <!-- experiment: NAME --> and <!-- end -->")
    text, drawn = read_text(page), False
    _check_ends(page, text)

    def fill(match: re.Match[str]) -> str:
        nonlocal drawn
        measured = measure(load_experiment(match[3]), book)
        if match[2] == "experiment":
            return f"{match[1]}{markdown_of(measured)}\n{match[4]}"
        names = pictures_of(measured)
        if not is_drawn(measured, page.parent / FIGURES):
            draw(measured, page.parent / FIGURES, ("png",))
            drawn = True
        pictures = [f"![{about}]({FIGURES}/{name}.png)\n\n" for name, about in names.items()]
        return f"{match[1]}\n{''.join(pictures)}{match[4]}"

    new = _BLOCK.sub(fill, text)
    if new != text:
        page.write_text(new, encoding="utf-8")
    return drawn or new != text


def _check_ends(page: Path, text: str) -> None:
    """UserError if a table or figure has no end: the text behind it, up to the end of another, would be lost."""
    for match in _BEGIN.finditer(text):
        following = _MARK.search(text, match.end())
        if following is None or following[0] != _END:
            raise UserError(f"{page}: there is no {_END} behind {match[0].strip()}")
