"""Rules on how processes ended, or cannot: crashes, signals from outside, a silent end, an end that does not come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from unhang.analyze.failures import is_communication_error
from unhang.analyze.lines.first_errors import errors_of, first_error, is_log_only, went_further
from unhang.analyze.lines.pasted import doings_of
from unhang.analyze.situation import Situation
from unhang.analyze.waits.leaving import cannot_end
from unhang.analyze.waits.open_calls import all_meet_by_files
from unhang.model import EvidenceLine, LogEvent, ProcessExit, RankEvidence, ThreadStack, user_frames
from unhang.model.evidence import SENT_BY_ITSELF
from unhang.model.lazy_pattern import lazy_pattern
from unhang.rules import wording as w
from unhang.rules.base import Found, Names, rule
from unhang.rules.failure import (
    died_of_own_memory,
    first_crash,
    first_exception,
    found_at_failures,
    is_read_from_log,
    killed_for_memory,
    name_or,
)
from unhang.rules.host_waits import end_the_thread, timer_off, undone_item, without_its_server
from unhang.rules.late import driver
from unhang.rules.log_ends import SIGNALS, came_to_its_end, signal_name
from unhang.rules.log_lines import found_in, quote, rank_of_actor, ranks_in, stood_before

# Signals that say what went wrong in the process itself; SIGABRT is how gloo and the watchdog end a process, too.
_OF_ITS_OWN = (-4, -8, -11)
_CRASH_LINES = (
    "python.fatal", "ending.fatal_signal", "ending.lightning_child", "loader.worker_killed", "loader.worker_exited", "ending.ray_worker",
    "ending.deepspeed", "ending.called_process", "ending.worker",
)  # fmt: skip
_THROWN_BY_NCCL = ("nccl.error", "nccl.result")
_CRASH_CODES = ("-4", "-8", "-9", "-11", "132", "136", "137", "139")
_CRASH_SIGNALS = ("SIGSEGV", "SIGILL", "SIGFPE", "SIGKILL", "4", "8", "9", "11")
_WITH_A_CODE = ("ending.deepspeed", "ending.called_process", "ending.lightning_child", "ending.worker")
_PEER_LOST = (
    "gloo.peer_closed", "gloo.reset", "nccl.echo_", "store.gone", "fabric.connection_reset", "store.wait_for_input",
)  # fmt: skip
_FAILED = (  # what says that a process failed, or that somebody waited in vain, before the signal came
    "oom.", "cuda.", "loader.", "python.fatal", "python.unhandled", "shm.", "ending.torchrun", "ending.srun_task", "ending.spawned",
    "ending.fatal_signal", "ending.killed", "ending.lightning_child", "ending.mpirun", "ending.deepspeed", "ending.ray_worker",
    "ending.worker",
)  # fmt: skip
_ABORTED = ("Aborted", "SIGABRT", "6")
_OF_TIME = lazy_pattern(r"(?i)time")
_HAS_BEGUN = 5  # lines, before which nothing shows that the job moved
_END_CALLS = ("destroy_process_group", "_shutdown", "_exit_function", "_python_exit", "_run_exitfuncs",
              "_cancel_all_tasks", "shutdown_default_executor")  # fmt: skip


@rule("rank-crashed", names=Names.FAILURE)
def rank_crashed(s: Situation) -> Found | None:
    """The first crash that the kernel does not explain by memory; else what a launcher saw."""
    failure = first_crash(s)
    if failure is None or is_read_from_log(failure):
        return _crash_in_log(s)
    if killed_for_memory(s, failure):
        return None
    end = failure.exit if failure.kind == "signal" else None
    name, is_own = (signal_name(-(end.code or 0)), end.text == SENT_BY_ITSELF) if end else ("", False)
    say = "itself" if is_own else "mapped" if died_of_own_memory(s) else "signal" if end else "vanished"
    timer = timer_off(s) if name == "SIGALRM" and say == "signal" else {}
    usual = ("timer off", "sender") if timer else ("sender",)
    fixes = {"itself": ("own group",), "mapped": ("whole file", "sender")}.get(say, usual)
    return found_at_failures(s, (failure,), 0.85, {"signal": name, **timer}, say=say, fixes=fixes)


def _crash_in_log(s: Situation) -> Found | None:
    """A launcher or the process itself says how it ended, and no exception tells why.

    That this was where it began is said only where its rank is known, and peers say that they lost somebody, or `spawn` ended the others for it;
    and where a launcher says itself that it ends the others for it, or that a node is gone.
    """
    if not is_log_only(s) or (s.events.has("ending.shut_down") and not errors_of(s)):
        return None
    first = first_exception(s)
    if s.events.has("oom.", "shm.", "cuda.", "nccl.cuda_oom") or (first and not first.names("cause.loader_worker")):
        return None
    crashed, end = _crashed(s)
    waited = next((e.order for e in s.events if e.says == "hang" or e.kind in _THROWN_BY_NCCL), None)
    by_hand = min((e.order for e in s.events.of("ending.by_hand")), default=len(s.case.log))
    crashes = (e for e in s.events.of(*_CRASH_LINES) if e.order < by_hand)
    lines = [e for e in crashes if _is_crash(e) and not _is_end_of_wait(e, waited)]
    lost = [] if end is not None or lines else _lost_the_first_agent(s)
    if (end is None and not (lines or lost)) or (lines and went_further(s.events, lines[-1])):
        return None
    ranks = crashed or ranks_in(lines) or rank_of_actor(s) or ranks_in(s.events.of("ending.shard")[:1])
    seen = [EvidenceLine(f"rank {r} exit", f"code {end.code}, seen by the launcher", end.line) for r in crashed if end]
    is_felt = s.events.has(*_PEER_LOST, "ending.spawned") or any(is_communication_error(e.error) for e in errors_of(s))
    for_it = any(lines and not lines[0]["untold"] and e.order >= lines[0].order for e in s.events.of("ending.others"))
    say = "node" if any(e["node"] for e in lines) else "store" if lost else "others" if for_it and not is_felt else ""
    is_root = bool(say) or for_it or (is_felt and bool(ranks))
    return Found(
        0.8 if end is not None and (end.code or 0) in _OF_ITS_OWN else 0.65,
        ranks,
        (*seen, *quote(lines or lost or s.events.of("ending."))),
        {"who": name_or(ranks, "a process"), "how": "crashed" if end is None else _how(end, ranks)},
        say or ("log" if is_root else "alone"),
        ("sender",),
        cause="" if is_root else "unknown",
    )


def _lost_the_first_agent(s: Situation) -> list[LogEvent]:
    """An agent that could not reach the store any more while its own workers, of which none had failed, still ran: who hosts it was gone."""
    told = [e for e in s.events.of("elastic.agent_lost_store") if "keep-alive" in e.text]
    ended = any(told and e.order > told[0].order for e in s.events.of("elastic.closing_signal", "ending.closing"))
    is_alone = not s.events.has("ending.torchrun", "elastic.restarting", "elastic.death_signal", "elastic.exit_barrier")
    return [*told, *s.events.of("elastic.rendezvous_unreachable")] if ended and is_alone else []


def _is_crash(event: LogEvent) -> bool:
    """Whether a line tells of a process that ended by a fault of its own, or by a SIGKILL of which nothing else is known.

    Bus errors are left to the rule on shared memory.
    """
    if event.kind in _WITH_A_CODE:
        return event["code"] in _CRASH_CODES or event["signal"] in _CRASH_SIGNALS
    if event.kind == "ending.fatal_signal" and not any(event[n] for n in ("name", "signal", "caught", "what", "shell")):
        return False  # the next line names it
    return event["signal"] not in ("Killed", "Bus error", "Terminated", "Hangup")


def _is_end_of_wait(event: LogEvent, waited: int | None) -> bool:
    """Whether it is the abort that torch's watchdog makes of a wait that ran out or of an error of NCCL, or Ray's word on a process of which that was the end."""
    is_abort = event.text.endswith("error: Aborted") or (event["signal"] or event["shell"]) in _ABORTED
    is_abort = is_abort or (event.kind == "ending.ray_worker" and not event["signal"])
    return is_abort and waited is not None and event.order > waited


def _how(end: ProcessExit, ranks: Sequence[int]) -> str:
    code = end.code or 0
    was = w.verb(ranks, "was", "were")
    return f"{was} ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {end.code}"


def _crashed(s: Situation) -> tuple[tuple[int, ...], ProcessExit | None]:
    """The rank that a launcher saw end first by a signal of its own or an exit code that Python's exceptions do not give.

    Several where somebody killed them together, before the launcher asked the others to end.
    """
    ends = sorted(
        ((e.exit.time_ns, rank, e.exit) for rank, e in s.case.ranks.items() if e.exit and e.error is None),
        key=lambda end: (end[0], 0 if end[0] else end[2].line, end[1]),
    )
    by_signal = [(rank, end) for _, rank, end in ends if end.code in _OF_ITS_OWN]
    if by_signal:
        return (by_signal[0][0],), by_signal[0][1]
    killed = [(rank, end) for _, rank, end in ends if end.code == -9]
    asked = {e.number("pid") for e in s.events.of("elastic.closing_signal", "ending.closing")}
    is_by_launcher = not asked or any(s.case.ranks[rank].identity.pid in asked for rank, _ in killed)
    if killed and killed[0][1] is ends[0][2] and (len(killed) == 1 or not is_by_launcher):
        return tuple(sorted(rank for rank, _ in killed)), killed[0][1]
    own = [(rank, end) for _, rank, end in ends if (end.code or 0) > 1]
    echoes = any(e.kind == "echo" for e in errors_of(s))
    return ((own[0][0],), own[0][1]) if len(own) == 1 and echoes else ((), None)


@rule("external-signal")
def external_signal(s: Situation) -> Found | None:
    """What a launcher or scheduler said; else the one rank that was told to end."""
    if hung_up := _loader_hung_up(s):
        return found_in(
            s, hung_up, 0.85, (), words={"why": "", "by": " by SIGHUP"}, say="outside", fixes=("tmux", "nohup")
        )
    events = _came_from_outside(s)
    if not events:
        failure = s.asked_to_end
        if failure is None or failure.exit is None:
            return None
        words = {"signal": signal_name(-(failure.exit.code or 0))}
        return found_at_failures(s, (failure,), 0.85, words, say="one", fixes=("who",))
    why = next((e["why"] for e in events if e["why"]), "")
    numbers = [n for e in events if (n := e.number("signal")) is not None]
    number, is_hangup = next(iter(numbers), None), 1 in numbers
    told = [e.order for e in events if e.kind in SIGNALS]
    is_root = bool(told) and any(
        e.kind == "primary" and e.order > told[0] for e in errors_of(s)
    )  # raised on the way out
    sure = 0.98 if is_root else 0.93 if why or is_hangup else 0.85 if told else 0.6
    fixes = ("tmux", "nohup") if is_hangup else ("limits", "who") if why else ("who", "limits")
    words = {"why": why.lower(), "by": f" by {signal_name(number)}" if number else ""}
    return found_in(s, events, sure, (), words=words, say="scheduler" if why else "outside", fixes=fixes)


def _loader_hung_up(s: Situation) -> Sequence[LogEvent]:
    """A loader's worker that got SIGHUP, before anything else failed: a terminal or a session sends that, no part of a training."""
    lines = [e for e in s.events.of("loader.worker_killed") if e["signal"] == "Hangup"]
    first = first_error(s)
    return lines[:1] if lines and is_log_only(s) and (first is None or lines[0]["signal"] in first.text) else ()


