"""Ranks that say in their own lines what the others do not: that they skip or leave, another branch, other numbers in the same words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.lines.going_on import missing_by_lines, who_waited
from unhang.analyze.lines.logged_calls import BUCKET_ELEMENTS, TimedOut
from unhang.analyze.lines.odd_ones import agreeable, odd_in_calls, unlike_of_the_odd
from unhang.analyze.lines.own_lines import OwnLine, before_the_wait, by_rank, by_words, own_lines
from unhang.analyze.lines.phases import ENDS_PASS
from unhang.model import grouped
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_ENDED_THERE = ("ending.cancelled", "python.interrupted", "elastic.death_signal")
_LEAVES = lazy_pattern(
    r"\b(?:skip(?:s|ped|ping)?|stop(?:s|ped|ping)?|left|leav(?:es|ing)|break(?:s|ing)?(?: out)?|exit(?:s|ed|ing)?|dropp?(?:s|ed|ing)|bypass\w*"
    r"|exhausted|depleted|nothing (?:to|left)|return(?:s|ed|ing)? early|(?:no|out of|without)(?: more)? (?:ops?|operations|data|batch(?:es)?"
    r"|samples?|tokens|work|tasks|rows|items|files|examples)"
    r"|abandon\w*|discard\w*|ignor(?:es|ed|ing)|bail(?:s|ed|ing)?(?: out)?|g(?:ives?|ave|iving) up|quit(?:s|ting)?|StopIteration|early[- ]stop\w*"
    r"|f(?:a|e)ll(?:s|ing)? ?back|end of (?:data|stream|iterator|input|shard|file)"
    r"|empty (?:batch|shard|input|queue)|ran (?:dry|out)|finished (?:its|my|the) (?:shard|data|part|split))\b",
    re.IGNORECASE,
)
_OF_DATA = lazy_pattern(
    r"(?:no|out of)(?: more)? (?:data|batch|sample|row|item|file|example)|exhausted|depleted|ran dry"
    r"|StopIteration|empty shard|end of (?:data|epoch|stream|iterator|input|shard|file)|finished (?:its|my|the) (?:shard|data|split)",
    re.IGNORECASE,
)
_NOT_YET = lazy_pattern(
    r"\b(?:will|would|if|when|may|set|enabled?|config\w*|args?|default|errors?|fail\w*|exit status|exception|warn\w*)\b",
    re.IGNORECASE,
)
_LEVEL = lazy_pattern(r"\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR)\b")
_SHAPE = lazy_pattern(r"[\[(] ?#(?:, ?#)+,? ?[\])]|\bshape|\bsize", re.IGNORECASE)
_ROUNDS = r"(?:(?:mini|micro)[ _-]?)?(?:batch(?:es)?|steps|iterations|rounds|shards|files|chunks)"
_BEFORE_ROUNDS = lazy_pattern(rf"^ ?(?:[A-Za-z]+ ){{0,2}}{_ROUNDS}\b", re.IGNORECASE)
_OF_WHAT = r"(?:epoch|pass|rank|gpu|worker|process|node|device|split|train\w*|valid\w*|eval\w*|test|loader|dataset)"
_WHICH = rf"(?:[ _](?:loaded|found|available|total|planned|(?:per|in|of|for)(?:[ _](?:an?|the|each|this|one))?[ _]{_OF_WHAT}))?"
_BEHIND_ROUNDS = lazy_pattern(rf"\b(?:num_|n_|number of )?{_ROUNDS}{_WHICH}[ :=]{{1,3}}$", re.IGNORECASE)
_DATA = (
    r"(?:samples|examples|patches|rows|sequences|prompts|experiences|images|items|documents|records|utterances|graphs)"
)
_BEFORE_DATA = lazy_pattern(rf"^ ?(?:[A-Za-z]+ ){{0,2}}{_DATA}\b", re.IGNORECASE)
_BEHIND_DATA = lazy_pattern(
    rf"(?:\b(?:num_|n_|number of )?{_DATA}|(?:data|buffer|loader|shard|split)\w{{0,24}})['\")\]]{{0,2}}[ :=]{{1,3}}$",
    re.IGNORECASE,
)
_BATCH_NUMBER = lazy_pattern(r"\bbatch(?:[_ ](?:idx|index|number|nr))?[ :=]{1,3}$", re.IGNORECASE)
_EQUAL_BEFORE, _LEAST_RANKS, _MOST_SAID, _NEAR_THE_END, _FEWEST, _TWO, _MOST_KINDS = 2, 2, 3, 400, 2, 2, 12


class Apart(NamedTuple):
    """The ranks that are told apart, and what was said: their lines first, then those of others beside them. `is_data`: that their data ended."""

    ranks: tuple[int, ...]
    lines: Sequence[OwnLine]
    is_data: bool = False


def skipped_or_left(s: Situation) -> Apart | None:
    """The fewer ranks that said they skip or leave something, or once more than the others that their pass ends, and after which nothing moved.

    Nothing where a rank may be missing in the log, unless those that said it are just those that did not wait; where rank 0 alone speaks
    for all; and where it is told at once what is only set up.
    """
    if s.watchdogs.first is None and not _was_ended(s):
        return None
    of_ranks = by_rank(before_the_wait(s))
    everybody, waited = set(range(s.case.job.world_size or len(of_ranks))), who_waited(s)
    if len(of_ranks) < _LEAST_RANKS or not everybody.issuperset(of_ranks):
        return None
    for words, told in by_words(of_ranks).items():
        counts = Counter({r: len(lines) for r, lines in told.items()})
        most = max(counts.values())
        ranks = {r for r in everybody if counts[r] == most}
        others = everybody - ranks
        if not others or any(counts[r] != most - 1 for r in others) or _NOT_YET.search(_LEVEL.sub("", words)):
            continue
        if len(of_ranks) < len(everybody) and waited != others:
            continue
        leaves = most == 1 and _LEAVES.search(words) and (ranks != {0} or waited == others)
        ends = bool(ENDS_PASS.search(words)) and 0 not in ranks and bool(waited) and not waited & ranks
        lines = [next(x for x in reversed(of_ranks[r]) if x.words == words) for r in sorted(ranks)]
        is_few = len(ranks) < len(others) or len(everybody) == _LEAST_RANKS or (ends and waited == others)
        beside_it = {x.order for r in others for x in of_ranks.get(r, ())} if ends and waited == others else set()
        if (leaves or ends) and is_few and _ends_there(s, of_ranks, lines, beside_it):
            beside = [of_ranks[r][-1] for r in sorted(others) if r in of_ranks]
            return Apart(tuple(sorted(ranks)), [*lines, *beside[:_MOST_SAID]], ends or bool(_OF_DATA.search(words)))
    return None


def _was_ended(s: Situation) -> bool:
    """Whether somebody ended the job: a terminal shows Ctrl-C as `^C`."""
    return s.events.has(*_ENDED_THERE) or any(line.text.startswith("^C") for line in s.case.log[-_NEAR_THE_END:])


def a_round_behind(s: Situation) -> tuple[int, ...]:
    """The one rank that said something once less than every other rank, all of which said it equally often, and twice or more; else none."""
    of_ranks = by_rank(before_the_wait(s))
    found = set()
    for told in by_words(of_ranks).values():
        said = {rank: len(told.get(rank, ())) for rank in of_ranks}
        most = max(said.values())
        behind = [rank for rank in of_ranks if said[rank] < most]
        if len(behind) == 1 and len(of_ranks) >= 3 and said[behind[0]] == most - 1 > 0:
            found.add(behind[0])
    return tuple(found) if len(found) == 1 else ()


def _ends_there(
    s: Situation, of_ranks: Mapping[int, Sequence[OwnLine]], lines: Sequence[OwnLine], beside: Collection[int]
) -> bool:
    """Whether these ranks said nothing behind it that others say as well, and no step was told behind it; but for lines of those that then waited, `beside`."""
    last = max(x.order for x in lines)
    first = s.watchdogs.first.order if s.watchdogs.first is not None else len(s.case.log)
    starts = {e.order for e in s.events.of("progress.bar") if e.number("done") == 0}
    if any(last < e.order < first and e.is_progress and e.order not in {*starts, *beside} for e in s.events):
        return False
    theirs = {x.rank for x in lines}
    common = {x.words for r, xs in of_ranks.items() if r not in theirs for x in xs}
    return not any(x.order > line.order and x.words in common for line in lines for x in of_ranks[line.rank or 0])


def another_branch(s: Situation) -> Apart | None:
    """Several ranks that had completed all that they issued and had not issued the call in which all others waited, after words that these never said, and they not theirs."""
    known, waited = missing_by_lines(s), set(s.watchdogs.ranks)
    missing = set(known[0]) if known is not None else set()
    if len(missing) < _LEAST_RANKS or len(waited) < _LEAST_RANKS or missing & waited:
        return None
    of_ranks = by_rank(before_the_wait(s))
    said = by_words(of_ranks)
    theirs, others = (
        [xs[-1] for r in sorted(side) if (xs := of_ranks.get(r)) and said[xs[-1].words].keys().isdisjoint(against)]
        for side, against in ((missing, waited), (waited, missing))
    )
    return Apart(tuple(sorted(missing)), [*theirs[:_MOST_SAID], *others[:_MOST_SAID]]) if theirs and others else None


_OF_ALL_RANKS = lazy_pattern(
    r"\b(?:all[_ -]?gather|all[_ -]?reduce|reduce[_ -]?scatter|all[_ -]?to[_ -]?all|broadcast|barrier|low_latency_(?:dispatch|combine)"
    r"|(?:expert|ep|token)s?[_ ](?:dispatch|combine))\w*",
    re.IGNORECASE,
)


def in_another_order(s: Situation) -> Apart | None:
    """Ranks that told of the same two calls of all ranks as often as each other, in another order: the fewer ones, first; of two halves nobody."""
    if s.watchdogs.first is None:
        return None
    calls = {r: [x for x in xs if _OF_ALL_RANKS.search(x.words)] for r, xs in by_rank(before_the_wait(s)).items()}
    kinds = list(dict.fromkeys(x.words for xs in calls.values() for x in xs))[:_MOST_KINDS]
    for a, b in combinations(kinds, 2):
        told = {r: found for r, xs in calls.items() if (found := [x for x in xs if x.words in (a, b)])}
        counts = {tuple(sorted(Counter(x.words for x in xs).items())) for xs in told.values()}
        sides = grouped((tuple(x.words for x in xs), r) for r, xs in told.items())
        if len(counts) == 1 and len(next(iter(counts))) == 2 and len(sides) == _LEAST_RANKS:
            few, many = sorted(sides.values(), key=len)
            at = next(i for i, (x, y) in enumerate(zip(told[few[0]], told[many[0]], strict=True)) if x.words != y.words)
            lines = [x for r in (few[0], many[0]) for x in told[r][at : at + 2]]
            return Apart(tuple(sorted(few)) if len(few) < len(many) else (), lines)
    return None


class Unlike(NamedTuple):
    """Numbers in the same words: equal on all ranks in every round before, and unlike in the last one. `lines`: the last, of each rank.

    `odd`: the ranks that stand apart in their calls as well, where that is how the numbers were found. `is_rounds`: they count batches, or what
    makes them; `is_fewer`: and those of `odd` are fewer than those of all others. `place`: which of the numbers it is, where it alone sets them apart.
    """

    lines: Sequence[OwnLine]
    is_shape: bool
    odd: tuple[int, ...] = ()
    is_rounds: bool = False
    is_fewer: bool = False
    place: int | None = None


def unlike_numbers(s: Situation) -> Unlike | None:
    """The latest such line before the wait; else one that sets those ranks apart that their calls set apart, too."""
    if s.watchdogs.first is None:
        return _fewer_rounds(s) if _was_ended(s) else None
    rounds, world = by_words(by_rank(before_the_wait(s))), s.case.job.world_size
    found = [x for told in rounds.values() if (x := _unlike_at_last(told, world)) is not None]
    if found:
        return max(found, key=lambda x: max(line.order for line in x.lines))
    odd = unlike_of_the_odd(s)
    unlike = [p for p in agreeable(odd[0]) if len({line.values[p] for line in odd}) > 1] if odd else []
    is_rounds = any(_counts_rounds(odd[0], p) for p in unlike)
    return Unlike(odd, bool(_SHAPE.search(odd[0].words)), odd_in_calls(s), is_rounds) if odd else _fewer_rounds(s)


def _fewer_rounds(s: Situation) -> Unlike | None:
    """Where the ranks stand on two sides, and one of them told a smaller number of rounds, or of data, than the other."""
    for one, other in _two_sides(s):
        lines = rounds_apart(s, one, other)
        parts = lines[0].words.split("#") if lines else []
        at = [p for p, x in enumerate(parts[:-1]) if _counts_rounds(lines[0], p) and not _BATCH_NUMBER.search(x)]
        for place in at:
            if not all(x.values[place].isdecimal() for x in lines):
                continue
            mine, theirs = ({int(x.values[place]) for x in lines if x.rank in side} for side in (one, other))
            if max(mine) < min(theirs) or max(theirs) < min(mine):
                return Unlike(lines, False, tuple(sorted(one if max(mine) < min(theirs) else other)), True, True)
    return None


def _two_sides(s: Situation) -> Iterator[tuple[Collection[int], Collection[int]]]:
    """All ranks, by the two kinds of call in which they wait; where no wait ran out, those that said something once more than the others, and these."""
    of_ranks = by_rank(before_the_wait(s))
    everybody, waits = set(range(s.case.job.world_size or len(of_ranks))), s.watchdogs.timed_out
    if waits:
        sides = grouped((op, rank) for rank, op in {x.rank: x.op for x in waits if x.rank is not None and x.op}.items())
        if len(sides) == _TWO and {r for side in sides.values() for r in side} == everybody:
            one, other = sides.values()
            yield one, other
        return
    for told in by_words(of_ranks).values():
        counts = {r: len(told.get(r, ())) for r in everybody}
        most = max(counts.values())
        ahead = {r for r, n in counts.items() if n == most}
        if ahead != everybody and all(counts[r] == most - 1 for r in everybody - ahead):
            yield ahead, everybody - ahead


def rounds_apart(s: Situation, odd: Collection[int], others: Collection[int]) -> Sequence[OwnLine]:
    """The last lines, in the same words, of ranks that also stand apart in their calls, and of the others: each side has one number of rounds, and not the same.

    The amounts of data of the others may differ as well, if all are larger, or all smaller.
    """
    of_ranks, wanted = by_rank(before_the_wait(s)), (*odd, *others)
    for lines in by_words({r: of_ranks.get(r, ()) for r in wanted}).values():
        if not lines.keys() >= {*wanted}:
            continue
        told = {r: xs[-1] for r, xs in lines.items()}
        first = told[min(odd)]
        for place in agreeable(first):  # the seconds of a clock stand before a word, too
            mine, theirs = ({told[r].values[place] for r in side} for side in (odd, others))
            is_amount = _counts_data(first, place) and all(v.isdecimal() for v in mine | theirs)
            if is_amount and {"0"} in (mine, theirs) and _have_a_batch([told[r] for r in wanted]):
                continue  # none of one sort in a batch that each has: a branch may hang on it, no round does
            counts = is_amount or _counts_rounds(first, place) or _BATCH_NUMBER.search(first.words.split("#")[place])
            is_apart = len(mine) == len(theirs) == 1 and mine != theirs
            if (counts and is_apart) or (is_amount and _are_beyond(set(map(int, mine)), set(map(int, theirs)))):
                return [told[r] for r in sorted(told)]
    return ()


_IN_A_BATCH = lazy_pattern(rf"\b(?:tokens|{_DATA})['\")\]]{{0,2}}[ :=]{{1,3}}$", re.IGNORECASE)


def _have_a_batch(lines: Sequence[OwnLine]) -> bool:
    """Whether the ranks tell in the same lines of data of which each has as much as the others."""
    places = [p for p, before in enumerate(lines[0].words.split("#")[:-1]) if _IN_A_BATCH.search(before)]
    amounts = ({x.values[p] for x in lines} for p in places if p < len(lines[0].values))
    return any(len(of) == 1 and of.isdisjoint({"0"}) for of in amounts)


def _are_beyond(mine: Collection[int], theirs: Collection[int]) -> bool:
    return max(mine) < min(theirs) or min(mine) > max(theirs)


def _counts_data(line: OwnLine, place: int) -> bool:
    """Whether a number of a line is the amount of data that a rank has."""
    parts = line.words.split("#")
    return bool(_BEFORE_DATA.search(parts[place + 1]) or _BEHIND_DATA.search(parts[place]))


def _counts_rounds(line: OwnLine, place: int) -> bool:
    """Whether a number of a line is one of batches, or of files."""
    parts = line.words.split("#")
    return bool(_BEFORE_ROUNDS.search(parts[place + 1]) or _BEHIND_ROUNDS.search(parts[place]))


def _unlike_at_last(told: Mapping[int, Sequence[OwnLine]], world: int | None) -> Unlike | None:
    """Of each number in the words: fractions are measured, not agreed on, and what differed before is each rank's own."""
    counts = {len(lines) for lines in told.values()}
    if len(told) < _LEAST_RANKS or (world or len(told)) != len(told) or len(counts) != 1:
        return None
    count = next(iter(counts))
    if count <= _EQUAL_BEFORE:
        return None
    last = [lines[-1] for _, lines in sorted(told.items())]
    for place in agreeable(last[0]):
        by_round = [{lines[i].values[place] for lines in told.values()} for i in range(count)]
        is_whole = all(v.lstrip("+-").isdecimal() for values in by_round for v in values)
        if is_whole and len(by_round[-1]) > 1 and all(len(values) == 1 for values in by_round[:-1]):
            is_rounds = _counts_rounds(last[0], place)
            return Unlike(last, bool(_SHAPE.search(last[0].words)), is_rounds=is_rounds, place=place)
    return None


