"""What is known of a rank that its peers wait for: shared by the rules that say what it is doing instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from unhang.analyze.activity import TASK_OF_RAY, goes_through_loader, imports_anew, is_loader_worker
from unhang.analyze.hosts import others_of
from unhang.analyze.lines.pasted import RANK_ZERO_FIRST
from unhang.analyze.program.callpath import user_path
from unhang.analyze.program.sides import kept_by_condition
from unhang.analyze.program.source import Condition, Surroundings, around, surroundings
from unhang.analyze.program.trees import covers, nodes_of
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits.open_calls import all_wait_for_loaders, driver_stack
from unhang.model import CollectiveCall, EvidenceLine, Frame, ProcessGroup, RankEvidence, ThreadStack, user_frames
from unhang.rules import wording as w
from unhang.rules.base import Found
from unhang.rules.failure import NO_WORDS
from unhang.rules.item_repairs import of_worker
from unhang.rules.wording import both

_MOST_THREADS = 6
# What works gets more, also on a machine with ten times the load. Our looks cost the rank itself some of a second.
_IDLE_SHARE, _LOOKED_AT_SHARE = 0.01, 0.2
_IN_A_GROUP = 0.6


def found_late(
    s: Situation, late: LateRank, confidence: float, words: Mapping[str, object] = NO_WORDS, **more: Any
) -> Found:
    """Who is late, for whose call, and where it is instead, with the words {rank}, {at}, {owed} and {why}.

    `more`: other fields of `Found`; `evidence` comes after the evidence for the wait.
    """
    call, group = _awaited(s, late)
    frame, at = _place(s, late, call), w.at(late.activity.frame)
    words = {"reached": "never reached" if s.standing is None else "has not reached", **words}  # the job still runs
    return Found(
        min(confidence, _IN_A_GROUP) if stands_in_group(s) else confidence,
        (late.rank,),
        (*_evidence(s, late, call), *more.pop("evidence", ())),
        {"rank": late.rank, "at": at, "owed": _owed(late), "why": _why(s, late), **words},
        victims=late.victims,
        group=w.group_of(group) if group else None,
        collective=w.collective_of(call, call.seq) if call else None,
        location=frame,
        **more,
    )


def driver(s: Situation) -> Frame | None:
    """The line at which the program stands that started the ranks and gives them their work."""
    main = driver_stack(s)
    return w.own_line(main.frames) if main else None


def _place(s: Situation, late: LateRank, call: CollectiveCall | None) -> Frame | None:
    """Where the late rank is; of one without a line of the user, the driver's that has no work for it, else that of the call it lacks."""
    if late.activity.frame is not None:
        return late.activity.frame
    waits_for_work = driver(s) if late.activity.awaits == TASK_OF_RAY else None
    return waits_for_work or w.own_line(call.frames or ()) if call else waits_for_work


def stack_of(s: Situation, late: LateRank) -> ThreadStack | None:
    """The stack of the thread that keeps the late rank: the one for which those wait that would make the call, else the main one."""
    evidence = s.case.ranks.get(late.rank)
    return late.doer.stacks[-1] if late.doer else evidence.main_stack if evidence else None


def holder_of(s: Situation, late: LateRank) -> int | None:
    """The rank that has the lock on a file for which the late rank waits."""
    stack = stack_of(s, late)
    pid = stack.kernel.holder if stack is not None and stack.kernel is not None else 0
    return next((r for r, e in s.case.ranks.items() if pid and e.identity.pid == pid and r != late.rank), None)


def workers_of(s: Situation, rank: int) -> Sequence[ThreadStack]:
    """The stacks of the worker processes of a rank's loader, those that stand in the program's own code first."""
    evidence = s.case.ranks.get(rank)
    children = children_of(evidence) if evidence else ()
    workers = (t for t in children if is_loader_worker(t) or imports_anew(t.frames))
    return sorted(workers, key=lambda t: not user_frames(t.frames))


