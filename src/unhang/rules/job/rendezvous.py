"""Rules on the place where ranks meet, and on who came there: the store, the launcher and its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unhang.analyze.situation import Situation
from unhang.analyze.waits.starts import not_connected, port_at, ports_of_start, the_few
from unhang.model import EvidenceLine, LogEvent
from unhang.rules import wording as w
from unhang.rules.base import Found, rule
from unhang.rules.log_lines import (
    beyond_their_world,
    doubled_and_missing,
    found_in,
    has_other_error,
    numbered_twice,
    other_ports,
    other_sizes,
    own_loopback,
    started_bare,
    started_fewer,
    still_starting,
    sure_beside,
    was_killed,
    why_never_came,
)
from unhang.rules.start_repairs import by_launchers, of_number
from unhang.rules.wording import both

_NAMES = ("store.host_not_found", "elastic.bad_endpoint", "gloo.unresolved")
_ERRORS = ("store.connect_timed_out", "store.connect_failed", *_NAMES)
_ENDPOINT_REACHED = ("watchdog.timeout", "store.barrier_done", "elastic.rendezvous_done")
_MOST_LAST_LINES, _ENDPOINT = 5, "rendezvous-endpoint"
# Connection timed out, no route to host, network is unreachable: unlike a refusal no sign of a server that is yet to start.
_UNREACHABLE = (101, 110, 113)
_NO_IPV6 = " Lines with errno 97 only say that the host has no IPv6."
_REACH = ("reach", "one machine", "no timeout")
_INIT = {"op": "init_process_group", "seq": None}


@rule("rendezvous-endpoint")
def rendezvous_endpoint(s: Situation) -> Iterator[Found]:
    """What the lines say; else ranks of a hung start that do not reach the store, which others have reached."""
    events = _endpoint_errors(s)
    if kinds := {e.kind for e in events}:
        place = next((f"{e['host']}:{e['port']}" for e in events if e["host"] and e["port"]), "")
        endpoint = next((e["endpoint"] for e in events if e["endpoint"]), "")
        is_name = bool(kinds & {"store.unresolved", "store.host_not_found", "store.gaierror", "gloo.unresolved"})
        say = "invalid" if endpoint else "name" if is_name else "silent"
        words = {
            "endpoint": repr(endpoint),
            "host": f" ({place})" if place else "",
            "place": f" {place}" if place else "",
            "ipv6": _NO_IPV6 if s.events.has("store.ipv6_off") else "",
        }
        sure = sure_beside(s, _of_endpoint(s, events, kinds))
        yield found_in(s, events, sure, (), words=words, say=say, fixes=_REACH)
        return
    if told := other_ports(s, *_ENDPOINT_REACHED):
        words = {"ports": ", ".join(e["port"] for e in told)}
        yield found_in(s, told, 0.9, (), words=words, say="ports", fixes=("once",))
        return
    if s.case.hang is not None and (ports := ports_of_start(s)):
        yield _looks_apart(s, ports)
        return
    if ranks := not_connected(s) if s.case.hang is not None else ():
        frame, others = s.activities[ranks[0]].frame, s.others(ranks)
        lines = [line for r in (*ranks[:2], *others[:1]) for line in w.stack_lines(s.case.ranks[r], 2)]
        words = {"ranks": w.name_ranks(ranks), "place": w.place(frame)}
        yield Found(0.9, ranks, lines, words, "apart", _REACH, location=frame, collective=_INIT)


def _looks_apart(s: Situation, ports: Mapping[str, Sequence[int]]) -> Found:
    few = the_few(ports)
    at, names = port_at(s, min(few, default=0)), (f"{p} ({w.name_ranks(ranks)})" for p, ranks in ports.items())
    words = {"ports": ", ".join(names), "spot": w.spot(at) if at else "MASTER_PORT"}
    lines = [EvidenceLine(f"rank {r} init_process_group", f"port {p}") for p, (r, *_) in ports.items()]
    fixes = ("once" if s.case.calls.is_empty else "agree",)
    return Found(0.95, few, lines[:4], words, "ports", fixes, location=at, collective=_INIT)


def _endpoint_errors(s: Situation) -> Sequence[LogEvent]:
    """Errors; else names that did not resolve, or a log that ends in refusals."""
    if was_killed(s):
        return ()
    errors = [e for e in s.events.of(*_ERRORS) if "(local) address" not in e.text]
    if not s.events.has("elastic.agent_lost_store", "elastic.rendezvous_done"):
        errors += s.events.of("elastic.rendezvous_unreachable")
    if s.events.has("elastic.launcher_frame"):  # elsewhere the name is that of a model hub, a tracker, a database
        errors += s.events.of("store.gaierror")
    refused = s.events.of("store.connect_refused")
    warned = [*s.events.of("store.unresolved"), *(e for e in refused if e.number("errno") in _UNREACHABLE)]
    found = still_starting(s, errors, *_ENDPOINT_REACHED) or still_starting(s, warned, *_ENDPOINT_REACHED)
    if found:
        return found
    last = [i for i, line in enumerate(s.case.log) if line.text.strip()][-_MOST_LAST_LINES:]
    ends = len(last) == _MOST_LAST_LINES and {*last} <= {e.order for e in refused}
    return refused if ends else ()


def _of_endpoint(s: Situation, events: Sequence[LogEvent], kinds: set[str]) -> float:
    """A line that names the place is the cause, unless the store had a reason not to be there."""
    if s.events.of("store.port_taken"):
        return 0.6
    if kinds & set(_NAMES):
        return 0.96
    if kinds & {*_ERRORS, "elastic.rendezvous_unreachable", "store.gaierror"}:
        return 0.95
    if "store.unresolved" in kinds:
        return 0.85
    return 0.75 if any(e.number("errno") in _UNREACHABLE for e in events) else 0.65


BARRIERS = ("store.barrier_timed_out", "store.barrier_waiting")
_COUNTED = (
    "store.clients_joined", "elastic.rendezvous_timed_out", "launchers.node_unreachable", "hccl.unconnected", "store.unregistered"
)  # fmt: skip
_DEFAULT_KEYS = ("", "0", "1", "default_pg")
_MAX_NAMED_WORLD, _MOST_AFTER, _MISUSE = 4096, 10, "launcher-misuse"


@rule("rendezvous-incomplete")
def rendezvous_incomplete(s: Situation) -> Iterator[Found]:
    """The absent members, or the launcher that waits for them, or what a store said of them."""
    awaited = {t for e in s.waits.edges if e.kind == "rendezvous" for t in e.targets}
    absent = tuple(sorted(awaited.difference(s.case.out_of_sight)))
    if s.primary_failure is None and absent and s.case.hang is not None:
        yield _absent(s, absent)
        return
    frames = [f for t in s.case.launcher_stacks for f in t.frames if "rendezvous" in f.file]
    if s.primary_failure is None and frames and all(e.exit is not None for e in s.case.ranks.values()):
        yield by_launchers(s, frames)
        return
    if not (events := _incomplete(s)) or started_bare(s):
        return
    if own := own_loopback(s):
        yield found_in(s, [*own, *events], 0.93, (), words=own[0].fields, say="own", cause=_ENDPOINT, fixes=("name",))
        return
    sizes, is_later = other_sizes(s), all(e.kind.startswith("store.barrier") and not _is_default(e) for e in events)
    say = "later" if is_later else "store"
    is_refused = any(e["refused"] for e in events)
    if all(e.kind == "launchers.node_unreachable" for e in events):
        say = "login"
    uneven = f" The nodes start {' and '.join(sizes)} processes: a static rendezvous needs the same number on each."
    words = {"what": _who_came(events), "uneven": uneven if sizes else ""}
    more = {"fixes": ("login",), "cause": _MISUSE * is_refused} if say == "login" else {"fixes": ("numbers", "first")}
    confidence = sure_beside(s, _of_incomplete(events, sizes, _ran_into_time_limit(s)))
    yield found_in(s, events, confidence, _missing_ranks(s, events), words=words, say=say, **more)


def _incomplete(s: Situation) -> list[LogEvent]:
    """Counts below the world; else a wait in a store that answered."""
    if was_killed(s):
        return []
    steps = s.events.of("progress.step")
    listed = ("store.absent_task",) if s.events.has("store.unregistered") else ()
    counted = [*s.events.of(*_COUNTED, *listed), *_least_joined(s)]
    # After a step, which takes all nodes, a session that ends is the end of the job there.
    counted = [e for e in counted if e.kind != "launchers.node_unreachable" or not steps or steps[0].order > e.order]
    again = s.events.has("elastic.rendezvous_done", "elastic.restarting", "elastic.worker_failed")
    if again:  # the first start succeeded: whoever is missing at the next one failed before
        counted = [e for e in counted if e.kind != "elastic.rendezvous_timed_out"]
    waited = counted or ([] if again else [*_wait_of_a_launcher(s), *_last_members(s)])
    return [e for e in still_starting(s, waited, "watchdog.timeout") if not _is_full(e)]


def _of_incomplete(events: Sequence[LogEvent], sizes: Sequence[str], is_time_over: bool) -> float:
    """A count is proof; a group made later, or a wait alone, is less."""
    kinds = {e.kind for e in events} | {f"{e.kind} of all" for e in events if _is_default(e)}
    if kinds & {*_COUNTED, "store.barrier_timed_out of all"} - {"launchers.node_unreachable"}:
        return 0.95
    if sizes:
        return 0.9
    if "store.barrier_waiting of all" in kinds:
        return 0.8
    if "launchers.node_unreachable" in kinds:
        return 0.9
    return 0.94 if "launchers.member" in kinds and is_time_over else 0.65


def _who_came(events: Sequence[LogEvent]) -> str:
    members = {e.rank for e in events if e.kind == "launchers.member"}
    if members:
        return f"only {len(members)} of {events[-1]['world_size']} members came to the start"
    count = next((e for e in events if e["joined"]), None)
    if count is not None:
        where = "the start" if count["expected"] or _is_default(count) else "the making of a later group"
        return f"only {count['joined']} of {count['expected'] or count['world_size']} members came to {where}"
    if absent := sorted({int(n) for e in events for n in e["absent"].replace(",", " ").split()}):
        return f"{w.name_ranks(absent)} did not connect to the root in time"
    if any(e.kind == "launchers.node_unreachable" for e in events):
        return "the launcher could not log in to a node: its ranks were never started"
    return "not all members came to the rendezvous"


def _wait_of_a_launcher(s: Situation) -> Sequence[LogEvent]:
    """A wait in the store that timed out while the launcher, and no rank yet, was in it."""
    ends = ("elastic.child_failed", "elastic.exit_barrier_failed", "store.unique_id")
    if not s.events.has("elastic.launcher_frame") or s.events.has(*ends):
        return ()
    waited = s.events.of("store.wait_for_input")
    return waited or (s.events.of("store.socket_timeout") if s.events.has("elastic.assigns_ranks") else ())


def _is_full(event: LogEvent) -> bool:
    joined, expected = event.number("joined"), event.number("expected")
    return joined is not None and expected is not None and joined >= expected


def _absent(s: Situation, ranks: tuple[int, ...]) -> Found:
    alive = [r for r in ranks if r in s.case.ranks]
    never = [r for r in ranks if r not in s.case.ranks]
    frame = s.activities[alive[0]].frame if alive else None
    waiting = tuple(r for r in s.case.in_sight if r not in ranks)
    text = []
    if never:
        text.append(f"{w.name_ranks(never)} never registered: {why_never_came(s)}")
    if alive:
        are, have = w.verb(alive, "is", "are"), w.verb(alive, "has", "have")
        text.append(f"{w.name_ranks(alive)} {are} alive and {have} not called it: {w.place(frame)}")
    words = {
        "ranks": w.name_ranks(ranks),
        "have": w.verb(ranks, "has", "have"),
        "at": f"; it {both('is at')} {w.place(frame)}" if frame else "",
        "why": "; ".join(text),
        "waiting": f"{w.name_ranks(waiting)} {w.verb(waiting, 'waits', 'wait')}",
        "world": len(s.case.world),
        "came": len(waiting) + len(alive),
    }
    evidence = [line for r in alive[:2] for line in w.stack_lines(s.case.ranks[r])]
    evidence += [w.waiting_line(e) for e in s.waits.edges if e.kind == "rendezvous"]
    inits = [c for r in waiting for c in s.case.ranks[r].pending if c.kind == "init_process_group" and c.frames]
    where = frame or (inits[0].frames[0] if inits else None)
    fixes = ("first", "numbers") if alive else (of_number(s, where) or "as many", "numbers")
    return Found(0.92, ranks, evidence, words, "absent", fixes, waiting, where, collective=_INIT)


def _is_default(event: LogEvent) -> bool:
    """Whether a barrier is the one of the first process group; torch numbered it 1 up to 2.0."""
    return event["key"] in _DEFAULT_KEYS


def _least_joined(s: Situation) -> list[LogEvent]:
    """The barriers that ended, or that the log leaves, with fewer ranks than the world. Silent where any counts too many."""
    timed_out, waiting = s.events.of("store.barrier_timed_out"), s.events.of("store.barrier_waiting")
    if any(excess(e) > 0 for e in (*timed_out, *waiting)):
        return []
    short = [e for e in timed_out if excess(e) < 0]
    if short:
        return sorted(short, key=lambda e: not _is_default(e))
    done = {e["key"] for e in s.events.of("store.barrier_done")}
    last = {e["key"]: e for e in waiting if e["key"] not in done}
    open_end = {key for key, e in last.items() if excess(e) < 0 and _is_default(e)}
    again = [e for e in waiting if e["key"] in open_end]
    return again if len(again) > 1 else []


def excess(event: LogEvent) -> int:
    """How many more than the world a barrier has counted."""
    joined, world = event.number("joined"), event.number("world_size")
    return joined - world if joined is not None and world is not None else 0


def _last_members(s: Situation) -> list[LogEvent]:
    """The members that announced themselves, where the log ends with that and they are fewer than the world."""
    members = list(s.events.of("launchers.member"))
    ended = {"ending.cancelled", "ending.srun_task"} if _ran_into_time_limit(s) else set()
    if not members or has_other_error(s) or any(e.says and e.kind not in ended for e in s.events):
        return []
    after = [line for line in s.case.log[members[-1].order + 1 :] if line.text.strip()]
    world = members[-1].number("world_size") or 0
    is_last = bool(ended) or len(after) <= _MOST_AFTER
    return members if is_last and len({e.rank for e in members}) < world else []


def _ran_into_time_limit(s: Situation) -> bool:
    """Whether the scheduler ended the job when its time was over: until then it waited."""
    return any("time" in e["why"].lower() for e in s.events.of("ending.cancelled"))


def _missing_ranks(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The rest of the world, where the ranks that reported are exactly as many as a barrier of all ranks counts: torch numbers these."""
    if absent := {int(n) for e in events for n in e["absent"].replace(",", " ").split()}:
        return tuple(sorted(absent))
    members, barriers = ([e for e in events if e.kind.startswith(k)] for k in ("launchers.member", "store.barrier"))
    counted = [e for e in barriers if _is_default(e)] or [e for e in barriers if e["key"].isdigit()]
    if not members and not counted:
        return _of_the_other_node(s, events)
    world, key = (last := (members or counted)[-1]).number("world_size") or 0, last["key"]
    joined = {e.rank for e in s.events.of(*BARRIERS) if e["key"] == key} - {None}
    came = {e.rank for e in s.events.of("launchers.member")} | joined
    is_known = bool(members) or len(joined) == (last.number("joined") or 0)
    return tuple(r for r in range(world) if r not in came) if is_known and world <= _MAX_NAMED_WORLD else ()


