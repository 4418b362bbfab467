"""What the host of a rank does: which of its threads its peers wait for, and whether that waits for its device.

A call of NCCL returns at once, and the host waits at some later line. A wait for a device spins in C code that has given up the GIL. So
does a kernel launch, where too many are under way, and each operation of torch may launch one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unhang.analyze.activity import (
    Activity,
    activity_of,
    goes_through_loader,
    in_communication,
    loops_over_generator,
    own_code,
)
from unhang.analyze.calls.streams import ident_of
from unhang.analyze.program.source import surroundings
from unhang.analyze.program.trees import calls_on, last_name, line_text
from unhang.model import CallState, Case, PendingCall, RankEvidence, ThreadStack, WaitEdge, user_frames
from unhang.model.lazy_pattern import lazy_pattern
from unhang.numeric import np, npt

ON_DEVICE = "nccl"  # the backend whose calls wait on the device, wherever the host is
# What waits for all that the device was given: a value taken from it, or a copy to or from it.
_SYNCHRONIZES = lazy_pattern(
    r"\.to\(|\.cuda\(|\.copy_\(|\bdevice=|\.synchronize\(|\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|\.nonzero\(|\b(?:float|int|bool)\("
)


def is_on_device(case: Case, rank: int) -> bool:
    """Whether the rank is in a group whose calls wait on the device."""
    return any(g.backend == ON_DEVICE and rank in g.ranks for g in case.groups)


def waits_there(case: Case, rank: int) -> bool:
    """Whether the rank has issued a call that its device has not done."""
    table, rows = case.calls, case.calls.rank_rows(rank)
    is_there = np.array([g.backend == ON_DEVICE for g in table.groups] or [False])[table["group"][rows]]
    return bool((is_there & _is_open(case, rank)).any())


def _is_open(case: Case, rank: int) -> npt.NDArray[np.bool_]:
    """`[N]`: which of a rank's recorded calls are not done."""
    states = case.calls["state"][case.calls.rank_rows(rank)]
    return np.isin(states, (CallState.COMPLETED, CallState.FAILED), invert=True)


def runs_without_gil(stack: ThreadStack | None) -> bool:
    """Whether a thread runs in C code that a line of the program, or of torch, has called, and that has given up the GIL."""
    if stack is None or not stack.frames or stack.is_active is not True or stack.owns_gil is not False:
        return False
    return stack.frames[0].is_user or "/torch/" in stack.frames[0].file


def synchronizes(stack: ThreadStack) -> bool:
    """Whether the thread's last line takes something from the device, or brings something there."""
    return bool(_SYNCHRONIZES.search(line_text(stack.frames[0].file, stack.frames[0].line)))


_LAST_CALLS = 8
_THREAD_BEGINS = ("_bootstrap", "_bootstrap_inner")
_MOST_THREADS = 4
_FOLLOWED = ("thread", "result", "queue")


@dataclass(frozen=True)
class Doer:
    """The thread that is asked, and those that it waits for, one for the other. `stacks`: it comes first, the one that keeps all last.

    `gone`: the thread that made the calls has ended. `is_unfed`: the last one waits for something that no other thread knows of.
    """

    stacks: tuple[ThreadStack, ...]
    gone: bool = False
    is_unfed: bool = False


def has_open_call(case: Case, rank: int) -> bool:
    """Whether the rank may have issued a call that is not done; where none of its calls is recorded it may."""
    rows, evidence = case.calls.rank_rows(rank), case.ranks.get(rank)
    if rows.start == rows.stop:
        return True
    pending = evidence.pending if evidence else ()
    return bool(_is_open(case, rank).any()) or any(c.ended_ns is None for c in pending)


def doer(case: Case, evidence: RankEvidence, edge: WaitEdge) -> Doer | None:
    """The thread to ask for the call of `edge`: the one that has always made these calls, else the main thread.

    An idle thread that takes its orders from a queue waits for whoever gives them: the main thread, unless that waits for
    other ranks.
    """
    main = evidence.main_stack
    if main is None:
        return None
    ident, is_thread = _caller(case, evidence.rank, edge)
    known = {s.ident: s for s in evidence.own_stacks if s.ident is not None}
    first = (known.get(ident) if ident is not None else None) or main
    first = first if first.frames or first.given else main  # of the autograd engine: it works for who called backward
    is_gone = is_thread and bool(known) and ident not in known
    is_open = has_open_call(case, evidence.rank)
    if activity_of(evidence, is_open).kind == "shutdown" or activity_of(evidence, is_open, first).kind == "data":
        return Doer((main,), is_gone)
    stacks, is_unfed = _followed(evidence, first, known, is_open)
    is_idle = stacks == (first,) and any(f.function == "get" and f.file.endswith("/queue.py") for f in first.frames[:4])
    if first is not main and is_idle and not in_communication(main, is_open):
        return Doer((main,), is_gone)
    return Doer(stacks, is_gone, is_unfed)