def _came_from_outside(s: Situation) -> Sequence[LogEvent]:
    """The signals, if nothing failed before, and it was not us who ended a job that hung."""
    if s.case.hang is not None or s.case.job.ended_by_us:
        return ()
    events = s.events.of(*SIGNALS, "ending.cancelled", "ending.preempted")
    found = [e for e in events if (e["signal"] or e["name"]) not in ("2", "SIGINT") and "NODE FAIL" not in e["why"]]
    if not found or any(e.says == "hang" for e in s.events) or any(d.kind == "collective" for d in doings_of(s)):
        return ()
    first = found[0].order
    if is_log_only(s) and went_further(s.events, found[-1]):
        return ()  # it was begun anew
    if any(e.order < first for e in s.events.of("ending.given_up")):
        return ()  # whoever ends a job by hand knows that he did, and mostly why
    if any(e.order < first and e.says for e in s.events.of(*_FAILED)):
        return ()
    errors = [e for e in errors_of(s) if e.kind != "told" and e.order <= first]
    if came_to_its_end(s) or any(e.kind == "primary" or e.order < first for e in errors):
        return ()
    return () if _stood_still(s, found) else found


def _stood_still(s: Situation, ended: Sequence[LogEvent]) -> bool:
    """Whether who ended a job at the end of its time, or without a reason, ended one that had begun and had not moved for most of its time: it may have hung.

    Who: a scheduler, or a service for tests.
    """
    said = [e for e in ended if e.kind == "ending.cancelled"]
    limits = ended[:1] == said[:1] and all(not e["why"] or _OF_TIME.search(e["why"]) for e in said)
    is_bare = not any(e["why"] for e in said)  # then the signals behind its word are all that it did
    limits = limits and all(e in said or (is_bare and e.kind in SIGNALS) for e in ended)
    limits = limits or any(e.order < ended[0].order for e in s.events.of("ending.time_limit"))
    told = sum(bool(line.text.strip()) for line in s.case.log[: ended[0].order])
    moves = [e for e in s.events if (e.is_progress and e["percent"] != "100") or e.kind == "work.saved"]
    moves = [e for e in moves if e.order < ended[0].order]
    return limits and told >= _HAS_BEGUN and (not moves or stood_before(s, moves, ended[0]))


