"""The rule on stacks that end in different calls, where no recorded call says how the ranks parted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from unhang.analyze.activity import OF_RAY
from unhang.analyze.lines.pasted import Doing, doings_of
from unhang.analyze.lines.phases import ends_pass
from unhang.analyze.program.callpath import Fork, fork_of, line_to_look_at
from unhang.analyze.program.sides import ByCondition, Side, decided_by_condition
from unhang.analyze.program.source import lines_that_call_the_same, surroundings
from unhang.analyze.situation import Situation
from unhang.analyze.waits.host_waits import Forgetful, asks_ray, forgetful_actor, method_of
from unhang.analyze.waits.open_calls import (
    all_in_unknown_calls,
    all_wait_for_ray,
    all_without_task,
    driver_without_answer,
    is_under_way,
)
from unhang.analyze.waits.polling import blocked_loop
from unhang.analyze.waits.standing import Stand, has_all_calls, sides, stands
from unhang.model import EvidenceLine, Fix, Frame, WaitEdge, grouped, user_frames
from unhang.rules import wording as w
from unhang.rules.advice import OF_THE_DATA, fixes_of, gate_of, said_plainly, say_the_condition
from unhang.rules.base import Found, Names, rule
from unhang.rules.host_waits import threads_for
from unhang.rules.wording import both


@rule("stacks-disagree")
def stacks_disagree(s: Situation) -> Found | None:
    """Named ranks whose stacks end in different calls: in a log, in looks from outside, or of processes without a recorder."""
    if _leads_to_unrecorded(s):
        return _apart(s, stands(s.case, is_watched=True), is_whole=True)
    is_unknown = bool(all_in_unknown_calls(s))
    if s.standing is not None or is_unknown:
        return _apart(s, stands(s.case, is_unknown)) if s.is_hang and not has_all_calls(s.case) else None
    named = [d for d in doings_of(s) if d.ranks]
    if not named:
        return _nobodys(s, doings_of(s))
    waiting = [d for d in named if d.kind in ("collective", "device", "idle")]
    ways: dict[tuple[str, str], list[Doing]] = {}
    fork = _fork_in_one_call(waiting)
    for d in waiting:
        called_by = fork.get(d.ranks) or d.caller
        place = "" if called_by is None else str(called_by) if fork else called_by.function
        ways.setdefault(("", "") if d.kind == "idle" else (d.what, place), []).append(d)
    calls = {what for what, _ in ways}
    is_bare = len(calls) < 2 and any(not place for _, place in ways)
    is_bare = is_bare or (not fork and any(d.kind == "device" for d in waiting))
    if len(named) != len(waiting) or len(ways) < 2 or is_bare or calls == {""}:
        return None
    ranks_of = {way: sorted({r for d in found for r in d.ranks}) for way, found in ways.items()}
    fewest = min(map(len, ranks_of.values()))
    odd = [way for way, ranks in ranks_of.items() if len(ranks) == fewest]
    culprits = tuple(ranks_of[odd[0]]) if len(odd) == 1 else ()
    words = {
        "sides": "; ".join(
            f"{w.name_ranks(ranks)} {_where(what, place, ranks)}" for (what, place), ranks in ranks_of.items()
        ),
        "odd": f"{w.name_ranks(culprits)} left the way that most ranks took."
        if culprits
        else "No way has fewer ranks than the others.",
    }
    where = ways[odd[0]][0]
    done = _done_with_the_pass(s, waiting)
    return Found(
        0.85 if len(calls) > 1 and all(calls) else 0.7,
        done or culprits,
        [w.stack_of(d) for d in waiting[:6]],
        words,
        location=(fork.get(where.ranks) or where.caller) if culprits else None,
        cause="uneven-inputs" if done else "",
        fixes=OF_THE_DATA if done else None,
    )


def _done_with_the_pass(s: Situation, waiting: Sequence[Doing]) -> tuple[int, ...]:
    """The ranks that said last that their pass over the data ends, where all others are in its backward."""
    done, within = ({r for d in waiting if (d.what == "backward") is is_in for r in d.ranks} for is_in in (False, True))
    return tuple(sorted(done)) if within and done and ends_pass(s, done) else ()


@rule("rpc-threads-taken", needs=("stacks",))
def rpc_threads_taken(s: Situation) -> Found | None:
    """The one rank that answers calls of torch.distributed.rpc: all its threads for that wait at one line, and more ranks call than it has."""
    threads = {r: [t for t in e.stacks if _is_in_rpc(t.frames, "_run_function")] for r, e in s.case.ranks.items()}
    answering = [r for r, found in threads.items() if found]
    if len(answering) != 1 or not s.is_hang:
        return None
    rank, answers = answering[0], threads[answering[0]]
    callers = tuple(r for r, e in s.case.ranks.items() if r != rank and _is_in_rpc(e.main_frames, "rpc_sync"))
    is_at_work = any(t.is_active or t.frames[:1] == user_frames(t.frames)[:1] for t in answers)
    places = {user_frames(t.frames)[:1] for t in answers}
    place = next(iter(places), ())
    if is_at_work or len(places) != 1 or not place or len(callers) <= len(answers):
        return None
    words = {"rank": rank, "at": w.at(place[0]), "spot": w.spot(place[0]), "callers": w.name_ranks(callers)}
    words |= {"threads": len(answers), "least": len(callers) + 1}
    seen = [
        EvidenceLine(f"rank {rank} thread {t.name}", " < ".join(map(str, user_frames(t.frames)[:3]))) for t in answers
    ]
    seen += [line for r in callers[:3] for line in w.stack_lines(s.case.ranks[r], 4)]
    return Found(0.9, (rank,), seen, words, victims=callers, location=place[0])


def _is_in_rpc(frames: Sequence[Frame], function: str) -> bool:
    return any(f.function == function and "torch/distributed/rpc/" in f.file for f in frames)


def _nobodys(s: Situation, found: Sequence[Doing]) -> Found | None:
    """The stacks of all processes of a job, of which nothing tells whose they are, where they end in different collectives."""
    if len(found) < 2 or len(found) != s.case.job.world_size or any(d.kind != "collective" for d in found):
        return None
    calls = {d.what: d for d in found}
    if len(calls) < 2 or {"backward"} & set(calls):
        return None
    places = (f"{d.what}{f' of {d.caller}' if d.caller else ''}" for d in calls.values())
    words = {
        "sides": "processes wait in different calls: " + "; ".join(places),
        "odd": "The stacks do not tell whose they are.",
    }
    return Found(0.75, (), [w.stack_of(d) for d in found[:6]], words)


def _fork_in_one_call(waiting: Sequence[Doing]) -> dict[tuple[int, ...], Frame]:
    """The lines of one function, outside of torch, from which ranks came into the same collective; nothing where their ways are one."""
    paths = [d.frames[::-1] for d in waiting]
    if len({d.what for d in waiting}) != 1 or waiting[0].kind == "idle":
        return {}
    depth = next(
        (i for i, frames in enumerate(zip(*paths, strict=False)) if len({(f.file, f.line) for f in frames}) > 1), None
    )
    at = {d.ranks: path[depth] for d, path in zip(waiting, paths, strict=True)} if depth is not None else {}
    is_one = len({(f.file, f.function) for f in at.values()}) == 1
    return at if is_one and "/torch/" not in next(iter(at.values())).file else {}


def _leads_to_unrecorded(s: Situation) -> bool:
    """Whether all waits of a job that was watched lead to ranks of which no call was recorded, and that stand in one themselves."""
    roots = [late for late in s.late if late.edge.kind == "collective" and late.activity.kind == "communication"]
    rows = [s.case.calls.rank_rows(late.rank) for late in roots]
    is_bare = all(r.start == r.stop for r in rows) and not any(s.case.ranks[late.rank].pending for late in roots)
    return bool(roots) and is_bare and len(roots) == len(s.late) and s.standing is None and s.case.hang is not None


def _where(what: str, place: str, ranks: Sequence[int]) -> str:
    wait = w.verb(ranks, "waits", "wait")
    if not what:
        return f"{w.verb(ranks, 'has', 'have')} returned, and {wait} for the next task"
    return f"{wait} in {what}{f', called by {place}' if place else ''}"


def _apart(s: Situation, found: Mapping[int, Stand], is_whole: bool = False) -> Found | None:
    """Ranks that all stand in calls with others which cannot meet. Of a group that was given nobody knows the members.

    `is_whole`: the others are known to wait for these in one call.
    """
    several = sides(found.values())
    if (
        len(several) < 2
        or len(found) < len(s.case.ranks)
        or any(x.is_transfer or x.is_of_device for x in found.values())
    ):
        return None
    few = [side for side in several if len(side) == len(several[-1])]
    is_of_all = is_whole or not any(x.has_group for x in found.values())
    by = _by_condition(s, several) if is_of_all else None
    is_told = by is not None or (is_of_all and len(few) == 1)
    odd, usual = several[-1][0], several[0][0]
    culprits = by.odd if by else tuple(sorted(x.rank for x in few[0])) if is_told else ()
    fork = fork_of(usual.path, odd.path)
    where = by.frame if by else line_to_look_at(usual.path, odd.path, fork, fork is not None and _has_passed(fork))
    if are_other_groups := usual.number != odd.number and fork is None:
        where = _other_group(where) or where
    gate = by.condition if by else None
    is_skipped = by is not None and by.is_left_out
    made = next((x.op for x in found.values() if (x.rank in culprits) != is_skipped), "")
    say, plainly = said_plainly(gate, where, culprits, s.others(culprits), made, is_skipped)
    ranks_of = {side[0]: sorted(x.rank for x in side) for side in several}
    words = {
        "sides": "; ".join(
            f"{w.name_ranks(ranks)} {w.verb(ranks, 'waits', 'wait')} in {side.call}{w.at(side.path[-1] if side.path else None)}"
            for side, ranks in ranks_of.items()
        ),
        "odd": say_the_condition(by)
        if by
        else _counted(several)
        if are_other_groups
        else f"{w.name_ranks(culprits)} left the way that most ranks took."
        if culprits
        else _NOT_TOLD,
        "who": w.name_ranks(culprits),
        "others": w.name_ranks(s.others(culprits)),
        **plainly,
    }
    evidence = [line for side in several[:4] for line in w.stack_lines(s.case.ranks[side[0].rank], 4)]
    return Found(
        0.85 if by else 0.75 if is_told else 0.6,
        culprits,
        [*evidence, *w.code_line(where, "source")],
        words,
        say,
        fixes=fixes_of(where, gate, w.name_ranks(culprits)) if by else None,
        location=where,
        condition=gate_of(gate),
    )


def _counted(several: Sequence[Sequence[Stand]]) -> str:
    """How many groups each side has made, of ranks that make one at the same line."""
    made = (f"{w.name_ranks(sorted(x.rank for x in side))}: group {side[0].number}" for side in several)
    return f"All ranks must make all groups in the same order, also those of which they are no members ({'; '.join(made)})."


def _other_group(where: Frame | None) -> Frame | None:
    """The one line of the function that makes another group under a condition: where the counts parted."""
    lines = [f for f in lines_that_call_the_same(where) if surroundings(f.file, f.line).conditions] if where else []
    return lines[0] if len(lines) == 1 else None


def _by_condition(s: Situation, several: Sequence[Sequence[Stand]]) -> ByCondition | None:
    """Which of two sides is odd, where a condition on the rank stands around the way of one of them alone."""
    fork = fork_of(several[0][0].path, several[1][0].path) if len(several) == 2 else None
    if fork is None:
        return None
    ways = [Side(tuple(sorted(x.rank for x in side)), side[0].path[fork.depth :]) for side in several]
    return decided_by_condition(s.case, *ways)


def _has_passed(fork: Fork) -> bool:
    """Whether the odd ranks have left out the call at the line of the others: they stand behind it in the same round, or it alone is conditional."""
    theirs, mine = (surroundings(f.file, f.line) for f in (fork.left, fork.right))
    if theirs.loops == mine.loops and fork.right.line > fork.left.line:
        return True
    return bool(set(theirs.conditions) - set(mine.conditions)) and set(mine.conditions) <= set(theirs.conditions)


_NOT_TOLD = "Nothing that can be seen from outside tells which side is wrong."


# Rules that accuse nobody: a part of the job is out of sight, or it was ended from outside while it ran.

_MOST_LISTED = 3


@rule("not-in-sight", needs=("ranks",), names=Names.NOTHING)
def not_in_sight(s: Situation) -> Found | None:
    """What the ranks that can be seen wait for, or have lost; nobody is accused."""
    if not s.case.out_of_sight or (s.late and s.is_hang) or s.primary_failure is not None:
        return None
    unseen = tuple(late.rank for late in sorted(s.out_of_sight, key=lambda late: late.rank))
    waiting = tuple(sorted({v for late in s.out_of_sight for v in late.victims} - set(unseen)))
    if s.is_hang and waiting:
        return _unseen(s, waiting, unseen, w.verb(waiting, "waits for", "wait for"))
    failed = tuple(sorted(f.rank for f in s.failures))
    return _unseen(s, failed, s.case.out_of_sight, "lost a peer; what failed first may be") if failed else None


def _unseen(s: Situation, ranks: tuple[int, ...], unseen: tuple[int, ...], what: str) -> Found:
    others, hosts = w.name_ranks(unseen), sorted({e.identity.host for e in s.case.ranks.values() if e.identity.host})
    words = {
        "who": w.name_ranks(ranks),
        "what": what,
        "others": others,
        "Others": others[0].upper() + others[1:],
        "are": w.verb(unseen, "is", "are"),
        "run": w.verb(unseen, "runs", "run"),
        "they": w.verb(unseen, "it", "they"),
        "seen": w.name_ranks(s.case.in_sight) + (f" on {', '.join(hosts[:4])}" if hosts else ""),
        "reports": " ".join(s.case.job.report_dirs) or "THIS_REPORT",
    }
    raised = [(f.rank, f.error) for f in s.failures[:4] if f.error]
    evidence = (
        *w.unheard_lines(s.case, unseen),
        *(w.waiting_line(late.edge) for late in s.out_of_sight[:4]),
        *(EvidenceLine(f"rank {rank} exception", f"{e.type}: {e.message}"[:200]) for rank, e in raised),
    )
    return Found(0.3, (), evidence, words, victims=ranks)


@rule("interrupted", names=Names.NOTHING)
def interrupted(s: Situation) -> Found | None:
    """What the ranks were doing when a signal ended the job; nobody is accused."""
    if not s.is_interrupted:
        return None
    places, by = _places(s), s.case.job.interrupted_by
    doing = [*_working(places), *_waiting(s)]
    if len(doing) > _MOST_LISTED:
        doing[_MOST_LISTED:] = [f"{len(doing) - _MOST_LISTED} more sets of ranks elsewhere"]
    words = {
        "ended": "you ended it (Ctrl-C)" if by == "SIGINT" else f"{by} ended it",
        "when": f"while {w.listed(doing)}" if doing else "before a rank had registered",
        "oldest": _oldest(s),
    }
    first = [ranks[0] for ranks in list(places.values())[:_MOST_LISTED]]
    evidence = (
        *(w.waiting_line(edge) for edge in s.waits.edges[:_MOST_LISTED]),
        *(line for rank in first for line in w.stack_lines(s.case.ranks[rank])),
    )
    return Found(0.97, (), evidence, words, fixes=None if s.waits.edges else ())


def _oldest(s: Situation) -> str:
    """How long the oldest wait had lasted, by the job's own clock."""
    began_ns = min((edge.since_ns for edge in s.waits.edges if edge.since_ns), default=0)
    lasted_s = (s.case.job.interrupted_ns - began_ns) / 1e9 if began_ns else 0.0
    return f" The oldest wait had lasted {lasted_s:.1f} s." if lasted_s > 0 else ""


