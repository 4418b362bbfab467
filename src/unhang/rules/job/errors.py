"""Rules on the exception with which it began: memory, files, parameters, or the program's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from unhang.analyze.failures import are_whole_nodes
from unhang.analyze.lines.first_errors import errors_of, has_fatal_end, is_log_only
from unhang.analyze.lines.log_progress import behind_in_steps
from unhang.analyze.program.callpath import user_path
from unhang.analyze.situation import Situation
from unhang.analyze.waits.overtaking import LeftOut, left_out_before
from unhang.model import EvidenceLine, Fix, LogEvent
from unhang.read.logs import matches
from unhang.read.logs.attempts import moved_after
from unhang.read.logs.catalogue import best_cause
from unhang.rules import wording as w
from unhang.rules.advice import of_skipped_part, part_left_out
from unhang.rules.base import CLEAN, Found, rule
from unhang.rules.failure import (
    SPECIAL,
    FirstException,
    comes_late,
    first_crash,
    first_exception,
    found_at_failures,
    found_at_first,
    in_trouble,
    is_before,
    is_file_race,
    is_half_written,
    is_of_a_fork,
    is_of_objects,
    is_read_from_log,
    killed_for_memory,
    name_or,
    names_cause,
    same_failures,
    text_of,
    written_at_once,
)
from unhang.rules.given_work import answered_apart, not_received
from unhang.rules.item_repairs import of_temporary
from unhang.rules.known_repairs import of_allocation
from unhang.rules.log_lines import (
    GENERAL_TYPE,
    died_alone,
    found_in,
    is_not_of_the_program,
    known_of,
    not_outlived,
    only_rank,
    quote,
    quote_own,
    rank_of_actor,
    ranks_in,
    ranks_of_devices,
    ranks_of_pids,
)
from unhang.rules.repairs import of_exception, of_existing, of_moved, of_path

_WORK_IN_MEMORY, _KILLED = ("work.preparing", "oom.loading", "work.saving"), (-9, 137)
_OF_DEVICE_MEMORY = ("oom.device", "oom.device_library", "nccl.cuda_oom")
_LOADS = re.compile(
    r"(?i)\b(?:(?:re|pre|down)?load|read|cach|prepar|preprocess|tokeni[sz]|packing|map\b|generating \w+ split)"
)
_FEWEST_SAID, _TIMES_AS_MUCH, _UNITS = 4, 3.0, {"M": 1e-3, "G": 1.0, "T": 1e3}  # values of the memory in use
# Families whose lines say that something failed, but not what; all others name a cause that has a rule of its own.
_GENERIC = (
    "python.",
    "progress.",
    "work.",
    "learn.",
    "ending.",
    "elastic.",
    "launchers.",
    "watchdog.",
    "loader.worker_error",
    "ddp.ready_twice",
    "ddp.static_graph",
    "shm.errno_28",  # a full disk as well
    "files.gone_while_deleting",  # only where two ranks delete, see `filesystem-race`
    "failure.",
    "catalogue.",  # see `is_not_of_the_program`
)
_BUT = ("learn.desync",)  # of these families, what a rule speaks of


@rule("fd-exhaustion")
def fd_exhaustion(s: Situation) -> Found | None:
    """The primary failure; else a line, of a program that merely mentions it only in a job that failed."""
    first = s.primary_failure
    if first is not None and names_cause(text_of(first), "cause.descriptors"):
        return found_at_failures(s, same_failures(s, first), 0.95, say="failed")
    seen = first_exception(s)
    if seen is not None and seen.names("cause.descriptors"):
        return found_at_first(s, seen, 0.95, say="failed")
    if first is not None:
        return None
    events = not_outlived(s, s.events.of("fabric.too_many_files"))
    if events and (in_trouble(s) or any(e["failed"] for e in events)):
        return found_in(s, events, 0.95, say="line")
    return None


@rule("filesystem-race")
def filesystem_race(s: Situation) -> Found | None:
    """Some ranks, and not all, failed on a path."""
    first = first_exception(s)
    if first is None or not is_file_race(s, first):
        return None
    if is_half_written(s, first):
        words = {"head": first.head, "file": first.error.file, "bytes": first.error.file_bytes}
        return found_at_first(s, first, 0.88, words, say="half", fixes=("whole", "wait"))
    if (written := written_at_once(s, first)) is not None:
        found = found_at_first(s, first, 0.88, {"file": written.path, "head": first.head}, say="once", fixes=("wait",))
        return replace(found, evidence=(*quote_own(written.lines[:2]), *found.evidence), culprits=(), is_root=True)
    if (nodes := _other_nodes(s, first)) is not None:
        return found_at_first(s, first, 0.93, {"head": first.head, **nodes}, say="node", fixes=("each node",))
    fixes = tuple(
        filter(None, (of_moved(first.error.frames) or of_temporary(first.error) or of_existing(first.error),))
    ) + of_path(first.head)
    return found_at_first(s, first, 0.93 if first.failures else 0.78, {"head": first.head}, say="path", fixes=fixes)


def _other_nodes(s: Situation, first: FirstException) -> dict[str, str] | None:
    """The ranks that found the path, where all those of whole nodes did not: who made it did so on another machine's disk."""
    others = [r for r in s.case.ranks if r not in first.ranks]
    is_missing = first.error.type.endswith("FileNotFoundError") and bool(first.failures and others)
    return {"others": w.name_ranks(others)} if is_missing and are_whole_nodes(s.case, first.ranks) else None


