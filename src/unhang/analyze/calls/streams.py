"""The calls of one group as streams of tokens, one per rank, and the first token in which two streams part."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby

from unhang.analyze.calls.align import signature
from unhang.analyze.program.callpath import Path, user_path
from unhang.model import Case, ThreadStack
from unhang.numeric import np

_IDENT = re.compile(r"(\d{6,})$")
_MOST_POSITIONS = 4000
_LOOK_AHEAD = 48
_MOST_SHIFT = 24
_MOST_EDIT = 4
_HABIT = 0.75
_LEAST_ROUNDS, _LEAST_CALLS = 2, 3


def ident_of(thread: str) -> int | None:
    """The number of a thread, by its name as recorders write it."""
    found = _IDENT.search(thread)
    return int(found[1]) if found else None


def stack_path(case: Case, rank: int) -> Path | None:
    """The user frames of a rank's main thread, outermost first."""
    evidence = case.ranks.get(rank)
    stack = evidence.main_stack if evidence else None
    return user_path(stack.frames) if stack else None


def stack_of_call(case: Case, row: int) -> ThreadStack | None:
    """The stack of the thread that made a call, which must be the last of its rank; the main thread's where the dump does not tell the thread."""
    evidence = case.ranks.get(int(case.calls["rank"][row]))
    if evidence is None:
        return None
    known = {s.ident: s for s in evidence.own_stacks if s.ident}
    ident = ident_of(case.calls.threads[int(case.calls["thread"][row])])
    return known.get(ident) if ident is not None and known else evidence.main_stack