def _places(s: Situation) -> dict[str, list[int]]:
    """The ranks that wait for nobody, by the line in which they were; "" where no stack could be taken."""
    waiting = {edge.waiter for edge in s.waits.edges}
    found: dict[str, list[int]] = {}
    for rank, evidence in s.case.ranks.items():
        if rank not in waiting:
            stack = evidence.main_stack
            frame = w.own_line(stack.frames) if stack else None
            found.setdefault(f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame else "", []).append(rank)
    return found


def _working(places: Mapping[str, list[int]]) -> Iterator[str]:
    for place, ranks in places.items():
        where = f"in {place}" if place else "where no stack could be taken"
        yield f"{w.name_ranks(ranks)} {w.verb(ranks, 'was', 'were')} {where}"


def _waiting(s: Situation) -> Iterator[str]:
    """What the others wait in, by call."""
    oldest: dict[int, WaitEdge] = {}
    for edge in sorted(s.waits.edges, key=lambda e: e.since_ns or 0):
        oldest.setdefault(edge.waiter, edge)
    calls = grouped((edge.what.removesuffix(" of default_pg"), rank) for rank, edge in sorted(oldest.items()))
    yield from (f"{w.name_ranks(ranks)} waited in {call}" for call, ranks in calls.items())


@rule("nobody-at-work")
def nobody_at_work(s: Situation) -> Found | None:
    """All ranks wait for results of Ray, or have no task, and the watcher saw no process of the job at work."""
    if s.case.hang is None or not s.is_hang or s.failures:
        return None
    if not (ranks := sorted(all_wait_for_ray(s))):
        idle_at = driver_without_answer(s) if all_without_task(s) else None
        return _without_task(s, idle_at) if idle_at is not None else None
    at = s.activities[ranks[0]].frame
    actors = [(t.name.removeprefix(OF_RAY), t) for t in s.case.launcher_stacks if is_under_way(t)]
    calls = dict.fromkeys(call for call, _ in actors)
    stands = {call: mine[0] for call, t in actors if (mine := user_frames(t.frames))}
    last = [c for c in calls if c not in stands or not asks_ray(stands[c])]
    place = {c: stands.get(c) or (method_of(at.file, c) if at else None) for c in calls}
    words = {
        "at": w.at(at),
        "calls": w.listed([f"`{c}`" for c in calls]) if calls else "no other call of Ray that can be seen",
        "are": both("is" if len(calls) < 2 else "are"),
        "last": w.listed([f"`{c}`{w.at(place[c])}" for c in last])
        if last
        else "none of them: they wait for each other",
    }
    lines = [
        EvidenceLine(f"{c} of Ray", f"stands at {w.spot(f)}" if f else "no line of yours") for c, f in place.items()
    ]
    one, say = place[last[0]] if len(last) == 1 else None, "chain" if last else "else"
    blocked = blocked_loop(one, len(s.case.world)) if one is not None else None
    fixes: list[str | Fix] = [threads_for(blocked) if blocked else "chain", "limit"]
    polled = next((a for r in ranks if (a := s.activities[r]).is_polled and a.frame is not None), None)
    if polled is not None and polled.frame is not None:  # others may be caught in the question itself
        at, lost = polled.frame, forgetful_actor(polled.frame)
        words |= {"at": w.at(at), **_of_polls(polled.awaits, at, lost)}
        one, say, fixes = lost.at if lost else at, "polls", ["again" if lost else "bring", "limit"]
    seen = (*w.stack_lines(s.case.ranks[ranks[0]], 3), *lines)
    return Found(0.85, (), seen, words, say, fixes, victims=tuple(ranks), location=one or at)


