"""Rule: the output of a gathering or scattering collective does not fit its input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.align import StuckCollective
from unhang.analyze.callpath import user_path
from unhang.analyze.positions import bare_op, numels
from unhang.analyze.situation import Situation
from unhang.model import CallState, CollectiveCall, EvidenceLine, Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_GATHERS = ("_all_gather_base", "all_gather_into_tensor")
_SCATTERS = ("_reduce_scatter_base", "reduce_scatter_tensor")
_FITS, _SHORT = "_all_gather_base[4->16]@main:20 !", "_all_gather_base[4->12]@main:20 !"


def has_room(call: CollectiveCall) -> bool:
    """Whether what comes out is as large as what the members put in (or the other way round); true where not known."""
    op, members = bare_op(call.op), len(call.group.ranks)
    put_in, out = sum(numels(call.in_sizes)), sum(numels(call.out_sizes))
    if not (members and put_in and out):
        return True
    if op in _GATHERS:
        return out == put_in * members
    return put_in == out * members if op in _SCATTERS else True


class OutputSize(Rule):
    """The output tensor of an all-gather or reduce-scatter has no room for what the members put in.

    What it detects:
        An open `_all_gather_base` whose output is not its input times the number of members, or the reverse for
        `_reduce_scatter_base`.

    Why it hangs:
        The bytes that the transport moves are computed from one side; the other writes past its end or waits for more.

    How to confirm:
        Print both shapes before the call.

    How to fix:
        Allocate the output from the input's size and the size of the group that is passed, not of the world.

    Sources:
        PyTorch documentation: all_gather_into_tensor, reduce_scatter_tensor.
    """

    id = "output-size"
    cause = "size-mismatch"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(make_case({r: [_SHORT if r == 2 else _FITS] for r in range(4)}), (2,), 20),
        Quiet(make_case({r: [_FITS] for r in range(4)}), "the output has room for four inputs"),
        Quiet(make_case({r: ["all_reduce[4]@main:20 !"] for r in range(4)}), "an op to which this does not apply"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first open call whose sizes do not fit."""
        for stuck in s.stuck if s.divergence is None else ():
            wrong = tuple(r for r, c in stuck.calls.items() if c.state is not CallState.COMPLETED and not has_room(c))
            if wrong:
                yield _finding(s, stuck, wrong)
                return


def _finding(s: Situation, stuck: StuckCollective, wrong: tuple[int, ...]) -> Finding:
    call = stuck.calls[wrong[0]]
    path = user_path(call.frames)
    members = len(call.group.ranks)
    sizes = f"{sum(numels(call.in_sizes))} elements in, {sum(numels(call.out_sizes))} out, {members} members"
    return Finding(
        rule=OutputSize.id,
        cause=OutputSize.cause,
        title=f"{w.name_ranks(wrong)} {w.verb(wrong, 'gives', 'give')} {bare_op(call.op)} #{call.seq} of {call.group} an output that does not fit: {sizes}",
        confidence=0.93,
        culprit_ranks=wrong,
        victim_ranks=s.others(wrong),
        because=f"{bare_op(call.op)} of {members} members needs a factor of {members} between the two sides.",
        process_group=w.group_of(call.group),
        collective=w.collective_of(call, call.seq),
        location=w.location_of(path[-1] if path else None),
        evidence=(w.path_line(call.rank, f"#{call.seq} {w.name_call(call)}", path), EvidenceLine("sizes", sizes)),
        fixes=(
            Fix(
                "Allocate the output from the input and the group",
                patch="out = torch.empty(x.numel() * dist.get_world_size(group), dtype=x.dtype, device=x.device)",
                verify="unhang run -- <the same command>",
                undo="revert the edit",
            ),
        ),
    )
