"""Rule: a rank ended before the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.failures import Failure, early_leavers
from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, ProcessState, RankEvidence
from unhang.model.example import Fires, Quiet, ended, make_case
from unhang.rules.base import Rule
from unhang.rules.collective.uneven_inputs import UnevenInputs, is_outnumbered
from unhang.rules.failure import describe_failure

_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 1, 3)}


class RankExitedEarly(Rule):
    """A rank ended of its own accord while the others still needed it.

    What it detects:
        A process called sys.exit or os._exit, or came to the end of its program, and peers wait for it or failed because it was
        gone.

    Why it hangs:
        The peers' collectives need every member. With gloo they fail with "Connection closed by peer"; with NCCL they wait.
        torchrun does not end the job when a rank exits with code 0.

    How to confirm:
        The exit record: who called exit, from which line.

    How to fix:
        Let all ranks take the decision to stop together.

    Sources:
        torchrun: a worker that exits with 0 counts as success.
    """

    id = "rank-exited-early"
    cause = "rank-exited-early"
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(_WAIT, exits={2: ended("sys.exit", 0, where="main:7")}, states={2: ProcessState("gone")}), (2,), 7
        ),
        Fires(make_case(_WAIT, hang=None, exit_code=1, exits={2: ended("os._exit", 9, where="main:7")}), (2,), 7),
        Quiet(
            make_case(
                {
                    0: ["all_reduce[4]@main:17", "all_reduce[4]@main:18 !"],
                    **{r: ["all_reduce[4]@main:17"] for r in (1, 2, 3)},
                },
                exits={r: ended("exit", 0) for r in (1, 2, 3)},
                states={r: ProcessState("gone") for r in (1, 2, 3)},
            ),
            "three came to the end of the program; the fourth makes a call more than they",
        ),
        Quiet(
            make_case(
                {r: ["barrier@main:10"] for r in range(4)},
                hang=None,
                exit_code=0,
                exits={r: ended("exit", 0, at_s=10 + r) for r in range(4)},
            ),
            "all ended, one after the other",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first rank that left, if anyone needed it."""
        leaver = next((e for e in early_leavers(s.case) if _was_needed(s, e)), None)
        first = s.primary_failure
        if leaver is None or s.divergence is not None or (first is not None and first.rank != leaver.rank):
            return
        if list(UnevenInputs().check(s)):
            return
        end = leaver.exit
        assert end is not None
        failure = Failure(leaver.rank, end.kind, end.time_ns, None, end, secondary=False)
        code = f" with code {end.code}" if end.code is not None else ""
        how = "came to the end of its program" if end.kind == "exit" else f"called {end.kind}"
        yield describe_failure(s, self, (failure,), 0.94, f"{how}{code} while the others were still at work", _FIXES)


def _was_needed(s: Situation, leaver: RankEvidence) -> bool:
    """Whether a peer waits for the rank, or lost its connection after it had gone."""
    if any(leaver.rank in stuck.missing for stuck in s.stuck) and not is_outnumbered(s, leaver):
        return False
    if any(leaver.rank in e.targets for e in s.waits.edges):
        return True
    time_ns = leaver.exit.time_ns if leaver.exit else 0
    return any(
        f.rank != leaver.rank and f.secondary and f.error is not None and f.time_ns >= time_ns for f in s.failures
    )


_FIXES = (
    Fix(
        "Stop together",
        patch="stop = torch.tensor(float(want_to_stop)); dist.all_reduce(stop, op=dist.ReduceOp.MAX)\nif stop.item() > 0: break   # on every rank",
        verify="unhang run -- <the same command>: all ranks end at the same call",
        undo="revert the edit",
    ),
)
