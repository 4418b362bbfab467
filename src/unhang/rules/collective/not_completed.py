"""Rule: every member has issued the call, and it does not complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import numpy as np

from unhang.analyze.align import members_of
from unhang.analyze.callpath import user_path
from unhang.analyze.situation import Situation
from unhang.model import CallState, CollectiveCall, EvidenceLine, Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_STALLED = "has not begun it on its device, though every call before it has completed"
_OPEN, _DONE = "all_reduce[8]@main:10 !", "all_reduce[8]@main:10"


class InFlight(NamedTuple):
    """A call that all members have issued and that is open. `behind`: members whose device is not as far as the others'."""

    call: CollectiveCall
    members: tuple[int, ...]
    behind: tuple[int, ...]
    how: str


def in_flight(s: Situation) -> tuple[InFlight, ...]:
    """The calls in which ranks wait although every member has come to them, one per position, oldest first.

    Those before them that a device of its own account has not begun.
    """
    table, seen = s.case.calls, {}  # type: ignore[var-annotated]
    for rank in s.recorded.fronts:
        for row in s.recorded.in_flight(rank):
            other = s.recorded.transfers.get(row)
            if not table["is_p2p"][row]:
                seen.setdefault((int(table["group"][row]), int(table["seq"][row])), row)
            elif other is not None:
                seen.setdefault(tuple(sorted((row, other))), row)
    found = [*_stalled(s), *(_in_flight_at(s, row) for row in seen.values())]
    return tuple(sorted(found, key=lambda f: (not f.behind, f.call.created_ns)))


def _stalled(s: Situation) -> Iterable[InFlight]:
    """One for each call that is the next one of devices that stand still."""
    ranks: dict[tuple[int, ...], list[int]] = {}
    table = s.case.calls
    for rank in sorted(s.recorded.stalled):
        row = s.recorded.fronts[rank][0]
        key = (int(table["group"][row]), int(table["seq"][row]), *([rank] if table["is_p2p"][row] else []))
        ranks.setdefault(key, []).append(rank)
    for (group, *_), behind in ranks.items():
        call = table.call(s.recorded.fronts[behind[0]][0])
        yield InFlight(call, members_of(s.index, group), tuple(behind), _STALLED)


def _in_flight_at(s: Situation, row: int) -> InFlight:
    table = s.case.calls
    group, seq = int(table["group"][row]), int(table["seq"][row])
    if table["is_p2p"][row]:
        rows = np.array([row, s.recorded.transfers[row]])
        ranks, states = table["rank"][rows], table["state"][rows]
        members = tuple(sorted(ranks.tolist()))
    else:
        position = s.index.position(group, seq)
        assert position is not None
        ranks, states, members = position.ranks, position.states, members_of(s.index, group)
    done = states == CallState.COMPLETED
    begun = states != CallState.SCHEDULED
    if not (states == CallState.STARTED).any():
        begun = np.ones(len(states), dtype=bool)  # the dumps do not tell
    for how, is_ahead, most in (
        ("has not completed it on its device, where the others have", done, (len(ranks) - 1) // 2),
        ("has not begun it on its device, where its peers have", begun, len(ranks) // 2),
    ):
        behind = tuple(sorted(ranks[~is_ahead].tolist()))
        if 0 < len(behind) <= most:
            return InFlight(table.call(row), members, behind, how)
    return InFlight(table.call(row), members, (), "")


class NotCompleted(Rule):
    """Every member has issued the same call, and it does not complete.

    What it detects:
        The oldest open call is the same on all members of its group, nobody is missing, and nothing moved any more. If most
        devices are past it or in it and a minority is not, the minority is named; else the dumps do not tell. So is, whoever
        is missing, a rank whose device has not begun its call although all its earlier ones have completed.

    Why it hangs:
        Not the program: a device that does not execute (an earlier kernel that does not end, a fault), or a transport that does
        not deliver.

    How to confirm:
        nvidia-smi and the kernel log (Xid) on the nodes of the group; NCCL_DEBUG=INFO; all_reduce_perf over the same ranks.

    How to fix:
        Exclude the node or link that the test names. A longer timeout does not help.

    Sources:
        PyTorch documentation, flight recorder: `scheduled`, `started`, `completed` are what the device has done.
    """

    id = "not-completed"
    cause = "unknown"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(make_case({r: [_DONE, _OPEN] for r in range(4)}, backend="nccl"), ()),
        Fires(make_case({r: [_DONE, _DONE if r != 2 else _OPEN] for r in range(4)}, backend="nccl"), (2,)),
        Quiet(make_case({r: [_OPEN] for r in range(4)}, backend="nccl", hang=None), "a job that runs"),
        Quiet(
            make_case({r: [_OPEN] for r in (0, 1, 3)} | {2: ["barrier@main:11 !"]}, backend="nccl"),
            "a member made another call",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the oldest such call, or on each that a device has not begun, if nothing else explains the hang."""
        if not s.is_hang or s.failures or s.divergences or s.proven or s.case.job.backend == "gloo":
            return
        stalled = s.recorded.stalled
        if any(late.rank not in stalled and not s.recorded.is_unseen(late.rank) for late in s.late):
            return
        flights = in_flight(s)
        for flight in [f for f in flights if stalled.intersection(f.behind)] or flights[:1]:
            # A device that is seen to stand still needs no rank without a dump to explain it.
            is_seen = flight.behind and s.case.calls.active_ranks.isdisjoint(flight.behind)
            if not s.late or is_seen or stalled.intersection(flight.behind):
                yield _finding(s, flight)


def _because(f: InFlight) -> str:
    if f.how == _STALLED:
        return "No recorded call keeps it back: what it waits for is on its own device."
    text = "Every member made the same call and nobody is missing"
    return text + ("." if f.behind else "; the dumps do not tell which member's device or link is at fault.")


def _finding(s: Situation, f: InFlight) -> Finding:
    what = f"{w.name_call(f.call)} #{f.call.seq} of {f.call.group}"
    path = user_path(f.call.frames)
    title = (
        f"{w.name_ranks(f.behind)} issued {what} like its peers, but {f.how}"
        if f.behind
        else f"all of {w.name_ranks(f.members)} issued {what}, and it completes on none: a device or the network, not the program"
    )
    return Finding(
        rule=NotCompleted.id,
        cause=NotCompleted.cause,
        title=title,
        confidence=0.75 if f.behind else 0.45,
        culprit_ranks=f.behind,
        victim_ranks=tuple(r for r in s.case.world if r not in f.behind),
        because=_because(f),
        process_group=w.group_of(f.call.group),
        collective=w.collective_of(f.call, f.call.seq),
        location=w.location_of(path[-1] if path else None),
        evidence=(
            w.path_line(f.call.rank, f"#{f.call.seq} {w.name_call(f.call)} (open)", path),
            *(EvidenceLine(f"rank {r} calls", f.how) for r in f.behind[:4]),
        ),
        fixes=(
            Fix(
                "Test the devices and links of this group",
                command=f"on the nodes of {w.name_ranks(f.behind or f.members)}: nvidia-smi -q -d ECC; dmesg -T | grep -i xid; all_reduce_perf over these ranks",
                verify="the test hangs or names a device",
                undo="nothing is changed",
            ),
        ),
    )
