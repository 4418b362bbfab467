"""Rule: the same collective with other sizes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.divergence import Divergence
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogLine
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.collective.order import is_of_size_alone, is_thread_race
from unhang.rules.examples import make_case

_LAYERS = ["all_reduce[2]@main:9", "all_reduce[7]@main:9", "all_reduce[3]@main:9", "all_reduce[5]@main:9"]


class SizeMismatch(Rule):
    """The same collective, from the same line, with tensors of another size or dtype.

    What it detects:
        At one position all members issued the same op from the same place, and their sizes or dtypes differ although the op
        wants them equal.

    Why it hangs:
        NCCL waits for bytes that never come; gloo aborts the process that receives too much ("Received data size doesn't match
        expected size"), and its peers then report "Connection closed by peer".

    How to confirm:
        Print the shape on each rank before the call; the finding names both shapes.

    How to fix:
        Pad to one size, gather the sizes first, or use the op for uneven sizes.

    Sources:
        gloo/transport/tcp/pair.cc; PyTorch documentation of all_gather and all_to_all_single.
    """

    id = "size-mismatch"
    cause = "size-mismatch"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {
                    3: ["all_gather[7x64] Float@main:20 !"],
                    **{r: ["all_gather[10x64] Float@main:20 !"] for r in range(3)},
                }
            ),
            (3,),
            20,
        ),
        Fires(
            make_case({1: ["all_reduce[4] Half@main:9 !"], **{r: ["all_reduce[4] Float@main:9 !"] for r in (0, 2, 3)}}),
            (1,),
            9,
        ),
        Quiet(
            make_case(
                {
                    r: [*_LAYERS, *_LAYERS, "all_reduce[2]@main:9", f"all_reduce[{7 if r else 3}]@main:9 !"]
                    for r in range(4)
                }
            ),
            "the size of the next call, as the past foretells it: a call was left out",
        ),
        Fires(
            make_case(
                {
                    r: [*_LAYERS, *_LAYERS, "all_reduce[2]@main:9", f"all_reduce[{7 if r else 8}]@main:9 !"]
                    for r in range(4)
                }
            ),
            (0,),
            9,
        ),
        Fires(
            make_case(
                {1: [_LAYERS[0], "all_reduce[1] !"], **{r: [_LAYERS[0], f"{_LAYERS[1]}>~comm !"] for r in (0, 2, 3)}},
                stacks={1: "main:9>~comm"},
            ),
            (1,),
            9,
        ),
        Quiet(
            make_case(
                {0: ["all_gather[8]@main:9", "all_gather[1]@main:9 thread=second !"]}
                | {r: ["all_gather[8]@main:9", "all_gather[9]@main:9 !"] for r in (1, 2, 3)}
            ),
            "a second thread came in between",
        ),
        Quiet(
            make_case(
                {r: [f"all_to_all_single[{8 + r}]@main:20", "barrier@main:21 !"] for r in range(3)}
                | {3: ["all_to_all_single[1]@main:20"]}
            ),
            "all_to_all may be uneven",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding where only size or dtype differ."""
        d = s.divergence
        if d is not None and is_of_size_alone(s, d) and not is_thread_race(s, d):
            yield _finding(s, d)


def _finding(s: Situation, d: Divergence) -> Finding:
    odd, ref = w.name_ranks(d.odd), w.name_ranks(d.reference)
    frame = (d.odd_path or d.reference_path or (None,))[-1]
    return Finding(
        rule=SizeMismatch.id,
        cause=SizeMismatch.cause,
        title=f"{odd} {w.verb(d.odd, 'gives', 'give')} {w.name_call(d.odd_call)} where {ref} {w.verb(d.reference, 'gives', 'give')} {w.name_call(d.reference_call)}",
        confidence=0.94 if d.has_majority else 0.45,
        culprit_ranks=d.culprits,
        victim_ranks=s.others(d.culprits),
        because=f"Call #{d.seq} of {d.group} comes from {w.place(frame)} on every rank, but not with the same tensor."
        + ("" if d.has_majority else " There is no majority: either size may be the wrong one."),
        process_group=w.group_of(d.group),
        collective=w.collective_of(d.reference_call, d.seq),
        location=w.location_of(frame),
        evidence=(
            *w.both_sides(d),
            *(EvidenceLine("output", line.text, line.source.line) for line in _mismatch_lines(s)),
        ),
        fixes=(
            Fix(
                "Give every rank the same shape and dtype",
                patch="pad to the largest size (exchange the sizes first with all_gather), or use an op that allows uneven sizes",
                verify="unhang run -- <the same command>",
                undo="revert the edit",
            ),
        ),
    )


def _mismatch_lines(s: Situation) -> list[LogLine]:
    return [line for line in s.case.log if "doesn't match expected size" in line.text][:1]
