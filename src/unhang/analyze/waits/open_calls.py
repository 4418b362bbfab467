"""Calls that do not complete although every member is in them, and the call that a silent rank should have made.

Also what a call may be by its number of elements, and waits that all ranks share outside of the recorded calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from unhang.analyze.activity import OF_RAY, RESULT_OF_RAY, TASK_OF_RAY, Activity, awaited_in, in_communication
from unhang.analyze.calls.align import members_of
from unhang.analyze.program.callpath import user_path
from unhang.analyze.program.trees import calls_on, last_name
from unhang.analyze.program.ways_out import catches_a_limit
from unhang.analyze.situation import Situation
from unhang.analyze.waits.host_waits import polls_ray
from unhang.analyze.waits.polling import meets_by_files
from unhang.analyze.waits.waits_for import under_way
from unhang.model import CallState, CollectiveCall, CollectiveTable, Frame, ThreadStack, WaitEdge, grouped, user_frames
from unhang.numeric import np

STALLED = "has not begun it on its device, though every call before it has completed"
FROZEN = "has not completed it where its peers have: its device, or what watches it, stopped there"


class InFlight(NamedTuple):
    """A call that all members have issued and that is open. `behind`: members whose device is not as far as the others'."""

    call: CollectiveCall
    members: tuple[int, ...]
    behind: tuple[int, ...]
    how: str


def in_flight(s: Situation) -> tuple[InFlight, ...]:
    """The calls in which ranks wait although every member has come to them, one per position, oldest first.

    Those before them that a device of its own account has not begun.
    """
    table, seen = s.case.calls, {}  # type: ignore[var-annotated]
    for rank in s.recorded.fronts:
        for row in s.recorded.in_flight(rank):
            other = s.recorded.transfers.get(row)
            if not table["is_p2p"][row]:
                seen.setdefault((int(table["group"][row]), int(table["seq"][row])), row)
            elif other is not None:
                seen.setdefault(tuple(sorted((row, other))), row)
    found = [*_stalled(s), *(_in_flight_at(s, row) for row in seen.values())]
    return tuple(sorted(found, key=lambda f: (not f.behind, f.call.created_ns)))


def _stalled(s: Situation) -> Iterable[InFlight]:
    """One for each call that is the next one of devices that stand still."""
    table, frozen = s.case.calls, s.recorded.frozen.devices
    rows = {rank: frozen[rank] if rank in frozen else s.recorded.fronts[rank][0] for rank in s.recorded.stalled}
    places = (
        (rank, *(table[name].item(row) for name in ("group", "seq", "is_p2p"))) for rank, row in sorted(rows.items())
    )
    ranks = grouped(((group, seq, rank if is_p2p else None), rank) for rank, group, seq, is_p2p in places)
    for (group, *_), behind in ranks.items():
        how = FROZEN if behind[0] in frozen else STALLED
        yield InFlight(table.call(rows[behind[0]]), members_of(s.index, group), tuple(behind), how)


