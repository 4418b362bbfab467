"""What entries define: texts and frames, which later entries use by their numbers in the pickle's memo.

An entry that defines something becomes one like all others once each definition is replaced by the GET of its number.
That is done for the entries of many dumps at once, and claims nothing yet: whether each GET so made stands where a
value stands is known when the entry's layout is found (`Batch`), and no other entry is believed.

Legend of shapes: R bytes of all defining entries, n such entries, F dumps, X texts, D frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from unhang.numeric import PAD, Bools, Bytes, Ints, distinct, factors, np, npt, numbers_at, places, wide, words_at
from unhang.read.dumps.layouts import GET, INTS, LONG, LONG_GET, LONG_PUT, PUT, SETITEMS, TEXT
from unhang.read.files import encodable

NAMELESS = 1 << 24  # numbers from here on stand for frames that the pickle does not memoise
MAX_MEMO = 1 << 18
MAX_TEXT = 1000
_FIRST_BYTES = [(1 << 8 * n) - 1 for n in range(9)]  # of a little-endian word
MAX_NUMBER = 1 << 16  # texts that entries of tails use again have low numbers


class Texts(dict[str, int]):
    """Numbers of texts; -1 for those that must be read the slow way."""

    def __init__(self) -> None:
        super().__init__()
        self.values_S: list[str] = []

    def __missing__(self, value: str) -> int:
        if len(value) > MAX_TEXT or not (value.isascii() or encodable(value) == value):
            return -1
        number = self[value] = len(self.values_S)
        self.values_S.append(value)
        return number


@dataclass(slots=True)
class Memo:
    """The texts that one pickle has memoised so far; nothing has a number from `end` on."""

    texts: dict[int, str]
    end: int


@dataclass
class Defined:
    """Frames of all dumps of a batch: `frames_D` are texts of function and file, and the line, of shape [3, D].

    `numbers_D` in the memo of `dump_D`; frames that are not memoised have NAMELESS plus their place here.
    """

    frames: Ints = field(default_factory=lambda: np.zeros((3, 0), np.int64))
    numbers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    dumps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass
class Plain:
    """Entries without definitions: their bytes, `size_n` each, and where GETs stand in place of definitions.

    `limit_n`: the memo's end behind each entry.
    """

    data: Bytes
    made: Bytes
    size_n: Ints
    limit_n: Ints


def text_table(memos: Sequence[Memo], texts: Texts) -> tuple[Ints, Ints]:
    """Numbers of the texts of all memos, one memo behind the other, and where each begins. At 0 stands the empty text."""
    base_F = np.cumsum([1, *(memo.end for memo in memos)])
    table = np.full(int(base_F[-1]), -1, np.int64)
    table[0] = texts[""]
    for base, memo in zip(base_F.tolist(), memos, strict=False):
        table[base + np.fromiter(memo.texts, np.int64, len(memo.texts))] = [texts[t] for t in memo.texts.values()]
    return table, base_F


def make_plain(
    rows: Sequence[bytes], dump_n: Ints, memos: Sequence[Memo], texts: Texts, defined: Defined, irregular_F: Bools
) -> Plain:
    """The entries with GETs for definitions; what they define goes to the memos and to `defined`.

    `rows` are in the order of the pickles. Dumps that fill their memo otherwise than torch does become irregular.
    """
    before_F = np.array([memo.end for memo in memos])
    step = _Step(
        np.frombuffer(b"".join((*rows, bytes(PAD))), np.uint8).copy(), np.array([len(r) for r in rows]), dump_n
    )
    places, numbers, dumps = step.replace_texts(memos, irregular_F)
    places, frames = step.renumbered(places), step.find_frames()
    table, base_F = text_table(memos, texts)
    frames.resolve(table, base_F, texts)
    irregular_F[frames.drop_overlapping()] = True
    frames.number_nameless(len(defined.numbers))
    order = np.argsort(np.concatenate([places, frames.put]), kind="stable")
    place = np.concatenate([places, frames.put])[order]
    number = np.concatenate([numbers, np.where(frames.is_named, frames.number, -1)])[order]
    dump = np.concatenate([dumps, frames.dump])[order]
    named = number >= 0
    limit = _check_order(place[named], number[named], dump[named], before_F, irregular_F)
    owner = np.append(-1, dump[named])

    def ends_before(at: Ints, dump: Ints) -> Ints:
        known = np.searchsorted(place[named], at)
        ends: Ints = np.maximum(np.where(owner[known] == dump, limit[known], 0), before_F[dump])
        return ends

    irregular_F[frames.dump[frames.highest >= ends_before(frames.put, frames.dump)]] = True
    limit_n = ends_before(step.ends(), dump_n)
    for f, end in zip(dump_n.tolist(), limit_n.tolist(), strict=True):
        memos[f].end = max(memos[f].end, end)
    defined.frames = np.concatenate([defined.frames, frames.values], axis=1)
    defined.numbers = np.concatenate([defined.numbers, frames.number])
    defined.dumps = np.concatenate([defined.dumps, frames.dump])
    step.replace_frames(frames)
    return Plain(step.data, step.made, step.size_n, limit_n)


def _check_order(place: Ints, number: Ints, dump: Ints, before_F: Ints, irregular_F: Bools) -> Ints:
    """The memo's end behind each definition, after a 0. A dump whose numbers do not rise is irregular."""
    previous = np.append(-1, number[:-1])
    is_first = np.diff(dump, prepend=-1) != 0
    low = np.where(is_first, before_F[dump] - 1, previous)
    irregular_F[dump[(number <= low) | (number >= MAX_MEMO)]] = True
    return np.append(0, np.minimum(number, MAX_MEMO) + 1)