def worker_line(rank: int, stack: ThreadStack) -> EvidenceLine:
    """Where a worker of a rank's loader stands."""
    frames = user_frames(stack.frames) or stack.frames
    where = " < ".join(str(f) for f in frames[:3]) or "no Python frame"
    return EvidenceLine(f"rank {rank} loader worker {stack.process_id}", where, frames[0].line if frames else None)


def all_in_loaders(s: Situation) -> Iterator[Found]:
    """For a hang in which no rank waits for another: each waits for its loader, and a worker stands in the program."""
    ranks = sorted(all_wait_for_loaders(s)) if s.is_hang else []
    workers = {r: [t for t in workers_of(s, r) if user_frames(t.frames)] for r in ranks}
    standing = [t for r in ranks for t in workers[r]]
    if not standing:
        return
    place, asks = user_frames(standing[0].frames)[0], s.activities[ranks[0]].frame
    helps, words = of_worker(place, asks, standing[0].frames)
    lines = tuple(worker_line(r, t) for r in ranks[:4] for t in workers[r][:2])
    words = {"who": w.name_ranks(ranks), "at": w.at(asks), "place": w.place(place), **words}
    yield Found(0.8, (), lines, words, victims=tuple(ranks), location=place, say="all", fixes=(helps, "fail first"))


OF_A_PROCESS = ("a pipe", "a socket", "a child process")


def children_of(evidence: RankEvidence) -> list[ThreadStack]:
    """The stacks of the processes that the rank started."""
    return [t for t in evidence.stacks if t.process_id not in (None, evidence.identity.pid)]


def child_at(evidence: RankEvidence) -> Frame | None:
    """The line of the user's code in which a process stands that the rank started."""
    return next((f for t in children_of(evidence) for f in user_frames(t.frames)[:1]), None)


def stands_in_group(s: Situation) -> bool:
    """Whether a rank that was looked at from outside stands in a call of a group whose members are not known."""
    return any(e.look is not None and e.look.has_group for e in s.case.ranks.values())


def _owed(late: LateRank) -> str:
    """What the others wait for, as the late rank would have called it."""
    if late.edge.kind == "store":
        return f"the setting of {late.edge.what}"
    if late.edge.kind != "p2p":
        return late.edge.what
    return f"its {'send to' if 'recv' in late.edge.what else 'receive from'} rank {late.edge.waiter}"


def _awaited(s: Situation, late: LateRank) -> tuple[CollectiveCall | None, ProcessGroup | None]:
    """The call of the oldest victim, which the late rank never made."""
    for stuck in s.stuck:
        if stuck.group.name == late.edge.group and stuck.seq == late.edge.seq:
            return stuck.calls.get(late.edge.waiter), stuck.group
    return None, None


def waits_idly(s: Situation, late: LateRank) -> bool:
    """Whether the rank waits for something, and neither it nor anything that it started has used the processor of late."""
    evidence = s.case.ranks.get(late.rank)
    state = evidence.state if evidence else None
    if state is None or state.cpu_share is None or not late.activity.awaits:
        return False
    by_children = state.children_share
    is_known = by_children is not None or late.activity.awaits != "a child process"
    return is_known and state.cpu_share < _LOOKED_AT_SHARE and (by_children or 0.0) < _IDLE_SHARE


def works_alone(s: Situation, late: LateRank) -> str:
    """The condition that lets only rank 0 do what this rank does, or an empty string."""
    found = _of_its_own(s, late)
    first = works_first(s, late)
    return found[1].tests[-1] if found else first.test if first else ""


def block_of_its_own(s: Situation, late: LateRank) -> Frame | None:
    """The line of the call in the block that only rank 0 enters, from which its work goes on."""
    found = _of_its_own(s, late)
    return found[0] if found else None


def _of_its_own(s: Situation, late: LateRank) -> tuple[Frame, Surroundings] | None:
    evidence = s.case.ranks.get(late.rank)
    places = [(f, surroundings(f.file, f.line)) for f in user_frames(evidence.main_frames if evidence else ())]
    if late.activity.kind == "data":  # the loop has to stand under the condition, not what it goes over
        places = places[next((i for i, (_, place) in enumerate(places) if i and place.fetches_next), 0) :]
    return next((x for x in places if x[1].only_on_rank_zero), None) if late.rank == 0 else None