@rule("gpu-out-of-memory")
def gpu_out_of_memory(s: Situation) -> Found | None:
    """The first failure, as an exception or as a line of a library; not a step that was skipped."""
    first = first_exception(s)
    skipped = {e.order for e in s.events.of("learn.step_skipped")}
    if first is not None and first.seen is not None and first.seen.order in skipped:
        return None
    is_other = any("memory" not in e["error"] for e in s.events.of("nccl.cuda_failure"))  # why nothing was given
    events = tuple(e for e in s.events.of(*_OF_DEVICE_MEMORY) if not is_other or "out of memory" in e.text)
    if first is not None and first.names("cause.device_memory"):
        seen = FirstException(first.error, first.ranks or ranks_of_devices(s, events), first.failures, first.seen)
        return found_at_first(s, seen, 0.7 if comes_late(s, first) else 0.96, say="error")
    events = tuple(e for e in events if e.order not in skipped and "1EB" not in e.text)
    if events and is_before(events[0], first, by=1) and _is_the_end(s, events):
        ranks = ranks_in(events) or ranks_of_devices(s, events)
        return found_in(s, events, 0.95, ranks, words={"who": name_or(ranks, "a rank"), "at": ""}, say="line")
    return None


def _is_the_end(s: Situation, events: Sequence[LogEvent]) -> bool:
    """Whether nobody went on after it: a step that was skipped is no end."""
    after = moved_after(s.events, events[-1].order)
    return after <= 2 or (has_fatal_end(s) and after <= 40)


@rule("host-out-of-memory")
def host_out_of_memory(s: Situation) -> Found | None:
    """The first crash, if the kernel or a scheduler says why; an exception; or a SIGKILL while something was loaded or saved."""
    failure = first_crash(s)
    if failure is not None and not is_read_from_log(failure):
        return found_at_failures(s, (failure,), 0.93, say="crash") if killed_for_memory(s, failure) else None
    first = first_exception(s)
    if first is not None and first.names("cause.device_memory"):
        return None
    if grown := _grown_until_killed(s):
        return _killed(s, grown, 0.85, "grown")
    sure = not_outlived(s, s.events.of("oom.kernel", "oom.slurm", "oom.pod", "oom.ray"))
    if sure:
        return _killed(s, sure, 0.95, "sure")
    if first is not None and first.names("cause.host_memory"):
        killed = "killed by signal" in first.text
        by_somebody = _killed_by_somebody(s, first) if killed else None
        found = by_somebody or found_at_first(s, first, 0.8 if killed else 0.9, say="worker" if killed else "error")
        shown = of_allocation(first.text, first.frame) if first.frame is not None else None
        return replace(found, cause="user-exception", fixes=(shown,)) if shown else found
    guess = _killed_while_loading(s) if first is None else ()
    return _killed(s, guess, 0.62, "guess") if guess else None


def _killed_by_somebody(s: Situation, first: FirstException) -> Found | None:
    """What is known of a loader's worker that was killed while the kernel counted no process that it killed for want of memory."""
    states = [e.state for r in first.ranks if (e := s.case.ranks.get(r)) is not None and e.state is not None]
    if not states or any(state.oom_kills != 0 for state in states):
        return None
    fix = Fix(
        title="Find what killed the worker: a guard of the program, a limit (RLIMIT_CPU), or somebody",
        advice="unhang shows the pid; look for os.kill, Process.kill and setrlimit in the program, and for limits of the node; a worker that may be "
        "killed has to be noticed and started anew by the loop that reads it",
        verify=CLEAN,
        undo="nothing is changed",
    )
    return found_at_first(s, first, 0.75, say="not counted", fixes=(fix,), cause="rank-crashed-earlier")