class Streams:
    """The calls of one group by rank and position, with a path for each where one is known."""

    def __init__(self, case: Case, group_index: int, upto: int) -> None:
        table = case.calls
        first = max(0, upto - _MOST_POSITIONS)
        mask = (table["group"] == group_index) & ~table["is_p2p"] & (table["seq"] <= upto) & (table["seq"] >= first)
        self.rows: dict[int, dict[int, int]] = {}
        for row in np.flatnonzero(mask):
            self.rows.setdefault(int(table["rank"][row]), {})[int(table["seq"][row])] = int(row)
        self._case = case
        self._paths: dict[int, Path] = {}
        self._tokens: dict[tuple[int, bool], Hashable] = {}

    def path(self, rank: int, seq: int) -> Path | None:
        """The call path, or None where it was not recorded. A rank's last call also has its stack."""
        row = self.rows.get(rank, {}).get(seq)
        if row is None:
            return None
        frames_id = int(self._case.calls["frames"][row])
        if frames_id < 0:
            return self._path_of_last(row) if seq == max(self.rows[rank]) else None
        if frames_id not in self._paths:
            self._paths[frames_id] = user_path(self._case.calls.stacks[frames_id])
        return self._paths[frames_id]

    def _path_of_last(self, row: int) -> Path | None:
        """Its thread's stack, unless it waits for an asynchronous call: that was issued on another line."""
        stack = stack_of_call(self._case, row)
        if stack is None or (len(stack.frames) > 1 and not stack.frames[0].is_user and stack.frames[1].is_user):
            return None
        return user_path(stack.frames)

    def has_paths(self, rank: int) -> bool:
        """Whether the rank's calls were recorded with their frames."""
        rows = list(self.rows.get(rank, {}).values())
        return bool(rows) and bool((self._case.calls["frames"][rows] >= 0).mean() > 0.5)

    def _token(self, row: int, with_path: bool) -> Hashable:
        key = (row, with_path)
        if key not in self._tokens:
            call = self._case.calls.call(row)
            self._tokens[key] = (call.op, user_path(call.frames)) if with_path else signature(call)
        return self._tokens[key]

    def tokens(self, ranks: Sequence[int], positions: Sequence[int]) -> list[list[Hashable]]:
        """Per rank one token per position: call paths if every rank has them, else signatures."""
        with_path = all(map(self.has_paths, ranks))
        return [[self._token(self.rows[rank][seq], with_path) for seq in positions] for rank in ranks]

    def always_follows(self, rank: int, seq: int) -> bool:
        """Whether this call has always followed, at the same place, one like the call before it: one round of unlike calls.

        Such rounds go over parameters, say: where they all have been made, a rank that lacks one left it out. Rounds over data
        are alike, or differ without order. Only a place that was left before tells which call ends it.
        """
        calls = self._calls(rank, seq)
        before, here = calls.get(seq - 1), calls.get(seq)
        if before is None or here is None or before == here or not here[1] or before[1] != here[1]:
            return False
        followed = [calls.get(s + 1) for s, call in calls.items() if call == before and s < seq - 1]
        is_left = any(call[1] == here[1] != after[1] for s, call in calls.items() if (after := calls.get(s + 1)))
        if is_left and len(followed) >= _LEAST_ROUNDS and set(followed) == {here}:
            return True
        *earlier, last = _rounds(calls, here[1])
        return _is_fixed(last) and bool(earlier) and all(r[: len(last)] == last for r in earlier)

    def finished_round(self, rank: int, seq: int) -> list[Hashable]:
        """The calls that the rank made at one place before this call, if it has left that place after the same ones each time.

        The program fixes such a round of unlike calls. One that repeats itself goes over data; then nothing is given.
        """
        calls = self._calls(rank, seq)
        place = calls[seq - 1][1] if seq - 1 in calls else None
        if not place or calls[seq][1] == place:
            return []
        *earlier, last = _rounds(calls, place)
        return last if _is_fixed(last) and earlier and all(r == last for r in earlier) else []

    def has_one_more(self, reference: int, odd: int, seq: int, is_guarded: bool) -> bool:
        """Whether `odd` made a call more at the place where `reference` finished a round, as it always does.

        A call that may begin another round tells that the calls in between were left out, if a condition guards them or it
        is none that ends a round.
        """
        done, row = self.finished_round(reference, seq), self.rows.get(odd, {}).get(seq)
        if not done or row is None or self.path(odd, seq) != self.path(reference, seq - 1):
            return False
        call = self._token(row, False)
        return call != done[0] or (call == done[-1] and not is_guarded)

    def have_followed(self, rank: int, seq: int, other: int) -> bool:
        """Whether, before this call of the rank, one like it was followed by one like the other rank's, library frames included."""
        rows, table = self.rows[rank], self._case.calls
        first, then = rows[seq], self.rows[other][seq]
        wanted = [(self._token(row, False), table.call(row).frames) for row in (first, then)]
        earlier = [(rows[s], rows[s + 1]) for s in rows if s + 1 in rows and s + 1 < seq]
        return any([(self._token(row, False), table.call(row).frames) for row in pair] == wanted for pair in earlier)

    def way_before(self, rank: int, seq: int, other: int, there: Path) -> Path:
        """The way to a rank's call before; where only open calls have one, `there`, if it was a call like that of the `other` rank at `seq`."""
        rows = self.rows.get(rank, {})
        last = max((s for s in rows if s < seq), default=None)
        if last is None:
            return ()
        if (path := self.path(rank, last)) is not None:
            return path
        theirs = self.rows.get(other, {}).get(seq)
        return there if theirs is not None and self._token(rows[last], False) == self._token(theirs, False) else ()

    def created_ns(self, rank: int, seq: int) -> int:
        """When a rank made its call at a position; 0 where that is not recorded."""
        row = self.rows.get(rank, {}).get(seq)
        return 0 if row is None else int(self._case.calls["created_ns"][row])

    def met_at(self, rank: int, other: int, seq: int) -> Path:
        """The way on which the other rank has made its side of this call each time before; empty where it is the same, or not known."""
        here = self.path(rank, seq)
        if not here:
            return ()
        earlier = [s for s in self.rows[rank] if s < seq and self.path(rank, s) == here]
        ways = {self.path(other, s) for s in earlier}
        way = ways.pop() if len(ways) == 1 else None
        return way if way and way != here else ()

    def went_on(self, rank: int, first: Path, then: Path) -> bool:
        """Whether a rank has made a call on the one way and the next on the other before."""
        rows = self.rows.get(rank, {})
        return bool(first) and any((self.path(rank, s), self.path(rank, s + 1)) == (first, then) for s in rows)

    def _calls(self, rank: int, upto: int) -> dict[int, tuple[Hashable, Path | None]]:
        """What the rank called at each position, and from where."""
        rows = self.rows.get(rank, {})
        return {s: (self._token(row, False), self.path(rank, s)) for s, row in rows.items() if s <= upto}

    def first_difference(self, reference: int, odd: int, upto: int) -> tuple[int, int]:
        """(position, shift) from which on `odd` no longer follows `reference`.

        A positive shift: `odd` made that many calls more there; a negative one: it left that many out; 0: not known.
        """
        positions = sorted(s for s in self.rows.get(reference, {}) if s in self.rows.get(odd, {}) and s <= upto)
        if not positions:
            return upto, 0
        index, shift = first_difference(*self.tokens((reference, odd), positions))
        return positions[index], shift


