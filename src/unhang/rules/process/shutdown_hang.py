"""Rule: all work is done and the process cannot end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.first_errors import errors_of
from unhang.analyze.pasted import doings_of
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogEvent, user_frames
from unhang.model.example import Fires, Quiet, ended
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import first_exception
from unhang.rules.line_rule import quote

_PASTED = """\
rank 0:
Thread 0x7F81445A8440 (active): "MainThread"
    destroy_process_group (torch/distributed/distributed_c10d.py:2184)
    <module> (app/train.py:554)
"""
_TIMEOUT = "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
_STUCK = "[rank2]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"
_DONE = {r: ["barrier@main:20"] for r in range(4)}


class ShutdownHang(Rule):
    """The training is over, and a process does not end.

    What it detects:
        No collective is open, and a rank sits in the end of its program: destroying its process groups, joining a thread, or
        after its last line.

    Why it hangs:
        A non-daemon thread still runs; or DDP is alive when the process group is destroyed: the main thread joins gloo's threads
        with the GIL in hand, and one of them waits for the GIL.

    How to confirm:
        The stacks of all threads of that rank.

    How to fix:
        `del ddp_model; dist.destroy_process_group()` in this order; end threads with an event, or make them daemons.

    Sources:
        Measured on torch 2.13: 4 of 53 exits hung with DDP alive at destroy, 0 of 40 with `del` first.
    """

    id = "shutdown-hang"
    cause = "shutdown-hang"
    EXAMPLES: ClassVar = (
        Fires(log_case(_PASTED), (0,)),
        Fires(log_case("Training finished\nDestroying process group... \n" + _TIMEOUT), ()),
        Fires(log_case("Training completed.\n" + _STUCK), ()),
        Quiet(log_case("Training completed.\n" + _TIMEOUT), "some ranks still made a collective"),
        Quiet(
            log_case("Training completed.\nSaving model checkpoint to out\n" + _STUCK),
            "the model was still being saved",
        ),
        Quiet(log_case("Destroying process group... \nSaving model\n" + _TIMEOUT), "there was work after it"),
        Quiet(log_case(_TIMEOUT + "Destroying process group... \n"), "the end came after the timeout"),
        Fires(
            make_case(_DONE, hang="suspected", stacks={1: "~shutdown"}, exits={r: ended("exit") for r in (0, 2, 3)}),
            (1,),
        ),
        Fires(make_case(_DONE, hang="suspected", stacks=dict.fromkeys((0, 2), "main:22>~destroy")), (0, 2), 22),
        Quiet(
            make_case(
                {**_DONE, 0: ["barrier@main:20", "all_reduce[4]@main:21 !"]},
                hang="suspected",
                stacks={0: "main:21>~comm", 1: "~shutdown"},
            ),
            "a peer still waits: the rank left early",
        ),
        Quiet(make_case(_DONE, hang=None, exit_code=0, stacks={1: "~shutdown"}), "a job that ended"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the ranks that sit in their end."""
        yield from _from_log(s)
        if s.case.hang is None or s.failures:
            return
        ranks = tuple(
            sorted(
                r for r, a in s.activities.items() if a.kind == "shutdown" and s.case.ranks[r].main_stack is not None
            )
        )
        if not ranks or any(e.targets for e in s.waits.edges):
            return
        evidence = s.case.ranks[ranks[0]]
        frame = s.activities[ranks[0]].frame
        threads = [t for t in evidence.stacks if not t.is_main and user_frames(t.frames)]
        joins = evidence.main_stack is not None and any(f.function == "_shutdown" for f in evidence.main_stack.frames)
        if threads and (joins or frame is None):
            frame = user_frames(threads[0].frames)[0]
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{w.name_ranks(ranks)} {w.verb(ranks, 'has', 'have')} finished the work and cannot end"
            + (f": {w.place(frame)}" if frame else ""),
            confidence=0.9,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks),
            because="No collective is open; the main thread is in the end of the program"
            + (f" and waits for the thread {threads[0].name!r}." if threads else "."),
            location=w.location_of(frame),
            evidence=(
                *w.stack_lines(evidence),
                *(
                    EvidenceLine(
                        f"rank {ranks[0]} thread {t.name}", str(user_frames(t.frames)[0]), user_frames(t.frames)[0].line
                    )
                    for t in threads[:4]
                ),
            ),
            fixes=_FIXES,
        )


def _from_log(s: Situation) -> Iterable[Finding]:
    """One finding where the stacks in a log are all in the end of the program, or the log ends in it and then a limit is hit."""
    doings = doings_of(s)
    ending = [d for d in doings if d.kind == "ending"]
    if (
        s.case.hang is not None
        or first_exception(s) is not None
        or any(e.kind == "echo" and not e.error.frames for e in errors_of(s))
    ):
        return
    last = _last_word(s)
    if ending and len(ending) == len(doings):
        ranks = tuple(sorted({r for d in ending for r in d.ranks}))
        frames, confidence = ending[0].frames, 0.8
        evidence = tuple(
            EvidenceLine(f"{d.who} stack", " < ".join(map(str, d.frames[:4])), d.line.source.line) for d in ending[:4]
        )
        frame = next((f for f in frames if f.function in _END_CALLS), frames[0])
    elif last and not doings:
        ranks, confidence, evidence, frame = (), 0.7, quote([*last]), None
    else:
        return
    yield Finding(
        rule=ShutdownHang.id,
        cause=ShutdownHang.cause,
        title=f"{w.name_ranks(ranks) if ranks else 'the job'} finished the work and cannot end"
        + (f": {w.place(frame)}" if frame else ""),
        confidence=confidence,
        culprit_ranks=ranks,
        victim_ranks=(),
        because="All that is shown happens after the last line of the training: the process group is being destroyed, or a thread "
        "joined, and that does not come to an end.",
        location=None,
        evidence=evidence,
        fixes=_FIXES,
    )


def _last_word(s: Situation) -> tuple[LogEvent, ...]:
    """The line that says that the process group is being destroyed, with the limit that was hit after it, and no work between.

    Where only the end of the training is told, the limit has to be the watchdog's own: a collective that times out there is one
    that some ranks still made.
    """
    start, hung = s.events.of("ending.destroying"), [e for e in s.events if e.says == "hang"]
    if not start:
        start = s.events.of("ending.finished", "work.ended")
        if any(e.kind != "watchdog.stuck" for e in hung):
            return ()
    if not start or not hung or hung[0].order < start[-1].order:
        return ()
    work = s.events.of("work.", "progress.", "learn.")
    between = [e for e in work if start[-1].order < e.order < hung[0].order and e.kind != "work.ended"]
    return () if between else (start[-1], hung[0])


_END_CALLS = ("destroy_process_group", "_shutdown", "_exit_function", "_python_exit", "_run_exitfuncs")
_FIXES = (
    Fix(
        "End in the order that cannot hang",
        patch="del ddp_model, optimizer\ndist.destroy_process_group()",
        verify="unhang run -- <the same command>, twenty times",
        undo="revert the edit",
    ),
    Fix(
        "End your threads",
        patch="threading.Thread(..., daemon=True), or set an event and join with a timeout",
        verify="the process ends",
        undo="revert the edit",
    ),
)