_AT_WORK = ("user", "spinning", "gil", "data", "outside", "device")
# Waits that take a limit, and where among their arguments.
_LIMITED = {"join": 0, "result": 0, "exception": 0, "wait": 0, "get": 1, "acquire": 1, "wait_for": 1}


def may_still_call(case: Case, rank: int, edge: WaitEdge) -> bool:
    """Whether a thread of the rank that makes the calls of `edge` is at work, or waits with a limit, whatever its other threads wait for.

    Such a thread has made the last calls of that group, or begins in the function in which the waiter's thread begins. Of other calls it
    is the one that made such before; else the main thread, of a transfer any.
    """
    evidence = case.ranks.get(rank)
    if evidence is None:
        return False
    known = {s.ident: s for s in evidence.own_stacks if s.ident is not None and user_frames(s.frames)}
    is_open = has_open_call(case, rank)
    if len(known) < 2 or activity_of(evidence, is_open).kind == "dead":
        return False
    makers = _makers(case, evidence, edge, known)
    chains = [_followed(evidence, s, known, is_open)[0] for s in makers if not in_communication(s, is_open)]
    ends = (activity_of(evidence, is_open, chain[-1]) for chain in chains)
    return any(e.kind in _AT_WORK for e in ends) or any(_has_limit(s, evidence) for chain in chains for s in chain)


def _makers(case: Case, evidence: RankEvidence, edge: WaitEdge, known: Mapping[int, ThreadStack]) -> list[ThreadStack]:
    if edge.kind != "collective":
        made = [c for c in evidence.pending if _is_like(c, edge)]
        begins = {(f.file, f.function) for c in made for f in c.frames[-1:]}
        begun = [s for s in known.values() if {(f.file, f.function) for f in s.frames} & begins]
        return begun if made else [s for s in known.values() if s.is_main or edge.kind == "p2p"]
    idents, waiting = _callers(case, evidence.rank, edge), _begins_at(_caller_of_wait(case, edge))
    return [s for i, s in known.items() if i in idents or (waiting is not None and _begins_at(s) == waiting)]


_ASKED = {
    "store": ("store_set",),
    "barrier": ("monitored_barrier",),
    "new_group": ("new_group",),
    "rendezvous": ("init_process_group",),
}


def _is_like(call: PendingCall, edge: WaitEdge) -> bool:
    """Whether a call of the awaited rank is of the kind that the waiter waits for."""
    if edge.kind != "p2p":
        return call.kind in _ASKED.get(edge.kind, ()) and call.group == edge.group
    other = ("send", "isend") if "recv" in edge.what.split()[0] else ("recv", "irecv")
    return (call.kind in other, call.group, call.peer) == (True, edge.group, edge.waiter)


def _has_limit(stack: ThreadStack, evidence: RankEvidence) -> bool:
    """Whether the line of the program in which a thread, or a task of its loop, waits gives that a limit."""
    tasks = [t.frames for t in evidence.tasks] if any("/asyncio/" in f.file for f in stack.frames) else []
    lines = [f for frames in (stack.frames, *tasks) for f in user_frames(frames)[:1]]
    return any(
        len(c.args) > at or any(k.arg == "timeout" for k in c.keywords)
        for f in lines
        for c in calls_on(f.file, f.line)
        if (at := _LIMITED.get(last_name(c.func))) is not None
    )


def _callers(case: Case, rank: int, edge: WaitEdge) -> set[int | None]:
    """The threads that made a rank's last calls in the group of a wait."""
    table = case.calls
    group = next((i for i, g in enumerate(table.groups) if g.name == edge.group), -1)
    rows = table.rows(rank=rank, group=group)[-_LAST_CALLS:]
    return {ident_of(table.threads[int(n)]) for n in table["thread"][rows]}


def _caller_of_wait(case: Case, edge: WaitEdge) -> ThreadStack | None:
    """The waiter's thread that made its last call in the group, where it is known."""
    evidence, idents = case.ranks.get(edge.waiter), _callers(case, edge.waiter, edge)
    stacks = [s for s in evidence.own_stacks if s.ident in idents and in_communication(s)] if evidence else []
    return stacks[0] if len(stacks) == 1 else None


