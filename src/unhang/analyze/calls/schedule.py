"""The calls of two runs side by side: aligned by rank, group and sequence number, never by position in the buffer.

Legend of shapes: N rows of one table, K of them within the stretch that both runs recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import dirname, isabs, relpath
from typing import NamedTuple, TypeAlias

from unhang.analyze.calls.positions import bare_op, numels
from unhang.model import CollectiveCall, CollectiveTable, Frame, ProcessGroup, different, grouped, user_frames
from unhang.numeric import np, npt

Stack = tuple[Frame, ...]


class Places:
    """How the lines of one run are named, so that those of the same program elsewhere get the same names.

    A file that both runs use is named by its path; any other one as it is seen from the folder of the run's script, so
    that two files of one name in different sub-folders stay different ones.
    """

    def __init__(self, stacks: Sequence[Stack], others: Sequence[Stack]) -> None:
        """`others`: those of the other run."""
        self._shared = _files(stacks) & _files(others)
        self._folder = _script_folder(stacks, self._shared)
        self._is_elsewhere = self._folder != _script_folder(others, self._shared)
        self._names: dict[str, str] = {}

    def of(self, stack: Stack) -> Frame | None:
        """The line of the user's code that makes the call."""
        user = user_frames(stack)
        if not user:
            return None
        file = user[0].file
        if file not in self._names:
            self._names[file] = self._name(file)
        return Frame(self._names[file], user[0].line, user[0].function)

    def _name(self, file: str) -> str:
        is_absolute = isabs(file) and isabs(self._folder)  # of others nobody knows where they lie
        is_common = file in self._shared and self._is_elsewhere
        return relpath(file, self._folder) if is_absolute and not is_common else file

    def text(self, call: CollectiveCall | None) -> str:
        """The same for people; empty where no call or no stack is."""
        place = self.of(call.frames) if call is not None and call.frames else None
        return f"{place.file}:{place.line} in {place.function}" if place else ""


def _files(stacks: Sequence[Stack]) -> set[str]:
    return {frame.file for stack in stacks for frame in user_frames(stack)}


def _script_folder(stacks: Sequence[Stack], shared: Collection[str]) -> str:
    """Where most stacks begin: in a script, not in one that both runs use and that starts others."""
    began: Counter[tuple[int, str]] = Counter()
    for user in filter(None, map(user_frames, stacks)):
        own = [f for f in user if f.function == "<module>" and f.file not in shared]
        first = (own or user)[-1]
        began[2 if own else int(first.function == "<module>"), first.file] += 1
    (_, file), _ = max(began.items(), key=lambda item: (item[0][0], item[1], item[0][1]), default=((0, ""), 0))
    return dirname(file)


