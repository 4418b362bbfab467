"""Which failure came first, and which are only its echo in the peers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from unhang.model import Case, ProcessExit, RaisedError, RankEvidence, grouped
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.logs import is_echo

_TIMEOUT = lazy_pattern(
    r"Timed out waiting|wait timeout after|Socket Timeout|Watchdog caught collective|[Tt]imeout caused"
)
_ASKED_TO_END = ("KeyboardInterrupt", "SystemExit", "SignalException")


_BETWEEN_PROCESSES = tuple(
    f"/multiprocessing/{name}.py" for name in ("connection", "queues", "managers", "resource_sharer")
)


def is_communication_error(error: RaisedError) -> bool:
    """Whether an exception only says that a peer or the network is gone, or that a wait ran out; not one of a process that the program has for itself."""
    return is_echo(error.text) and not (error.frames and error.frames[0].file.endswith(_BETWEEN_PROCESSES))


def is_timeout(error: RaisedError) -> bool:
    """Whether the exception says that a collective's own limit was hit."""
    return bool(_TIMEOUT.search(error.message))


def are_whole_nodes(case: Case, ranks: Collection[int]) -> bool:
    """Whether there are several nodes, and the ranks are all those of some and none of the others."""
    nodes: dict[int, set[int]] = {}
    for rank, evidence in case.ranks.items():
        if evidence.identity.local_rank is None:
            return False
        nodes.setdefault(rank - evidence.identity.local_rank, set()).add(rank)
    return len(nodes) > 1 and all(node <= set(ranks) or node.isdisjoint(ranks) for node in nodes.values())


@dataclass(frozen=True)
class Failure:
    """The end of one rank. `kind`: exception, signal, os._exit, sys.exit, exit, vanished."""

    rank: int
    kind: str
    time_ns: int
    error: RaisedError | None
    exit: ProcessExit | None
    secondary: bool


def _kind(evidence: RankEvidence) -> str:
    end, error = evidence.exit, evidence.error
    if error is not None and end is not None and _ended_by_its_error(end, error):
        return "exception"
    if end is not None and end.kind in ("signal", "os._exit", "sys.exit") and not (end.kind == "os._exit" and error):
        return end.kind
    if error is not None:
        return "exception"
    return end.kind if end is not None else ""


def _ended_by_its_error(end: ProcessExit, error: RaisedError) -> bool:
    """Whether a process that aborted, or was told to end, had failed before: its own exception is what came first."""
    is_own = not is_communication_error(error) and error.type.rsplit(".", 1)[-1] not in _ASKED_TO_END
    return end.kind == "signal" and end.code in (-6, -15) and is_own


def _time(evidence: RankEvidence, kind: str) -> int:
    if kind == "exception" and evidence.error is not None:
        return evidence.error.time_ns
    return min((x.time_ns for x in (evidence.error, evidence.exit) if x is not None and x.time_ns), default=0)


def _is_secondary(evidence: RankEvidence, kind: str, ended_by_launcher: bool) -> bool:
    if kind == "exception":
        error = evidence.error
        return error is not None and (is_communication_error(error) or _is_of_others(error, evidence.rank))
    if kind == "signal" and evidence.exit is not None:
        if evidence.exit.code not in _FROM_LAUNCHER:
            return evidence.exit.code == -6  # gloo and the NCCL watchdog abort: what made them abort is elsewhere
        had_lost_peer = evidence.error is not None and is_communication_error(evidence.error)
        return ended_by_launcher or had_lost_peer
    return kind == "vanished" and ended_by_launcher


# torch.distributed.checkpoint raises on every rank what some of them had failed with, and says which.
_COLLECTED = lazy_pattern(r"CheckpointException ranks:dict_keys\(\[([\d, ]{1,4000})\]\)")


def _is_of_others(error: RaisedError, rank: int) -> bool:
    """Whether an exception tells of the failures of other ranks alone."""
    found = _COLLECTED.search(error.message)
    return found is not None and str(rank) not in found[1].split(", ")


