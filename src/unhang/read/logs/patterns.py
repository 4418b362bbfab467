"""The lines that are understood: the rows of the tables in `lines/`, each found through the literal text that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path

from unhang.read.logs.anchors import AnchorIndex
from unhang.read.logs.catalogue import anchor_of, example_of, literals, row_regex, searched_rows, speaking_rows

FOLDER = Path(__file__).parent / "lines"
INDEX = FOLDER / "anchors.tsv"
ROLES = ("root", "witness", "echo", "notice")
_NOTHING, _BACKGROUND, _ANCHORS = "-", "background", "anchors: "
_SHARED = 6  # characters of a literal text of the tables that is long enough to find messages of the catalogue, too
# What many messages of one program have in common, and hardly another line.
_COMMON = (
    "nvidia-container-cli: ",
    "nvidia-fabricmanager",
    ": command not found",
    "srun: fatal: ",
    "mpirun ",
    "job killed: ",
    "TERM_",
)


@dataclass(frozen=True, eq=False)
class Pattern:
    """One kind of line: a row of a table.

    Args:
        kind: `family.what`; several rows may have the same (the same line of another version).
        role: "root" where the line itself says what went wrong; "witness" where it says that something did, or that a wait ran
            out; "echo" where it only says that a peer, the network or the store went away; "notice" else.
        says: "hang" where such a line proves that a limit of a wait was hit, "crash" where a process failed; "" else.
        regex: searched in a line without its prefixes; a group `rank` is the global rank that the line is about.
        anchors: literal texts, one of which is in every line that the regex matches.
        emitter: the program that prints it.
        layer: where that program stands: user, framework, torch, transport, device, kernel or launcher.
        table: the first sentence of its table.
        is_background: such lines are many in every log, and matter only beside others: a search of a huge log does not look
            for them, but keeps some lines before each line that it finds.
    """

    kind: str
    role: str
    says: str
    regex: str
    anchors: tuple[str, ...]
    emitter: str = ""
    layer: str = ""
    table: str = ""
    is_background: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, ready to search."""
        return re.compile(self.regex)


@cache
def all_patterns() -> tuple[Pattern, ...]:
    """The rows of all tables of logs, in the order of the files' names."""
    return tuple(row for path in sorted(FOLDER.glob("*.lines")) for row in table(path.stem))


@cache
def table(name: str) -> tuple[Pattern, ...]:
    """The rows of one table, by its path in the folder: `nccl`, `machine/kernel`."""
    return tuple(read_table(FOLDER / f"{name}.lines", _index()))


@dataclass
class _Row:
    """A row as it is written. `anchors`: those that it gives itself."""

    kind: str
    role: str
    says: str
    regex: str
    emitter: str
    layer: str
    anchors: tuple[str, ...] = ()


def _rows(path: Path) -> tuple[str, list[_Row]]:
    """The first sentence of a table, and its rows."""
    title, emitter, layer = "", "", ""
    rows: list[_Row] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        mark = line[:1]
        if mark in ("", "#"):
            title = title or line[1:].strip().rstrip(".")
        elif mark == "@":
            _, emitter, layer = line.split()
        elif not mark.isspace():
            kind, role, says, regex = line.split(None, 3)
            rows.append(_Row(kind, role, says, regex.rstrip(), emitter, layer))
        elif (more := line.strip()).startswith(_ANCHORS):
            rows[-1].anchors = tuple(more.removeprefix(_ANCHORS).replace("[ ]", " ").split(" | "))
        else:
            rows[-1].regex += more
    return title, rows


def read_table(path: Path, index: Mapping[str, tuple[str, ...]]) -> Iterator[Pattern]:
    """The rows of one table. Anchors that neither a row nor the index gives are derived, which takes longer.

    A row is `kind role says regex`. A line that is indented goes on with the regex, or gives `anchors: ... | ...`; `@ emitter
    layer` holds for the rows that follow; `#` begins a comment, and the first one is the table's title. Spaces at the end of a
    line do not count: `[ ]` does.
    """
    title, rows = _rows(path)
    for row in rows:
        proves = "" if row.says in (_NOTHING, _BACKGROUND) else row.says
        anchors = row.anchors or index.get(key_of(row.regex)) or _derived(row.regex)
        is_background = row.says == _BACKGROUND
        yield Pattern(row.kind, row.role, proves, row.regex, anchors, row.emitter, row.layer, title, is_background)


