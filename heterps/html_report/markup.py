"""HTML and SVG as escaped text: whatever is no `Markup` is shown as it stands."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from heterps_configs.units import escaped

Child = object


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Any text, escaped: neither tags nor control characters get through."""
    return value if isinstance(value, Markup) else Markup(html.escape(escaped(str(value))))


def tag(name: str, *children: Child, **attributes: object) -> Markup:
    """An element.

    Args:
        name: Of the element.
        children: Markup, or text that is escaped; None is nothing.
        attributes: `class_` is `class`, `stroke_width` is `stroke-width`; None leaves one out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[Child]) -> Markup:
    """One after the other."""
    return Markup("".join(text(child) for child in children if child is not None))


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Child]], numbers: Sequence[int] = ()
) -> Markup:
    """A table that scrolls by itself where the page is narrow.

    Args:
        headings: Of the columns.
        rows: Cells of each.
        numbers: Columns that are aligned to the right.
    """

    def cells(kind: str, row: Sequence[Child]) -> Markup:
        return joined(
            tag(kind, cell, class_="number" if column in numbers else None)
            for column, cell in enumerate(row)
        )

    head = tag("thead", tag("tr", cells("th", headings)))
    body = tag("tbody", *(tag("tr", cells("td", row)) for row in rows))
    return tag("div", tag("table", head, body), class_="scroll")


def section(title: str, *children: Child, note: str = "") -> Markup:
    """A part of the page; nothing where it has no content."""
    content = joined(children)
    if not content:
        return Markup("")
    explained = tag("p", note, class_="note") if note else None
    return tag("section", tag("h2", title), explained, content)


def _number(value: object) -> object:
    """Three digits behind the point are enough for a drawing."""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