@dataclass
class _Frames:
    """Candidates for frames. `at`, `put`, `end`: where they begin, where their PUT stands, and where that ends."""

    at: Ints
    put: Ints
    end: Ints
    gets: Ints
    line: Ints
    number: Ints
    is_named: Bools
    dump: Ints
    values: Ints = field(init=False)
    highest: Ints = field(init=False)

    def resolve(self, table: Ints, base_F: Ints, texts: Texts) -> None:
        """Keeps the frames whose fields are what they must be."""
        size = np.diff(base_F)[self.dump]
        got = table[np.where(self.gets < size, base_F[self.dump] + self.gets, 0)]
        got[self.gets >= size] = -1
        name, file, line = (texts[key] for key in ("name", "filename", "line"))
        is_usual = (got[0] == name) & (got[2] == file)
        good = (is_usual | (got[0] == file) & (got[2] == name)) & (got[4] == line) & (got[1] >= 0) & (got[3] >= 0)
        self.values = np.stack([*np.where(is_usual, got[1::2], got[3::-2]), np.maximum(self.line, 0)])
        self.highest = self.gets.max(axis=0, initial=-1)
        self._keep(good)

    def drop_overlapping(self) -> Ints:
        """Drops what lies within another one; returns the dumps that have such."""
        behind = np.append(0, np.maximum.accumulate(self.end)[:-1])
        dumps = self.dump[self.at < behind]
        if len(dumps):
            self._keep(self.at >= behind)
        return dumps

    def number_nameless(self, first: int) -> None:
        """Numbers those that the pickle does not memoise; `first` frames of the batch are known already."""
        places = first + np.arange(len(self.at))
        self.number = np.where(self.is_named, self.number, NAMELESS + places)

    def _keep(self, good: Bools) -> None:
        for column in ("at", "put", "end", "line", "number", "is_named", "dump", "highest"):
            setattr(self, column, getattr(self, column)[good])
        self.gets, self.values = self.gets[:, good], self.values[:, good]


