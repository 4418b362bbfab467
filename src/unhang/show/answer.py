"""The parts of the page that need no script: the verdict, what to do, who waits for whom, the log, the evidence, the rule."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from unhang.model import Case, WaitsFor
from unhang.model.findings import count_ranks, name_ranks
from unhang.rules.base import card_of
from unhang.show.paper import printable
from unhang.show.stacks import where
from unhang.show.wait_graph import WaitGraph, WaitNode, without_wait

# HTML made of parts. Text becomes markup in one place, where it is escaped and made printable.

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
            for i, cell in enumerate(_breakable(cell) if type(cell) is str else cell for cell in row)
        ]
        body.append(tag("tr", cells))
    return tag("table", top, tag("tbody", body))


def fold(title: str, count: str | int, *content: Part, is_open: bool = False) -> Markup:
    """Content that opens below its title."""
    label = tag("summary", title, tag("span", str(count), cls="count") if count != "" else None)
    return tag("details", label, tag("div", *content), open=is_open)


View = Mapping[str, Any]
_NOTHING = Markup("")
_SETTING = re.compile(r"(export )?[A-Za-z_]\w*=\S*$")
_MOST_BOXES = 6
_LONG_NAME = re.compile(r"(\w{20,})")


def copy_button(text: str, what: str, label: str = "Copy") -> Markup:
    """Hidden until the page's script makes it work."""
    said = f"{label} the {what}" if label == "Copy" else ""
    return tag("button", label, type="button", hidden=True, data_copy=text, aria_label=said)


def _scrolling(label: str, rows: Sequence[Part]) -> Markup:
    """Rows of code, in a box that scrolls where they are too long."""
    return tag("div", rows, cls="scroll", tabindex="0", role="group", aria_label=label)


def section(name: str, title: str, *content: Part) -> Markup:
    """A section with its heading; nothing where it has no content."""
    if not markup(*content):
        return _NOTHING
    return tag("section", tag("h2", title, id=f"{name}-title"), *content, id=name, aria_labelledby=f"{name}-title")


# ---- the verdict -----------------------------------------------------------------------------------------------


def _place(place: View | None) -> Part:
    if not place:
        return None
    file = tag("div", tag("b", f"{place['file']}:{place['line']}"), f" in {place['function']}()", cls="file")
    rows = [
        tag("div", tag("i", str(number)), text or " ", cls="row it" if is_it else "row")
        for number, text, is_it in place["lines"]
    ]
    return tag("div", file, _scrolling("The source", rows) if rows else None, cls="code")


def verdict(view: View, issue: str, has_rule: bool) -> Markup:
    """Headline, cause, place and the list of what to do."""
    chips = [(tag("span", tag("b", of), " ", value, cls=f"chip {kind}"), " ") for kind, of, value in view["chips"]]
    fixes = enumerate(view["steps"] or view["fixes"], 1)
    todo = [tag("li", tag("a", one["title"], href=f"#fix-{i}")) for i, one in fixes]
    summary = tag("div", tag("p", "What to do", cls="eyebrow"), tag("ol", todo), cls="card") if todo else None
    rule = tag("a", f"About the rule {view['rule']}", href="#rule") if has_rule else None
    return markup(
        tag("div", tag("span", view["word"], cls=f"badge {view['outcome']}"), " ", tag("div", chips, cls="chips"), cls="verdict"),
        tag("h1", _inline(view["headline"])),
        tag(
            "div",
            tag("div", tag("p", _inline(view["because"]), cls="because") if view["because"] else None, _place(view["place"])),
            tag("div", summary, cls="summary") if summary else None,
            cls="columns two" if summary else "columns",
        ),
        tag("p", copy_button(issue, "verdict", "Copy for an issue"), " ", rule, cls="ways"),
    )  # fmt: skip


# ---- what to do ------------------------------------------------------------------------------------------------


def _code(label: str, text: str, hint: Part = None) -> Markup:
    is_diff = text.startswith("--- ")
    kinds = {"+": " add", "-": " drop", "@": " at"} if is_diff else {}
    kind = "code change" if is_diff else "code change wrapped"
    lines = text.rstrip("\n").split("\n")
    marks = ["@", "@", *(line[:1] for line in lines[2:])]
    rows = [tag("div", line or " ", cls=f"row{kinds.get(mark, '')}") for mark, line in zip(marks, lines, strict=False)]
    return tag(
        "div",
        tag("div", tag("p", label, cls="eyebrow"), copy_button(text, label.lower()), cls="head"),
        tag("div", _scrolling(label, rows), cls=kind),
        tag("p", hint, cls="small") if hint else None,
        cls="labelled",
    )


def _inline(text: str) -> list[Part]:
    """Text in which what stands between backticks is code."""
    return [tag("code", part) if i % 2 else _breakable(part) for i, part in enumerate(text.split("`"))]


