"""Rules on what else ends a start: a port, an address, a device, a file, or what an earlier start left behind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from unhang.analyze.failures import is_communication_error
from unhang.analyze.lines.first_errors import errors_of, first_error
from unhang.analyze.lines.own_lines import own_lines
from unhang.analyze.lines.pasted import doings_of
from unhang.analyze.situation import Situation
from unhang.analyze.waits.waits_for import under_way
from unhang.model import LogEvent, RankEvidence
from unhang.read.logs import kinds_in
from unhang.read.stack_texts import START as TRACEBACK
from unhang.rules import wording as w
from unhang.rules.base import Found, rule
from unhang.rules.failure import first_exception, frame_of, is_file_race, name_or, names_cause, text_of
from unhang.rules.job.devices import OF_DEVICES, beyond_the_devices, by_use
from unhang.rules.job.rendezvous import BARRIERS, excess
from unhang.rules.log_lines import (
    BESIDE_ANOTHER_ERROR,
    found_in,
    has_other_error,
    not_outlived,
    numbered_twice,
    ranks_in,
    still_starting,
    sure_beside,
    was_killed,
)
from unhang.rules.start_repairs import held_by_a_wait

_PORT = re.compile(r"port:? ?`?(\d{2,5})|\]:(\d{2,5})|:(\d{4,5})\b")
_PORT_WARNINGS = ("store.listen_failed", "store.bind_failed")
_LISTENERS = ("_env_rendezvous_handler", "_tcp_rendezvous_handler")
_LISTENING = ("watchdog.timeout", "store.barrier_done")


@rule("port-in-use")
def port_in_use(s: Situation) -> Iterator[Found]:
    """Errors, or warnings after which nothing shows that the start went on; of a bind the other address family may have been free."""
    events, confidence = still_starting(s, s.events.of("store.port_taken"), *_LISTENING), 0.96
    events = events or _beside_another_run(s)
    if not events:
        joined = max((e.order for e in s.events.of("elastic.rendezvous_done")), default=-1)
        warned = still_starting(s, s.events.of(*_PORT_WARNINGS), *_LISTENING)
        events = [e for e in warned if joined <= e.order]
        confidence = 0.9 if any(e.kind == "store.listen_failed" for e in events) else 0.75
    if numbered_twice(s):
        return  # launcher-misuse says so
    if forbidden := still_starting(s, s.events.of("store.port_forbidden"), *_LISTENING):
        yield found_in(
            s,
            forbidden,
            0.95,
            (),
            words={"port": forbidden[0]["port"]},
            say="root",
            cause="launcher-misuse",
            fixes=("high",),
        )
        return
    if events and len(called := _called_again(s, events[0])) > 1:
        words: dict[str, object] = {"times": len(called)}
        yield found_in(
            s, [*called[:3], *events], 0.9, (), words=words, say="twice", cause="launcher-misuse", fixes=("once",)
        )
    elif events:
        port = _port(events)
        words = {"port": f" {port}" if port else "", "number": port or "29500"}
        frame = next((frame_of(f) for f in s.failures if names_cause(text_of(f), "cause.port_taken")), None)
        found = found_in(s, events, sure_beside(s, confidence), words=words, fixes=("who", "free"), location=frame)
        if all(e["any"] for e in events):
            found = replace(found, say="any", fixes=("many",))
        yield found if found.culprits or not _is_in_rendezvous(s) else replace(found, culprits=(0,))


def _beside_another_run(s: Situation) -> list[LogEvent]:
    """A launcher that refused to start while another run, whose ranks had named themselves before, went on in the same terminal; none began behind it."""
    refused = [e for e in s.events.of("store.port_taken") if e["launcher"]]
    moved = next((e.order for e in s.events.of("progress.step") if refused and e.order > refused[-1].order), 0)
    named = [x.order for x in own_lines(s) if x.rank is not None and x.order < moved]
    return refused if named and named[-1] < refused[0].order else []


_AT_A_PROMPT = re.compile(r"^(?:\([\w.-]+\) ?)?(?:\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80})?[$#>] ")
_NODES = re.compile(r"--nnodes[= ](\d+)(?![\d:])")


def _called_again(s: Situation, refusal: LogEvent) -> list[LogEvent]:
    """The calls of one launcher before the port was refused, or what it says of one node, where they are more than the nodes.

    They have the same arguments, and nothing ended between them.
    """
    calls = [e for e in s.events.of("launchers.command") if e.order < refusal.order and not _AT_A_PROMPT.match(e.text)]
    begun = [e for e in s.events.of("launchers.node_begins") if e.order < refusal.order]
    for same in (_most_alike(calls, "command"), _most_alike(begun, "node")):
        is_of_one = bool(same) and any(x in same[0].text for x in ("--node_rank", "--node-rank", "node_rank="))
        nodes = 1 if is_of_one else _nodes_of(same[0]) if same else 0
        between = (e for e in s.events if same[0].order < e.order < same[-1].order) if same else ()
        if nodes and len(same) > nodes and not any(e.says or e.is_progress for e in between):
            return same
    return []


def _most_alike(events: Sequence[LogEvent], word: str) -> list[LogEvent]:
    """Those in which this word is the same, the largest such set."""
    again = Counter(e[word] for e in events).most_common(1)
    return [e for e in events if again and e[word] == again[0][0]]


def _nodes_of(call: LogEvent) -> int:
    """How many nodes a launcher is called for: one where nothing says so, 0 where it may be several."""
    told = _NODES.search(call.text)
    return int(told[1]) if told else 0 if "nnodes" in call.text or "rdzv" in call.text else 1


def _is_in_rendezvous(s: Situation) -> bool:
    """Whether the error came from the ranks' own rendezvous, where rank 0 alone listens."""
    errors = [e for e in errors_of(s) if names_cause(e.text, "cause.port_taken")]
    return any(f.function in _LISTENERS for e in errors for f in e.frames)