_LACKS = lazy_pattern(
    r"\b(?:no|not? (?:yet )?(?:received?|got) (?:a|any)|without(?: an?y?)?|(?:wait(?:s|ed|ing)?|starv\w+) (?:for|of)(?: the| an?| its?)?|awaiting)"
    r"(?: \w+){0,2} (?:(?:mini|micro)-?batch|batch(?:es)?|data|dataloader|loader|samples?|examples?|prefetch\w*)\b.{0,30}# ?(?:s|secs?|seconds|min|minutes)\b",
    re.IGNORECASE,
)


def lacks_data(s: Situation) -> Apart | None:
    """The few ranks that did not wait in the call, said again and again for how long their data lacks, and nothing else after that."""
    waited, of_ranks = set(s.watchdogs.ranks), by_rank(before_the_wait(s))
    theirs = {x.words for r in waited & of_ranks.keys() for x in of_ranks[r]}
    told: dict[int, list[OwnLine]] = {}
    for rank, lines in of_ranks.items():
        is_own = rank not in waited and lines[-1].words not in theirs
        last = [x for x in lines if x.words == lines[-1].words] if is_own else []
        if len(last) > 1 and last[-1].values != last[-2].values and _LACKS.search(last[-1].words):
            told[rank] = last
    if not waited or not 0 < len(told) < max(_LEAST_RANKS, len(waited)):
        return None
    return Apart(tuple(sorted(told)), [x for r in sorted(told) for x in told[r][-2:]], is_data=True)