@rule("stopped-by-signal")
def stopped_by_signal(s: Situation) -> Found | None:
    """The rank that the guards' line names."""
    events = s.events.of("guards.stopped")
    ranks = tuple(sorted({rank for e in events if (rank := e.number("failed")) is not None}))
    return found_in(s, events, 0.97, ranks, words={"who": name_or(ranks[:1], "a rank")}) if events else None


@rule("left-without-error", names=Names.FAILURE)
def left_without_error(s: Situation) -> Found | None:
    """The ranks that a launcher does not list among those that lost a peer."""
    ended = {r: e for r, e in s.case.ranks.items() if e.exit is not None and e.identity.local_rank is not None}
    if len(ended) < 2 or s.primary_failure is not None or first_error(s) is not None or len(s.case.calls):
        return None
    echoes = [e for e in ended.values() if e.error is not None]
    if not echoes or not all(e.error and is_communication_error(e.error) for e in echoes):
        return None
    if any(e.exit and e.exit.code not in (1, -6, -15) for e in ended.values()) or any(
        e.says == "hang" for e in s.events
    ):
        return None
    missing = tuple(_left_out(ended))
    if not missing or len(missing) > len(ended) or any(r in s.case.ranks for r in missing):
        return None
    if len({e["pid"] for e in s.events.of("elastic.closing_signal")}) >= len(missing):
        return None  # the launcher had to end as many: they were alive
    words = {
        "who": w.name_ranks(missing),
        "it": w.verb(missing, "it", "them"),
        "are": w.verb(missing, "is", "are"),
        "ended": w.name_ranks(sorted(ended)),
    }
    return Found(0.85, missing, tuple(_end_lines(ended)), words, victims=tuple(ended))


