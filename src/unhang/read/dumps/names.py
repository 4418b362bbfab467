"""What the name of a dump says: the rank, and which attempt, snapshot or replica it belongs to.

torch writes `<prefix><rank>`, and the prefix is free: it may hold host names, job numbers and dates. So the rank is the
number marked as one, else the last; names of equal shape in one folder show where that would be wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from unhang.model.lazy_pattern import lazy_pattern

MAX_RANK_DIGITS = 7

COMPRESSED = (".gz", ".zst", ".bz2", ".xz")
_DATA = (".json", ".pickle", ".pkl", ".bin", ".dump", ".trace")
ARCHIVES = (".tar", ".tgz", ".tzst", ".zip", *(f".tar{c}" for c in COMPRESSED))
_UNFINISHED = lazy_pattern(r"\.(tmp|temp|part|partial|crdownload|swp|lock|pyc|pipe)$|~$", re.IGNORECASE)
_OTHER = lazy_pattern(
    r"^core(\.\d+)?$|\.(log|out|err|md|rst|py|sh|ya?ml|toml|cfg|ini|csv|html?|svg|png|pdf|so|o|c|cpp|cu|h|sqlite|db|npz?|safetensors|ptx)$",
    re.I,
)

# Which run the file is of: the later one counts. Restarts before snapshots: a snapshot is one of its run.
_KINDS = {
    "attempt": ("attempt", "restart", "retry", "incarnation"),
    "quorum": ("quorum",),
    "iteration": ("iteration", "iter", "step", "snapshot", "epoch"),
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words}
_NUMBERED = lazy_pattern(rf"(?:^|(?<=[^a-z]))({'|'.join(_KIND_OF)})s?[_\-=.]?(\d{{1,12}})(?!\d)", re.IGNORECASE)
_MOMENT = lazy_pattern(
    r"(?<!\d)(?:20\d\d([-_.]?)[01]\d\1[0-3]\d(?:[-_T. ]?[0-2]\d([-_:.]?)[0-5]\d\2[0-5]\d(?:[.,_]\d{3,9})?Z?)?"
    r"|1\d{9}(?:\d{3}){0,3})(?!\d)"
)
_PROCESS = lazy_pattern(r"(?:^|(?<=[^a-z]))pid[_\-=.]?\d+", re.IGNORECASE)
_REPLICA = lazy_pattern(r"(?:^|(?<=[^a-z]))replica(?:[_-]?(?:group|id|rank))?[_\-=]?(\d{1,9})(?!\d)", re.IGNORECASE)
_COPY = lazy_pattern(r"\s*\(\d+\)$|[ _-]+copy(?:[ _-]?\d+)?$|\.(?:bak|old|orig)$", re.IGNORECASE)
_RANK = lazy_pattern(r"(?:(global|local|node|group|host)[_-]?)?rank[_\-=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_ADDRESS = lazy_pattern(r"\d+([.-])\d+\1\d+\1\d+")
_PLACE = lazy_pattern(r"(?:node|host|pod)[_-]?$", re.IGNORECASE)
_KNOWN = lazy_pattern(
    r"(?:ccl|comm|comm_lib|(?:^|_)fr|flight(?:_?recorder)?)_(?:trace|dump)|trace_rank[_-]?$|^_dump_$", re.I
)
_RANK_FOLDER = lazy_pattern(r"(?:global_?)?rank[_-]?(\d{1,7})$|r(\d{1,7})-\d{1,9}$", re.IGNORECASE)
_PLAIN = lazy_pattern(r"([^\d]*?)(\d{1,7})((?:\.[A-Za-z]+\d*)*)$")

Generation = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
NO_GENERATION: Generation = ((), (), ())
NO_MOMENT = (0, "")


@dataclass(frozen=True, slots=True)
class Named:
    """What a file name says.

    `family`: the name without its rank. `known`: it is a name that dumps bear. `fields`: all its numbers, of which
    `chosen` is the rank's. `moment`: digits of a date or time. `is_copy`: marked as a copy.
    """

    number: int | None
    family: str
    known: bool = False
    suffix: str = ""
    fields: tuple[int, ...] = ()
    chosen: int = -1
    generation: Generation = NO_GENERATION
    moment: tuple[int, str] = NO_MOMENT
    replica: str = ""
    is_copy: bool = False

    @property
    def shape(self) -> str:
        """The name with all numbers blanked, if another of them could be the rank; else empty."""
        return _blank(self.family) if len(self.fields) > 1 else ""


@dataclass(slots=True)
class Found:
    """A file that is a dump. `folders`: the names of the folders it lies in, an archive being one of them."""

    path: str
    member: str
    folders: tuple[str, ...]
    name: Named
    size: int
    written_ns: int


class Folder(NamedTuple):
    """What one folder name says. `home`: the name without the marks of attempts, snapshots and moments."""

    home: str
    generation: Generation = NO_GENERATION
    moment: tuple[int, str] = NO_MOMENT
    replica: str = ""
    rank: int | None = None
    number: int | None = None


def is_unfinished(name: str) -> bool:
    """Whether the name is that of a temporary file, a lock or a pipe."""
    return bool(_UNFINISHED.search(name))


def is_archive(name: str) -> bool:
    """Whether the name is that of an archive of files."""
    return name.lower().endswith(ARCHIVES)


def is_other(name: str) -> bool:
    """Whether the name is that of something else than a dump, whatever its numbers."""
    return bool(_OTHER.search(name))


def named(name: str) -> Named:
    """What a file name says of the dump in it."""
    if match := _PLAIN.match(name):
        family, digits, suffix = match.groups()
        if (known := _plain_family(family)) is not None and _is_data(suffix):
            return Named(int(digits), family, known, suffix, (int(digits),), 0)
    return _named_slowly(name)


@lru_cache(4096)
def _plain_family(family: str) -> bool | None:
    """Whether a name that begins like this is a dump's; None if the number behind it need not be a rank."""
    tail = family.rstrip("_-=.").lower()
    if tail.endswith((*_KIND_OF, "pid", "replica", "replica_group", "replica_id", "replica_rank", "(")):
        return None
    return bool(_KNOWN.search(family))