Ints: TypeAlias = "npt.NDArray[np.int64]"
_ROOM = 1 << 62
_FEW_PER_ROW, _FEW = 4, 1 << 16  # a table of all values is no longer than so many times the rows, and so much


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first call in which ranks of two runs part. `ours` or `theirs` is empty where that run makes no call there.

    `is_place`: the call is the same, but it is made from another line. `seq` is of the group, or of its point-to-point calls.
    Places name files as `Places` does.
    """

    ranks: tuple[int, ...]
    group: str
    seq: int
    ours: str
    theirs: str
    our_place: str = ""
    their_place: str = ""
    is_place: bool = False


class FirstDifference(NamedTuple):
    """The call in which a rank parts from the same rank of the other run. `began_ns`: where in our run that is."""

    rank: int
    began_ns: int
    group: str
    seq: int
    ours: str
    theirs: str
    our_place: str
    their_place: str
    is_place: bool


def one_key(columns: Sequence[Ints], spans: Sequence[int]) -> Ints:
    """One number per row that orders rows as the columns do, from the first to the last; `spans` bound the values.

    Raises:
        OverflowError: the columns together need more than 62 bits.
    """
    room, key_N = 1, np.zeros(len(columns[0]), dtype=np.int64)
    for column, span in zip(columns, spans, strict=True):
        room *= span
        if room >= _ROOM:
            raise OverflowError("the keys do not fit")
        key_N = key_N * span + column
    return key_N


def counted(key_N: Ints, span: int) -> tuple[Ints, Ints]:
    """The different values, sorted, and how many of each; all are below `span`."""
    if span > _FEW_PER_ROW * len(key_N) + _FEW:
        values, counts = np.unique(key_N, return_counts=True)
        return values, counts
    count_V = np.bincount(key_N, minlength=1)
    values = np.flatnonzero(count_V)
    return values, count_V[values]


def group_labels(ours: CollectiveTable, theirs: CollectiveTable) -> tuple[Ints, Ints]:
    """Equal numbers for the groups of two runs that correspond, by group of each table.

    They correspond where description and ranks are equal; else by description, where no rank has two such groups; else by
    description and name.
    """
    numbers: dict[tuple[object, ...], int] = {}
    found: list[Ints] = []
    rest = [_unmatched(ours, theirs), _unmatched(theirs, ours)]
    doubtful = _with_several(ours, rest[0]) | _with_several(theirs, rest[1])
    for table, lone in zip((ours, theirs), rest, strict=True):
        labels, seen = [], {}  # type: ignore[var-annotated]
        for i, group in enumerate(table.groups):
            key: tuple[object, ...]
            if i not in lone:
                same = (group.desc, group.ranks)
                seen[same] = seen.get(same, 0) + 1
                key = (*same, seen[same])
            else:
                key = (group.desc, group.name) if group.desc in doubtful else (group.desc,)
            labels.append(numbers.setdefault(key, len(numbers)))
        found.append(np.array(labels, dtype=np.int64))
    return found[0], found[1]


def _unmatched(table: CollectiveTable, other: CollectiveTable) -> set[int]:
    left = Counter((group.desc, group.ranks) for group in other.groups)
    lone = set()
    for i, group in enumerate(table.groups):
        if left[group.desc, group.ranks] <= 0 or not group.ranks:
            lone.add(i)
        left[group.desc, group.ranks] -= 1
    return lone


def _with_several(table: CollectiveTable, groups: set[int]) -> set[str]:
    """Descriptions that a rank has more than one of these groups of, or that say nothing."""
    if not groups:
        return set()
    pairs = different(table["rank"].astype(np.int64) * (len(table.groups) + 1) + table["group"])
    found = {table.groups[i].desc for i in groups if table.groups[i].desc in ("", "undefined")}
    seen: set[tuple[int, str]] = set()
    for rank, i in (divmod(pair, len(table.groups) + 1) for pair in pairs.tolist()):
        if i in groups:
            pair = (rank, table.groups[i].desc)
            if pair in seen:
                found.add(pair[1])
            seen.add(pair)
    return found


class Streams:
    """The rows of one table by rank, label, kind (collective or point-to-point), sequence number and order of issue."""

    def __init__(self, table: CollectiveTable, rank: Ints, seq: Ints, label_G: Ints, spans: Sequence[int]) -> None:
        label = label_G[table["group"]]
        stream = one_key((rank, label, table["is_p2p"].astype(np.int64)), spans[:3])
        self.row_N, is_next = _order(stream, seq, spans)
        self.seq_N = seq[self.row_N]
        starts = np.flatnonzero(is_next)
        stream = stream[self.row_N[starts]]
        is_next[1:] |= self.seq_N[1:] != self.seq_N[:-1]
        self.nth_N: Ints = np.zeros(len(seq), np.int64)
        if not is_next.all():
            first = np.flatnonzero(is_next)
            self.nth_N = np.arange(len(seq)) - np.repeat(first, np.diff(first, append=len(seq)))
        self.lengths: Ints = np.diff(starts, append=len(seq))
        ends = starts + self.lengths - 1
        wrapped = np.isin(table["rank"][self.row_N[starts]], sorted(table.wrapped_ranks))
        self.streams = stream
        # Of a batch that the ring buffer has half overwritten, the members cannot be told apart.
        self.first, self.last = self.seq_N[starts] + wrapped, self.seq_N[ends]


def _order(stream_N: Ints, seq_N: Ints, spans: Sequence[int]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Rows by stream, sequence number and order of issue, and which are the first of their stream.

    Few streams are sorted in linear time. Within one, calls are numbered as they are issued; where not, all is sorted.
    """
    small = stream_N - stream_N.min()
    order = np.argsort(small.astype(np.min_scalar_type(int(small.max()))), kind="stable")
    stream, seq = stream_N[order], seq_N[order]
    is_next = np.append(True, stream[1:] != stream[:-1])
    if ((seq[1:] < seq[:-1]) & ~is_next[1:]).any():
        order = np.argsort(one_key((stream_N, seq_N), (spans[0] * spans[1] * spans[2], spans[3])), kind="stable")
    return order, is_next


@dataclass(frozen=True)
class Aligned:
    """Rows of two tables in the stretch of each stream that both recorded: `[K]` rows of each, and their counterparts.

    A counterpart is the row of the other table with the same rank, label, kind, sequence number and place within its batch,
    or -1.
    """

    our_rows: Ints
    our_partners: Ints
    their_rows: Ints
    their_partners: Ints
    their_places: Ints  # our row that comes before each of their rows