def _in_flight_at(s: Situation, row: int) -> InFlight:
    table = s.case.calls
    group, seq = int(table["group"][row]), int(table["seq"][row])
    if table["is_p2p"][row]:
        rows = np.array([row, s.recorded.transfers[row]])
        ranks, states = table["rank"][rows], table["state"][rows]
        members = tuple(sorted(ranks.tolist()))
    else:
        position = s.index.position(group, seq)
        assert position is not None
        ranks, states, members = position.ranks, position.states, members_of(s.index, group)
    done = states == CallState.COMPLETED
    begun = states != CallState.SCHEDULED
    if not (states == CallState.STARTED).any():
        begun = np.ones(len(states), dtype=bool)  # the dumps do not tell
    for how, is_ahead, most in (
        ("has not completed it on its device, where the others have", done, (len(ranks) - 1) // 2),
        ("has not begun it on its device, where its peers have", begun, len(ranks) // 2),
    ):
        behind = tuple(sorted(ranks[~is_ahead].tolist()))
        if 0 < len(behind) <= most:
            return InFlight(table.call(row), members, behind, how)
    return InFlight(table.call(row), members, (), "")


_MOST_WAITERS = 64


def _counts(table: CollectiveTable, rank: int, completed_only: bool) -> dict[str, int]:
    """Kind of group -> the last sequence number that the rank issued, or that it completed."""
    found: dict[str, int] = {}
    rows = table.rank_rows(rank)
    for group, seq, state, is_p2p in zip(
        *(table[n][rows].tolist() for n in ("group", "seq", "state", "is_p2p")), strict=True
    ):
        if not is_p2p and (state == CallState.COMPLETED or not completed_only):
            kind = table.groups[group].desc or table.groups[group].name
            found[kind] = max(found.get(kind, 0), seq)
    return found


def awaited_call(
    table: CollectiveTable, rank: int, edges: Iterable[WaitEdge], fronts: Mapping[int, Sequence[int]]
) -> CollectiveCall | None:
    """The call that the rank's peers made next, where the rank made none.

    `edges`: the waits for the rank. `fronts`: the rows of the calls in which each rank waits.

    Several peers may wait in different calls. The one whose completed calls are those that the rank has issued is at the
    very next one.
    """
    waits = sorted(edges, key=lambda e: (e.kind != "collective", e.since_ns or 0))[:_MOST_WAITERS]
    mine = _counts(table, rank, completed_only=False)
    best: tuple[tuple[int, int, int], CollectiveCall] | None = None
    for edge in waits:
        theirs = _counts(table, edge.waiter, completed_only=True)
        distance = sum(abs(n - theirs.get(kind, 0)) for kind, n in mine.items())
        for row in fronts.get(edge.waiter, ()):
            call = table.call(row)
            if call.group.name != edge.group or (call.seq != edge.seq and not call.is_p2p):
                continue
            key = (int(edge.kind != "collective"), distance, edge.since_ns or 0)
            if best is None or key < best[0]:
                best = key, call
    return best[1] if best else None


_MOST_CALLS, _MOST_NAMES, _LEAST_WIDTH = 64, 3, 64
CPU_GENERATOR = 5056  # bytes of torch.get_rng_state()


def waiting_counts(s: Situation) -> tuple[int, ...]:
    """The numbers of elements of the calls that did not complete, each once."""
    logged = [n for wait in s.watchdogs.timed_out for n in (wait.numel_in, wait.numel_out) if n]
    table = s.case.calls
    rows = np.nonzero(table["state"] != CallState.COMPLETED)[0][:_MOST_CALLS] if len(table) else ()
    calls = [prod(sizes) for row in rows for sizes in table.call(int(row)).in_sizes]
    return tuple(dict.fromkeys(n for n in (*logged, *calls) if n > 1))


def named(count: int, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What a call of so many elements may be, by the model's shapes; "" where nothing fits. More than one thing may have the size."""
    found = list(_alike(count, shapes))
    return f"{count:,} elements: {'; or '.join(found)}" if found else ""


def _alike(count: int, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    equal = [name for name, sizes in shapes.items() if prod(sizes) == count]
    if equal:
        sizes = " x ".join(f"{n:,}" for n in shapes[equal[0]])
        more = f" and {len(equal) - _MOST_NAMES} more" if len(equal) > _MOST_NAMES else ""
        yield f"{', '.join(f'`{name}`' for name in equal[:_MOST_NAMES])}{more} ({sizes})"
    if count == len(shapes):
        yield f"one number for each of the {count} tensors, as in DDP's map of used parameters"
    if count == CPU_GENERATOR:
        yield "the state of torch's random generator on the processor"
    if not equal:
        yield from _bucket(count, shapes)
        yield from _rows(count, shapes)


def _bucket(count: int, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The one run of neighbouring tensors with that sum: DDP fills its buckets from the last parameter to the first."""
    names = list(shapes)[::-1]
    ends = np.cumsum([0, *(prod(shapes[name]) for name in names)])
    starts = np.searchsorted(ends, ends + count)
    runs = [(i, int(j)) for i, j in enumerate(starts) if j < len(ends) and ends[j] == ends[i] + count and j > i + 1]
    if len(runs) == 1:
        first, last = names[runs[0][0]], names[runs[0][1] - 1]
        yield f"a bucket of DDP, the gradients from `{first}` to `{last}` ({runs[0][1] - runs[0][0]} tensors)"


def _rows(count: int, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Rows as wide as a layer, where one width alone fits: features that are gathered."""
    widths = {n for sizes in shapes.values() for n in sizes if n >= _LEAST_WIDTH}
    fitting = sorted((n for n in widths if count % n == 0 and count > n), reverse=True)
    widest = [n for n in fitting if not any(other % n == 0 for other in fitting if other != n)]
    if len(widest) == 1:
        of = next(name for name, sizes in shapes.items() if widest[0] in sizes)
        yield f"{count // widest[0]:,} rows of {widest[0]:,}, the width of `{of}`: outputs of that layer"


def all_meet_by_files(s: Situation) -> bool:
    """Whether every rank looks, again and again, for the files of the others, and has left its own."""
    polled = {r: a.frame for r, a in s.activities.items() if a.is_polled}
    meet = all(f is not None and meets_by_files(f.file, f.line) for f in polled.values())
    return meet and polled.keys() == set(s.case.world)


def all_wait_for_ray(s: Situation) -> set[int]:
    """All ranks, if each waits for a result of Ray, or asks Ray again and again for another answer, and no call of a group is under way."""
    return _all_ranks(s, lambda a: a.awaits == RESULT_OF_RAY or (a.is_polled and polls_ray(a.frame)))


def all_without_task(s: Situation) -> set[int]:
    """All ranks, if each is an actor of Ray that has nothing to do, in no thread of its own either, and no call of a group is under way."""
    at_work = {r for r, e in s.case.ranks.items() if any(user_frames(t.frames) for t in e.stacks)}
    return _all_ranks(s, lambda a: a.awaits == TASK_OF_RAY) if not at_work else set()


def driver_stack(s: Situation) -> ThreadStack | None:
    """The main thread of the program that started the ranks and gives them their work."""
    return next((t for t in s.case.launcher_stacks if t.is_main), None)


def driver_without_answer(s: Situation) -> Frame | None:
    """The line at which the program that gives the ranks their tasks waits for a result of Ray, without a limit, while no worker has one."""
    main = driver_stack(s)
    if any(is_under_way(t) for t in s.case.launcher_stacks):
        return None
    if main is None or awaited_in(main) != RESULT_OF_RAY or not (mine := user_frames(main.frames)):
        return None
    has_limit = any(k.arg == "timeout" for c in calls_on(mine[0].file, mine[0].line) for k in c.keywords)
    return None if has_limit else mine[0]


_MOST_CAUGHT_S, _RAISES_S = 30.0, 2.0


def oldest_wait_ns(s: Situation, moved_ns: Mapping[int, int]) -> int:
    """Since when the first rank waits; 0 where none does. `moved_ns`: when each rank moved last.

    Who begins a call and goes on waits for it since it stands, however long ago it began it.
    """
    waits = ((e.waiter, e.since_ns) for e in s.waits.edges if e.targets)
    return min((max(since, moved_ns.get(rank, 0)) for rank, since in waits if since), default=0)


def caught_left_s(s: Situation, now_ns: int) -> float:
    """How long until a call of gloo that a rank waits in raises by its own limit, where the program catches that and goes on; 0 where none does.

    `now_ns`: of the wall clock. Whoever gives itself minutes is not waited for.
    """
    left = []
    for edge in s.waits.edges:
        until_s = (edge.since_ns or 0) / 1e9 + _RAISES_S - now_ns / 1e9
        if until_s + _MOST_CAUGHT_S <= 0:
            continue
        limits = [x for stack in _in_wait(s, edge) if _is_caught(stack) and (x := _limit_s(s, edge, stack))]
        left += [until_s + x for x in limits if x <= _MOST_CAUGHT_S and until_s + x > 0]
    return min(left, default=0.0)


def _in_wait(s: Situation, edge: WaitEdge) -> list[ThreadStack]:
    """The threads of a rank that may be the one in that wait; the main one where none is seen to be."""
    evidence = s.case.ranks.get(edge.waiter)
    own = evidence.own_stacks if evidence is not None else ()
    return [t for t in own if in_communication(t)] or [t for t in own if t.is_main]


def _is_caught(stack: ThreadStack) -> bool:
    """Whether what the wait raises is caught: by the program, by a worker of Ray, or by a thread's end, which ends no process."""
    is_of_ray = any(f.file.endswith(_OF_A_WORKER) for f in stack.frames)
    return not stack.is_main or is_of_ray or catches_a_limit(user_path(stack.frames))


_OF_A_WORKER = "/ray/_private/workers/default_worker.py"


def _limit_s(s: Situation, edge: WaitEdge, stack: ThreadStack) -> float:
    """The limit of the call that a thread waits in, or the longest of note where only its line has one; 0 where there is none, or it ends the process."""
    group = next((g for g in s.case.groups if g.name == edge.group), None)
    if group is None or group.backend != "gloo":
        return 0.0
    barrier = under_way(s.case.ranks[edge.waiter], "monitored_barrier") if edge.kind == "barrier" else None
    if barrier is not None and barrier.detail:
        return float(barrier.detail)
    mine = user_frames(stack.frames)[:1]
    calls = (
        c for f in mine for c in calls_on(f.file, f.line) if last_name(c.func) == "wait" and (c.args or c.keywords)
    )
    return _MOST_CAUGHT_S if any(calls) else group.timeout_s or 0.0


def is_under_way(worker: ThreadStack) -> bool:
    """Whether a thread of the launcher's is a worker of Ray amid a call or a task, by its title or its stack."""
    return worker.name.startswith(OF_RAY) and ("." in worker.name or bool(user_frames(worker.frames)))


# What another thread or process of the job gives; no file, no terminal, no pause, nobody who asks from outside.
_OF_THE_JOB = {
    "an event or condition", "a lock", "a thread that does not end", "the result of another thread", "the results of other threads", "a queue",
    "a full queue", "a queue to be emptied", "a lock of several processes", "a child process", "a pipe", "a socket",
    "room in a pipe", "room in a socket",
}  # fmt: skip
_OF_A_PROCESS = ("a socket", "a pipe", "room in a socket", "room in a pipe", "a lock", "a full queue")


def all_wait_in_the_job(s: Situation) -> set[int]:
    """All ranks, if each of their threads waits for a thread or a process of the program, and no call of a group is under way.

    One at least waits for a process, a lock, or room in a queue: events, orders and the ends of threads a program at rest waits for, too.
    """
    found = _all_ranks(s, lambda a: a.awaits in _OF_THE_JOB)
    if not any(s.activities[r].awaits in _OF_A_PROCESS for r in found):
        return set()
    beside = (t for r in found for t in s.case.ranks[r].own_stacks if not t.is_main and user_frames(t.frames))
    return found if all(awaited_in(t) in _OF_THE_JOB for t in beside) else set()


def all_wait_for_loaders(s: Situation) -> set[int]:
    """All ranks, if each waits for its data loader, and no call of a group is under way."""
    return _all_ranks(s, lambda a: a.kind == "data")


def all_wait_for_tasks(s: Situation) -> set[int]:
    """All ranks, if each waits in an event loop: for its tasks, as far as nobody has asked what these wait for."""
    return _all_ranks(s, lambda a: a.awaits == "its tasks")


def answerer_of(s: Situation, rank: int) -> int | None:
    """The rank from which a rank's main thread waits for something over a connection within the machine; it may be the rank itself."""
    main = s.case.ranks[rank].main_stack if rank in s.case.ranks else None
    pid = main.kernel.peer if main is not None and main.kernel is not None else 0
    return next((r for r, e in s.case.ranks.items() if pid and e.identity.pid == pid), None)


def left_by_a_failure(s: Situation) -> set[int]:
    """The ranks that are left where others have failed, if each waits for a process of the program or a thread of its own, and for no rank."""
    failed = {f.rank for f in s.failures}
    left = {r for r, e in s.case.ranks.items() if r not in failed and e.exit is None}
    waits = all(s.activities[r].kind in ("lock", "outside") for r in left)
    return left if failed and waits and not s.index.groups_with_open_calls() else set()


def all_in_unknown_calls(s: Situation) -> set[int]:
    """All ranks, if each stands in a call with others by its stack, and no recorder knows these calls.

    torch 2.4 to 2.7 keep none of gloo's; and a call of NCCL is recorded when the communicator that it needs has been made.
    """
    found = _all_ranks(s, lambda a: a.kind == "communication")
    return found if len(found) > 1 else set()


def _all_ranks(s: Situation, does: Callable[[Activity], bool]) -> set[int]:
    found = {r for r, a in s.activities.items() if does(a)} if set(s.case.in_sight) == set(s.case.world) else set()
    return found if found == set(s.case.world) and not s.index.groups_with_open_calls() else set()
