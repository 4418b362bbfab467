"""Rule: the launcher started other processes than the program expects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent, user_frames
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.examples import log_case, make_case
from unhang.rules.startup.joined import is_default
from unhang.rules.startup.start_rule import StartRule, seen

_BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: {}, for key: store_based_barrier_key:1 "
    "(world_size=2, worker_count={}, timeout=0:30:00)"
)
_NOT_SET = "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set@main:3"
_ARGUMENT = "train.py: error: unrecognized arguments: --local-rank=0"
_BARRIERS = ("store.barrier_timed_out", "store.barrier_waiting")


class LauncherMisuse(StartRule):
    """Processes were started without a launcher, by two launchers, or with numbers that do not fit.

    What it detects:
        RANK, WORLD_SIZE or MASTER_ADDR missing; a rank that is not below the world size; two worlds in one rendezvous; an argument
        --local-rank that the script does not know; a launcher that refused the job.

    Why it hangs:
        The ranks wait for a world that does not exist: one that is too small, too large, or numbered twice.

    How to confirm:
        Print RANK, LOCAL_RANK, WORLD_SIZE and the pid at the top of the script: one line per process, every rank once.

    How to fix:
        One launcher: torchrun (or srun with one task per rank) or mp.spawn, never one inside the other; rank = node rank x processes
        per node + local rank.

    Sources:
        torch/distributed/rendezvous.py, torch/distributed/run.py (LOCAL_RANK instead of --local-rank since 2.0).
    """

    id = "launcher-misuse"
    cause = "launcher-misuse"
    kinds = (
        "launchers.variable_missing",
        "launchers.local_rank_argument",
        "launchers.rank_too_high",
        "launchers.two_worlds",
        "launchers.rank_twice",
        "launchers.refused",
        "gloo.rank_not_below_size",
        *_BARRIERS,
    )
    confidence = 0.96
    EXAMPLES: ClassVar = (
        Fires(log_case(f"-- Process 1 terminated with the following error:\n{_BARRIER.format(2, 4)}"), (2,)),
        Fires(log_case("KeyError: 'LOCAL_RANK'"), ()),
        Fires(log_case(f"usage: train.py [-h] [--local_rank LOCAL_RANK]\n{_ARGUMENT}"), ()),
        Fires(
            make_case(
                {},
                world=2,
                errors=dict.fromkeys((0, 1), _NOT_SET),
                hang=None,
                exit_code=1,
            ),
            (),
        ),
        Fires(make_case({}, errors={2: _NOT_SET}, hang=None, exit_code=1), (2,), 3),
        Quiet(log_case(_BARRIER.format(0, 1)), "a member is missing; those that came are numbered rightly"),
        Quiet(
            log_case(
                "Failed: environment variable RANK expected, but not set, falling back to single GPU\nstep 1 loss 2.0"
            ),
            "a program that goes on alone",
        ),
    )
    headline = "the launcher and the program do not agree on the processes of the job"

    def check(self, s: Situation) -> Iterable[Finding]:
        """As of every rule on lines, with the place of the exception where a rank alone is at fault."""
        for finding in super().check(s):
            errors = [e.error for r in finding.culprit_ranks if (e := s.case.ranks.get(r)) and e.error is not None]
            frame = next(iter(user_frames(errors[0].frames)), None) if errors else None
            yield replace(finding, location=w.location_of(frame))

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Lines that name the misuse, and ranks outside of their world."""
        named = [e for e in seen(s, *self.kinds) if e.kind not in _BARRIERS or _is_outside(e)]
        return self.still_starting(s, named)

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks that do not exist in the world, or that alone lack a variable, where they are told."""
        told = {r for e in events if (r := _wrong_rank(e)) is not None}
        return tuple(sorted(told)) or _without_variable(s, events)

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What does not fit."""
        for e in events:
            if e.kind == "launchers.variable_missing":
                name = e["name"] or e["old_name"].upper().replace(" ", "_")
                alone = _without_variable(s, events)
                if alone:
                    return f"{name} is not set on {w.name_ranks(alone)}, and is on the other ranks"
                return f"{name} is not set: the processes were not started by a launcher"
            if e.kind == "launchers.local_rank_argument":
                return "the launcher passes --local-rank, which the script does not know"
            if e.kind == "launchers.two_worlds":
                return f"processes of two worlds meet: one of {e['size']} ranks and one of {e['other_size']}"
            if (rank := _wrong_rank(e)) is not None:
                size = e["size"] or e["world_size"]
                return f"{w.name_ranks([rank])} does not fit into the world{f' of {size}' if size else ''}"
        return self.headline

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why no timeout helps."""
        kinds = {e.kind for e in events}
        if kinds == {"launchers.variable_missing"} and _without_variable(s, events):
            return "The launcher sets these variables for all; here the script, a wrapper or a changed environment took one away."
        if kinds == {"launchers.variable_missing"}:
            return "torchrun, srun with a wrapper, or mp.spawn with code of your own set these variables; a plain `python train.py` does not."
        if kinds == {"launchers.local_rank_argument"}:
            return (
                "torch.distributed.launch adds this argument to every process (spelt --local_rank before torch 2.0, --local-rank since); "
                "the script ends before it does anything."
            )
        text = "The numbers of the processes are wrong from the start, so that no wait can succeed; a longer timeout changes nothing."
        counts = [e for e in events if e.kind in _BARRIERS]
        if counts:
            text = (
                f"{counts[-1]['joined']} processes joined a world of {counts[-1]['world_size']}. {text} Two launchers inside each "
                "other (srun and mp.spawn, torchrun and mp.spawn) do this."
            )
        return text

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """By what was misused."""
        if any(e.kind == "launchers.local_rank_argument" for e in events):
            return (_ENVIRONMENT_FIX, _LAUNCHER_FIX)
        return (_LAUNCHER_FIX,)


def _without_variable(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks that miss a variable while others of the job got past that point: it is in their processes alone."""
    missing = [e for e in events if e.kind == "launchers.variable_missing"]
    told = {e.rank for e in missing if e.rank is not None}
    said = {e.text.strip() for e in missing if e.rank is not None}
    further = {
        r
        for r, e in s.case.ranks.items()
        if r not in told and (e.initialized or any(c.kind == "init_process_group" for c in e.pending))
    }
    # What the output says without a rank is what these ranks told, if it is not said more often.
    unnamed = [e.text.strip() for e in missing if e.rank is None]
    is_theirs = set(unnamed) <= said and len(unnamed) <= len(told)
    return tuple(sorted(told)) if is_theirs and further else ()


def _is_outside(event: LogEvent) -> bool:
    size = event.number("world_size") if is_default(event) else None
    return event.rank is not None and size is not None and event.rank >= size


def _wrong_rank(event: LogEvent) -> int | None:
    if event.kind in _BARRIERS:
        return event.rank
    return event.number("wrong_rank") if event["wrong_rank"] else event.number("told_rank")


_LAUNCHER_FIX = Fix(
    "Start every rank once, with one launcher",
    command="torchrun --nnodes N --nproc-per-node M train.py   # and no mp.spawn, srun -n or second launcher around or inside it",
    verify="print RANK and WORLD_SIZE first: each rank 0..WORLD_SIZE-1 appears once",
    undo="restore the start command",
)
_ENVIRONMENT_FIX = Fix(
    "Read the local rank from the environment",
    patch='local_rank = int(os.environ["LOCAL_RANK"])   # instead of an argument --local_rank',
    verify="torchrun train.py starts",
    undo="revert the edit",
)