def _left_out(ended: Mapping[int, RankEvidence]) -> Iterator[int]:
    """Ranks between two of the same node that are not listed."""
    for low, high in pairwise(sorted(ended)):
        offsets = {r - (ended[r].identity.local_rank or 0) for r in (low, high)}
        if len(offsets) == 1:
            yield from range(low + 1, high)


def _end_lines(ended: Mapping[int, RankEvidence]) -> Iterator[EvidenceLine]:
    for rank, evidence in sorted(ended.items())[:6]:
        error = evidence.error
        if error is not None:
            yield EvidenceLine(f"rank {rank} exception", f"{error.type}: {error.message[:200]}", error.source.line)
        elif evidence.exit is not None:
            yield EvidenceLine(f"rank {rank} exit", f"code {evidence.exit.code}, seen by the launcher")


@rule("shutdown-hang")
def shutdown_hang(s: Situation) -> Iterator[Found]:
    """The ranks that sit in their end, by a log and live."""
    yield from _ending_in_log(s)
    ranks = cannot_end(s) if (s.case.hang is not None or s.standing is not None) and not s.failures else ()
    if not ranks:
        return
    if writers := _write_to_a_queue(s, ranks):
        yield _unread_queue(s, writers)
        return
    evidence, activity = s.case.ranks[ranks[0]], s.activities[ranks[0]]
    frame, is_polling = activity.frame, activity.is_polled
    is_of_all = is_polling and len(ranks) == len(s.case.world)
    say = "live" if activity.kind == "shutdown" else "polls" if is_polling else "alone"
    say = "by files" if is_of_all and all_meet_by_files(s) else "all poll" if is_of_all else say
    main = {f.function for f in evidence.main_stack.frames} if evidence.main_stack else ()
    say = "child" if say == "live" and "_exit_function" in main and "poll" in main else say
    threads = [(t, user_frames(t.frames)[0]) for t in evidence.stacks if not t.is_main and user_frames(t.frames)]
    if threads and ("_shutdown" in main or frame is None):
        frame = threads[0][1]
    words = {
        "who": w.name_ranks(ranks),
        "have": w.verb(ranks, "has", "have"),
        "at": f": {w.place(frame)}" if frame else "",
        "thread": f" and waits for the thread {threads[0][0].name!r}." if threads else ".",
        "waits": w.verb(ranks, "waits", "wait"),
        "awaits": activity.awaits,
        "spot": w.spot(frame) if frame else "",
    }
    lines = [EvidenceLine(f"rank {ranks[0]} thread {t.name}", str(f), f.line) for t, f in threads[:4]]
    mended = end_the_thread(evidence) or (undone_item(activity.frame) if say == "alone" and activity.frame else None)
    mended = mended or without_its_server(evidence, activity.frame)
    is_own = say == "live" and "destroy_process_group" not in main and bool(user_frames(evidence.main_frames))
    yield Found(
        0.9,
        () if say == "all poll" else ranks,
        (*w.stack_lines(evidence), *lines),
        words,
        say=say,
        fixes=(*((mended,) if mended else ()), *_END_FIXES.get("own" if is_own else say, ("order", "threads"))),
        cause="rank-stuck-in-user-code" if is_polling else "",
        victims=s.others(ranks),
        location=frame,
    )


