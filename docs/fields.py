"""For mkdocstrings: what stands in comments beside the fields of a class is what the reference says of them."""

from typing import Any

import griffe


class Fields(griffe.Extension):
    """Adds the fields of dataclasses and named tuples to their docstrings, with defaults."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Of every class, once its members are known."""
        kinds = {str(base) for base in cls.bases}
        kinds |= {str(decorator.value).partition("(")[0] for decorator in cls.decorators}
        fields = [each for each in cls.attributes.values() if each.annotation and "property" not in each.labels]
        if cls.docstring is None or not fields or not kinds & {"NamedTuple", "dataclass"}:
            return
        lines = cls.lines_collection[cls.filepath]
        told = (f"    {field.name}: {_comment(lines, field)}{_default(field)}" for field in fields)
        cls.docstring.value += "\n\nAttributes:\n" + "\n".join(told)


def _comment(lines: list[str], field: griffe.Attribute) -> str:
    """Above the field, and behind it."""
    words = [lines[(field.endlineno or 0) - 1].partition("  # ")[2]]
    above = (field.lineno or 0) - 2
    while lines[above].strip().startswith("# "):
        words.insert(0, lines[above].strip().removeprefix("# "))
        above -= 1
    return " ".join(words).strip()


def _default(field: griffe.Attribute) -> str:
    value = "" if field.value is None else str(field.value)
    return f" [default: `{value}`]" if value and not value.startswith("field(") else ""