def _breakable(text: str) -> list[Part]:
    """Text whose longest names may go on in the next line after an underscore, and not just anywhere."""
    parts: list[Part] = []
    for i, part in enumerate(_LONG_NAME.split(text)):
        pieces = part.split("_") if i % 2 else [part]
        parts += [piece if j == len(pieces) - 1 else (f"{piece}_", Markup("<wbr>")) for j, piece in enumerate(pieces)]
    return parts


def _prose(label: str, text: str) -> Part:
    lines = [tag("p", _inline(line)) for line in text.split("\n") if line.strip()]
    return tag("div", tag("p", label, cls="eyebrow"), lines, cls="labelled") if lines else None


def _change(fix: View) -> Iterator[Part]:
    """What to type or apply can be copied; advice is prose."""
    setting, command, patch, advice = fix["setting"], fix["command"], fix["patch"], fix["advice"]
    if setting:
        yield _code("Setting", setting) if _SETTING.match(setting) else _prose("Setting", setting)
    if command:
        yield _code("Command", command)
    if patch:
        hint = ("Copy it into a file such as ", tag("code", "fix.diff"), ", then: ", tag("code", "git apply fix.diff"))
        yield _code("Diff", patch, hint)
    if advice:
        yield _prose("Change", advice)


def _card(number: int, title: str, *content: Part) -> Markup:
    body = tag("div", tag("h3", _inline(title)), *content)
    mark = tag("div", str(number), cls="number", aria_hidden="true")
    return tag("article", mark, body, cls="card fix", id=f"fix-{number}")


def _step(number: int, step: View) -> Markup:
    outcomes = table(["What is seen", "What it means"], step["outcomes"])
    return _card(
        number, step["title"], tag("p", step["cost"], cls="small"), _code("Command", step["do"]),
        outcomes, _prose("How to undo it", step["undo"]),
    )  # fmt: skip


def remedies(view: View) -> Markup:
    """Each fix or next step as a card, and what does not help."""
    cards = [_step(i, step) for i, step in enumerate(view["steps"], 1)] or [
        _card(
            i, fix["title"], *_change(fix), _prose("Note", fix["note"]), _prose("How to see that it helped", fix["verify"]),
            _prose("How to undo it", fix["undo"]),
        )
        for i, fix in enumerate(view["fixes"], 1)
    ]  # fmt: skip
    if view["unmended"]:
        cards.insert(0, tag("p", _inline(view["unmended"])))
    useless = [tag("li", tag("strong", one["title"]), f": {one['why']}") for one in view["useless"]]
    if useless:
        cards.append(tag("article", tag("h3", "What does not help"), tag("ul", useless), cls="card useless"))
    return section("fix", "What to do", cards)


# ---- who waits for whom ----------------------------------------------------------------------------------------


def _box(case: Case, node: WaitNode, accused: set[int]) -> Markup:
    is_culprit = bool(accused & set(node.ranks))
    places = list(dict.fromkeys(where(case.ranks.get(rank)) for rank in node.ranks[:64]))
    verb = "waits in" if len(node.ranks) == 1 else "wait in"
    lines: list[Part] = []
    for wait in node.waits[:3]:
        whom = f"for {count_ranks(wait.targets)}" + (", which called something else" if wait.mismatch else "")
        lines.append(tag("p", f"{verb} {wait.what}, ", tag("span", whom, cls="whom")))
    if len(node.waits) > 3:
        lines.append(tag("p", f"and in {len(node.waits) - 3} more calls"))
    if places and places[0]:
        lines.append(tag("p", places[0] + (" and elsewhere" if len(places) > 1 else ""), cls="small"))
    mark = tag("span", "culprit", cls="mark-of") if is_culprit else None
    kinds = ("box", "culprit" if is_culprit else "", "cycle" if node.in_cycle else "")
    head = tag("p", tag("b", count_ranks(node.ranks)), " ", mark)
    return tag("li", head, lines or tag("p", without_wait(node.ranks, case)), cls=" ".join(k for k in kinds if k))


def _row(title: Part, boxes: Sequence[Markup], more: str = "") -> Markup:
    shown, hidden = boxes[:_MOST_BOXES], boxes[_MOST_BOXES:]
    rest = fold(f"{len(hidden)} more sets of ranks", "", tag("ul", hidden, cls="boxes")) if hidden else None
    note = tag("p", more, cls="small") if more else None
    first = tag("ul", shown, cls="boxes") if shown else None
    return tag("div", tag("p", title, cls="level"), first, rest, note, cls="layer")