def _port(events: Sequence[LogEvent]) -> str:
    for event in events:
        if port := event["port"]:
            return port
        if match := _PORT.search(event.text):
            return next((g for g in match.groups() if g), "")
    return ""


# gloo connects all with all: each member publishes its address under its rank, below the number of the group's context. A later
# group has a number of its own before the device; whoever is missing there has left the others' way, and not the start.
_ADDRESS = re.compile(r"default_pg(?:/\d+)?/{1,2}(?:cpu|cuda|xpu|mps)//\d+/(?P<rank>\d{1,7})(?=$|[\s,\]])")


@rule("no-address")
def no_address(s: Situation) -> Iterator[Found]:
    """Unless a process was killed or that very rank waited as well."""
    waited = still_starting(s, s.events.of("store.wait_timed_out"), "watchdog.timeout")
    events = [e for e in waited if _ADDRESS.search(e["keys"])]
    missing = tuple(sorted({int(m["rank"]) for e in events for m in _ADDRESS.finditer(e["keys"])}))
    if events and not was_killed(s) and not any(e.rank in missing for e in events):
        words = {
            "ranks": w.name_ranks(missing),
            "addresses": w.verb(missing, "its address", "their addresses"),
            "key": events[0]["keys"].strip(),
        }
        yield found_in(s, events, sure_beside(s, 0.88), missing, words=words)


_DEVICES = ("device.invalid_ordinal", "device.duplicate", "device.too_few")