def _of_the_other_node(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks of the second of two nodes, where one came, and its command line tells which it is and how many ranks a node has."""
    told = [{e.number(n) for e in s.events.of(f"launchers.{n}")} for n in ("nodes", "node_rank", "per_node")]
    is_one_of_two = any((e["joined"], e["expected"]) == ("1", "2") for e in events)
    if not is_one_of_two or told[0] != {2} or any(len(numbers) != 1 for numbers in told):
        return ()
    (node,), (each,) = told[1:]
    if node not in (0, 1) or not each or each > _MAX_NAMED_WORLD:
        return ()
    return tuple(range((1 - node) * each, (2 - node) * each))


_MISUSES = (
    "launchers.variable_missing", "launchers.local_rank_argument", "launchers.rank_too_high", "launchers.two_worlds",
    "launchers.rank_twice", "launchers.nested", "launchers.refused", "gloo.rank_not_below_size",
)  # fmt: skip


@rule("launcher-misuse")
def launcher_misuse(s: Situation) -> Iterator[Found]:
    """Lines that name the misuse, and ranks outside of their world; with the place where a rank alone is at fault."""
    named = [e for e in s.events.of(*_MISUSES, *BARRIERS) if e.kind not in BARRIERS or _is_outside(e)]
    events = still_starting(s, named)
    if not events:
        if doubled := numbered_twice(s):
            words = {"what": "several processes claim the same rank", **doubled_and_missing(s, doubled)}
            yield found_in(s, doubled[:_MOST_LAST_LINES], 0.88, (), words=words, say="doubled", fixes=("launcher",))
        elif beyond := beyond_their_world(s):
            rank, size = beyond[-1]["given"] or beyond[-1].rank, beyond[0]["set_size"] or beyond[0]["of"]
            words = {"what": f"rank {rank} does not fit into the world of {size}"}
            yield found_in(s, beyond[:_MOST_LAST_LINES], 0.88, (), words=words, say="numbers", fixes=("launcher",))
        elif bare := started_bare(s):
            words = {"world": bare[-1]["world_size"]}
            yield found_in(s, bare, 0.95, (), words=words, say="bare", fixes=("srun",))
        elif fewer := started_fewer(s):
            words = {"started": fewer[0]["world_size"], "world": fewer[1]["world_size"]}
            yield found_in(s, fewer, 0.96, (), words=words, say="fewer", fixes=("hosts",))
        return
    kinds, alone = {e.kind for e in events}, _without_variable(s, events)
    culprits = tuple(sorted({r for e in events if (r := _wrong_rank(e)) is not None})) or alone
    if kinds == {"launchers.local_rank_argument"} and all(
        e.number("nodes") == 1 for e in s.events.of("launchers.nodes")
    ):
        told = {r for e in events if (r := e.number("local_rank")) is not None}
        culprits = tuple(sorted(told)) if len(told) > 1 else ()
    say = "counted" if (counts := [e for e in events if e.kind in BARRIERS]) else "numbers"
    if kinds == {"launchers.variable_missing"}:
        say = "removed" if alone else "unset"
    elif kinds == {"launchers.local_rank_argument"}:
        say = "argument"
    words = {"what": next(filter(None, (_misuse(e, alone) for e in events)), _DISAGREE)}
    if counts:
        words |= {"joined": counts[-1]["joined"], "world": counts[-1]["world_size"]}
    fixes = ("environment", "launcher") if "launchers.local_rank_argument" in kinds else ("launcher",)
    errors = [e.error for r in culprits if (e := s.case.ranks.get(r)) and e.error is not None]
    where = w.own_line(errors[0].frames) if errors else None
    confidence = sure_beside(s, 0.96)
    yield found_in(s, events, confidence, culprits, words=words, say=say, fixes=fixes, location=where)


_DISAGREE = "the launcher and the program do not agree on the processes of the job"


def _misuse(e: LogEvent, alone: Sequence[int]) -> str:
    """What a line says that does not fit; empty where it does not say."""
    if e.kind == "launchers.variable_missing":
        where = f"on {w.name_ranks(alone)}, and is on the other ranks" if alone else ""
        name = e["name"] or e["old_name"].upper().replace(" ", "_")
        return f"{name} is not set{f' {where}' if where else ': the processes were not started by a launcher'}"
    if e.kind == "launchers.local_rank_argument":
        return "the launcher passes --local-rank, which the script does not know"
    if e.kind == "launchers.nested":
        return "the command starts a launcher inside of a launcher: each of its processes starts a world of its own"
    if e.kind == "launchers.two_worlds":
        return f"processes of two worlds meet: one of {e['size']} ranks and one of {e['other_size']}"
    if (rank := _wrong_rank(e)) is not None:
        size = e["size"] or e["world_size"]
        return f"rank {rank} does not fit into the world{f' of {size}' if size else ''}"
    return ""


def _without_variable(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks that miss a variable while others of the job got past that point: it is in their processes alone."""
    missing = [e for e in events if e.kind == "launchers.variable_missing"]
    named = {e.rank for e in missing if e.rank is not None}
    said = {e.text.strip() for e in missing if e.rank is not None}
    further = any(
        e.initialized or any(c.kind == "init_process_group" for c in e.pending)
        for r, e in s.case.ranks.items()
        if r not in named
    )
    # What the output says without a rank is what these ranks told, if it is not said more often.
    unnamed = [e.text.strip() for e in missing if e.rank is None]
    return tuple(sorted(named)) if further and set(unnamed) <= said and len(unnamed) <= len(named) else ()


def _is_outside(event: LogEvent) -> bool:
    size = event.number("world_size") if _is_default(event) else None
    return event.rank is not None and size is not None and event.rank >= size


def _wrong_rank(event: LogEvent) -> int | None:
    said = "wrong_rank" if event["wrong_rank"] else "told_rank"
    return event.rank if event.kind in BARRIERS else event.number(said)