@lru_cache(256)
def _is_data(suffix: str) -> bool:
    parts = ["." + part for part in suffix.lower().split(".")[1:]]
    return all(part in COMPRESSED or part in _DATA for part in parts)


def _named_slowly(name: str) -> Named:
    stem, suffix, is_copy = _stem(name)
    replica = match[1] if (match := _REPLICA.search(stem)) else ""
    generation, moment, rest = _generation(stem)
    rest = _PROCESS.sub("", _REPLICA.sub("", rest) if replica else rest).rstrip("_-. ")
    spans = [m for m in re.finditer(r"\d+", rest) if len(m[0]) <= MAX_RANK_DIGITS]
    if not spans:
        return Named(None, rest, False, suffix, generation=generation, moment=moment, replica=replica, is_copy=is_copy)
    chosen = _rank_field(rest, [m.start() for m in spans])
    span = spans[chosen]
    return Named(
        number=int(span[0]),
        family=rest[: span.start()] + (f"#{rest[span.end() :]}" if rest[span.end() :] else ""),
        known=bool(_KNOWN.search(rest[: span.start()])) and _is_data(suffix),
        suffix=suffix,
        fields=tuple(int(m[0]) for m in spans),
        chosen=chosen,
        generation=generation,
        moment=moment,
        replica=replica,
        is_copy=is_copy,
    )


def _stem(name: str) -> tuple[str, str, bool]:
    """Name without suffixes and marks of a copy, the suffixes, and whether it is a copy."""
    stem, suffix, is_copy = name, "", False
    while True:
        if match := _COPY.search(stem):
            stem, is_copy = stem[: match.start()], True
            continue
        head, dot, tail = stem.rpartition(".")
        if not dot or not head or "." + tail.lower() not in (*COMPRESSED, *_DATA):
            return stem, suffix, is_copy
        stem, suffix = head, f".{tail}{suffix}"


def _generation(text: str) -> tuple[Generation, tuple[int, str], str]:
    """Attempt, quorum and iteration; the moment; and the text without them."""
    generation, moment, rest = NO_GENERATION, NO_MOMENT, text
    if numbered := _NUMBERED.findall(text):
        attempt, quorum, iteration = (
            tuple(int(number) for word, number in numbered if _KIND_OF[word.lower()] == kind) for kind in _KINDS
        )
        generation, rest = (attempt, quorum, iteration), _NUMBERED.sub("", text)
    if moments := [re.sub(r"\D", "", m[0]) for m in _MOMENT.finditer(rest)]:
        digits = max(moments, key=len)
        moment, rest = (len(digits), digits), _MOMENT.sub("", rest)
    return generation, moment, rest


def _rank_field(text: str, starts: list[int]) -> int:
    """Which of the numbers, given by where they start, is the rank."""
    marked = {m.start(2): (m[1] or "").lower() for m in _RANK.finditer(text)}
    for scope in ("global", "", "local"):
        if fitting := [i for i, start in enumerate(starts) if marked.get(start) == scope]:
            is_address = _ADDRESS.match(text, starts[fitting[-1]])
            return len(starts) - 1 if is_address else fitting[-1]
    free = [i for i, start in enumerate(starts) if not _PLACE.search(text[:start])]
    return free[-1] if free else len(starts) - 1


def _blank(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def choose_field(group: list[Named]) -> int | None:
    """Which number is the rank, for names of one shape, if it is another than each name by itself suggests."""
    chosen = group[0].chosen
    if len(group) < 2 or len({n.fields[chosen] for n in group}) == len(group):
        return None
    unique = [i for i in range(len(group[0].fields)) if len({n.fields[i] for n in group}) == len(group)]
    return unique[0] if len(unique) == 1 else None


def with_field(name: Named, field: int) -> Named:
    """The same name with another of its numbers as the rank."""
    return replace(name, number=name.fields[field], chosen=field, family=name.shape)


@lru_cache(1 << 16)
def folder(name: str) -> Folder:
    """What a folder's name says."""
    generation, moment, home = _generation(name)
    replica = match[1] if (match := _REPLICA.search(name)) else ""
    rank = _RANK_FOLDER.match(name)
    number = int(name) if name.isdecimal() and len(name) <= MAX_RANK_DIGITS else None
    return Folder(home, generation, moment, replica, int(rank[1] or rank[2]) if rank else None, number)


def natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts node2 before node10."""
    return [(0, int(p), p) if p.isdecimal() else (1, 0, p) for p in re.split(r"(\d+)", text) if p]
