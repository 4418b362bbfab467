"""Rule: the place of the rendezvous is wrong or cannot be reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Frame, LogEvent, ThreadStack
from unhang.model.example import Fires, Quiet, path, pending
from unhang.rules import wording as w
from unhang.rules.examples import log_case, make_case
from unhang.rules.startup.start_rule import StartRule, seen, was_killed

_TIMED_OUT = "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (node-a, 29500)."
_GAI = "[W socket.cpp:601] [c10d] The IPv6 network addresses of (node-a, 53821) cannot be retrieved (gai error: -3 - Temporary failure in name resolution)."
_REFUSED = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: 111 - Connection refused)."
_ERRORS = (
    "store.connect_timed_out",
    "store.connect_failed",
    "store.host_not_found",
    "elastic.bad_endpoint",
    "gloo.unresolved",
)
_NAMES = ("store.host_not_found", "elastic.bad_endpoint", "gloo.unresolved")
_MOST_LAST_LINES = 5
# Connection timed out, no route to host, network is unreachable: unlike a refusal no sign of a server that is yet to start.
_UNREACHABLE = (101, 110, 113)
_RENDEZVOUS = "/torch/distributed/rendezvous.py"
_C10D = "/site-packages/torch/distributed/distributed_c10d.py"
_INIT = {r: [pending("init_process_group", where="main:3")] for r in range(3)}


def _in_init(*above: Frame) -> ThreadStack:
    """A rank in init_process_group, for examples."""
    frames = (*above, Frame(_C10D, 1892, "init_process_group"), *path("main:3"))
    return ThreadStack("MainThread", frames, is_main=True)


_CONNECTS = _in_init(Frame(f"/site-packages{_RENDEZVOUS}", 190, "_create_c10d_store"))
_CONNECTED = _in_init(Frame(_C10D, 2169, "_new_process_group_helper"))


class RendezvousEndpoint(StartRule):
    """The address at which the ranks meet does not resolve, is malformed, or nobody answers there.

    What it detects:
        The store's client timed out or was refused for good, the name of the master does not resolve, or the endpoint is no
        valid one; and no training followed. Or, in a start that hangs, some ranks still connect to a store that the others reached.

    Why it hangs:
        Every process tries to reach the store until its timeout (60 s to 30 min); rank 0 waits for them meanwhile.

    How to confirm:
        From each node: `getent hosts MASTER` and `nc -vz MASTER PORT` while rank 0 waits.

    How to fix:
        A MASTER_ADDR (or --rdzv-endpoint) that every node resolves to an address of rank 0's node, and an open port. A machine whose
        own name does not resolve: a line in /etc/hosts, or an address instead of the name.

    Sources:
        torch/csrc/distributed/c10d/socket.cpp; torch/distributed/rendezvous.py.
    """

    id = "rendezvous-endpoint"
    cause = "rendezvous-endpoint"
    kinds = (*_ERRORS, "elastic.rendezvous_unreachable", "store.gaierror", "store.unresolved", "store.connect_refused")
    over = ("watchdog.timeout", "store.barrier_done", "elastic.rendezvous_done")
    confidence = 0.95
    EXAMPLES: ClassVar = (
        Fires(log_case(_TIMED_OUT), ()),
        Fires(log_case(_GAI), ()),
        Fires(log_case("ValueError: host not found: Name or service not known"), ()),
        Fires(log_case("\n".join([_REFUSED] * 6)), ()),
        Fires(
            log_case(
                "Traceback (most recent call last):\n  store = _create_tcp_store(params)\ntorch.distributed.elastic.rendezvous.api."
                "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
            ),
            (),
        ),
        Fires(
            make_case(
                {}, world=3, hang="suspected", pending=_INIT, stacks={0: _CONNECTED, 1: _CONNECTED, 2: _CONNECTS}
            ),
            (2,),
            3,
        ),
        Quiet(
            make_case({}, world=3, hang="suspected", pending=_INIT, stacks=dict.fromkeys(range(3), _CONNECTED)),
            "all have reached the store",
        ),
        Quiet(
            make_case({}, world=3, hang="suspected", pending=_INIT, stacks={0: _CONNECTS, 1: _CONNECTS, 2: _CONNECTS}),
            "nobody has reached it: which side is at fault is not told",
        ),
        Fires(
            make_case({}, world=3, hang="suspected", pending=_INIT, stacks={0: _CONNECTS, 1: _CONNECTED, 2: _CONNECTS}),
            (2,),
            3,
        ),
        Quiet(
            make_case({}, world=3, hang=None, pending=_INIT, stacks={0: _CONNECTED, 1: _CONNECTED, 2: _CONNECTS}),
            "a rank that connects a moment later",
        ),
        Quiet(
            log_case(f"{_REFUSED}\nRank 0: Completed store-based barrier for key:0 with 2 nodes."),
            "a retry that succeeded",
        ),
        Quiet(log_case(f"{_GAI}\nstep 10 loss 2.13"), "the other address family resolved, and training began"),
        Quiet(
            log_case(
                "    num_nodes_waiting = rdzv_handler.num_nodes_waiting()\ntorch.distributed.elastic.rendezvous.api."
                "RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."
            ),
            "an agent that lost the store of another agent, which ended before it",
        ),
    )
    fixes = (
        Fix(
            "Name an address of rank 0's node that every node reaches",
            command="getent hosts $MASTER_ADDR; nc -vz $MASTER_ADDR $MASTER_PORT   # on every node, while rank 0 waits",
            verify="every node prints the same address and 'succeeded'",
            undo="nothing is changed",
        ),
        Fix(
            "On one machine: do not depend on its name",
            command="torchrun --standalone ...   (or MASTER_ADDR=127.0.0.1; or a line with the machine's name in /etc/hosts)",
            verify="the job starts",
            undo="restore the endpoint",
        ),
        Fix(
            "Does not help: a longer timeout, or NCCL_* variables",
            setting="leave them as they are: NCCL is not reached before the rendezvous, and the address stays what it is",
            verify="the same error comes later",
            undo="nothing is changed",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """What the lines say; else ranks of a hung start that do not reach the store, which others have reached."""
        said = tuple(super().check(s))
        yield from said
        ranks = _not_connected(s) if not said and s.case.hang is not None else ()
        if ranks:
            frame = s.activities[ranks[0]].frame
            others = s.others(ranks)
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{w.name_ranks(ranks)} cannot reach the store at {w.place(frame)}, which others have reached",
                confidence=0.9,
                culprit_ranks=ranks,
                victim_ranks=others,
                because="All ranks are in init_process_group; these still connect to MASTER_ADDR:MASTER_PORT, the others are past that and wait for them. "
                "Their address or port is another one, or their way to it is closed.",
                collective={"op": "init_process_group", "seq": None},
                location=w.location_of(frame),
                evidence=tuple(line for r in (*ranks[:2], *others[:1]) for line in w.stack_lines(s.case.ranks[r], 2)),
                fixes=self.fixes,
            )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Errors; else names that did not resolve, or a log that ends in refusals."""
        if was_killed(s):
            return []
        errors = [e for e in self.still_starting(s, seen(s, *_ERRORS)) if "(local) address" not in e.text]
        if not s.events.has("elastic.agent_lost_store", "elastic.rendezvous_done"):
            errors += self.still_starting(s, seen(s, "elastic.rendezvous_unreachable"))
        if s.events.has("elastic.launcher_frame"):  # elsewhere the name is that of a model hub, a tracker, a database
            errors += self.still_starting(s, s.events.of("store.gaierror"))
        if errors:
            return errors
        warned = [
            *s.events.of("store.unresolved"),
            *(e for e in s.events.of("store.connect_refused") if e.number("errno") in _UNREACHABLE),
        ]
        return self.still_starting(s, warned) or _ends_in_refusals(s)

    def sureness(self, s: Situation, events: Sequence[LogEvent]) -> float:
        """A line that names the place is the cause, unless the store had a reason not to be there."""
        if seen(s, "store.port_taken"):
            return 0.6
        kinds = {e.kind for e in events}
        if kinds & set(_NAMES):
            return 0.96
        if kinds & {*_ERRORS, "elastic.rendezvous_unreachable", "store.gaierror"}:
            return self.confidence
        if "store.unresolved" in kinds:
            return 0.85
        return 0.75 if any(e.number("errno") in _UNREACHABLE for e in events) else 0.65

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the place."""
        place = next((f"{e['host']}:{e['port']}" for e in events if e["host"] and e["port"]), "")
        endpoint = next((e["endpoint"] for e in events if e["endpoint"]), "")
        if endpoint:
            return f"the rendezvous endpoint {endpoint!r} is not a valid one"
        kinds = {e.kind for e in events}
        if kinds & {"store.unresolved", "store.host_not_found", "store.gaierror", "gloo.unresolved"}:
            return f"the name of the rendezvous host does not resolve{f' ({place})' if place else ''}"
        return f"nobody answers at the rendezvous endpoint{f' {place}' if place else ''}"

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What it excludes."""
        off = " Lines with errno 97 only say that the host has no IPv6." if s.events.has("store.ipv6_off") else ""
        return (
            "The processes could not reach the store, so none of them came to a collective. A longer timeout helps only if rank 0 "
            f"starts late; an address that is wrong stays wrong.{off}"
        )


def _not_connected(s: Situation) -> tuple[int, ...]:
    """Ranks that make their store while all others, and they are known, are past that in the same init_process_group.

    Never rank 0, which serves the store: it may wait there for the others.
    """
    stacks = {r: e.main_stack for r, e in s.case.ranks.items() if e.main_stack is not None}
    starting = {
        r: stack for r, stack in stacks.items() if any(f.function == "init_process_group" for f in stack.frames)
    }
    if set(starting) != set(s.case.world):
        return ()
    found = {r for r, stack in starting.items() if any(f.file.endswith(_RENDEZVOUS) for f in stack.frames)}
    has_server = any(r not in found for r in starting if r)
    return tuple(sorted(found - {0})) if has_server else ()


def _ends_in_refusals(s: Situation) -> list[LogEvent]:
    refused = list(s.events.of("store.connect_refused"))
    printed = [i for i, line in enumerate(s.case.log) if line.text.strip()]
    last = {e.order for e in refused}
    ends = len(printed) >= _MOST_LAST_LINES and all(i in last for i in printed[-_MOST_LAST_LINES:])
    return refused if ends else []