def _killed(s: Situation, events: Sequence[LogEvent], confidence: float, say: str) -> Found:
    killed = tuple(r for r, e in sorted(s.case.ranks.items()) if e.exit is not None and e.exit.code in _KILLED)
    who_died = [e for e in events if say != "guess" or e.kind.startswith(("ending.", "elastic."))]
    named = ranks_in(who_died) or ranks_of_pids(s, (*events, *s.events.of("kernel.oom_kill")))
    ranks = named or killed or rank_of_actor(s) or only_rank(s) or died_alone(s)
    return found_in(s, events, confidence, ranks, words={"who": name_or(ranks, "a process")}, say=say)


def _grown_until_killed(s: Situation) -> tuple[LogEvent, ...]:
    """What a process said of the host's memory that it used, where that only grew, to a multiple, until somebody was killed."""
    death = next((e for e in s.events.of("ending.") if _is_kill(e)), None)
    told = [e for e in s.events.of("oom.host_use") if death is not None and e.order < death.order]
    for rank in dict.fromkeys(e.rank for e in told):
        said = [e for e in told if e.rank == rank]
        used = [float(e["amount"]) * _UNITS[e["unit"]] for e in said]
        grows = len(used) >= _FEWEST_SAID and used == sorted(used) and used[-1] >= _TIMES_AS_MUCH * used[0]
        if grows and death is not None:
            return (said[0], *said[-2:], death)
    return ()


def _is_kill(e: LogEvent) -> bool:
    is_told = e["code"] in ("-9", "137") or e["signal"] in ("SIGKILL", "9")
    return is_told or e.kind == "ending.killed" or e["what"] == "Killed"


def _killed_while_loading(s: Situation) -> tuple[LogEvent, ...]:
    """A death by SIGKILL before any step, or after a line on loading, saving or preparing data, with no word of another reason."""
    deaths = [e for e in s.events.of("ending.", "elastic.worker_failed") if _is_kill(e)]
    others = [e for e in s.events.of("ending.lightning_child") if e["code"] not in ("-9", "137")]
    if not deaths or others or s.events.has("watchdog.", "shm.", "cuda."):
        return ()
    before = [
        e for e in s.events.of("work.", "progress.", "oom.loading", "learn.loss_finite") if e.order < deaths[0].order
    ]
    if not before:
        return tuple(e for e in deaths if e.kind == "elastic.worker_failed")
    last = [e for e in before if e.order == before[-1].order]
    loads = (
        e.kind in _WORK_IN_MEMORY or (e.kind == "progress.bar" and _LOADS.search(e.text.partition("%|")[0]))
        for e in last
    )
    return (last[0], *deaths) if any(loads) else ()


_PLUMBING = re.compile(
    r"(?:^|/)(?:torch/(?:distributed/(?:distributed_c10d|rendezvous|c10d_logger|elastic/)|cuda/(?:__init__|nccl)\.py)"
    r"|(?:pynccl\w*|cuda_communicator|shm_broadcast)\.py|deepspeed/comm/|horovod/|multiprocessing/(?:connection|managers)\.py)"
)
_SAYS_FORKED = "Cannot re-initialize CUDA in forked subprocess"  # what torch says of it where it can tell
# What the watchdog throws after a wait, to end the process.
_OF_A_WATCHDOG = re.compile(r"DistBackendError|watchdog thread terminated")


@rule("user-exception")
def user_exception(s: Situation) -> Found | None:
    """The first exception, unless a more specific rule names it."""
    first = first_exception(s)
    if first is None:
        return _unhandled(s)
    is_forked = is_of_a_fork(first)
    if first.names(*SPECIAL) or is_file_race(s, first) or (is_not_of_the_program(first.text) and not is_forked):
        return None
    if is_of_objects(first) or _is_of_plumbing(first) or _only_waited(s, first) or known_of(first.error) is not None:
        return None
    confidence = _confidence(s, first) * (0.75 if comes_late(s, first) else 1)
    if confidence < 0.5:
        return None
    words = {"type": first.error.type, "head": first.head}
    said = replace(first.error, message=_SAYS_FORKED) if is_forked else first.error
    fixes, gate = of_exception(said, first.frame, s.case)
    more = {"say": "raised", "fixes": (*fixes, "no timeout"), "condition": gate}
    found = not_received(s, first) or answered_apart(s, first) or found_at_first(s, first, confidence, words, **more)
    left_out = _left_out(s, first)
    return _consequence_of(found, left_out) if left_out else found


def _is_of_plumbing(first: FirstException) -> bool:
    """Whether a library between the ranks raised it without a word on the program: of these a type says nothing, and the innermost frame is theirs."""
    if best_cause(first.text) is not None:
        return False
    innermost = first.error.frames[0].file.replace("\\", "/") if first.error.frames else ""
    return bool(GENERAL_TYPE.match(first.text) and _PLUMBING.search(innermost))


def _only_waited(s: Situation, first: FirstException) -> bool:
    """Whether a log's exception says no more than that somebody waited for an answer, in a job in which a rank waited in vain."""
    is_bare = first.error.type.startswith("asyncio.") and not first.error.message.strip()
    return first.seen is not None and is_bare and bool(s.watchdogs.timed_out)


