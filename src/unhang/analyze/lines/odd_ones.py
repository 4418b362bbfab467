"""Who stands apart from the ranks that wait, by the last that each of them told: its end, a count past theirs, other numbers, or work that all do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.lines.going_on import may_wait, missing_by_lines, silent_ranks, who_waited
from unhang.analyze.lines.logged_calls import TimedOut
from unhang.analyze.lines.own_lines import OwnLine, before_the_wait, by_rank, by_words, own_lines
from unhang.model import grouped
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.logs.attempts import is_last_word

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_MOST_SAID, _LAST_OWN, _MOST_CHARS, _LEAST_OTHERS = 3, 8, 300, 3
_LEFT = lazy_pattern(
    r"\b(?:destroy(?:ed|ing)? (?:the )?process[ _]group\b.{0,12}\b(?:done|ok)|process[ _]group (?:was |is )?(?:destroyed|finalized|closed|shut down)"
    r"|(?:rank|worker|process)\b.{0,12}\b(?:exits?|exited|exiting|leaves|left|shut down)\b|exiting\b"
    r"|leaving (?:the )?(?:train|fit|main|run|loop|epoch)\w*\b|exit(?:ed|s)? (?:with )?(?:code )?0\b|good ?bye\b|bye\b)",
    re.IGNORECASE,
)
_OF_THE_TEST = lazy_pattern(
    r"\btest(?:ing)?[ _-](?:set[ _-])?(?:loss|acc\w*|error\w*|scores?|results?|metrics?|wer|cer|f1|auc|m?ap|ppl|bleu)\b",
    re.IGNORECASE,
)
_NAMED_COUNT = lazy_pattern(
    r"\b(?:step|iter(?:ation)?|(?:mini|micro)?-?batch(?:[ _]idx)?|sample|example|update)s?(?:[ _](?:no|num|number|idx|index))?[ .:=#\[(]{1,3}(\d{1,9})(?![\d.]*\d\.)",
    re.IGNORECASE,
)
_COUNT_OF = lazy_pattern(
    r"(?<![\w./:=])(\d{1,9})(?: ?/ ?\d{1,9})? ?(?:it|its|batch(?:es)?|steps?|iters?|iterations?|samples?|examples?|sequences?|micro-?batches)\b(?!/)",
    re.IGNORECASE,
)
_OF_EVALUATION = lazy_pattern(r"\b(?:valid\w*|eval\w*|test\w*|predict\w*)\b", re.IGNORECASE)
_COMMON = lazy_pattern(
    r"\b(?:dcp|shard\w*|fsdp|zero|distributed|all ranks|each rank|per[- ]rank|writers|every rank)\b", re.IGNORECASE
)
_WORK = lazy_pattern(
    r"\b(?:sav(?:e|es|ing)|checkpoint\w*|ckpt|writ(?:e|es|ing)|dump\w*|export\w*|upload\w*|snapshot\w*|flush\w*|offload\w*)\b",
    re.IGNORECASE,
)
_NO_WORK = lazy_pattern(
    r"\b(?:saved|done|complete\w*|finish\w*|wrote|written|took|every|interval|enabled?|will|skip\w*|load\w*|resum\w*|restor\w*)\b",
    re.IGNORECASE,
)


# What a count that moves is told with, where it stands there once: its pass, its pace, or its end.
_MOVES = lazy_pattern(
    r"\b(?:end(?:ed|s)?|done|finish\w*|complet\w*|after|processed|trained|exhausted|epochs?)\b|\[#?:?#", re.IGNORECASE
)


class Told(NamedTuple):
    """The ranks that stand apart, and the lines that tell so: theirs first, then those of others beside them."""

    ranks: tuple[int, ...]
    lines: Sequence[OwnLine]


def told_its_end(s: Situation) -> Told | None:
    """The one rank that said that it ends, or that the whole is over, after which nothing of it moved, before all others' wait ran out.

    What bears no rank is rank 0's where all others wait. That the training is over is no end where the others wait in what may be a
    barrier: behind the loop there is work that one rank does alone.
    """
    first, waited = s.watchdogs.first, who_waited(s)
    if first is None or not waited:
        return None
    is_0 = s.watchdogs.all_but_0_of(s.case.job.world_size) and 0 not in may_wait(s)
    before = ((0 if is_0 and x.rank is None else x.rank, x) for x in own_lines(s) if x.order < first.order)
    said = grouped((rank, x) for rank, x in before if rank is not None)
    ends = {r: found for r, lines in said.items() if (found := _end_among(s, lines)) is not None}
    if len(ends) != 1 or set(ends) & (waited | may_wait(s)):
        return None
    ((rank, (line, is_gone)),) = ends.items()
    trains = [x for x in s.watchdogs.timed_out if not x.is_barrier and ("REDUCE" in x.op or _of_shards(s, x))]
    if not is_gone and len(trains) != len(s.watchdogs.timed_out):
        return None
    return Told((rank,), [line])


_SHARDED = lazy_pattern(
    r"\bfully_shard\b|FullyShardedDataParallel|\bFSDP2?\b|/distributed/fsdp/|/_fsdp/|ZeRO stage 3|ZeRO-3\b|zero_optimization_stage \.+ 3\b"
    r"|\bzero_stage[=: ]+3\b|\bstage3\.py\b|/runtime/zero/",
    re.IGNORECASE,
)
_OF_PARAMETERS = ("_ALLGATHER_BASE", "ALLGATHER_COALESCED")


def _of_shards(s: Situation, wait: TimedOut) -> bool:
    """Whether a gather is of parameters that lie on all ranks in parts: it is made in the middle of the model, and by no rank alone."""
    return wait.op in _OF_PARAMETERS and any(_SHARDED.search(x.text[:_MOST_CHARS]) for x in s.case.log)


def _end_among(s: Situation, lines: Sequence[OwnLine]) -> tuple[OwnLine, bool] | None:
    """The last word among the last lines of one rank, and whether it says that the process itself goes; None where it has begun to go and may hang in that."""
    last = lines[-_LAST_OWN:]
    begun = {e.order for e in s.events.of("ending.destroying")}
    if any(x.order in begun and not _LEFT.search(x.said) for x in last):
        return None
    ends = (x for x in last if _LEFT.search(x.said) or is_last_word(x.said) or _is_first_result(x, lines))
    at = [(x, bool(_LEFT.search(x.said))) for x in ends]
    found = next((x for x in reversed(at) if x[1]), at[-1] if at else None)
    if found is None:
        return None
    after = [e for e in s.events if e.order > found[0].order and e.order <= lines[-1].order]
    moves = any(e.is_progress or e.kind in ("work.saving", "work.preparing", "work.evaluating") for e in after)
    return None if moves else found


def _is_first_result(line: OwnLine, lines: Sequence[OwnLine]) -> bool:
    """Whether it tells of the test set for the first time, as is done once, behind the training."""
    return bool(_OF_THE_TEST.search(line.said)) and [x.words for x in lines].count(line.words) == 1


def counted_past(s: Situation) -> Told | None:
    """The ranks that counted to the same number and do not wait, where who waits counted to less, in the same words and later in the log.

    Nobody who takes part in each round can be ahead of one that waits: they have left the loop. What each tells only once, without a pass or
    a pace, is an amount that it has, not a count that moves.
    """
    waited = who_waited(s)
    if not waited:
        return None
    told: dict[str, dict[int, tuple[int, OwnLine]]] = {}
    moving: set[str] = set()
    for x in own_lines(s):
        text = x.line.text[:_MOST_CHARS] if x.rank is not None else ""
        count = _NAMED_COUNT.search(text) or _COUNT_OF.search(text)
        if count is not None and x.rank is not None and not _OF_EVALUATION.search(x.words):
            words = " ".join(_NUMBER.sub("#", text[: count.end()]).split())
            moving |= {words} if x.rank in told.get(words, ()) or _MOVES.search(x.words) else set()
            told.setdefault(words, {})[x.rank] = int(count[1]), x
    for counts in (of for words, of in told.items() if words in moving):
        most = max(n for n, _ in counts.values())
        past = {r for r, (n, _) in counts.items() if n == most}
        rest = counts.keys() - past
        is_known = rest & waited and not past & (waited | may_wait(s))
        if not is_known or len(past | rest | waited) < (s.case.job.world_size or 0):
            continue
        last_of_past = max(counts[r][1].order for r in past)
        late = [r for r in sorted(rest) if counts[r][1].order > last_of_past]
        if late and _same_pass([counts[r][1] for r in (*past, *rest)]):
            return Told(tuple(sorted(past)), [counts[r][1] for r in (*sorted(past)[:_MOST_SAID], *late[:_MOST_SAID])])
    return None


_NUMBER = lazy_pattern(r"\d+(?:\.\d+)?")
_EPOCH = lazy_pattern(r"\bepochs?\b\W{0,4}(\d{1,6})", re.IGNORECASE)


def _same_pass(lines: Sequence[OwnLine]) -> bool:
    """Whether all lines are of one epoch, where they tell it."""
    return len({m[1] if (m := _EPOCH.search(x.line.text)) else "" for x in lines}) == 1


def odd_in_calls(s: Situation) -> tuple[int, ...]:
    """The fewer ranks that wait elsewhere than in the one call in which three or more others wait, or that alone do not wait at all."""
    places = {x.rank: (x.op, x.seq, x.numel_in) for x in reversed(s.watchdogs.timed_out) if x.rank is not None and x.op}
    if s.watchdogs.has_subgroups or not places:
        return ()
    (usual, count), *others = Counter(places.values()).most_common()
    odd = {r for r, place in places.items() if place != usual}
    if count < _LEAST_OTHERS or len(odd) * _LEAST_OTHERS > count:
        return ()
    known = missing_by_lines(s) if not others else None
    return tuple(sorted(odd)) if odd else known[0] if known else silent_ranks(s)


def unlike_of_the_odd(s: Situation) -> Sequence[OwnLine]:
    """The last line of each rank in the same words, whole numbers of which are alike on all ranks but those that also stand apart in their calls."""
    odd = set(odd_in_calls(s))
    if not odd:
        return ()
    world = s.case.job.world_size or max(max(odd), *s.watchdogs.ranks) + 1
    told = by_words(by_rank(before_the_wait(s))).values()
    last = ({r: lines[-1] for r, lines in x.items()} for x in told if len(x) == world)
    found = [list(x.values()) for x in last if _sets_apart(x, odd)]
    return max(found, key=lambda lines: max(x.order for x in lines), default=())


def _sets_apart(told: Mapping[int, OwnLine], odd: set[int]) -> bool:
    """Whether a number is the same on all others, and not on any of the odd."""
    others = [x.values for r, x in told.items() if r not in odd]
    mine = [x.values for r, x in told.items() if r in odd]
    positions = agreeable(next(iter(told.values())))
    return any(
        len({v[p] for v in others}) == 1 and all(v[p] != others[0][p] and v[p].isdecimal() for v in mine)
        for p in positions
        if others[0][p].isdecimal()
    )


_MEASURED = lazy_pattern(
    r"^ ?(?:ms|us|s|sec\w*|min\w*|h|hours?|%|[KMGT]i?B|bytes|it/s|fps|/s|tok\w*/s)\b|^%", re.IGNORECASE
)
_OF_A_RANK = lazy_pattern(
    r"(?:time|elapsed|eta|took|mem\w*|alloc\w*|cached?|reserved|port|pid|tid|device|gpu|cuda|local[_ ]?rank|host|node|fd|addr\w*|id|uuid|seed"
    r"|fps|speed|throughput|rate|usage|util\w*|latency|version)\W{0,4}$",
    re.IGNORECASE,
)


def agreeable(line: OwnLine) -> tuple[int, ...]:
    """Which numbers of a line ranks may agree on: no clocks, dates, amounts of time or memory, and nothing that is each rank's own."""
    parts = line.words.split("#")
    found = []
    for i in range(len(parts) - 1 if len(parts) == len(line.values) + 1 else 0):
        before, behind = parts[i], parts[i + 1]
        is_clock = (i and before in (":", "-", ".", ",")) or behind in (":", "-", ".")
        if not (is_clock or _MEASURED.search(behind) or _OF_A_RANK.search(before)):
            found.append(i)
    return tuple(found)


def late_in_common_work(s: Situation) -> Told | None:
    """Several ranks that have not come to a barrier in which the rank that had told of common work waits itself: these are not done with it.

    Fewer than wait, in a world of known size, and the work is the last that was told.
    """
    waits, waited, first = s.watchdogs.timed_out, set(s.watchdogs.ranks), s.watchdogs.first
    world = s.case.job.world_size or 0
    late = set(range(world)) - waited
    is_known = first is not None and late and 2 * len(late) < len(waited) and not late & may_wait(s)
    if not is_known or not waits or s.watchdogs.has_subgroups or not all(x.is_barrier for x in waits):
        return None
    if len({x.seq for x in waits}) > 1 or max(waited) >= world:
        return None
    said = [x for x in before_the_wait(s) if x.rank in waited or (x.rank is None and 0 in waited)]
    last = said[-1] if said else None
    text = last.said if last is not None else ""
    is_work = bool(_WORK.search(text)) and not _NO_WORK.search(text) and any(e.is_progress for e in s.events)
    if last is None or not is_work or not (len(late) > 1 or _COMMON.search(text)):
        return None
    return Told(tuple(sorted(late)), [last])