_FROM_LAUNCHER = (-15, -9, -2)
_FROM_OUTSIDE = (-1, -2, -15)
_ASKED = (-1, -15)
_TOGETHER_NS = 2_000_000_000
_TELLS_NS = 10_000_000_000  # how long an exception may take to be printed
_NOTICED_LATE_NS = 2_000_000_000  # a watcher on a busy machine learns of a death after the peers have felt it


def _outside_signal(evidence: RankEvidence) -> int | None:
    """SIGHUP, SIGINT or SIGTERM, also where Python turned it into KeyboardInterrupt."""
    if evidence.error is not None and evidence.error.type == "KeyboardInterrupt":
        return -2
    code = evidence.exit.code if evidence.exit and evidence.exit.kind == "signal" else None
    return code if code in _FROM_OUTSIDE else None


def _ended_from_outside(ends: Sequence[tuple[int, int, str, RankEvidence]]) -> frozenset[int]:
    """Ranks that got the same signal at the same time: somebody ended the job; none of them failed."""
    signals = ((_outside_signal(evidence), kind, (time_ns, rank)) for time_ns, rank, kind, evidence in ends)
    had_failed = ("exception", -15)  # by itself, before
    groups = grouped((code, end) for code, kind, end in signals if code is not None and (kind, code) != had_failed)
    together = (g for g in groups.values() if len(g) > 1 and g[-1][0] - g[0][0] <= _TOGETHER_NS)
    return frozenset(rank for group in together for _, rank in group)


def _may_be_the_launchers_work(ends: Sequence[tuple[int, int, str, RankEvidence]], i: int, others_failed: bool) -> bool:
    """Whether the end at position i may be a launcher's answer to an earlier one. `others_failed`: a launcher saw it so.

    An echo just before a lone SIGKILL is the echo of that SIGKILL, which was only noticed after it. Of a process
    that was gone before anybody saw how, a launcher may have made the end once another rank had ended.
    """
    time_ns, _, kind, evidence = ends[i]
    if others_failed and kind == "signal" and evidence.exit is not None and evidence.exit.code == -15:
        return True
    if kind == "vanished":
        return any(e is not evidence and e.exit is not None and 0 < e.exit.time_ns < time_ns for _, _, _, e in ends)
    killed = [e for _, _, k, e in ends if k == "signal" and e.exit is not None and e.exit.code == -9]
    if kind != "signal" or killed != [evidence]:
        return i > 0
    return any(time_ns - t > _NOTICED_LATE_NS or not _felt_only(e, k, time_ns) for t, _, k, e in ends[:i])


def _felt_only(evidence: RankEvidence, kind: str, time_ns: int) -> bool:
    """Whether all that a rank had done by then was to lose a peer: no launcher acts before a process has ended."""
    if kind == "signal" and evidence.error is not None and is_communication_error(evidence.error):
        return evidence.exit is not None and evidence.exit.time_ns >= time_ns
    return kind == "exception" and _is_secondary(evidence, kind, ended_by_launcher=False)


def _printed_at(evidence: RankEvidence) -> int:
    """The line of a log where its exception or its end stands, which orders those without a time."""
    if evidence.error is not None:
        return evidence.error.source.line or 0
    return evidence.exit.line if evidence.exit is not None and not evidence.exit.time_ns else 0


