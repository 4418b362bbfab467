"""HTML made of parts. Text becomes markup in one place, where it is escaped and made printable."""

from __future__ import annotations

import html
from collections.abc import Iterable

from unhang.show.paper import printable

_MOST = 20_000


class Markup(str):
    """HTML that is safe to write: all foreign text in it is escaped."""

    __slots__ = ()


Part = str | Iterable["Part"] | None


def markup(*parts: Part) -> Markup:
    """The parts one after the other; plain text is escaped, None is nothing."""
    shown = []
    for part in parts:
        if isinstance(part, Markup):
            shown.append(str(part))
        elif isinstance(part, str):
            shown.append(html.escape(printable(part, keep="\n\t", most=_MOST)))
        elif part is not None:
            shown.append(markup(*part))
    return Markup("".join(shown))


def tag(_name: str, *parts: Part, **attributes: str | bool) -> Markup:
    """An element. `cls` is its class, `data_copy` its `data-copy`; True is an attribute without a value, False and "" are none."""
    shown = [_name]
    for name, value in attributes.items():
        known = {"cls": "class"}.get(name, name.replace("_", "-"))
        if value is True:
            shown.append(known)
        elif value:
            shown.append(f'{known}="{markup(value)}"')
    return Markup(f"<{' '.join(shown)}>{markup(*parts)}</{_name}>")


def table(head: Iterable[str], rows: Iterable[Iterable[Part]], classes: Iterable[str] = ()) -> Markup:
    """A table in a box that scrolls where it is too wide; without a head, the first cell of each row is its head."""
    names, kinds = list(head), list(classes)
    top = tag("thead", tag("tr", [tag("th", name, scope="col") for name in names])) if names else None
    body = []
    for row in rows:
        cells = [
            tag("td", cell, cls=kinds[i] if i < len(kinds) else "") if names or i else tag("th", cell, scope="row")
            for i, cell in enumerate(row)
        ]
        body.append(tag("tr", cells))
    return tag("table", top, tag("tbody", body))


def fold(title: str, count: str | int, *content: Part, is_open: bool = False) -> Markup:
    """Content that opens below its title."""
    label = tag("summary", title, tag("span", str(count), cls="count") if count != "" else None)
    return tag("details", label, tag("div", *content), open=is_open)
