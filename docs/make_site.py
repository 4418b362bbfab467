"""Gathers every page of the repository that users read into one folder, with its links turned, for `zensical build`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from posixpath import normpath, relpath

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
REPOSITORY = "https://github.com/unhang/unhang/blob/main/"
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "measured.md",
    "benchmarks/lint_precision.md": "lint-precision.md",
}
_LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")


def places() -> dict[str, str]:
    """File of the repository -> its place on the site."""
    found = dict(ELSEWHERE)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in {".md", ".png", ".svg"}:
            name = path.relative_to(ROOT).as_posix()
            found[name] = name.removeprefix("docs/").replace("README.md", "index.md")
    for path in sorted((ROOT / "examples" / "stories").rglob("README.md")):
        name = path.relative_to(ROOT).as_posix()
        found[name] = name.removeprefix("examples/").replace("README.md", "index.md")
    return found


def target(link: str, page: str, sites: dict[str, str]) -> str:
    """Where a link of a page leads on the site: to a page of it, or to the file in the repository.

    Raises:
        FileNotFoundError: There is no such file.
    """
    file = normpath(f"{Path(page).parent.as_posix()}/{link}")
    if file in sites:
        return relpath(sites[file], Path(sites[page]).parent.as_posix())
    if not (ROOT / file).exists():
        raise FileNotFoundError(f"{page}: there is no {link}")
    return REPOSITORY + file


def turned(page: str, text: str, sites: dict[str, str]) -> str:
    """The text of a page with its links as they are on the site; what stands in code is left alone."""

    def turn(match: re.Match[str]) -> str:
        link = match[2]
        if not link or "://" in link or link.startswith("mailto:"):
            return match[0]
        return f"{match[1]}{target(link, page, sites)}{match[3] or ''}{match[4]}"

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else _LINK.sub(turn, part) for i, part in enumerate(parts))


def gather() -> list[str]:
    """Writes all pages. Returns their places."""
    sites = places()
    shutil.rmtree(PAGES, ignore_errors=True)
    for file, place in sites.items():
        goal = PAGES / place
        goal.parent.mkdir(parents=True, exist_ok=True)
        if goal.suffix == ".md":
            goal.write_text(turned(file, (ROOT / file).read_text(), sites))
        else:
            shutil.copyfile(ROOT / file, goal)
    return sorted(sites.values())


if __name__ == "__main__":
    print(f"{len(gather())} files in {PAGES}")