def aligned(ours: CollectiveTable, theirs: CollectiveTable, labels: tuple[Ints, Ints]) -> Aligned:
    """The stretch that both runs recorded; near-linear in the number of rows."""
    if not len(ours) or not len(theirs):
        nothing = np.zeros(0, dtype=np.int64)
        return Aligned(nothing, nothing, nothing, nothing, nothing)
    ranks, seqs = ([np.maximum(t[name], 0).astype(np.int64) for t in (ours, theirs)] for name in ("rank", "seq"))
    spans = _spans(ranks, labels, seqs)
    if spans[0] * spans[1] * spans[3] >= _ROOM >> 20:  # nonsense in a dump: the order of the numbers will do
        ranks, seqs = _ordinals(ranks), _ordinals(seqs)
        spans = _spans(ranks, labels, seqs)
    tables = zip((ours, theirs), ranks, seqs, labels, strict=True)
    a, b = (Streams(table, rank, seq, label, spans) for table, rank, seq, label in tables)
    both, at_a, at_b = np.intersect1d(a.streams, b.streams, assume_unique=True, return_indices=True)
    first, last = np.maximum(a.first[at_a], b.first[at_b]), np.minimum(a.last[at_a], b.last[at_b])
    most = max(int(s.nth_N.max()) for s in (a, b)) + 1
    (key_a, row_a), (key_b, row_b) = (
        _within(s, both, (first, last), (max(len(both), 1), spans[3], most)) for s in (a, b)
    )
    if np.array_equal(key_a, key_b):
        return Aligned(row_a, row_b, row_b, row_a, row_a)
    place = np.searchsorted(key_b, key_a)
    same = np.append(key_b, -1)[place] == key_a
    partner_a, partner_b = np.full(len(key_a), -1, np.int64), np.full(len(key_b), -1, np.int64)
    partner_a[same], partner_b[place[same]] = row_b[place[same]], row_a[same]
    before_b = np.cumsum(np.bincount(place, minlength=len(key_b)))[: len(key_b)]  # how many of our keys are not higher
    places = row_a[np.maximum(before_b - 1, 0)] if len(row_a) else before_b
    return Aligned(row_a, partner_a, row_b, partner_b, places)


def _within(s: Streams, both: Ints, stretch: tuple[Ints, Ints], spans: Sequence[int]) -> tuple[Ints, Ints]:
    """Keys and rows, sorted, of those streams of `both` runs, as far as the stretch of each goes."""
    at = np.searchsorted(both, s.streams)
    is_in_both = np.append(both, -1)[at] == s.streams
    least, most = (np.append(part, -1)[at] for part in stretch)
    least[~is_in_both] = spans[1]
    key_N = one_key((np.repeat(at, s.lengths), s.seq_N, s.nth_N), spans)
    is_whole = (least <= s.first) & (most >= s.last) & (s.first == s.seq_N[np.cumsum(s.lengths) - s.lengths])
    if is_whole.all():
        return key_N, s.row_N
    least_N, most_N = (np.repeat(part, s.lengths) for part in (least, most))
    within = np.flatnonzero((s.seq_N >= least_N) & (s.seq_N <= most_N))
    return key_N[within], s.row_N[within]


def _spans(ranks: Sequence[Ints], labels: Sequence[Ints], seqs: Sequence[Ints]) -> list[int]:
    rank, label, seq = (max(int(part.max()) for part in parts) + 1 for parts in (ranks, labels, seqs))
    return [rank, label, 2, seq]


def _ordinals(parts: Sequence[Ints]) -> list[Ints]:
    number = np.unique(np.concatenate(parts), return_inverse=True)[1]
    return [number[: len(parts[0])].astype(np.int64), number[len(parts[0]) :].astype(np.int64)]


def _common(values: Sequence[object], numbers: dict[object, int]) -> Ints:
    return np.array([numbers.setdefault(value, len(numbers)) for value in values] or [0], dtype=np.int64)


class _Words:
    """Numbers for what two tables say of a call, equal where they say the same."""

    def __init__(self) -> None:
        self.ops: dict[object, int] = {}
        self.numels: dict[object, int] = {}
        self.dtypes: dict[object, int] = {}
        self.places: dict[object, int] = {}

    def of(self, table: CollectiveTable, named: Places) -> tuple[Ints, Ints]:
        """`[N]` signatures (op, elements, dtype), and `[N]` places, -1 where the call's stack is not recorded."""
        op_O = _common([bare_op(op) for op in table.ops], self.ops) << 46
        numel_S = _common([numels(s) for s in table.sizes], self.numels) << 18
        dtype_D = _common([d.lower() for d in table.dtypes], self.dtypes)
        signature_N = op_O[table["op"]]
        signature_N += numel_S[table["in_sizes"]]
        signature_N += dtype_D[table["dtype"]]
        places = _common([named.of(stack) for stack in table.stacks], self.places)
        return signature_N, np.append(places, -1)[np.maximum(table["frames"], -1)]