def failures_of(case: Case) -> tuple[Failure, ...]:
    """All ends that are not plain successes, in the order of time.

    Those after the first that a launcher may have caused (SIGTERM, SIGKILL) are secondary.
    """
    found = []
    for rank, evidence in case.ranks.items():
        kind = _kind(evidence)
        ended_well = evidence.exit is not None and evidence.exit.code in (0, None) and evidence.error is None
        if kind in ("", "exit") or (kind in ("sys.exit", "os._exit") and ended_well):
            continue
        found.append((_time(evidence, kind), rank, kind, evidence))
    found.sort(key=lambda item: (item[0] or 1 << 62, _printed_at(item[3]), item[1]))
    failures, from_outside = [], _ended_from_outside(found)
    seen = (e.exit for e in case.ranks.values() if e.exit and e.exit.text == SEEN_BY_LAUNCHER)
    others_failed = any(end.kind == "exit" and (end.code or 0) > 0 for end in seen)
    for i, (time_ns, rank, kind, evidence) in enumerate(found):
        by_launcher = _may_be_the_launchers_work(found, i, others_failed)
        secondary = _is_secondary(evidence, kind, by_launcher) or rank in from_outside
        failures.append(Failure(rank, kind, time_ns, evidence.error, evidence.exit, secondary))
    return tuple(failures)


def asked_to_end(case: Case, failures: Sequence[Failure]) -> Failure | None:
    """The rank that a signal asked to end while every other process lived, and whose end the others merely felt.

    Others that got such a signal later got it from a launcher, if it says so, or if a rank that had lost its peer had ended by then.
    """
    if case.job.ended_by_us or any(not f.secondary and not _was_asked(f) for f in failures):
        return None
    closed = {e.number("pid") for e in case.events if e.kind == "elastic.closing_signal"}
    asked = sorted((f for f in failures if _was_asked(f)), key=lambda f: f.exit.time_ns if f.exit else 0)
    by_launcher = [f for f in asked if case.ranks[f.rank].identity.pid in closed]
    asked = [f for f in asked if f not in by_launcher]
    ends = sorted((e.exit.time_ns, r, e.exit.kind) for r, e in case.ranks.items() if e.exit is not None)
    if not asked or not ends or ends[0][1] != asked[0].rank or not ends[0][0]:
        return None
    first_other = next((time_ns for time_ns, _, kind in ends if kind != "signal"), None)
    is_alone = all(first_other is not None and f.exit and f.exit.time_ns > first_other for f in asked[1:])
    is_seen = asked[0].exit is not None and asked[0].exit.text != SEEN_BY_LAUNCHER
    return asked[0] if is_alone and asked[0].error is None and is_seen else None


def ended_from_outside(case: Case, failures: Sequence[Failure]) -> bool:
    """Whether every rank that ended was told to, and nothing tells that one of them failed: a time limit, a scheduler, a user."""
    ends = [e for e in case.ranks.values() if e.exit is not None or e.error is not None]
    return bool(failures) and all(_outside_signal(e) is not None for e in ends)


def had_come(evidence: RankEvidence) -> bool:
    """Whether the last that a process did before a signal ended it was to fail in a call because a peer was gone."""
    end, errors = evidence.exit, evidence.handled
    if end is None or end.kind != "signal" or end.code not in _FROM_LAUNCHER:
        return False
    if errors and is_communication_error(errors[-1]) and 0 <= end.time_ns - errors[-1].time_ns <= _TELLS_NS:
        return True
    frames = evidence.main_frames
    return any(outer.file.endswith(_WRAPS_CALLS) and _LOGS in inner.file for inner, outer in pairwise(frames))


# From the one to the other leads an exception alone.
_WRAPS_CALLS, _LOGS = "torch/distributed/c10d_logger.py", "/logging/"


def _was_asked(failure: Failure) -> bool:
    return failure.kind == "signal" and failure.exit is not None and failure.exit.code in _ASKED


def early_leavers(case: Case) -> tuple[RankEvidence, ...]:
    """Ranks that came to an end of their own accord (main returned, sys.exit, os._exit), the first to end first.

    Of a rank that a launcher saw end with an error code nobody knows whether it left or failed.
    """
    known = [(e.exit, e) for e in case.ranks.values() if e.exit is not None and e.error is None]
    own = [x for x in known if x[0].kind in ("exit", "sys.exit", "os._exit") and not (x[0].text and x[0].code)]
    return tuple(e for _, e in sorted(own, key=lambda x: x[0].time_ns))