_TOOK = lazy_pattern(r"(?<![\w.:])(\d{1,7}(?:\.\d+)?) ?(s|secs?|seconds|min|minutes|h|hours?)\b(?![/.])")
_UNIT_S, _MANY_TIMES, _LEAST_TOOK, _SHARE_OF_LIMIT = {"m": 60, "h": 3600}, 10, 3, 0.9


class TookLonger(NamedTuple):
    """Ranks that took far longer for something than the others. `seconds`, `usual_s`: the longest of theirs, and the median of the others."""

    ranks: tuple[int, ...]
    lines: Sequence[OwnLine]
    seconds: float
    usual_s: float


def took_longer(s: Situation) -> TookLonger | None:
    """The fewer ranks that told of a time in the same words as most others, longer than the limit of the wait and ten times that of the others.

    Nobody who waited: its time may be that of the wait.
    """
    waited, limits = set(s.watchdogs.ranks), [x.limit_ms for x in s.watchdogs.timed_out if x.limit_ms]
    if not limits:
        return None
    least = _SHARE_OF_LIMIT * min(limits) / 1000
    for took in _times(s):
        long = {r for r, (seconds, _) in took.items() if seconds >= least}
        others = sorted(took[r][0] for r in took.keys() - long)
        usual = others[len(others) // 2] if others else 0.0
        if not long or long & waited or len(others) < max(_LEAST_TOOK, len(long)):
            continue
        if min(took[r][0] for r in long) >= _MANY_TIMES * max(usual, others[-1]):
            lines = [took[r][1] for r in sorted(long)]
            beside = [took[r][1] for r in sorted(took.keys() - long)][:_MOST_SAID]
            return TookLonger(tuple(sorted(long)), [*lines, *beside], max(took[r][0] for r in long), usual)
    return None


def _times(s: Situation) -> Sequence[Mapping[int, tuple[float, OwnLine]]]:
    """For each kind of line with a time at its end: how many seconds each rank told last."""
    told: dict[str, dict[int, tuple[float, OwnLine]]] = {}
    for line in own_lines(s):
        if line.rank is not None and (times := _TOOK.findall(line.said)):
            number, unit = times[-1]
            told.setdefault(line.words, {})[line.rank] = float(number) * _UNIT_S.get(unit[0], 1), line
    return tuple(told.values())


def later_by(s: Situation, seconds: float) -> TookLonger | None:
    """The one rank that told of a longer time than all others, two at least, by more than so many seconds."""
    for took in _times(s):
        *others, (most, last) = sorted(took.items(), key=lambda x: x[1][0])
        if len(others) >= _FEWEST and last[0] - others[-1][1][0] > seconds:
            return TookLonger((most,), [last[1], *(x[1] for _, x in others[:_MOST_SAID])], last[0], others[-1][1][0])
    return None


class FewInACall(NamedTuple):
    """A call that some ranks wait in, and that others, who stand by in nothing, never made."""

    wait: TimedOut
    waiting: tuple[int, ...]
    idle: tuple[int, ...]


def few_in_a_call(s: Situation) -> FewInACall | None:
    """The first group in which no fewer ranks have completed all that they issued, before that call, than wait in it; two at least.

    One rank may be at work, and the fewer may be late. In training a large reduction may be a batch more than the others have.
    """
    trains = any(e.is_progress for e in s.events)
    for wait in s.watchdogs.timed_out:
        known = [c for c in s.watchdogs.counters if c.group == wait.group]
        idle = [c.rank for c in known if c.completed == c.enqueued and wait.seq is not None and c.enqueued < wait.seq]
        waiting = {x.rank for x in s.watchdogs.timed_out if x.group == wait.group and x.seq == wait.seq} - {None}
        is_batch = trains and "REDUCE" in wait.op and (wait.numel_in or 0) >= BUCKET_ELEMENTS
        is_whole = len(waiting) + len(idle) == len(known) and not set(idle) & set(s.watchdogs.ranks)
        may_be_late = wait.is_barrier and len(waiting) == 1 and 0 not in waiting  # programs single out rank 0
        if waiting and len(idle) >= max(_FEWEST, len(waiting)) and is_whole and not (is_batch or may_be_late):
            return FewInACall(wait, tuple(sorted(r for r in waiting if r is not None)), tuple(sorted(idle)))
    return None