class WorksFirst(NamedTuple):
    """`frame`: where the rank stands in the function in which the others wait for it; `test`: what keeps them there."""

    frame: Frame
    test: str


def works_first(s: Situation, late: LateRank) -> WorksFirst | None:
    """Of a rank that went on where the others wait: a condition on the rank lets it by, or a library's `main_process_first`."""
    evidence, waiter = s.case.ranks.get(late.rank), s.case.ranks.get(late.edge.waiter)
    call = _awaited(s, late)[0]
    mine = evidence.main_frames if evidence else ()
    theirs = (waiter.main_frames if waiter and waiter.main_stack else call.frames if call else None) or ()
    wait = next((f for f in theirs if f.is_user), None)
    here = next((f for f in mine if wait and (f.file, f.function) == (wait.file, wait.function)), None)
    if wait is None or here is None or here.line <= wait.line or _are_roles(wait, here):
        return None
    above = theirs[: theirs.index(wait)]
    if library := next((f.function for f in above if RANK_ZERO_FIRST.search(f.function)), None):
        return WorksFirst(here, library)
    test = kept_by_condition(s.case, wait, late.victims, late.rank)
    return WorksFirst(here, test) if test else None


def _are_roles(wait: Frame, here: Frame) -> bool:
    """Whether two lines of one function stand in two branches of one `if`: each rank has its own, and none comes first."""
    choices = (n for n in nodes_of(here.file) if isinstance(n, ast.If))
    return any(
        any(covers(x, wait.line) for x in n.body) and any(covers(x, here.line) for x in n.orelse) for n in choices
    )


def has_loader(s: Situation, late: LateRank) -> bool:
    """Whether the rank's stack goes through a data loader, and not merely through a generator of the program's own."""
    evidence = s.case.ranks.get(late.rank)
    return evidence is not None and any(goes_through_loader(stack.frames) for stack in evidence.stacks)


def remedies(s: Situation, late: LateRank) -> tuple[str, ...]:
    """What helps a rank out of such a wait."""
    kind, awaits, evidence = late.activity.kind, late.activity.awaits, s.case.ranks.get(late.rank)
    if awaits in ("a pipe", "a socket"):
        return ("answer always",)
    if awaits == TASK_OF_RAY:
        return ("submit together",)
    if awaits.startswith("`"):
        return ("feed the loop",)
    if holder_of(s, late) is not None:
        return ("release first",)
    if kind == "lock":
        return ("feed the queue",) if awaits == "a queue" else ("bound a lock",)
    if awaits == "a child process" and evidence and evidence.state:
        if evidence.state.child_writes:
            return ("read the pipe", "bound")
        if evidence.state.child_asks:
            return ("no input", "bound")
    if kind == "device":
        return ("find the kernel",)
    return ("bound a loop" if kind in ("spinning", "gil") else "bound",)


# What waits for all ranks and is no call of torch.distributed: a part of the library's path, the function.
_MEETINGS = (("/ray/train/", "report"),)


class Meeting(NamedTuple):
    """A library's call that waits for all ranks, made under a condition on the rank."""

    call: str
    condition: Condition

    @property
    def words(self) -> Mapping[str, object]:
        """What the card puts in."""
        return {"call": self.call, "test": self.condition.text}


def meets_alone(s: Situation, late: LateRank) -> Meeting | None:
    """The meeting in which the late rank waits alone, where a condition on the rank keeps the others from it."""
    frame, stack = late.activity.frame, stack_of(s, late)
    above = stack.frames[: stack.frames.index(frame)] if stack and frame in stack.frames else ()
    call = next(
        (f.function for f in above if any(part in f.file and f.function == name for part, name in _MEETINGS)), ""
    )
    by_rank = [c for c in around(frame).conditions if c.depends_on_rank] if call and frame else []
    return Meeting(call, by_rank[-1]) if by_rank else None