_END_FIXES = {
    "own": ("its own end",),
    "alone": ("wait",),
    "child": ("child",),
    "polls": ("look once",),
    "all poll": ("look once",),
    "by files": ("one name",),
}


def _write_to_a_queue(s: Situation, ranks: Iterable[int]) -> dict[int, ThreadStack]:
    """The thread of each rank that writes to the pipe of a `multiprocessing.Queue`, or waits for its turn to, and for which the end of the process waits."""
    found = {}
    for rank in ranks:
        main = s.case.ranks[rank].main_stack
        if main is not None and any(f.function == "_finalize_join" for f in main.frames):
            for thread in s.case.ranks[rank].stacks:
                if any(f.function == "_feed" for f in thread.frames):
                    found[rank] = thread
    return found if any(t.frames[0].function == "_send" for t in found.values()) else {}


def _unread_queue(s: Situation, writers: Mapping[int, ThreadStack]) -> Found:
    """No rank is to blame where the process that started them waits for their end before it reads."""
    ranks, (first, *_) = tuple(writers), writers.values()
    joins, put = driver(s), next(iter(first.given), None)
    words = {
        "who": w.name_ranks(ranks),
        "have": w.verb(ranks, "has", "have"),
        "its": w.verb(ranks, "its", "their"),
        "at": f": {w.place(joins)} waits for the processes and does not read it" if joins else "",
        "put": f" ({w.place(put)})" if put else "",
    }
    shown = [EvidenceLine(f"rank {r} thread {t.name}", str(t.frames[0])) for r, t in [*writers.items()][:4]]
    started = [EvidenceLine("launcher stack", str(joins), joins.line)] if joins else []
    seen, victims = (*shown, *started), s.others(ranks)
    return Found(0.9, () if joins else ranks, seen, words, "queue", ("read first",), victims, location=joins or put)


def _ending_in_log(s: Situation) -> Iterator[Found]:
    """The stacks in a log are all in the end of the program, or the log ends in it and then a limit is hit."""
    if s.case.hang is not None or first_exception(s) is not None:
        return
    if any(e.kind == "echo" and not (e.error.frames or "ChildFailedError" in e.error.type) for e in errors_of(s)):
        return
    doings, last = doings_of(s), came_to_its_end(s)
    ending = [d for d in doings if d.kind == "ending"]
    if ending and len(ending) == len(doings):
        ranks = tuple(sorted({r for d in ending for r in d.ranks}))
        frames = ending[0].frames
        frame = next((f for f in frames if f.function in _END_CALLS), frames[0])
        lines: Iterable[EvidenceLine] = [w.stack_of(d) for d in ending[:4]]
        words = {"who": name_or(ranks, "the job"), "at": f": {w.place(frame)}"}
        yield Found(0.8, ranks, lines, words, say="log", fixes=("order", "threads"), victims=())
    elif last and not doings:
        sure = 0.7 if last[1].says == "hang" or last[0].kind == "ending.finished" else 0.88
        yield Found(sure, (), quote(last), {"who": "the job", "at": ""}, say="log", fixes=("order", "threads"))