@rule("device-mapping")
def device_mapping(s: Situation) -> Iterator[Found]:
    """What names devices; NCCL 2.10 and older only say "invalid usage"."""
    events = still_starting(s, s.events.of(*_DEVICES))
    if not events and not has_other_error(s):
        events = still_starting(s, s.events.of("device.old_invalid_usage"))
    if not events:
        yield from by_use(s)
        return
    kinds = {e.kind for e in events}
    if kinds & {"device.invalid_ordinal", "device.duplicate"}:
        confidence = 0.97
    elif "device.too_few" in kinds:
        confidence = 0.65 if all("no GPUs found" in e.text for e in events) else 0.9
    else:
        confidence = 0.6
    ranks = _without_device(s, events)
    pair = next((e for e in events if e.kind == "device.duplicate"), None)
    say = "same" if pair is not None else "absent" if kinds & {*_DEVICES} else "old"
    who = w.name_ranks(ranks) if ranks else "several ranks" if pair is not None else "a rank"
    words: dict[str, object] = {"who": who, "device": pair["device"] if pair is not None else ""}
    confidence = sure_beside(s, confidence, events)
    if apart := _launchers_apart(s, events):
        words["apart"], fixes = apart, ("launchers", "settings")
        yield found_in(s, events, confidence, (), words=words, say="launchers", cause="launcher-misuse", fixes=fixes)
    else:
        yield found_in(s, events, confidence, ranks, words=words, say=say, fixes=OF_DEVICES)


def _launchers_apart(s: Situation, events: Sequence[LogEvent]) -> int:
    """How many ranks each of two launchers has here; 0 where there is one.

    By as many the ranks of all pairs on one device differ. Ranks of groups of two are the same pair on each device: there are as many as devices,
    if a launcher was called at all. A program that starts its replicas by itself gives them the same devices in the same way.
    """
    shared = [e for e in events if e.kind == "device.duplicate"]
    pairs = {frozenset((e.number("first_rank") or 0, e.number("second_rank") or 0)) for e in shared}
    devices, hosts = {e["device"] for e in shared}, {e.host for e in shared if e.host}
    if len(pairs) == 1 < len(devices) and len(hosts) == 1:
        return len(devices) if s.events.of("launchers.command", "launchers.node_begins") else 0
    apart = {max(pair) - min(pair) for pair in pairs}
    return max(apart) if len(pairs) > 1 and len(apart) == 1 and max(apart) > 1 else 0


