"""Where a rank departed from what it always does, and from what ranks with the same program do.

A training step repeats. What a rank will call next is told by the longest stretch of its past, or of a peer's, that ends
like its present. Where two sides of a wait blame each other, the one that did something else than its past foretold is
where the programs parted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice

from unhang.analyze.calls.foretold import LEAST_STRETCH, Keys, Past, Voter, departures_in
from unhang.analyze.calls.programs import Programs
from unhang.model import CollectiveTable, different
from unhang.numeric import np

_MOST_ROWS = 1000
_MOST_PEERS, _MOST_VOTERS = 3, 128
_LEAST_PERIOD = 8
_MOST_WITNESSES = 8
_MOSTLY = 0.75


class Habits:
    """What the ranks of a table always do. Legend: N rows."""

    def __init__(self, table: CollectiveTable) -> None:
        self._table = table
        self._departures: dict[tuple[int, int], int | None] = {}
        self._by_program: dict[Hashable, Sequence[int]] = {}
        self._round_of = cache(self._calls_in_a_round)

    def are_known(self, ranks: Collection[int]) -> bool:
        """Whether there is a past in all dumps of these ranks, and not only what is open now."""
        return self._table.active_ranks.isdisjoint(ranks)

    def departures(self, last_rows: Mapping[int, int], not_come: int = 0) -> dict[int, int]:
        """Those of the ranks that departed from their habit lately, with the row of the first call in which they did.

        `last_rows`: up to which of its calls each of the ranks is looked at; what it issued ahead does not matter. Nothing is
        said where the past of one of them is not in its dump: it could not be told from the others. `not_come`: how many more
        ranks ought to make the call in question: they may join any side.
        """
        if not self.are_known(last_rows):
            return {}
        party = _Party(last_rows, {r: self._call_at(row) for r, row in last_rows.items()}, not_come, self._whole)
        for rank, row in last_rows.items():
            if (rank, row) not in self._departures:
                self._departures[rank, row] = self._departure(rank, party)
        return {r: found for r, row in last_rows.items() if (found := self._departures[r, row]) is not None}

    def opponents(self, rows: Mapping[int, int], party: Collection[int]) -> int:
        """How many ranks outside of the party made another call where one of these ranks made that of its row, and until then the same.

        At most a few of the ranks, those with the lowest numbers, are looked at. Where nothing is told of their past, it may be all.
        """
        if not self.are_known(rows):
            return len(self._programs.ranks - set(party))
        found = 0
        for rank in sorted(rows)[:_MOST_WITNESSES]:
            first = max(self._table.rank_rows(rank).start, rows[rank] + 1 - _MOST_ROWS)
            stream = self.tokens[first : rows[rank] + 1]
            voters = self._voters(rank, first, stream, (), party)
            found = max(found, sum(v.is_rival_at(len(stream) - 1) for v in voters))
        return found

    @property
    def tokens(self) -> Keys:
        """`[N]`: what each call is."""
        return self._programs.tokens

    @cached_property
    def _unseen(self) -> int:
        """Number of ranks of which no call is recorded, as far as it is recorded who belongs to the groups."""
        return len({r for g in self._table.groups for r in g.ranks} - self._programs.ranks)

    @cached_property
    def _whole(self) -> Collection[int]:
        """The ranks all of whose calls are there."""
        return self._programs.ranks - self._table.wrapped_ranks - self._table.active_ranks

    @cached_property
    def _programs(self) -> Programs:
        return Programs(self._table)

    def _peers(
        self, rank: int, suspects: Collection[int], are_suspects: bool, but: Collection[int], most: int = _MOST_PEERS
    ) -> list[int]:
        """Ranks with the same program that are (not) suspected, those with the longest record first."""
        same = (r for r in self._longest(rank) if r != rank and r not in but and (r in suspects) is are_suspects)
        return list(islice(same, most))

    def _longest(self, rank: int) -> Sequence[int]:
        """The ranks with the program of this one, the longest records first, but for those of whose past nothing is told."""
        key = self._programs.key(rank)
        if key not in self._by_program:
            same = {rank, *self._programs.like(rank)} - self._table.active_ranks
            lengths = {r: -(of.stop - of.start) for r in same for of in [self._table.rank_rows(r)]}
            self._by_program[key] = sorted(same, key=lambda r: (not self._programs.is_equal(r, rank), lengths[r], r))
        return self._by_program[key]

    def _stream(self, rank: int) -> Keys:
        rows = self._table.rank_rows(rank)
        return self.tokens[max(rows.start, rows.stop - _MOST_ROWS) : rows.stop]

    def _call_at(self, row: int) -> tuple[int, ...]:
        """Equal for ranks that wait in one call; what kind of call it is comes last."""
        return (*(int(self._table[name][row]) for name in ("group", "seq", "is_p2p")), int(self.tokens[row]))

    def _restart(self, rank: int, last_row: int, party: _Party) -> int:
        """How many calls the rank made until, after a collective that it shares with them, other ranks began anew; 0 if none did.

        A rank in its second repetition has no past that tells where the first one ends; that others are through tells it.
        """
        table = self._table
        mine = slice(table.rank_rows(rank).start, last_row + 1)
        for other in islice((r for r in party.witnesses if r != rank), _MOST_WITNESSES):
            calls = self._round_of(other)
            end = table.rank_rows(other).start + calls - 1
            if not calls or table["is_p2p"][end]:
                continue
            same = [table[name][mine] == table[name][end] for name in ("group", "seq", "is_p2p")]
            at = np.flatnonzero(np.logical_and.reduce(same))
            if len(at):
                return int(at[-1]) + 1
        return 0

    def _calls_in_a_round(self, rank: int) -> int:
        """After how many calls nearly all that a rank did follows again as from its begin; 0 if that is not seen."""
        stream = self._stream(rank)
        for n in range(LEAST_STRETCH, len(stream) - LEAST_STRETCH + 1):
            if stream[n] == stream[0]:
                differs = np.append(np.flatnonzero(stream[n:] != stream[: len(stream) - n]), len(stream) - n)
                if differs[0] >= max(LEAST_STRETCH, _MOSTLY * (len(stream) - n)):
                    return n
        return 0

    def _voters(
        self, rank: int, first: int, stream: Keys, suspects: Collection[int], side: Collection[int]
    ) -> Iterator[Voter]:
        """The ranks with the same program, `side` left out; `first`: the row of the first call in `stream`."""
        record = self._table["record_id"]
        for is_one in (False, True):
            for peer in self._peers(rank, suspects, is_one, side, _MOST_VOTERS):
                of = self._table.rank_rows(peer)
                at = int(record[first]) - int(record[of.start])
                begin, end = max(0, -at), min(len(stream), of.stop - of.start - at)
                if begin < end:
                    theirs = self.tokens[of.start + begin + at : of.start + end + at]
                    differs = np.flatnonzero(theirs != stream[begin:end])
                    agreed = begin + int(differs[0]) if len(differs) else end
                    vote = int(theirs[agreed - begin]) if len(differs) else None
                    yield Voter(begin, agreed, vote, at == 0, is_one, self._programs.is_same_stage(rank, peer))

    def _departure(self, rank: int, party: _Party) -> int | None:
        if rank not in self._programs.ranks:
            return None
        last_rows, last_row = party.last_rows, party.last_rows[rank]
        side: Collection[int] = party.side_of(rank)
        companions = len(side)
        if 2 * companions > len(last_rows) + party.not_come:
            side = {rank}  # the greater part may clear its members; a smaller one that waits in one call may not
        rows = self._table.rank_rows(rank)
        first = max(rows.start, last_row + 1 - _MOST_ROWS)
        predicting, clearing = (
            [self._stream(p) for p in self._peers(rank, last_rows, is_one, side)] for is_one in (False, True)
        )
        is_whole = first == rows.start and rank not in self._table.wrapped_ranks
        stream = self.tokens[first : last_row + 1]
        past = Past(
            stream,
            self._table["group"][first : last_row + 1],
            frozenset(different(self._table["group"][rows]).tolist()),
            is_whole,
            self._restart(rank, last_row, party) if is_whole else 0,
            tuple(self._voters(rank, first, stream, last_rows, side)),
            companions,
            party.alike(rank),
            self._unseen,
        )
        found, period = departures_in(past, predicting, clearing)
        lately = [i for i in found if i >= len(past.stream) - max(period, _LEAST_PERIOD)]
        return first + lately[0] if lately else None


@dataclass(frozen=True)
class _Party:
    """The ranks that are looked at: up to which row, and what they call there (as `_call_at`).

    `not_come`: how many more ought to be there. `whole`: all ranks whose past is whole.
    """

    last_rows: Mapping[int, int]
    calls: Mapping[int, tuple[int, ...]]
    not_come: int
    whole: Collection[int]

    def side_of(self, rank: int) -> Collection[int]:
        """Those that wait in the same call."""
        return self._sides[self.calls[rank]]

    def alike(self, rank: int) -> int:
        """How many wait in a call of this kind."""
        return self._kinds[self.calls[rank][-1]]

    @cached_property
    def witnesses(self) -> Sequence[int]:
        """The ranks with a whole past, those that are looked at last."""
        return sorted(self.whole, key=lambda r: (r in self.last_rows, r))

    @cached_property
    def _sides(self) -> Mapping[tuple[int, ...], set[int]]:
        sides: dict[tuple[int, ...], set[int]] = {}
        for rank, call in self.calls.items():
            sides.setdefault(call, set()).add(rank)
        return sides

    @cached_property
    def _kinds(self) -> Counter[int]:
        return Counter(call[-1] for call in self.calls.values())