def key_of(regex: str) -> str:
    """Under which the index holds the anchors of an expression."""
    return blake2b(regex.encode(), digest_size=6).hexdigest()


def index_text() -> str:
    """What the index must hold: the anchors of all rows that give none. To derive them all takes too long at a start."""
    rows = {row.regex for path in FOLDER.rglob("*.lines") for row in _rows(path)[1] if not row.anchors}
    found = {key_of(regex): _derived(regex) for regex in rows}
    return "".join("\t".join([key, *anchors]) + "\n" for key, anchors in sorted(found.items()) if anchors)


@cache
def _index() -> Mapping[str, tuple[str, ...]]:
    try:
        text = INDEX.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    return {key: tuple(anchors) for key, *anchors in (line.split("\t") for line in text.splitlines())}


def _derived(regex: str) -> tuple[str, ...]:
    from unhang.read.logs.anchors import derived

    return derived(regex)


def _by_anchor(patterns: Iterable[Pattern]) -> Mapping[str, tuple[Pattern, ...]]:
    found: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        for anchor in pattern.anchors:
            found.setdefault(anchor, []).append(pattern)
    return {anchor: tuple(patterns) for anchor, patterns in found.items()}


@cache
def of_catalogue() -> tuple[Pattern, ...]:
    """The rows of the catalogue that a search looks for. They prove nothing of the job's end: a job may go on after them."""
    rows = searched_rows()
    return tuple(Pattern(r.kind, r.role, "", row_regex(r), anchors, r.emitter, r.layer) for r, anchors in rows)


def searched_text() -> str:
    """What the list of searched messages of the catalogue must hold.

    Those that establish a cause, are no text of an exception, and are no line of the tables; each with the literal text by which
    it is found, one of the tables' where it holds one.
    """
    lines = _by_anchor(p for p in all_patterns() if not p.is_background)
    index = AnchorIndex(lines)
    found: dict[str, str] = {}
    for row in speaking_rows():
        for template in () if row.is_raised else row.templates:
            examples = (example_of(template), example_of(template, "PCI:0000:3b:00"))
            if not any(p.compiled.search(e) for e in examples for anchor in index.anchors_in(e) for p in lines[anchor]):
                shared = [a for part in literals(template) for a in index.anchors_in(part) if len(a) >= _SHARED]
                common = next((text for text in _COMMON if text in template), "")
                found[template] = common or max(shared, key=len, default=anchor_of(template))
    shortest = {a: min((b for b in found.values() if b in a), key=len) for a in found.values()}
    return "".join(f"{shortest[anchor]}\t{template}\n" for template, anchor in found.items())


@cache
def by_anchor() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns that each anchor leads to, without those of the background."""
    return _by_anchor([*(p for p in all_patterns() if not p.is_background), *of_catalogue()])


@cache
def all_anchors() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns that each anchor leads to, with those of the background."""
    return _by_anchor([*all_patterns(), *of_catalogue()])


@cache
def _index_of_anchors() -> AnchorIndex:
    return AnchorIndex(all_anchors())


def anchors_in(line: str) -> Sequence[str]:
    """The anchors that a line holds, in the order in which they begin; some of them several times."""
    return _index_of_anchors().anchors_in(line)


def matches(line: str) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that match a line, each once."""
    return matches_of(line, anchors_in(line))


def matches_of(line: str, anchors: Iterable[str]) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that match a line of which the anchors are known, each once."""
    known = all_anchors()
    seen: set[int] = set()
    for anchor in anchors:
        for pattern in known[anchor]:
            if id(pattern) not in seen:
                seen.add(id(pattern))
                match = pattern.compiled.search(line)
                if match is not None:
                    yield pattern, match