def _begins_at(stack: ThreadStack | None) -> tuple[str, str] | None:
    """The first function of the program in a thread that Python started."""
    mine = user_frames(stack.frames) if stack is not None and not stack.is_main else ()
    return (mine[-1].file, mine[-1].function) if mine else None


def activity_in(case: Case, rank: int, who: Doer | None = None) -> Activity:
    """What a rank does; `who`: in these threads instead of the main one."""
    evidence = case.ranks.get(rank)
    if evidence is None:
        return Activity("unknown", "a process that never registered")
    found = activity_of(evidence, has_open_call(case, rank), who.stacks[-1] if who else None)
    stack = who.stacks[-1] if who else evidence.main_stack
    if stack is not None and found.kind == "data" and not goes_through_loader(stack.frames):
        busy = own_code(evidence, stack, found.frame)  # a generator of the program's own, that is at work itself
        found = busy if busy.kind in ("spinning", "gil") or not feeds_steps(case, rank, stack) else found
    if stack is None or found.kind not in ("spinning", "user") or not runs_without_gil(stack):
        return found
    if waits_there(case, rank):
        return Activity("communication", "a call that waits for other ranks", found.frame)
    is_own = is_on_device(case, rank) and synchronizes(stack)
    return Activity("device", "a wait for its device", found.frame, "its device") if is_own else found


def feeds_steps(case: Case, rank: int, stack: ThreadStack) -> bool:
    """Whether what a thread asks for is for a loop of the training: one in which calls are made, or peers stand, or after its first step.

    Before that a generator of the program is no loader of data.
    """
    if goes_through_loader(stack.frames) or case.ranks[rank].steps:
        return True
    peers = [e.main_stack.frames for r, e in case.ranks.items() if r != rank and e.main_stack is not None]
    noted = [c.frames for e in case.ranks.values() for c in e.pending]
    lines = {(f.file, f.function, f.line) for frames in (*case.calls.stacks, *noted, *peers) for f in frames}
    for head in loops_over_generator(stack.frames):
        loop = next((x for x in surroundings(head.file, head.line).loops if x.header == head.line), None)
        if loop is None or loop.first == loop.last:  # `next(batches)`
            return True
        if any((head.file, head.function, n) in lines for n in range(loop.first + 1, loop.last + 1)):
            return True
    return False


def _caller(case: Case, rank: int, edge: WaitEdge) -> tuple[int | None, bool]:
    """(the thread that made all of the rank's last calls in a group, whether it is one that Python started)."""
    table = case.calls
    group = next((i for i, g in enumerate(table.groups) if g.name == edge.group), None)
    if group is None or edge.kind != "collective":
        return None, False
    calls = [table.call(int(row)) for row in table.rows(rank=rank, group=group)[-_LAST_CALLS:]]
    ident, *others = {ident_of(c.thread) for c in calls} or {None}
    if ident is None or others:
        return None, False
    frames = next((c.frames for c in calls if c.frames), ())
    return ident, bool(frames) and frames[-1].function in _THREAD_BEGINS


def _followed(
    evidence: RankEvidence, first: ThreadStack, known: Mapping[int, ThreadStack], is_open: bool
) -> tuple[tuple[ThreadStack, ...], bool]:
    """The threads each of which waits for the next one alone; whether nobody is seen who could end the last wait.

    Where that comes back to a thread, or leads to one that waits for other ranks, the one before keeps all.
    """
    waits = {w.thread: w for w in evidence.thread_waits if w.kind in _FOLLOWED}
    stacks = [first]
    while len(stacks) < _MOST_THREADS:
        wait = waits.get(stacks[-1].ident or 0)
        if wait is None or len(wait.by) != 1:
            return tuple(stacks), wait is not None and not wait.by and wait.kind == "queue"
        after = known.get(wait.by[0])
        if after in stacks:
            return tuple(stacks[: stacks.index(after) + 1]), False
        if after is None or not user_frames(after.frames) or in_communication(after, is_open):
            break
        stacks.append(after)
    return tuple(stacks), False


def others_of(evidence: RankEvidence, who: Doer) -> tuple[ThreadStack, ...]:
    """The other threads of the process that are in Python."""
    return tuple(s for s in evidence.own_stacks if s not in who.stacks and s.frames)