def _without_device(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks without a device; of shared ones all that NCCL refused."""
    found = {e.rank for e in events if e.rank is not None and e.kind != "device.duplicate"}
    pairs = [e for e in events if e.kind == "device.duplicate"]
    if len({e["device"] for e in pairs}) > 1 == len({frozenset((e["first_rank"], e["second_rank"])) for e in pairs}):
        return ()  # numbers within groups of two
    for e in pairs:
        found |= {n for name in ("first_rank", "second_rank") if (n := e.number(name)) is not None}
    if pairs:
        refused = s.events.of("device.init_invalid_usage")
        if len({e["device"] for e in refused}) == 1:
            found |= {e.rank for e in refused if e.rank is not None}
    if not found and any(e.kind == "device.invalid_ordinal" for e in events):
        failed = ((r, x) for r, x in s.case.ranks.items() if x.error or (x.exit is not None and (x.exit.code or 0) > 0))
        ended = {r: x.error for r, x in failed}
        found = {r for r, error in ended.items() if error is None or "device.invalid_ordinal" in kinds_in(error.text)}
    return tuple(sorted(found)) or beyond_the_devices(s)


_LOST = (
    "files.rename_lost",
    "files.index_missing",
    "files.stale_handle",
    "files.lock_lost",
    "files.extension",
    "files.exists",
)
_LATER_NODE = re.compile(r"worker[-_]?0*[1-9]\d*$|(?:^|\D)0*(?:[2-9]|[1-9]\d+)$", re.IGNORECASE)


@rule("shared-file")
def shared_file(s: Situation) -> Iterator[Found]:
    """Lost races; else a double rotation; else index building that failed on later nodes only.

    Where the exception itself shows the race, the rule filesystem-race says so, with the rank and the line.
    """
    first = first_exception(s)
    if first is not None and is_file_race(s, first):
        return
    lost = not_outlived(s, s.events.of(*_LOST)) or (s.events.of("files.shards_missing") if s.is_crash else ())
    events = lost or _deleted_twice(s) or _ends_in_a_rotation(s) or _index_on_other_nodes(s)
    if not events:
        return
    kinds = {e.kind for e in events}
    path = next((e["path"] or e["locked"] for e in events if e["path"] or e["locked"]), "")
    say = "several"
    if not path:
        say = "index" if "files.index_frame" in kinds else "unnamed"
    elif kinds & {"files.rename_lost", "files.index_missing"}:
        say = "renamed" if "files.rename_lost" in kinds else "missing"
    culprits = ranks_in(e for e in events if e.kind in _LOST)
    yield found_in(s, events, _of_lost_race(s, kinds), culprits, words={"file": path}, say=say)


def _of_lost_race(s: Situation, kinds: set[str]) -> float:
    """By what was lost; an existing folder alone is often a plain mistake."""
    if has_other_error(s):
        return BESIDE_ANOTHER_ERROR
    if kinds & {"files.rename_lost", "files.index_missing"}:
        return 0.95
    if kinds == {"files.rotating"}:
        return BESIDE_ANOTHER_ERROR
    if kinds & {"files.rotating", "files.stale_handle", "files.lock_lost", "files.extension"}:
        return 0.85
    return 0.7 if "files.exists" in kinds else BESIDE_ANOTHER_ERROR + 0.05


def _deleted_twice(s: Situation) -> Sequence[LogEvent]:
    rotated = s.events.of("files.rotating")
    twice = {path for path, times in Counter(e["path"] for e in rotated).items() if times > 1}
    gone = [e for e in s.events.of("files.gone_while_deleting") if any(e["path"].startswith(path) for path in twice)]
    return [*(e for e in rotated if e["path"] in twice), *gone] if gone else ()


def _ends_in_a_rotation(s: Situation) -> Sequence[LogEvent]:
    """A traceback, of which the log holds only the head, right after a checkpoint was to be deleted."""
    if first_exception(s) is not None:
        return ()
    texts = [line.text.strip() for line in s.case.log]
    return [
        e
        for e in s.events.of("files.rotating")
        if texts[e.order + 1 : e.order + 2] == [TRACEBACK]
        and not "".join(texts[e.order + 2 : e.order + 3]).startswith('File "')
    ]


def _index_on_other_nodes(s: Situation) -> Sequence[LogEvent]:
    """Traceback lines of the index builder on ranks or nodes that are told, the first not among them, with no other error told."""
    frames = s.events.of("files.index_frame")
    others_failed = any(error.message for error in s.case.loose_errors) or any(f.error for f in s.failures)
    are_later = all(e.rank > 0 if e.rank is not None else _LATER_NODE.search(e.host) for e in frames)
    return frames if frames and not others_failed and are_later else ()


_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # each attempt gets a store of its own
_REFUSED = "Connection refused"
_AFTER_A_FAILURE = 0.5  # the restart could not work; why there was one comes first
_BY_LAUNCHER = (None, -2, -9, -15)


@rule("stale-store")
def stale_store(s: Situation) -> Iterator[Found]:
    """Addresses of the attempt before; else counts beyond the world, of ranks within it, surer with a sign of the earlier run."""
    if (found := _old_addresses(s) or _do_not_meet(s)) is not None:
        yield found
        return
    counted = [e for e in s.events.of(*BARRIERS) if excess(e) > 0]
    events = still_starting(s, counted)
    if not events or any((e.rank or 0) >= (e.number("world_size") or 0) for e in counted):
        return
    worst = max(events, key=excess)
    joined, world = worst.number("joined") or 0, worst.number("world_size") or 1
    starts = f"{joined} is {joined // world} times {world}: the store was there for {joined // world} starts. "
    before = "The file of the store was there before this run. " if s.events.has("store.file_exists") else ""
    signs = s.events.has("store.file_exists", "elastic.restarting", "elastic.restart_count")
    words = {"joined": worst["joined"], "world_size": worst["world_size"], "world": world}
    words["runs"] = (starts if joined % world == 0 else "") + before
    fixes = ("new place", "first failure")
    first = first_error(s)
    is_later = first is not None and not first.is_line and first.order < events[0].order
    sure = _AFTER_A_FAILURE if is_later else sure_beside(s, 0.95 if signs else 0.88)
    yield found_in(s, events, sure, (), words=words, fixes=fixes)


def _old_addresses(s: Situation) -> Found | None:
    """After a restart gloo's first connection is refused, or never comes about; and no rank of this attempt had ended before that."""
    refused = [e for e in s.events.of("gloo.connect_failed") if _REFUSED in e["reason"]]
    if not (refused or _all_connect(s)) or not s.case.attempt or s.case.job.environment.get(_OWN_STORE) == "1":
        return None
    if any(_has_gone(e) for e in s.case.ranks.values()):
        return None
    # Where a rank had come out of init_process_group, all had published their addresses.
    before = next((c for c in reversed(s.case.earlier) if any(e.initialized for e in c.ranks.values())), None)
    if before is None or before.world != s.case.world:
        return None  # nobody had published an address, or others are asked for theirs now
    words = {"attempt": s.case.attempt, "before": before.attempt, "world": len(s.case.world)}
    fixes = ("own store", "first failure")
    if not refused:
        evidence = [line for e in s.case.ranks.values() for line in w.stack_lines(e, 2)]
        return Found(0.85, (), evidence, words, "waits", fixes)
    sure = 0.95 if set(s.case.ranks) == set(s.case.world) else 0.85
    return found_in(s, refused, sure, (), words=words, say="restart", fixes=fixes)


def _do_not_meet(s: Situation) -> Found | None:
    """In a job that hangs: all members of a group are where gloo connects them, in one call, and none gets on."""
    calls = {r: c for r, e in s.case.ranks.items() if (c := under_way(e, "new_group")) is not None}
    index, detail = min(((c.index, c.detail) for c in calls.values()), default=(0, ""))
    members = [int(n) for n in detail.split(",") if n.isdigit()] if s.is_hang else []
    here = [s.case.ranks[r] for r in members if r in calls and (calls[r].index, calls[r].detail) == (index, detail)]
    if len(members) < 2 or sum(map(_connects, here)) < len(members):
        return None
    at = w.own_line(here[0].main_frames)
    evidence = [line for e in here for line in w.stack_lines(e, 2)]
    words = {"who": w.name_ranks(tuple(members)), "index": index, "at": w.at(at)}
    if (held := held_by_a_wait(s, members)) is not None:
        return replace(held, words={**words, **held.words})
    return Found(0.7, (), evidence, words, "lost", ("look at the store",), location=at)


def _all_connect(s: Situation) -> bool:
    """Whether the job hangs with all ranks in init_process_group where gloo connects them: all are there, and do not find each other."""
    ranks = s.case.ranks.values()
    is_all = s.is_hang and bool(ranks) and set(s.case.ranks) == set(s.case.world)
    return is_all and all(
        _connects(e) and any(f.function == "init_process_group" for f in e.main_frames) for e in ranks
    )


def _connects(evidence: RankEvidence) -> bool:
    """Whether a rank is where gloo connects the members of a group."""
    return any(f.function == "_new_process_group_helper" for f in evidence.main_frames[:1])


def _has_gone(evidence: RankEvidence) -> bool:
    """Whether a rank ended in another way than by the refusal, or by what a launcher does after it: nobody listens at its address."""
    if evidence.error is not None:
        return _REFUSED not in evidence.error.message and not is_communication_error(evidence.error)
    return evidence.exit is not None and evidence.exit.code not in _BY_LAUNCHER


_BATON = "torch/utils/file_baton.py"


@rule("stale-build-lock")
def stale_build_lock(s: Situation) -> Found | None:
    """The processes whose stacks are in the log, if all of them wait for the lock of an extension's build: then nobody builds."""
    doings = doings_of(s)
    waiting = [d for d in doings if any(f.file.endswith(_BATON) and f.function == "wait" for f in d.frames)]
    if not waiting or len(waiting) != len(doings):
        return None
    ranks = tuple(sorted({r for d in waiting for r in d.ranks}))
    caller = waiting[0].caller
    words = {"who": name_or(ranks, "the process"), "wait": w.verb(ranks or (0,), "waits", "wait")}
    return Found(0.85, ranks, tuple(map(w.stack_of, waiting[:4])), words, location=caller, victims=())
