"""The lines that may matter in a log of any size, in one pass and in memory that does not grow with the log."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

from unhang.numeric import has_numpy, np, npt
from unhang.read.logs import by_anchor
from unhang.read.logs.scan_engines import (
    Finder,
    GramEngine,
    HyperscanEngine,
    Make,
    Newlines,
    PlainEngine,
    has_hyperscan,
)
from unhang.read.stack_texts import CHAINED, START

Piece = tuple[int, int, bytes]
"""The number of a line, where in the log the text begins, and the text."""

LONG_LINE, BEFORE, AFTER, PREFIX = 16384, 1000, 6000, 128


class Block:
    """Lines as `piece` gives them: whole up to `LONG_LINE` bytes, of longer ones the parts that matter.

    `number` and `begin`: number and place of the first line. `scratch`: see `Newlines`.
    """

    def __init__(
        self, data: bytes, end: int, number: int, begin: int, scratch: npt.NDArray[np.bool_] | None = None
    ) -> None:
        self._data, self._end, self._number, self._begin = data, end, number, begin
        self._newlines = Newlines(data, end, scratch)
        self.newlines = self._newlines.count(0, end)
        self.lines = self.newlines + (end > 0 and data[end - 1] != 10)
        self._made: dict[tuple[int, int], Piece] = {}
        self._counted_to = self._counted = 0
        self._part = (0, 0)

    @cached_property
    def _ends(self) -> Sequence[int] | npt.NDArray[np.intp]:
        return self._newlines.places()

    def line_at(self, place: int) -> int:
        """The line in which a place lies."""
        if place < self._counted_to:
            self._counted_to = self._counted = 0
        self._counted += self._newlines.count(self._counted_to, place)
        self._counted_to = place
        return self._counted

    def line_with(self, text: bytes, line: int) -> int:
        """The first line from `line` on that holds a text; `lines` if there is none."""
        start = self._span(line)[0] if line < self.lines else self._end
        place = self._data.find(text, start, self._end)
        return self.lines if place < 0 else self.line_at(place)

    def pieces(self) -> list[Piece]:
        """All lines."""
        return [self.piece(line) for line in range(self.lines)]

    def piece(self, line: int) -> Piece:
        """A line; of a long one its ends."""
        start, stop = self._span(line)
        return self._piece(line, start, stop, start, stop)

    def piece_at(self, place: int, line: int) -> Piece:
        """The line in which a place lies; of a long one the part around it."""
        start = self._data.rfind(b"\n", 0, place) + 1
        stop = self._data.find(b"\n", place, self._end)
        stop = self._end if stop < 0 else stop
        if stop - start <= LONG_LINE:
            return self._piece(line, start, stop, start, stop)
        shown_from, shown_to = self._part
        if not shown_from <= place < shown_to - BEFORE or shown_from < start:
            shown_from = max(start, self._data.rfind(b"\r", start, place) + 1, place - BEFORE)
            cut = self._data.find(b"\r", place, stop)
            shown_to = min(cut if cut >= 0 else stop, shown_from + BEFORE + AFTER)
            self._part = shown_from, shown_to
        return self._piece(line, start, stop, shown_from, shown_to)

    def _piece(self, line: int, start: int, stop: int, shown_from: int, shown_to: int) -> Piece:
        known = self._made.get((line, shown_from))
        if known is None:
            known = self._number + line, self._begin + shown_from, self._text(start, stop, shown_from, shown_to)
            self._made[line, shown_from] = known
        return known

    def _text(self, start: int, stop: int, shown_from: int, shown_to: int) -> bytes:
        data = self._data
        if shown_to - shown_from > LONG_LINE:
            half = LONG_LINE // 4
            return data[start : start + half] + b" ... " + data[stop - half : stop]
        if shown_from > start and data.find(b"\r", start, shown_from) < 0:
            prefix = data[start : min(shown_from, start + PREFIX)]
            return prefix + b" ... " + data[shown_from:shown_to]
        return data[shown_from:shown_to]

    def _span(self, line: int) -> tuple[int, int]:
        start = int(self._ends[line - 1]) + 1 if line else 0
        return start, int(self._ends[line]) if line < self.newlines else self._end


@dataclass(frozen=True, slots=True)
class Anchor:
    """A literal text in a line that may matter.

    Args:
        word: the text.
        first: so many lines that hold it are kept from the beginning of the log; of later ones only the first in each block.
        last: so many of those later ones are kept, from the end of the log.
        before: lines before it that are kept with it, as far as its block holds them.
        after: lines that follow it and are kept with it.
        until: the lines that follow end with the one that holds this.
    """

    word: bytes
    first: int = 2000
    last: int = 500
    before: int = 0
    after: int = 0
    until: bytes = b""


_RULE = b"=" * 20
# Of lines that tell of a failure every rank's is wanted.
_SPEAKING, _OTHER = (2000, 500), (600, 200)
_TRACEBACK_LINES, _STACK_LINES, _SUMMARY_LINES = 120, 60, 8000
_LAUNCHERS = (
    *(f"torch{dot}distributed{dot}{part}".encode() for dot in "./" for part in ("elastic", "run", "launch")),
    b"torchrun",
    b"ChildFailedError",
    b"[launch.py:",
)

# What the readers of tracebacks, stacks and launchers' summaries need; the events' own anchors come from their patterns.
_READERS = (
    Anchor(START.removesuffix(":").encode(), 300, 100, 1, _TRACEBACK_LINES),  # in a box there is no colon
    Anchor(b'.py", line ', 1000, 400, 0, 4),  # a frame of a traceback whose beginning is lost
    *(Anchor(text, 20, 5) for text in _LAUNCHERS),
    *(Anchor(text.encode(), 300, 100, 0, 3) for text in CHAINED),
    Anchor(b"Exception ignored in", 300, 100, 0, 2),
    Anchor(b"(most recent call first):", 300, 100, 2, _STACK_LINES),
    Anchor(b"Fatal Python error", 300, 100, 2, _STACK_LINES),
    *(Anchor(text, 300, 100, 3, _STACK_LINES) for text in (b"(active): ", b"(active+gil", b"(idle): ", b"#0  0x")),
    Anchor(b"terminate called after throwing", 300, 100, 0, 20),
    Anchor(b"Caught signal ", 300, 100, 0, 30),
    Anchor(b"*** Process received signal", 300, 100, 0, 30),
    Anchor(b"terminated with the following error:", 300, 100, 0, _TRACEBACK_LINES),
    Anchor(b"Failures:", 30, 20, 4, _SUMMARY_LINES, _RULE),
    Anchor(b"Root Cause (first observed failure)", 30, 20, 0, 200, _RULE),
    Anchor(b"failed (exitcode: "),
    Anchor(b"terminated with signal "),
    Anchor(b"terminated with exit code "),
    Anchor(b"exits with return code"),
    Anchor(b"Killing subprocess"),
    Anchor(b"srun: error:"),
    Anchor(b"slurmstepd: error:"),
    Anchor(b"exited on signal"),
    Anchor(b"Last error:", 300, 100, 0, 2),
    Anchor(b"Error: ", 500, 200),
)


@cache
def anchors() -> tuple[Anchor, ...]:
    """All of them, each text once."""
    found = {anchor.word: anchor for anchor in _READERS}
    for text, patterns in by_anchor().items():
        says = any(pattern.says for pattern in patterns)
        found.setdefault(text.encode(), Anchor(text.encode(), *(_SPEAKING if says else _OTHER)))
    return tuple(found[word] for word in sorted(found))


BLOCK_BYTES = 256 << 10
AHEAD_BYTES = 8 << 10
HEAD_LINES, TAIL_LINES = 200, 400
MAX_KEPT_LINES = 18_000
_FIRST_BYTES, _LAST_BYTES = 64 << 20, 256 << 10

_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]_P^][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")

Read = Callable[[int], bytes]
"""The next bytes, at most so many; none at the end."""


@dataclass(frozen=True)
class Scanned:
    """`lines`: with their numbers from 1, in order; of a very long line there may be several parts, with one number.

    `flooded`: texts so frequent that only some of their lines are there.
    """

    lines: Sequence[tuple[int, bytes]]
    total_lines: int
    flooded: tuple[str, ...] = ()

    @property
    def omitted_lines(self) -> int:
        """How many lines are not there."""
        return self.total_lines - len({number for number, _ in self.lines})


def fastest_engine() -> Make:
    """Hyperscan where it is installed, else numpy, else a plain search."""
    return HyperscanEngine if has_hyperscan() else GramEngine if has_numpy() else PlainEngine


def scan(read: Read, make: Make | None = None, on_progress: Callable[[int], None] | None = None) -> Scanned:
    """Scans a stream of UTF-8. `on_progress` gets the number of bytes of each block.

    Blocks: as long as `read` does.
    """
    scanner = Scanner(make)
    for data, end in blocks(read):
        scanner.take(data, end)
        if on_progress is not None:
            on_progress(end)
    return scanner.result()


def blocks(read: Read) -> Iterator[tuple[bytes, int]]:
    """Blocks that end with a line (else with a state of a progress bar, else anywhere), and where they end.

    What follows the end is the beginning of the next block. The borders do not depend on the sizes of what `read` returns.
    """
    rest, is_over = b"", False
    while not is_over:
        parts, size = [rest], len(rest)
        while size < BLOCK_BYTES and not is_over:
            part = read(BLOCK_BYTES - size)
            is_over = not part
            parts.append(part)
            size += len(part)
        data = b"".join(parts)
        end = size if is_over else data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1 or size - AHEAD_BYTES
        if data:
            yield data, end
        rest = data[end:]


def clean(data: bytes) -> bytes:
    """Without colours and NULs."""
    if b"\0" in data:
        data = data.replace(b"\0", b"")
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


@dataclass(slots=True)
class _Bundle:
    """A line with an anchor and the lines that are kept with it. `left`: so many more are wanted."""

    pieces: list[Piece]
    left: int
    until: bytes

    def size(self) -> int:
        return sum(len(text) + 100 for _, _, text in self.pieces)


@dataclass(slots=True)
class _Kept:
    """What is kept of one anchor. `is_flood`: no more than a line of each block is taken."""

    first: list[_Bundle] = field(default_factory=list)
    last: deque[_Bundle] = field(default_factory=deque)
    last_bytes: int = 0
    is_flood: bool = False


class Scanner:
    """Takes one block after the other."""

    def __init__(self, make: Make | None = None, wanted: Sequence[Anchor] | None = None) -> None:
        self._wanted = tuple(anchors() if wanted is None else wanted)
        self._finder = Finder([anchor.word for anchor in self._wanted], make or fastest_engine())
        self._kept = [_Kept() for _ in self._wanted]
        self._open: list[_Bundle] = []
        self._head: list[Piece] = []
        self._recent: deque[tuple[bytes, int, int, int]] = deque(maxlen=2)
        self._bytes = self._newlines = self._first_bytes = 0
        self._ends_open = False
        self._scratch = np.empty(BLOCK_BYTES, np.bool_) if has_numpy() else None

    def number_from(self, number: int) -> None:
        """The next block begins with the line of this number."""
        self._newlines = number - 1

    def take(self, data: bytes, end: int | None = None) -> list[Piece]:
        """Takes a block, which `end` closes (see `blocks`); returns its lines with anchors, as far as they were kept."""
        end = len(data) if end is None else end
        if b"\0" in data or b"\x1b" in data:
            whole = data[:end].replace(b"\0", b"")
            self._ends_open = not whole.endswith(b"\n") if whole else self._ends_open
            before = clean(whole)
            data, end = before + clean(data[end:]), len(before)
        elif end:
            self._ends_open = data[end - 1] != 10
        if not end:
            return []
        self._recent.append((data, end, self._newlines, self._bytes))
        hits = [hit for hit in self._finder.hits(data) if hit[0] < end]
        taken: list[Piece] = []
        if hits or self._open or len(self._head) < HEAD_LINES:
            block = Block(data, end, self._newlines + 1, self._bytes, self._scratch)
            newlines = block.newlines
            self._head += [block.piece(i) for i in range(min(HEAD_LINES - len(self._head), block.lines))]
            self._open = [bundle for bundle in self._open if self._extend(bundle, block, 0)]
            taken = self._take_hits(block, hits)
        else:
            newlines = Newlines(data, end, self._scratch).count(0, end)
        self._newlines += newlines
        self._bytes += end
        return taken

    def _take_hits(self, block: Block, hits: Sequence[tuple[int, int]]) -> list[Piece]:
        taken: list[Piece] = []
        new_floods: set[int] = set()
        printed: dict[int, int] = {}
        for place, number in hits:
            kept, anchor = self._kept[number], self._wanted[number]
            line = block.line_at(place)
            piece = block.piece_at(place, line)
            if printed.get(number) == piece[1] or number in new_floods or (kept.is_flood and number in printed):
                continue
            printed[number] = piece[1]
            before = [block.piece(i) for i in range(max(0, line - anchor.before), line)]
            bundle = _Bundle([*before, piece], anchor.after, anchor.until)
            taken.append(piece)
            if bundle.left and self._extend(bundle, block, line + 1):
                self._open.append(bundle)
            if kept.is_flood:
                self._keep_late(kept, bundle, anchor.last)
                continue
            kept.first.append(bundle)
            self._first_bytes += bundle.size()
            if len(kept.first) >= anchor.first:
                new_floods.add(number)
        if self._first_bytes > _FIRST_BYTES:
            new_floods.update(range(len(self._kept)))
        for number in new_floods:
            self._kept[number].is_flood = True
        self._finder.quieten(new_floods)
        return taken

    @staticmethod
    def _keep_late(kept: _Kept, bundle: _Bundle, most: int) -> None:
        kept.last.append(bundle)
        kept.last_bytes += bundle.size()
        limit = _LAST_BYTES * (8 if bundle.until or bundle.left else 1)
        while len(kept.last) > most or (len(kept.last) > 1 and kept.last_bytes > limit):
            kept.last_bytes -= kept.last.popleft().size()

    @staticmethod
    def _extend(bundle: _Bundle, block: Block, line: int) -> bool:
        """Adds the lines from `line` on; returns whether more are wanted."""
        stop = min(block.lines, line + bundle.left)
        is_over = False
        if bundle.until and (at := block.line_with(bundle.until, line)) < stop:
            stop, is_over = at + 1, True
        bundle.pieces += [block.piece(i) for i in range(line, stop)]
        bundle.left -= max(0, stop - line)
        return bundle.left > 0 and not is_over

    def result(self) -> Scanned:
        """What was found so far."""
        tail = [piece for block in self._recent for piece in Block(block[0], block[1], block[2] + 1, block[3]).pieces()]
        always = [*self._head, *tail[-TAIL_LINES:]]
        share = 1.0
        while len(found := self._chosen(always, share)) > MAX_KEPT_LINES and share > 0.001:
            share /= 2
        flooded = tuple(
            anchor.word.decode()
            for anchor, kept in zip(self._wanted, self._kept, strict=True)
            if kept.is_flood and kept.last
        )
        lines = [(number, text) for _, (number, text) in sorted(found.items())]
        if len(lines) > MAX_KEPT_LINES:
            lines = lines[: MAX_KEPT_LINES // 2] + lines[-MAX_KEPT_LINES // 2 :]
        return Scanned(lines, self._newlines + self._ends_open, flooded)

    def _chosen(self, always: Sequence[Piece], share: float) -> dict[int, tuple[int, bytes]]:
        found = {begin: (number, text) for number, begin, text in always}
        for anchor, kept in zip(self._wanted, self._kept, strict=True):
            bundles = [*kept.first, *kept.last]
            early, late = max(1, int(anchor.first * share)), max(1, int(anchor.last * share))
            if len(bundles) > early + late:
                bundles = bundles[:early] + bundles[-late:]
            for bundle in bundles:
                for number, begin, text in bundle.pieces[: max(1 + anchor.before, int(len(bundle.pieces) * 4 * share))]:
                    found.setdefault(begin, (number, text))
        return found