def _limit_s(s: Situation, late: LateRank) -> float | None:
    """The timeout of the collective in which the victims wait."""
    for stuck in s.stuck:
        if stuck.group.name == late.edge.group and late.edge.waiter in stuck.calls:
            timeout_ms = stuck.calls[late.edge.waiter].timeout_ms
            return timeout_ms / 1000 if timeout_ms else None
    return None


def _why(s: Situation, late: LateRank) -> str:
    victims = w.name_ranks(late.victims)
    text = f"{victims} {w.verb(late.victims, 'waits', 'wait')} for rank {late.rank}, which {both('waits for')} no other rank: {_doing(s, late)}."
    if waits_idly(s, late) and late.activity.awaits == "a child process":
        text += " The processes that it started use no processor."
    hang, limit = s.case.hang, _limit_s(s, late)
    if hang is not None and hang.detected_after_s is None and limit:
        text += f" The group's own limit is {limit:.0f} s."
    return text


def _doing(s: Situation, late: LateRank) -> str:
    """What the late rank does, in which of its threads, and which others wait for that thread."""
    who, evidence, activity = late.doer, s.case.ranks.get(late.rank), late.activity
    does = f"waits for {activity.detail.removeprefix('a wait for ')}" if activity.awaits else f"is in {activity.detail}"
    does = both(does)
    if who is None or evidence is None:
        return f"it {does}"
    first, last = who.stacks[0], who.stacks[-1]
    text = f"it {does}" if last.is_main else f"its thread {last.name} {does}"
    if activity.awaits == TASK_OF_RAY and (place := driver(s)) is not None:
        text += f"; the driver, which would give it one, stands{w.at(place)}"
    if activity.awaits in OF_A_PROCESS and (place := child_at(evidence)) is not None:
        text += f"; a process that it started {both('stands')}{w.at(place)}"
    text += "".join(f"; {_thread(stack)} waits for that" for stack in reversed(who.stacks[:-1]))
    if not first.is_main:
        text += f"; {_thread(first) if len(who.stacks) > 1 else 'that thread'} makes these calls"
    if last.given and not user_frames(last.frames):
        text += f"; its work was given to it{w.at(last.given[0])}"
    if who.gone:
        text += "; the thread that made these calls has ended"
    if who.is_unfed:
        others = others_of(evidence, who)
        text += "; no other thread is seen that has it" if others else "; no other thread of the program is left"
    if evidence.in_handler and last.is_main:
        text += f"; that is in the handler of {evidence.in_handler}"
    elif any(f.function == "__del__" for f in last.frames):
        text += "; Python runs a finalizer there"
    return text


def _thread(stack: ThreadStack) -> str:
    frame = w.own_line(stack.frames)
    return f"{'the main thread' if stack.is_main else f'the thread {stack.name}'}{w.at(frame)}"


def _thread_lines(s: Situation, late: LateRank) -> Iterator[EvidenceLine]:
    """Where the late rank's other threads are, the one that keeps it first, and its tasks."""
    evidence = s.case.ranks.get(late.rank)
    if evidence is None or late.doer is None:
        return
    threads = [t for t in (*reversed(late.doer.stacks), *others_of(evidence, late.doer)) if not t.is_main]
    for name, frames, more in (
        *((f"thread {t.name}", t.frames, "") for t in threads),
        *((f"task {t.name}", t.frames, f", awaits {', '.join(t.awaits)}" if t.awaits else "") for t in evidence.tasks),
    ):
        if mine := user_frames(frames)[:3]:
            yield EvidenceLine(f"rank {late.rank} {name}", " < ".join(map(str, mine)) + more, mine[0].line)


def _evidence(s: Situation, late: LateRank, call: CollectiveCall | None) -> Iterator[EvidenceLine]:
    yield from w.stack_lines(s.case.ranks.get(late.rank))
    yield from islice(_thread_lines(s, late), _MOST_THREADS)
    yield from w.code_line(late.activity.frame, f"rank {late.rank} source")
    if call is not None:
        yield w.path_line(call.rank, f"#{call.seq} {w.name_call(call)} (waits)", user_path(call.frames))
    for edge in s.waits.edges[:4]:
        yield w.waiting_line(edge)
