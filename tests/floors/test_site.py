"""The pages that users read: their links lead somewhere, their commands exist, none is left out of the site's menu, the site builds."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from unhang.cli.main import COMMANDS, cli

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import make_report
import make_site

ROOT = Path(__file__).parents[2]
SITES = make_site.places()
PAGES = [page for page in SITES if page.endswith(".md")]
WRITTEN = [
    page for page in PAGES if not page.startswith(("docs/rules/", "docs/design/"))
]  # those are for the code's readers
_ANCHOR = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")
_CODE = re.compile(r"^```\w*\n(.*?)^```$|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def slug(heading: str) -> str:
    """What the site makes of a heading."""
    plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading)
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def anchors(file: Path) -> frozenset[str]:
    return frozenset(slug(line.lstrip("#")) for line in file.read_text().splitlines() if line.startswith("#"))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    make_site.turned(page, text, SITES)  # raises for a file that is not there
    for link, anchor in _ANCHOR.findall(text):
        file = (ROOT / page).parent / link if link else ROOT / page
        if file.suffix == ".md" and "://" not in link:
            assert anchor in anchors(file), f"{page}: {link}#{anchor}"


def test_a_link_to_nothing_is_found() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/faq.md: there is no nowhere.md"):
        make_site.turned("docs/faq.md", "see [this](nowhere.md) and `[that](elsewhere.md)`", SITES)


def commands(page: str) -> Iterator[str]:
    """Every `unhang COMMAND ...` that a page shows, what a shell would make of it left to the shell."""
    for block, span in _CODE.findall((ROOT / page).read_text()):
        for line in (block or span).replace("\\\n", " ").splitlines():
            line = re.sub(r"\s# .*", "", line)
            if match := re.search(r"(?:^|[|;$&] ?|srun (?:-\S+ )*|-m )(unhang [a-z]+\b[^|;&<>)`]*)", line.strip()):
                yield match[1]


def parsed(command: str) -> None:
    """Reads a command line as the program does, and runs nothing.

    Raises:
        UsageError: The program would refuse it.
    """
    words = shlex.split(command, comments=True)[1:]
    found = cli.get_command(click.Context(cli), words[0])
    assert found is not None
    rest = words[1:]
    while isinstance(found, click.Group) and rest and not rest[0].startswith("-"):
        inner = found.get_command(click.Context(found), rest[0])
        if inner is None:
            break
        found, rest = inner, rest[1:]
    context = click.Context(found, **found.context_settings)
    found.make_parser(context).parse_args([word for word in rest if word not in ("...", "[OPTIONS]")])


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one(page: str) -> None:
    for command in commands(page):
        try:
            parsed(command)
        except (click.UsageError, ValueError) as error:
            pytest.fail(f"{page}: {command}: {error}")


def test_commands_are_found_on_the_pages_and_bad_ones_refused() -> None:
    seen = {command.split()[1] for page in WRITTEN for command in commands(page)}
    assert set(COMMANDS) <= seen
    with pytest.raises(click.UsageError, match="no-such"):
        parsed("unhang run --no-such -- python train.py")
    with pytest.raises(click.UsageError, match="atach"):
        parsed("unhang atach 4711")


def menu(entries: Any) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from [value] if isinstance(value, str) else menu(value)


def test_the_menu_has_every_page() -> None:
    listed = list(menu(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    assert len(listed) == len(set(listed))
    below = ("rules/", "design/", "stories/")  # their own first pages list them
    expected = {place for place in SITES.values() if place.endswith(".md")}
    assert {place for place in expected if not place.startswith(below)} <= set(listed) <= expected


def test_the_page_of_the_report_is_up_to_date() -> None:
    assert make_report.PAGE.read_text() == make_report.page(), "python docs/make_report.py"


@pytest.mark.parametrize("page", [page for page in WRITTEN if "/recipes/" in page or page.count("/") == 1])
def test_sentences_are_short(page: str) -> None:
    """At most 35 words; tables, code and generated pages are left out."""
    if page in (
        "docs/lint-rules.md",
        "docs/decision-tree.md",
        "docs/hangbench.md",
        "benchmarks/README.md",
        "benchmarks/lint_precision.md",
    ):
        pytest.skip("generated, or a list of figures")
    text = re.sub(r"^```.*?^```$", "\n\n", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#"))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:\*|\d\.) )", "\n".join(lines))
    long = [s for p in paragraphs for s in re.split(r"(?<=[.:;?!])[)*_`]*\s", p) if len(s.split()) > 35]
    assert long == []
