"""Rule: all work is done and the process cannot end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, user_frames
from unhang.model.example import Fires, Quiet, ended, make_case
from unhang.rules import wording as w
from unhang.rules.base import Rule

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
    needs = ("stacks",)
    EXAMPLES: ClassVar = (
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