class _Step:
    """The bytes of the entries while definitions are replaced."""

    def __init__(self, data: Bytes, size_n: Ints, dump_n: Ints) -> None:
        self.data, self.size_n, self._dump_n = data, size_n, dump_n
        self.made = np.zeros(len(data), np.uint8)
        self._cuts, self._removed = np.zeros(0, np.int64), np.zeros(1, np.int64)

    def ends(self) -> Ints:
        """Where each entry ends."""
        return np.cumsum(self.size_n)

    def _row(self, at: Ints) -> Ints:
        return np.searchsorted(self.ends(), at, side="right")

    def replace_texts(self, memos: Sequence[Memo], irregular_F: Bools) -> tuple[Ints, Ints, Ints]:
        """Replaces texts; returns where their PUTs stood, their numbers, and their dumps."""
        at = np.flatnonzero(self.data[:-PAD] == TEXT)
        row = self._row(at)
        end = at + 5 + wide(self.data, at + 1)
        at, end, row = (part[end < self.ends()[row]] for part in (at, end, row))
        good = (self.data[end] == PUT) | (self.data[end] == LONG_PUT)
        at, end, row = at[good], end[good], row[good]
        number = np.where(self.data[end] == PUT, self.data[end + 1], wide(self.data, end + 1))
        dump = self._dump_n[row]
        data = self.data.tobytes()
        kept, behind = [], 0
        for i, (a, b, n, f) in enumerate(zip(at.tolist(), end.tolist(), number.tolist(), dump.tolist(), strict=True)):
            if a < behind:
                continue
            behind = b + (2 if data[b] == PUT else 5)
            texts = memos[f].texts
            try:
                text = data[a + 5 : b].decode()
            except UnicodeDecodeError:
                irregular_F[f] = True
                continue
            if n >= MAX_MEMO:
                irregular_F[f] = True
                continue
            texts[n] = text
            memos[f].end = max(memos[f].end, n + 1)
            kept.append(i)
        at, end, number, dump = at[kept], end[kept], number[kept], dump[kept]
        self._cut(at, end, end)
        return end, number, dump

    def _cut(self, begin: Ints, end: Ints, get: Ints) -> None:
        """Removes the bytes from `begin` to `end`; at `get` stand PUTs, which become GETs."""
        self.data[get] = np.where(self.data[get] == PUT, GET, LONG_GET)
        self.made[get] = 1
        change = np.zeros(len(self.data), np.int8)
        change[begin] = 1
        change[end] -= 1
        keep = np.cumsum(change, dtype=np.int8) == 0
        self._cuts, self._removed = end, np.append(0, np.cumsum(end - begin))
        self.size_n = np.diff(self.renumbered(self.ends()), prepend=0)
        self.data, self.made = self.data[keep], self.made[keep]

    def renumbered(self, places: Ints) -> Ints:
        """Where bytes stand after the last cut."""
        return places - self._removed[np.searchsorted(self._cuts, places, side="right")]

    def find_frames(self) -> _Frames:
        """Whatever looks like `}(`, five GETs, a number, `u`, and perhaps a PUT."""
        data = self.data
        at = np.flatnonzero((data[:-PAD] == ord("}")) & (data[1 : len(data) - PAD + 1] == ord("(")))
        row = self._row(at)
        inner = at != (self.ends() - self.size_n)[row]
        at, row = at[inner], row[inner]
        place, good, last = at + 2, np.ones(len(at), bool), len(data) - PAD
        gets, made = [], np.zeros(len(at), np.int64)
        for _ in range(5):
            op = data[place]
            good &= (op == GET) | (op == LONG_GET)
            made += self.made[place]
            gets.append(np.where(op == GET, data[place + 1], wide(data, place + 1)))
            place = np.minimum(place + np.where(op == GET, 2, 5), last)
        op, line, width = data[place], np.full(len(at), -1), np.zeros(len(at), np.int64)
        for kind, (start, form, size) in INTS.items():
            here = np.flatnonzero(op == kind)
            line[here] = numbers_at(data, place[here] + start, form, size)
            width[here] = start + size
        good &= (width > 0) & ((op != LONG) | (data[place + 1] == 8))
        put = np.minimum(place + width, last)
        good &= data[put] == SETITEMS
        all_made = np.flatnonzero(self.made)
        good &= np.searchsorted(all_made, put) - np.searchsorted(all_made, at) == made
        put += 1
        is_named = (data[put] == PUT) | (data[put] == LONG_PUT)
        number = np.where(data[put] == PUT, data[put + 1], wide(data, put + 1))
        end = put + np.where(is_named, np.where(data[put] == PUT, 2, 5), 0)
        good &= end <= self.ends()[row]
        columns = (part[good] for part in (line, number, is_named, self._dump_n[row]))
        return _Frames(at[good], put[good], end[good], np.stack(gets)[:, good], *columns)

    def replace_frames(self, frames: _Frames) -> None:
        """Replaces frames by GETs of their numbers."""
        nameless = np.flatnonzero(~frames.is_named)
        get = frames.put.copy()
        get[nameless] -= 5
        self.data[get[nameless]] = LONG_PUT
        for k in range(4):
            self.data[get[nameless] + 1 + k] = frames.number[nameless] >> (8 * k) & 0xFF
        self._cut(frames.at, get, get)