def _without_task(s: Situation, place: Frame) -> Found:
    """What the driver waits for is run by no worker: Ray has no room for it, or a result that it depends on never comes."""
    workers = {t.process_id: t.name.removeprefix(OF_RAY) for t in s.case.launcher_stacks if t.name.startswith(OF_RAY)}
    held = Counter(workers.values())
    actors = [f"{n} x {name}" for name, n in sorted(held.items())]
    words = {"at": w.at(place), "place": w.spot(place), "held": f": {w.listed(actors)}" if actors else ""}
    stands = EvidenceLine("the program that started them", f"stands at {w.spot(place)}")
    seen = (stands, *(EvidenceLine("workers of Ray", actor) for actor in actors))
    victims = tuple(sorted(s.case.ranks))
    return Found(0.85, (), seen, words, "no task", ("make room", "limit"), victims=victims, location=place)


def _of_polls(awaits: str, at: Frame, lost: Forgetful | None) -> dict[str, str]:
    words = {"awaited": awaits, "restarted": "", "loop_at": w.place(at)}
    if lost:
        words |= {"actor": lost.actor, "actor_at": w.spot(lost.at), "decorator": lost.decorator, "handed": lost.handed}
        words["restarted"] = (
            f" {lost.actor} ({w.spot(lost.at)}) may have been started again (`{lost.decorator}`), without what it was told."
        )
    return words