def _unhandled(s: Situation) -> Found | None:
    """The note of an unhandled exception, whose traceback is not in the log: the steps tell the rank."""
    noted = [e for e in s.events.of("python.unhandled") if not names_cause(e.text, *SPECIAL)]
    noted = [e for e in noted if not _OF_A_WATCHDOG.search(e.text) and best_cause(e.text) is None]
    if not noted or s.primary_failure is not None:
        return None
    behind = behind_in_steps(s, before=noted[0].order)
    own = noted[0].rank
    ranks = (own,) if own is not None else (behind.rank,) if behind else ()
    words = {
        "who": name_or(ranks, "a rank"),
        "type": noted[0]["type"] or "exception",
        "why": f"{behind.words} before the exception."
        if behind and own is None
        else "The log says so; it does not hold the traceback.",
    }
    events = [*(behind.events if behind else ()), *noted]
    sure = 0.75 if ranks else 0.6
    return found_in(s, events, sure, ranks, words=words, say="unhandled", fixes=("mend", "no timeout"))


def _left_out(s: Situation, first: FirstException) -> LeftOut | None:
    """The collective that the one rank with an exception had left out before."""
    if len(first.failures) != 1 or len(first.ranks) != 1:
        return None
    return left_out_before(s.case, s.stuck, first.ranks[0], user_path(first.error.frames))


def _consequence_of(found: Found, left_out: LeftOut) -> Found:
    """An exception of a rank that had left its peers before it raised."""
    call = left_out.call
    line = next(reversed(user_path(call.frames)), left_out.passed)
    words = {
        "call": f"{call.op.split(':')[-1]} #{call.seq} of {call.group}",
        "line": w.place(line),
        "peers": w.name_ranks(left_out.waiting),
        "passed": w.place(left_out.passed),
        "file_line": f"{line.file}:{line.line}",
    }
    return replace(
        found,
        cause="code-divergence",
        confidence=min(found.confidence, 0.85),
        words={**found.words, **words},
        say="left out",
        **w.at_call(call, line),
        fixes=("all or none", "mend", "no timeout"),
    )


def _confidence(s: Situation, first: FirstException) -> float:
    """How far the exception is what went wrong: nothing where its text has a rule of its own, less where it is only a line."""
    if all(map(is_read_from_log, first.failures)) and (first.failures or is_log_only(s)) and _is_explained(first.text):
        return 0.0
    if first.failures:
        return 0.95
    if first.names("cause.file_missing"):
        return 0.6
    if first.error.frames:
        return 0.93 if first.ranks else 0.85
    return 0.75 if has_fatal_end(s) else 0.65


def _is_explained(text: str) -> bool:
    """Whether a part of the message is a line that has a rule of its own."""
    lines = text.splitlines()[:8]
    kinds = {p.kind for line in lines for p, _ in matches(line) if p.role != "notice"}
    return any(kind in _BUT or not kind.startswith(_GENERIC) for kind in kinds)


@rule("unused-parameters")
def unused_parameters(s: Situation) -> Found | None:
    """DDP's error as the primary failure, or its lines alone."""
    first = first_exception(s)
    lines = s.events.of("ddp.unused", "ddp.unused_names", "ddp.unused_indices")
    if first is None or not first.names("cause.unused_parameters"):
        first = None
        if not lines or not is_log_only(s) or s.primary_failure is not None:
            return None
        if any(e.kind == "primary" for e in errors_of(s)[:1]):
            return None
    # Which parameters, and on which ranks, DDP says on lines of their own; else it is the ranks that raised.
    named = ranks_in(e for e in lines if e.kind != "ddp.unused")
    ranks = named or (first.ranks if first else ranks_in(lines))
    frame = first.frame if first else None
    said = tuple(name.strip() for e in lines for name in e["names"].split(",") if name.strip())
    names = (first.error.parameters if first else ()) or said
    who = name_or(ranks, "a rank")
    part = part_left_out(frame, names)
    words = {"who": who, "names": f": {', '.join(names[:6])}" if names else "", "at": w.at(frame)}
    if part is not None:
        words |= {"test": part.test, "spot": w.spot(part.at)}
    message = first.error.message if first else lines[0].text
    evidence = (EvidenceLine(f"{who} exception", message[:400]), *quote(e for e in lines if e.source.line is not None))
    fixes: tuple[str | Fix, ...] = (*(of_skipped_part(frame, names) or ("with zero",)), "find unused")
    say, where = ("plain", frame) if part is None else ("decides", part.at)
    return Found(0.96, ranks, evidence, words, say, location=where, fixes=fixes)