@dataclass(frozen=True)
class Memos:
    """Which text has which number in the memo of which dump. `conflict_F`: dumps that give a number to two texts."""

    dump_X: Ints
    number_X: Ints
    text_X: Ints
    conflict_F: npt.NDArray[np.bool_]

    @property
    def width(self) -> int:
        """One more than the highest number."""
        return int(self.number_X.max(initial=0)) + 1

    def table(self) -> tuple[Ints, Ints]:
        """Like `text_table`: the text of each number, one dump behind the other, and where each dump begins."""
        width = self.width
        table = np.full(1 + width * len(self.conflict_F), -1, np.int64)
        table[1 + self.dump_X * width + self.number_X] = self.text_X
        return table, 1 + width * np.arange(len(self.conflict_F) + 1)

    def numbers_of(self, text: int) -> Ints:
        """The number of a text in each dump, -1 where it has none; of shape [F]."""
        found = np.full(len(self.conflict_F), -1, np.int64)
        here = self.text_X == text
        found[self.dump_X[here]] = self.number_X[here]
        return found

    def texts_of(self, dump: int, numbers: Sequence[int]) -> list[int]:
        """The texts with these numbers in a dump, -1 where there is none."""
        mine = np.flatnonzero(self.dump_X == dump)
        known = dict(zip(self.number_X[mine].tolist(), self.text_X[mine].tolist(), strict=True))
        return [known.get(number, -1) for number in numbers]


@dataclass
class TextFinder:
    """Finds texts. Equal ones are looked at once: of the others only a digest is taken."""

    texts: Texts
    _of_digest: dict[int, int] = field(default_factory=dict)

    def find(self, buffer: Bytes, ends: Ints, dumps: int) -> Memos:
        """The texts in parts of `dumps` dumps, which end at `ends`: the first part of each one, then its second."""
        at = places(buffer[:-PAD] == TEXT)
        at = at[(buffer[at + 2] | buffer[at + 3] | buffer[at + 4]) == 0]
        part = np.searchsorted(ends, at, side="right")
        length = buffer[at + 1].astype(np.int64)
        put = np.minimum(at + 5 + length, len(buffer) - PAD)
        is_long = buffer[put] == LONG_PUT
        good = (is_long | (buffer[put] == PUT)) & (put + np.where(is_long, 5, 2) <= ends[part])
        at, length, put, part, is_long = (column[good] for column in (at, length, put, part, is_long))
        number = np.where(is_long, wide(buffer, put + 1), buffer[put + 1])
        low = number < MAX_NUMBER
        at, length, number, dump = at[low], length[low], number[low], part[low] % dumps
        text = self._texts_at(buffer, at + 5, length)
        memos = Memos(dump, number, text, np.zeros(dumps, bool))
        table, base_F = memos.table()
        memos.conflict_F[dump[table[base_F[dump] + number] != text]] = True
        return memos

    def _texts_at(self, buffer: Bytes, at: Ints, length: Ints) -> Ints:
        """The numbers of texts, -1 for those that must be read the slow way."""
        digest = np.zeros(len(at), np.uint64)
        words = -(-length // 8)
        for count in np.flatnonzero(np.bincount(words)).tolist():
            some = np.flatnonzero(words == count)
            if count:
                part = words_at(buffer, at[some], 8 * count)
                part[:, -1] &= np.array(_FIRST_BYTES, np.uint64)[length[some] - 8 * (count - 1)]
                part ^= part >> np.uint64(32)
                digest[some] = part @ factors()[:count]
        digest += length.astype(np.uint64)
        firsts, codes = distinct(digest)
        found = []
        for value, begin, size in zip(
            digest[firsts].tolist(), at[firsts].tolist(), length[firsts].tolist(), strict=True
        ):
            text = self._of_digest.get(value)
            if text is None:
                text = self._of_digest[value] = self._number(buffer[begin : begin + size].tobytes())
            found.append(text)
        return np.array(found, np.int64)[codes]

    def _number(self, raw: bytes) -> int:
        try:
            return self.texts[raw.decode()]
        except UnicodeDecodeError:
            return -1
