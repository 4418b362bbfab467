"""Rule: not all members came to the start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, user_frames
from unhang.model.example import Fires, Quiet, make_case, pending
from unhang.rules import wording as w
from unhang.rules.base import Rule

_INIT = {r: [pending("init_process_group", where="main:3")] for r in (0, 1, 2)}


class RendezvousIncomplete(Rule):
    """Some ranks wait in the start for members that have not come.

    What it detects:
        Ranks inside `init_process_group`, and others of the world that are not; or a launcher that waits for nodes.

    Why it hangs:
        The start needs all `WORLD_SIZE` members; it waits for the store's timeout (30 min by default).

    How to confirm:
        The number of nodes and processes that were really started; for a rank that lives, its stack.

    How to fix:
        Start the missing members, or correct WORLD_SIZE, --nnodes, --nproc-per-node; let every rank call init first and do
        slow work afterwards.

    Sources:
        torch/distributed/elastic/rendezvous; init_process_group's timeout.
    """

    id = "rendezvous-incomplete"
    cause = "rendezvous-incomplete"
    EXAMPLES: ClassVar = (
        Fires(make_case({}, hang="suspected", pending=_INIT, absent=(3,)), (3,)),
        Fires(
            make_case({}, hang="suspected", pending=_INIT, stacks={3: "main:2"}, more={3: {"initialized": False}}),
            (3,),
            2,
        ),
        Fires(make_case({}, world=0, hang="suspected", launcher="~rendezvous"), ()),
        Quiet(
            make_case(
                {}, pending={r: [pending("init_process_group", done=True)] for r in range(4)}, hang=None, exit_code=0
            ),
            "all came",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding naming the absent members, or the launcher that waits for them."""
        if s.primary_failure is not None:
            return
        edges = [e for e in s.waits.edges if e.kind == "rendezvous" and e.targets]
        if edges and s.case.hang is not None:
            yield _absent(s, tuple(sorted({t for e in edges for t in e.targets})))
        elif not s.case.ranks and any("rendezvous" in f.file for t in s.case.launcher_stacks for f in t.frames):
            yield _launcher(s)


def _absent(s: Situation, ranks: tuple[int, ...]) -> Finding:
    alive = [r for r in ranks if r in s.case.ranks]
    frame = s.activities[alive[0]].frame if alive else None
    never = [r for r in ranks if r not in s.case.ranks]
    text = []
    if never:
        text.append(
            f"{w.name_ranks(never)} never registered: the process was not started, or died before it imported torch.distributed"
        )
    if alive:
        text.append(
            f"{w.name_ranks(alive)} {w.verb(alive, 'is', 'are')} alive and {w.verb(alive, 'has', 'have')} not called it: {w.place(frame)}"
        )
    waiting = [r for r in s.case.world if r not in ranks]
    return Finding(
        rule=RendezvousIncomplete.id,
        cause=RendezvousIncomplete.cause,
        title=f"{w.name_ranks(ranks)} {w.verb(ranks, 'has', 'have')} not come to init_process_group"
        + (f"; it is at {w.place(frame)}" if frame else ""),
        confidence=0.92,
        culprit_ranks=ranks,
        victim_ranks=tuple(waiting),
        because="; ".join(text)
        + f". {w.name_ranks(waiting)} {w.verb(waiting, 'waits', 'wait')} for the world of {len(s.case.world)}.",
        collective={"op": "init_process_group", "seq": None},
        location=w.location_of(frame),
        evidence=(
            *(line for r in alive[:2] for line in w.stack_lines(s.case.ranks[r])),
            *(w.waiting_line(e) for e in s.waits.edges if e.kind == "rendezvous"),
        ),
        fixes=_FIXES,
    )


def _launcher(s: Situation) -> Finding:
    frames = [f for t in s.case.launcher_stacks for f in t.frames if "rendezvous" in f.file]
    return Finding(
        rule=RendezvousIncomplete.id,
        cause=RendezvousIncomplete.cause,
        title="the launcher waits for nodes that have not come; no rank was started",
        confidence=0.85,
        culprit_ranks=(),
        because="The launcher is in its rendezvous, before it starts any rank. The members that it waits for are on other nodes: their number is --nnodes.",
        evidence=tuple(EvidenceLine("launcher stack", str(f), f.line) for f in (frames[:3] or user_frames(frames))),
        fixes=_FIXES,
    )


_FIXES = (
    Fix(
        "Start all members with the same numbers",
        command="torchrun --nnodes N --nproc-per-node M --rdzv-endpoint HOST:PORT ...   # on every node",
        verify="every node prints that it joined",
        undo="nothing is changed",
    ),
    Fix(
        "Call init_process_group first, slow work afterwards",
        patch="dist.init_process_group(...)   # before downloads, tokenising, model building",
        verify="unhang run -- <the same command>",
        undo="revert the edit",
    ),
)
