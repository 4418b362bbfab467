"""Rule: the log shows rank 0 at work while the others wait in a barrier."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.first_errors import first_error
from unhang.analyze.log_activity import (
    DEFAULT_LIMIT_S,
    bar_beside_the_wait,
    elapsed_s,
    failed_by_itself,
    is_training_last,
    work_before_the_wait,
)
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import TimedOut, lines_of
from unhang.model import EvidenceLine, Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import SEE_IT
from unhang.rules.timeout.calls_disagree import timeouts

_SHARDED_SAVE = (
    " They wait in the next call instead of a barrier: if the model is sharded (FSDP, ZeRO), look first whether every rank calls "
    "the function that saves; under `if rank == 0` it never ends."
)
_SAVES_TOGETHER = re.compile(r"FSDP|ZeRO|DeepSpeed|[Ss]harded")
_GONE = ("rdma.completion_error", "nccl.echo_peer_closed", "nccl.cuda_failure")
_FEW = 2
_FIRST_CALLS = 2
_SMALL = 1024
_BAR = "Running tokenizer on dataset:  {0}%|##   | {1}/49703 [{2}<02:06, 122.64 examples/s]\n"
_LATENTS = " 87%|####6 | 1582/1818 [30:02<04:26,  1.13s/it]\n"
_LOST = "node-a:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<54862> with status=12 opcode=0 len=0 vendor err 129\n"
_WHAT = {
    "work.preparing": "prepares data",
    "work.saving": "saves",
    "work.evaluating": "evaluates",
    "progress.bar": "works on something that the others take no part in",
}
# In evaluation they gather what a sharded model needs: there all ranks evaluate, and one of them is missing.
_SHARDED = frozenset({"_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE", "ALLTOALL_BASE"})


class Rank0WorksAlone(Rule):
    """Rank 0 works alone for longer than the timeout, while the others wait for it.

    What it detects:
        Timeouts of other ranks only, and that the last thing told before them is the work of one rank: an unfinished bar of
        tokenising, mapping or scanning, saving or merging a model, evaluation. Or, weaker, that the others wait in a barrier
        or in the first small broadcast and rank 0 says nothing.

    Why it hangs:
        It does not: it is slow. The barrier's limit is shorter than the work.

    How to confirm:
        On the node of rank 0 one process is busy while the other devices idle: `py-spy dump --pid` shows the work.

    How to fix:
        Do the work before the job (cache it), or on all ranks, or give this one wait a longer limit; then a longer timeout
        really helps, and it is the only case in which it does.

    Sources:
        NCCL's barrier is an all-reduce of one element; the defaults are 10 minutes (NCCL) and 30 (gloo).
    """

    id = "rank0-works-alone"
    cause = "slow-rank0-work"
    EXAMPLES: ClassVar = (
        Fires(log_case(_BAR.format(9, 2800, "29:55") + timeouts((2, 2, "ALLREDUCE", 1), (1, 2, "ALLREDUCE", 1))), (0,)),
        Fires(log_case("INFO Saving model checkpoint to out\n" + timeouts((4, 28956, "ALLREDUCE", 1))), (0,)),
        Fires(log_case(_BAR.format(70, 34947, "10:21")), (0,)),
        Fires(log_case(timeouts((7, 460631, "ALLREDUCE", 1))), (0,)),
        Fires(log_case("building the indices on rank 0 ...\nRuntimeError: Socket Timeout"), (0,)),
        Fires(log_case(_LATENTS + timeouts((1, 3, "ALLREDUCE", 1))), (0,)),
        Fires(log_case(_LATENTS + timeouts((1, 3, "ALLREDUCE", 900))), (0,)),
        Quiet(log_case(_LATENTS + timeouts((1, 1500, "ALLREDUCE", 900))), "the bar counts steps of training"),
        Quiet(
            log_case("Evaluating:  12%|#2 | 12/100 [00:10<01:20]\n" + timeouts((1, 88, "_ALLGATHER_BASE", 9))),
            "all evaluate",
        ),
        Quiet(
            log_case("Saving FSDP model\n" + timeouts((2, 18364, "ALLGATHER", 9))),
            "all save: rank 0 may be alone in it",
        ),
        Quiet(
            log_case(
                "Saving model checkpoint to out\nsuccessfully saved checkpoint\n" + timeouts((6, 880, "ALLREDUCE", 900))
            ),
            "the save is done",
        ),
        Quiet(
            log_case(timeouts((3, 70, "ALLREDUCE", 1)).replace("[rank3]", "[rank7]")),
            "a group of its own, in which rank 0 need not be",
        ),
        Quiet(log_case(timeouts((7, 1, "ALLREDUCE", 1))), "one rank alone in the first call: perhaps no connection"),
        Quiet(log_case(timeouts((2, 1, "ALLREDUCE", 1), (3, 1, "ALLREDUCE", 1))), "nor do two tell of the others"),
        Quiet(log_case(_BAR.format(100, 49703, "10:21") + timeouts((1, 880, "ALLREDUCE", 900))), "the work is done"),
        Quiet(log_case(_BAR.format(20, 9947, "01:21")), "it is still within every limit"),
        Quiet(
            log_case("Saving model checkpoint to out\n{'loss': 1.2}\n" + timeouts((1, 880, "ALLREDUCE", 900))),
            "it trained on after the save",
        ),
        Quiet(
            log_case(timeouts((1, 5, "ALLREDUCE", 1), (4, 5, "ALLREDUCE", 1), (5, 5, "ALLREDUCE", 1))),
            "rank 0 is not the only one that is silent",
        ),
        Quiet(
            log_case(_LOST + "Saving model checkpoint to out\n" + timeouts((6, 880, "ALLREDUCE", 1))),
            "the network failed",
        ),
        Quiet(
            log_case(
                "Saving model checkpoint to out\nOSError: [Errno 28] No space left on device\n"
                + timeouts((6, 8, "ALLREDUCE", 1))
            ),
            "the work failed",
        ),
        Quiet(
            log_case("INFO Saving model checkpoint to out\n" + timeouts((0, 140, "ALLREDUCE", 1))),
            "rank 0 itself waits",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on rank 0."""
        waits, ranks = s.watchdogs.timed_out, s.watchdogs.ranks
        if 0 in ranks or s.watchdogs.lagging[0] or failed_by_itself(s.failures) is not None or _failed_before(s):
            return
        blamed = [n for e in s.events.of("gloo.monitored_barrier_missing") if (n := e.number("missing")) is not None]
        if blamed and 0 not in blamed:
            return
        work = work_before_the_wait(s.events) or _foreign_bar(s, waits)
        if work is not None and _takes_all(work) and any("GATHER" in x.op or x.op in _SHARDED for x in waits):
            return
        if work is not None and (s.watchdogs.first is not None or _outlasts_every_limit(work)):
            yield _at_work(s, work, waits)
        elif work is None and waits and _looks_like_barrier(s, waits) and not is_training_last(s.events):
            yield _silent(s, waits)