def first_differences(ours: CollectiveTable, theirs: CollectiveTable, pairs: Aligned) -> list[FirstDifference]:
    """The first call of each rank in which the runs part.

    A rank that makes other calls is named for the first of these; only one that makes the same calls, for a changed line.
    """
    if not len(pairs.our_rows) or not len(pairs.their_rows):
        return []
    words, named = _Words(), (Places(ours.stacks, theirs.stacks), Places(theirs.stacks, ours.stacks))
    (sig_a, place_a), (sig_b, place_b) = words.of(ours, named[0]), words.of(theirs, named[1])
    has = pairs.our_partners >= 0
    partner = np.maximum(pairs.our_partners, 0)
    # A dump of open calls alone has gaps.
    lacks = ~has & ~_among(ours, pairs.our_rows, theirs.active_ranks)
    other = lacks | (has & (sig_a[pairs.our_rows] != sig_b[partner]))
    moved = np.zeros(len(other), bool)
    if ours.stacks and theirs.stacks:
        known = (place_a[pairs.our_rows] >= 0) & (place_b[partner] >= 0)
        moved = has & ~other & known & (place_a[pairs.our_rows] != place_b[partner])
    extra = (pairs.their_partners < 0) & ~_among(theirs, pairs.their_rows, ours.active_ranks)
    found = [
        (pairs.our_rows[other], pairs.our_rows[other], pairs.our_partners[other], 0),
        (pairs.their_places[extra], np.full(int(extra.sum()), -1), pairs.their_rows[extra], 0),
        (pairs.our_rows[moved], pairs.our_rows[moved], pairs.our_partners[moved], 1),
    ]
    order = np.concatenate([np.stack((at, a, b, np.full(len(at), kind))) for at, a, b, kind in found], axis=1)
    if not order.shape[1]:
        return []
    at, our_row, their_row, kind = order
    rank = np.where(our_row >= 0, ours["rank"][np.maximum(our_row, 0)], theirs["rank"][np.maximum(their_row, 0)])
    order = np.lexsort((our_row < 0, at, kind, rank))
    firsts = order[np.append(True, np.diff(rank[order]) != 0)]
    rows = zip(*(column[firsts].tolist() for column in (our_row, their_row, at, kind)), strict=True)
    return [_difference(ours, theirs, named, *row) for row in rows]


def _difference(
    ours: CollectiveTable,
    theirs: CollectiveTable,
    named: tuple[Places, Places],
    our_row: int,
    their_row: int,
    at: int,
    is_place: int,
) -> FirstDifference:
    a = ours.call(our_row) if our_row >= 0 else None
    b = theirs.call(their_row) if their_row >= 0 else None
    call = a or b
    assert call is not None
    places = (named[0].text(a), named[1].text(b))
    said = str(call.group), call.seq, _call_text(a), _call_text(b), *places, bool(is_place)
    return FirstDifference(call.rank, int(ours["created_ns"][at]), *said)


def divergences(firsts: Iterable[FirstDifference], most: int = 64) -> tuple[Divergence, ...]:
    """Equal first differences of several ranks as one, in the order of our run; changed lines come last."""
    found = grouped((first[2:], first) for first in firsts)
    began = {key: (min(f.began_ns for f in of), [f.rank for f in of]) for key, of in found.items()}
    ordered = sorted(found, key=lambda key: (key[-1], began[key]))
    return tuple(Divergence(tuple(sorted(f.rank for f in found[key])), *key) for key in ordered[:most])


def _among(table: CollectiveTable, rows: Ints, ranks: Collection[int]) -> npt.NDArray[np.bool_]:
    return np.isin(table["rank"][rows], sorted(ranks)) if ranks else np.zeros(len(rows), bool)


def _call_text(call: CollectiveCall | None) -> str:
    if call is None:
        return ""
    return str(call).removeprefix(call.op.removesuffix(bare_op(call.op)))


def by_description(groups: Sequence[ProcessGroup]) -> Mapping[str, list[ProcessGroup]]:
    """Groups under what they are for; names are mere counters."""
    return grouped((str(group), group) for group in groups)
