"""Rule: the job was ended from outside."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from unhang.analyze.first_errors import errors_of
from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet, ended
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import describe_failure
from unhang.rules.line_rule import LineRule

_SIGNALS = ("ending.death_signal", "ending.got_signal", "launchers.death_signal", "elastic.death_signal")
# What says that a process failed, or that somebody waited in vain, before the signal came.
_FAILED = ("oom.", "cuda.", "loader.", "python.fatal", "python.unhandled", "shm.", "ending.torchrun", "ending.srun_task", "ending.spawned",
           "ending.fatal_signal", "ending.killed", "ending.lightning_child", "ending.mpirun", "ending.deepspeed", "ending.ray_worker")  # fmt: skip
_SIGINT = ("2", "SIGINT")
_TERM = """\
[default0]:INFO Waiting for training batch to arrive
W1122 04:29:04.631636 247807 torch/distributed/elastic/agent/server/api.py:723] Received 15 death signal, shutting down workers
W1122 04:29:04.913115 247807 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 550084 closing signal SIGTERM
"""
_HUNG = """\
[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
WARNING:torch.distributed.elastic.agent.server.api:Received 15 death signal, shutting down workers
"""
_LOST = dict.fromkeys((0, 2, 3), "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10")
_EXIT = ended("os._exit", 1, at_s=11)
_OPEN = "all_reduce[8]@main:10 !"
_ENDED: dict[str, Any] = {"hang": None, "exit_code": 143}
_LIMIT = "slurmstepd: error: *** JOB 494583 ON node-a CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***"


class ExternalSignal(LineRule):
    """The job was ended from outside: a closed terminal, a scheduler, somebody's kill.

    What it detects:
        The launcher says that it received a signal, or Slurm that it cancelled the job for its time limit or a preemption, and
        nothing failed or hung before. Or a signal that asks for the end (SIGTERM, SIGHUP) ended one rank before any other rank had
        ended, so that no launcher had a reason to send it.

    Why it hangs:
        It does not: what the ranks print of lost peers on the way out is an echo. It is often taken for a crash.

    How to confirm:
        `sacct -j JOB --format=State,ExitCode,End`, or who logged out at that minute; the log of the process that supervises the job.

    How to fix:
        Start the launcher where no terminal can take it along (tmux, a batch job); ask for more time, or save before the limit.
        `nohup` does not help: torchrun sets its own handler for SIGHUP.

    Sources:
        torch/distributed/elastic/multiprocessing/api.py; signal(7); sbatch(1), --signal.
    """

    id = "external-signal"
    cause = "external-signal"
    kinds = (*_SIGNALS, "ending.cancelled", "ending.preempted")
    EXAMPLES: ClassVar = (
        Fires(log_case(_TERM), ()),
        Fires(
            log_case("torch.distributed.elastic.multiprocessing.api.SignalException: Process 8401 got signal: 1"), ()
        ),
        Fires(log_case(_LIMIT), ()),
        Fires(
            make_case(
                {}, errors=_LOST, exits={1: ended("signal", -15, at_s=10.1), 0: _EXIT, 2: _EXIT, 3: _EXIT}, **_ENDED
            ),
            (1,),
        ),
        Fires(
            make_case(
                {1: ["all_reduce[8]@main:10"], **{r: ["all_reduce[8]@main:10"] * 2 + [_OPEN] for r in (0, 2, 3)}},
                errors=_LOST,
                exits={1: ended("signal", -15, at_s=10.1), 0: _EXIT, 2: _EXIT, 3: ended("signal", -15, at_s=11.5)},
                stacks={1: "main:8>load:33>~lock"},
                **_ENDED,
            ),
            (1,),
        ),
        Quiet(
            make_case(
                {}, errors=_LOST, exits={1: ended("signal", -15, at_s=12), 0: _EXIT, 2: _EXIT, 3: _EXIT}, **_ENDED
            ),
            "a rank had ended before: the signal may be the launcher's answer",
        ),
        Quiet(
            make_case({}, exits={r: ended("signal", -15, at_s=10 + r / 100) for r in range(4)}, **_ENDED),
            "somebody ended all of them",
        ),
        Quiet(
            make_case({}, errors={0: "ValueError: x@main:3"}, exits={1: ended("signal", -15, at_s=10.1)}, **_ENDED),
            "a rank that failed by itself, and has not ended yet",
        ),
        Quiet(log_case(_HUNG), "somebody ended a job that hung"),
        Quiet(log_case("[rank2]: ValueError: x\n" + _TERM), "one node ends the others because a rank failed"),
        Quiet(log_case(_TERM.replace("15", "2")), "somebody pressed Ctrl-C, mostly because it hung"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """What a launcher or scheduler said; else the one rank that was told to end."""
        said = tuple(super().check(s))
        failure = s.told_to_end if not said else None
        if failure is None or failure.exit is None:
            yield from said
            return
        what = f"was ended by {_name(-(failure.exit.code or 0))}, which somebody sent to this process alone"
        yield describe_failure(s, self, (failure,), 0.85, what, (_WHO,))

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The signals, if nothing failed before, and it was not us who ended a job that hung."""
        if s.case.hang is not None or s.case.job.ended_by_us:
            return ()
        found = [e for e in s.events.of(*self.kinds) if e["signal"] not in _SIGINT]
        if not found or any(e.says == "hang" for e in s.events):
            return ()
        first = found[0].order
        if any(e.order < first for e in s.events.of(*_FAILED)):
            return ()
        if any(
            e.kind != "told" and (e.kind == "primary" or e.order < first) and e.order <= first for e in errors_of(s)
        ):
            return ()
        return found

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Nobody's: the signal came from outside."""
        return ()

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the signal or the scheduler's reason."""
        why = next((e["why"] for e in events if e["why"]), "")
        if why:
            return f"the scheduler ended the job: {why.lower()}"
        number = next((n for e in events if (n := e.number("signal")) is not None), None)
        return f"the job was ended from outside by {_name(number)}" if number else "the job was ended from outside"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """Why it is no failure of a rank."""
        return "The launcher was told to end; no rank had failed before, and nobody had waited in vain. Who sent it is not in this log."

    def certainty(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """Less where a launcher on another node may have sent it, or a step was cancelled without a reason."""
        if any(e["why"] for e in events) or any(e.number("signal") == 1 for e in events):
            return 0.93
        return 0.85 if any(e.kind in _SIGNALS for e in events) else 0.6

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """By what it was."""
        if any(e.number("signal") == 1 for e in events):
            return (_TMUX, _NOHUP)
        return (_LIMITS, _WHO) if any(e["why"] for e in events) else (_WHO, _LIMITS)


def _name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


_TMUX = Fix(
    "Start it where no terminal can take it along",
    command="tmux new -d '<the same command>'   # or sbatch, or systemd-run --user",
    verify="log out and in again: the job still runs",
    undo="tmux kill-session",
)
_NOHUP = Fix(
    "Does not help: nohup",
    setting="leave nohup away: the launcher installs a handler of its own for SIGHUP, which undoes it",
    verify="the same line comes after the next logout",
    undo="nothing is changed",
)
_WHO = Fix(
    "Find out who sent the signal",
    command="sacct -j $SLURM_JOB_ID --format=JobID,State,ExitCode,End; kubectl describe pod; the log of the supervising process",
    verify="one of them names the job at that minute",
    undo="nothing is changed",
)
_LIMITS = Fix(
    "Save before the limit comes",
    command="sbatch --signal=B:USR1@600 --time=<more> ...   # and save in the handler of SIGUSR1",
    verify="a checkpoint is written before the end",
    undo="remove the options",
)