def _outlasts_every_limit(work: LogEvent) -> bool:
    elapsed = elapsed_s(work) if work["elapsed"] else None
    return work.kind == "work.preparing" and elapsed is not None and elapsed >= DEFAULT_LIMIT_S


def _failed_before(s: Situation) -> bool:
    """Whether something else had failed before anybody's wait ran out: an exception, a peer that was gone, the transport."""
    first, waited = first_error(s), s.watchdogs.first
    if first is not None and (waited is None or first.order < waited.order):
        return True
    return any(waited is None or e.order < waited.order for e in s.events.of(*_GONE))


def _takes_all(work: LogEvent) -> bool:
    """Whether all ranks take part in it, so that a gather of the others may belong to it."""
    return work.kind == "work.evaluating" or (work.kind == "work.saving" and bool(_SAVES_TOGETHER.search(work.text)))


def _foreign_bar(s: Situation, waits: Sequence[TimedOut]) -> LogEvent | None:
    limits = [x.limit_ms for x in waits if x.limit_ms]
    positions = [x.seq for x in waits if x.seq is not None]
    return bar_beside_the_wait(s.events, min(limits) // 1000, max(positions, default=None)) if limits else None


def _looks_like_barrier(s: Situation, waits: Sequence[TimedOut]) -> bool:
    """Whether all wait in a barrier or the first small call, and rank 0 may be the only one that does not.

    In the very first call two ranks may as well have no connection to each other: there all but rank 0 must be known to wait.
    """
    for wait in waits:
        is_first = wait.seq is not None and wait.seq <= _FIRST_CALLS and wait.numel_in is not None
        is_small = is_first and (wait.numel_in or 0) <= _SMALL
        if wait.op and not wait.is_barrier and not (is_small and wait.op == "BROADCAST"):
            return False
    ranks = set(s.watchdogs.ranks)
    if not any(x.op for x in waits) or not ranks or 0 in s.watchdogs.seen or s.watchdogs.has_subgroups:
        return False
    all_but_0 = ranks == set(range(1, max(ranks) + 1))
    if all(x.seq is None or x.seq <= 1 for x in waits):
        return all_but_0 and len(ranks) > 1
    return len(ranks) <= _FEW or all_but_0


def _finding(
    s: Situation, waits: Sequence[TimedOut], title: str, because: str, confidence: float, lines: Sequence[EvidenceLine]
) -> Finding:
    limit = next((x.limit_ms for x in waits if x.limit_ms), None)
    return Finding(
        rule=Rank0WorksAlone.id,
        cause=Rank0WorksAlone.cause,
        title=title,
        confidence=confidence,
        culprit_ranks=(0,),
        victim_ranks=s.watchdogs.ranks,
        because=because,
        collective={"op": waits[0].op, "seq": waits[0].seq} if waits else None,
        evidence=tuple(lines),
        fixes=(*_fixes(limit), SEE_IT),
    )


def _at_work(s: Situation, work: LogEvent, waits: Sequence[TimedOut]) -> Finding:
    what = _WHAT[work.kind]
    others = f" while {w.name_ranks(s.watchdogs.ranks)} {w.verb(s.watchdogs.ranks, 'waits', 'wait')}" if waits else ""
    elapsed = f" (after {work['elapsed']}, {work['left']} left)" if work["elapsed"] and work["left"] else ""
    barrier = any(x.is_barrier for x in waits)
    return _finding(
        s,
        waits,
        f"rank 0 {what}{elapsed}{others}",
        "It is the last thing that was told before the waits hit their limit, and rank 0 is not among those that waited."
        + ("" if barrier or work.kind != "work.saving" else _SHARDED_SAVE)
        if waits
        else "The others usually wait for this in a barrier, whose default limit is 10 minutes with NCCL and 30 with gloo.",
        0.85 if barrier else 0.7 if s.watchdogs.first is not None else 0.6,
        (*quote([work]), *quote(lines_of(waits), 4)),
    )


def _silent(s: Situation, waits: Sequence[TimedOut]) -> Finding:
    return _finding(
        s,
        waits,
        f"{w.name_ranks(s.watchdogs.ranks)} {w.verb(s.watchdogs.ranks, 'waits', 'wait')} in {waits[0]}, and rank 0 is not there: it probably works alone",
        "They wait in a barrier, and rank 0 is not among those that hit the limit. Mostly it saves, evaluates or prepares data; the log does not show it. "
        "A rank 0 that has no data left, or that took another branch, looks the same.",
        0.6,
        quote(lines_of(waits)),
    )


def _fixes(limit_ms: int | None) -> tuple[Fix, ...]:
    shown = f" (it is {limit_ms // 1000} s)" if limit_ms else ""
    return (
        Fix(
            "Do the work once, before the job, or on all ranks",
            patch="# e.g. tokenise and save the data set in a script of its own; sharded checkpoints: torch.distributed.checkpoint",
            verify="the time between the last line of rank 0 and the next step is below the timeout",
            undo="revert the edit",
        ),
        Fix(
            f"Or give the wait the time that the work needs{shown}",
            patch="dist.init_process_group(..., timeout=timedelta(hours=2))   # and new_group(timeout=...): it is not inherited",
            verify="the job goes on after the work",
            undo="take the argument out",
        ),
        Fix(
            "Does not help: NCCL_TIMEOUT, disabling P2P or InfiniBand",
            setting="leave them unset",
            verify="no library reads NCCL_TIMEOUT; the wait is for a process, not for the network",
            undo="nothing is changed",
        ),
    )