def _rounds(calls: Mapping[int, tuple[Hashable, Path | None]], place: Path) -> list[list[Hashable]]:
    """The calls made at one place, those one after the other together; without a round whose begin is not known."""
    parts = [(is_at, list(part)) for is_at, part in groupby(sorted(calls), lambda s: calls[s][1] == place)]
    whole = [part for is_at, part in parts if is_at and (part[0] > min(calls) or part[0] == 1)]
    return [[calls[s][0] for s in part] for part in whole] or [[]]


def _is_fixed(calls: list[Hashable]) -> bool:
    """Whether a round of calls has unlike ones and does not repeat itself."""
    return len(calls) >= _LEAST_CALLS and not any(calls == calls[:n] * (len(calls) // n) for n in range(1, len(calls)))


def _share(left: Sequence[Hashable], right: Sequence[Hashable]) -> float:
    """The share of equal tokens, position by position."""
    pairs = list(zip(left, right, strict=False))[:_LOOK_AHEAD]
    return sum(a == b for a, b in pairs) / len(pairs) if len(pairs) >= 2 else 0.0


def _agreement(between: Sequence[tuple[Hashable, Hashable]], pair: tuple[Hashable, Hashable]) -> float:
    """The share of positions that agree, or that differ in the same way as `pair`; 0 if none really agrees."""
    equal = sum(a == b for a, b in between)
    return (equal + sum(p == pair for p in between)) / len(between) if equal else 0.0


def _best_shift(reference: Sequence[Hashable], odd: Sequence[Hashable], at: int) -> tuple[float, int]:
    """How well the rest fits if `odd` made k calls more (k > 0) or fewer (k < 0) at this point."""
    best = (0.0, 0)
    for k in range(1, _MOST_SHIFT + 1):
        for share, shift in ((_share(reference[at:], odd[at + k :]), k), (_share(reference[at + k :], odd[at:]), -k)):
            if share > best[0]:
                best = (share, shift)
    return best


def _explaining(reference: Sequence[Hashable], odd: Sequence[Hashable], at: int) -> int:
    """The shift at this point by which everything fits that comes after it, the call that is stuck too; 0 if none does."""
    for k in range(1, _MOST_EDIT + 1):
        for left, right, shift in ((reference[at:], odd[at + k :], k), (reference[at + k :], odd[at:], -k)):
            if len(right) > 1 < len(left) and all(a == b for a, b in zip(left, right, strict=False)):
                return shift
    return 0


def first_difference(reference: Sequence[Hashable], odd: Sequence[Hashable]) -> tuple[int, int]:
    """(index, shift) of the first token from which on two streams of equal length stay different.

    A difference after which they agree again is a habit (source and receiver of a broadcast stand on different lines) and
    is passed over, unless calls more or fewer at this point explain all that follows. The last token is the call that is stuck. Source: edit distance, reduced to one edit.
    """
    last = len(reference) - 1
    habits: set[tuple[Hashable, Hashable]] = set()
    for i in (i for i in range(len(reference)) if reference[i] != odd[i]):
        pair = (reference[i], odd[i])
        if pair in habits and i < last:
            continue
        between = list(zip(reference[i + 1 : last], odd[i + 1 : last], strict=True))[:_LOOK_AHEAD]
        straight = _agreement(between, pair)
        share, shift = _best_shift(reference, odd, i)
        edit = _explaining(reference, odd, i)
        if edit:
            return i, edit
        if between and straight >= _HABIT and straight >= share:
            habits.add(pair)
            continue
        return i, shift if share >= _HABIT else 0
    return last, 0