def wait_rows(case: Case, graph: WaitGraph, waits: WaitsFor, culprits: Sequence[int]) -> Markup:
    """The culprit, below it who waits for it, below these the others, counted; each row scrolls nowhere and is cut nowhere."""
    if not graph.nodes:
        return _NOTHING
    accused = set(culprits)

    def level(nodes: Sequence[WaitNode]) -> tuple[int, list[Markup]]:
        return sum(len(n.ranks) for n in nodes), [_box(case, n, accused) for n in nodes]

    _, first = level([n for n in graph.nodes if n.layer == 0])
    direct, second = level([n for n in graph.nodes if n.layer == 1 and not n.is_apart])
    others, third = level([n for n in graph.nodes if n.layer > 1 and not n.is_apart])
    apart, fourth = level([n for n in graph.nodes if n.is_apart])
    rows = [_row("What the others wait for" if second else "Who waits", first)]
    if second:
        rows.append(_row((tag("b", f"{direct:,}"), " wait" if direct > 1 else " waits", " for it directly"), second))
    left = f"{graph.left_out} more sets of ranks ({graph.ranks_left_out:,} ranks) wait too." if graph.left_out else ""
    if third:
        said = "others wait for these" if others > 1 else "other waits for these"
        boxes = tag("ul", third, cls="boxes")
        if len(third) > _MOST_BOXES or left:
            boxes = fold("Which ranks", f"in {len(third)} sets", boxes)
        counted = others + (0 if fourth else graph.ranks_left_out)
        rows.append(tag("div", tag("p", tag("b", f"{counted:,}"), f" {said}", cls="level"), boxes, cls="layer"))
        left = left if fourth else ""
    if fourth:
        rows.append(_row((tag("b", f"{apart:,}"), " wait elsewhere, for none of these"), fourth))
    cycles = [f"A cycle: {name_ranks(who)} wait for each other; it can never end." for who in waits.cycles[:3]]
    notes = [tag("p", note, cls="hint") for note in (*cycles, left) if note]
    return section("waits", "Who waits for whom", tag("div", rows, cls="card waits"), notes)


# ---- what it rests on ------------------------------------------------------------------------------------------


def log_lines(title: str, lines: Sequence[Sequence[str]]) -> Markup:
    """The last lines that the culprit wrote, as they were."""
    rows = [tag("div", tag("i", at), text or " ", cls="row") for at, text in lines]
    return section("log", title, tag("div", _scrolling(title, rows), cls="code log")) if rows else _NOTHING


def evidence(view: View) -> Markup:
    """What the verdict rests on; without a verdict, what is known and what would decide it."""
    card = [tag("div", table([], view["evidence"]), cls="card wide", tabindex="0", role="group", aria_label="Evidence")]
    calls = _in_card(["Ranks", "Last recorded call", "State"], view["lastCalls"])
    decides = view["outcome"] not in ("clean", "moves") or view["isCheck"]
    missing = _in_card(["Missing", "Rules that could not judge without it"], view["undecided"] if decides else ())
    return markup(
        section("evidence", "Evidence", card if view["evidence"] else None),
        section("shown", "What the evidence shows", calls),
        section("decide", "What would decide it", missing),
    )


def _in_card(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Part:
    return tag("div", table(head, rows), cls="card") if rows else None


def _other(finding: View) -> Markup:
    about = [finding["certainty"], finding["ranks"], f"follows from {finding['after']}" if finding["after"] else ""]
    head = (tag("b", finding["title"]), tag("p", " · ".join(part for part in about if part), cls="small"))
    return tag("div", *head, tag("p", _inline(finding["because"])), cls="other")


def _listed(texts: Sequence[str]) -> Markup:
    return tag("ul", [tag("li", text) for text in texts], cls="plain")


def behind(view: View, rule: Markup) -> Markup:
    """All that a reader may want to look up, closed unless it is short."""
    beside = [_other(finding) for finding in view["others"] if not finding["after"]]
    echoes = [_other(finding) for finding in view["others"] if finding["after"]]
    verdicts = [[rule_id, tag("span", said, cls=said), why] for rule_id, said, why in view["outcomes"]]
    folds = [
        fold("Also found", len(beside), beside, is_open=True) if beside else None,
        fold("Seen as a consequence", len(echoes), echoes) if echoes else None,
        fold("Notes", len(view["notes"]), _listed(view["notes"])) if view["notes"] else None,
        fold("The job", "", table([], view["facts"], ["", "mono"]), is_open=True) if view["facts"] else None,
        fold("Evidence that is missing", len(view["absent"]), table([], view["absent"]), is_open=not view["chips"]) if view["absent"] else None,
        fold("Evidence that was there", len(view["present"]), _listed(view["present"])) if view["present"] else None,
        rule or None,
        fold("What every rule said", len(verdicts), table(["Rule", "Verdict", "Why"], verdicts)) if verdicts else None,
    ]  # fmt: skip
    return section("more", "Behind this report", folds)


def about_rule(rule: str) -> Markup:
    """The page of the rule, from its card; nothing for a rule that has none."""
    with suppress(KeyError, ValueError):
        card = card_of(rule)
        said = {name: text.strip().split("\n\n") for name, text in card.sections.items()}
        parts = [(tag("h3", n), [tag("p", _inline(p), cls="said") for p in texts]) for n, texts in said.items()]
        # A link to what lies within a closed fold opens it.
        return fold(f"The rule {rule}", "", tag("div", tag("p", card.what), parts, id="rule"))
    return _NOTHING
