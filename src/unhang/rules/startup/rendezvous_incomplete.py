"""Rule: not all members came to the start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogEvent, user_frames
from unhang.model.example import Fires, Quiet, pending
from unhang.rules import wording as w
from unhang.rules.examples import log_case, make_case
from unhang.rules.startup.joined import is_default, last_members, least_joined, missing_ranks, other_sizes
from unhang.rules.startup.start_rule import StartRule, seen, was_killed

_COUNTED = ("store.clients_joined", "elastic.rendezvous_timed_out", "launchers.node_unreachable")
_BARRIER = (
    "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: store_based_barrier_key:{} "
    "(world_size=2, worker_count={}, timeout=0:10:00)"
)
_CLIENTS = "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/3 clients joined."
_MEMBER = "initializing ddp: GLOBAL_RANK: {}, MEMBER: {}/4"
_INIT = {r: [pending("init_process_group", where="main:3")] for r in (0, 1, 2)}


class RendezvousIncomplete(StartRule):
    """Some ranks wait in the start for members that have not come.

    What it detects:
        Ranks inside `init_process_group`, and others of the world that are not; a launcher that waits for nodes; a store that
        timed out with fewer members than the world.

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
    kinds = (
        *_COUNTED,
        "store.barrier_timed_out",
        "store.barrier_waiting",
        "store.wait_for_input",
        "store.socket_timeout",
        "launchers.member",
    )
    over = ("watchdog.timeout",)
    confidence = 0.95
    EXAMPLES: ClassVar = (
        Fires(make_case({}, hang="suspected", pending=_INIT, absent=(3,)), (3,)),
        Fires(
            make_case({}, hang="suspected", pending=_INIT, stacks={3: "main:2"}, more={3: {"initialized": False}}),
            (3,),
            2,
        ),
        Fires(make_case({}, world=0, hang="suspected", launcher="~rendezvous"), ()),
        Fires(log_case(_BARRIER.format(1, 1)), (1,)),
        Fires(log_case(_CLIENTS), ()),
        Fires(log_case("\n".join(_MEMBER.format(r, r + 1) for r in (1, 0))), (2, 3)),
        Quiet(log_case("\n".join([*(_MEMBER.format(r, r + 1) for r in range(4)), "All came"])), "all came"),
        Quiet(log_case(_BARRIER.format(1, 3)), "more than expected: another cause"),
        Quiet(
            log_case("ValueError: bad config\n" + _CLIENTS.replace("1/3", "3/3")),
            "all came",
        ),
        Quiet(
            make_case(
                {}, pending={r: [pending("init_process_group", done=True)] for r in range(4)}, hang=None, exit_code=0
            ),
            "all came",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding naming the absent members, or the launcher that waits for them, or what a store said of them."""
        edges = [e for e in s.waits.edges if e.kind == "rendezvous" and e.targets]
        if s.primary_failure is None and edges and s.case.hang is not None:
            yield _absent(s, tuple(sorted({t for e in edges for t in e.targets})))
        elif (
            s.primary_failure is None
            and not s.case.ranks
            and any("rendezvous" in f.file for t in s.case.launcher_stacks for f in t.frames)
        ):
            yield _launcher(s)
        else:
            yield from super().check(s)

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Counts below the world; else a wait in a store that answered."""
        if was_killed(s):
            return []
        counted = [*seen(s, *_COUNTED), *least_joined(s)]
        again = s.events.has("elastic.rendezvous_done", "elastic.restarting", "elastic.worker_failed")
        if again:  # the first start succeeded: whoever is missing at the next one failed before
            counted = [e for e in counted if e.kind != "elastic.rendezvous_timed_out"]
        waited = counted or ([] if again else [*_wait_of_a_launcher(s), *last_members(s)])
        return [e for e in self.still_starting(s, waited) if not _is_full(e)]

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The ranks that did not report, where those that came are all told."""
        return missing_ranks(s, events)

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """A count is proof; a group made later, or a wait alone, is less."""
        kinds = {e.kind for e in events}
        if kinds & {"store.clients_joined", "elastic.rendezvous_timed_out"}:
            return self.confidence
        if any(e.kind == "store.barrier_timed_out" and is_default(e) for e in events):
            return self.confidence
        if other_sizes(s):
            return 0.9
        if any(e.kind == "store.barrier_waiting" and is_default(e) for e in events):
            return 0.8
        return 0.9 if "launchers.node_unreachable" in kinds else 0.65

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """How many of how many."""
        members = {e.rank for e in events if e.kind == "launchers.member"}
        if members:
            return f"only {len(members)} of {events[-1]['world_size']} members came to the start"
        told = next((e for e in events if e["joined"]), None)
        if told is not None:
            where = "the start" if told["expected"] or is_default(told) else "the making of a later group"
            return f"only {told['joined']} of {told['expected'] or told['world_size']} members came to {where}"
        if any(e.kind == "launchers.node_unreachable" for e in events):
            return "the launcher could not log in to a node: its ranks were never started"
        return "not all members came to the rendezvous"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What the wait proves, and other numbers of processes."""
        if all(e.kind == "launchers.node_unreachable" for e in events):
            return "The launcher starts the ranks of other nodes through ssh, and ssh failed; the ranks of this node wait for them."
        if all(e.kind.startswith("store.barrier") and not is_default(e) for e in events):
            return (
                "The first group was made by all; this one was not: the missing ranks live, or died since, and did not call new_group "
                "in time. Where they are is not in these lines."
            )
        sizes = other_sizes(s)
        uneven = (
            f" The nodes start {' and '.join(sizes)} processes: a static rendezvous needs the same number on each."
            if sizes
            else ""
        )
        return (
            "The store answered, so the address is right; the members that are missing were not started, died before, or went to "
            f"another address.{uneven} A longer timeout helps only if they are merely slow."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """The same numbers on all nodes, or a way to log in."""
        return _LOGIN_FIX if all(e.kind == "launchers.node_unreachable" for e in events) else _FIXES


def _wait_of_a_launcher(s: Situation) -> Sequence[LogEvent]:
    """A wait in the store that timed out while the launcher, and no rank yet, was in it."""
    in_launcher = s.events.has("elastic.launcher_frame") and not s.events.has("elastic.child_failed", "store.unique_id")
    if not in_launcher:
        return ()
    waited = s.events.of("store.wait_for_input")
    return waited or (s.events.of("store.socket_timeout") if s.events.has("elastic.assigns_ranks") else ())


def _is_full(event: LogEvent) -> bool:
    joined, expected = event.number("joined"), event.number("expected")
    return joined is not None and expected is not None and joined >= expected


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
_LOGIN_FIX = (
    Fix(
        "Let the launcher log in to every node without a password",
        command="ssh -o BatchMode=yes NODE hostname   # for every node of the hostfile, from the node that launches",
        verify="every node prints its name, without a question",
        undo="nothing is changed",
    ),
)
