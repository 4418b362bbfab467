"""Rules on the network, its transports and its settings, from what a job printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from unhang.analyze.failures import Failure, is_timeout
from unhang.analyze.program.trees import line_text
from unhang.analyze.situation import Situation
from unhang.analyze.waits.starts import set_at
from unhang.model import EvidenceLine, Frame, LogEvent, grouped, user_frames
from unhang.rules import wording as w
from unhang.rules.base import Found, rule
from unhang.rules.failure import has_worked, somebody_died
from unhang.rules.log_lines import found_in, in_order, not_outlived, ranks_in, still_starting

# Of interfaces and addresses.
_NAMED = ("fabric.no_interface", "fabric.no_family", "fabric.bind_failed", "gloo.family_mismatch", "gloo.no_interface")
_FAILED = ("fabric.connect_failed", "fabric.connect_exhausted", "fabric.gloo_connect_failed", "gloo.connect_failed")
_UNREACHABLE = ("No route to host", "Network is unreachable", "Cannot assign requested address", "Host is down")
_BLOCKED = ("Connection timed out", "Software caused connection abort", "Operation not permitted", "Network is down")
_FELL_BACK, _SEVERAL = "gloo.unresolved", 2
_OTHER = (
    "rdma.",
    "shm.",
    "fabric.too_many_files",
    "fabric.connection_reset",
    "fabric.connection_lost",
    "nccl.cuda_failure",
)
_LOOPBACK = ("127.", "::1", "localhost", "[127.")
_WAYS = ("choose", "open", "host network", "no longer timeout")
_LOCAL = ("169.254.", "fe80:", "172.17.0.")  # of a link or of Docker's bridge: no other node has a way there
# Of open connections.
_BROKEN = re.compile(r"Connection closed by peer|Connection reset by peer|Broken pipe")
_JOINED = ("store.barrier_waiting", "store.barrier_timed_out", "store.clients_joined")
_OF_CONNECTIONS = ("overlay", "who drops", "no timeout")
_RESET, _ON_THE_WAY = 104, (104, 110)  # ECONNRESET, ETIMEDOUT
_AT_THE_STORE = ("again", "overlay", "who drops")
_SENDING = frozenset({"write", "writev", "send", "sendmsg"})
# Of settings.
# What the two ends of a connection must agree on: it decides into which pieces a message is cut.
MUST_AGREE = frozenset(
    {
        "NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NCHANNELS_PER_NET_PEER", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE",
        "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_P2P_PXN_LEVEL", "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS", "NCCL_CHUNK_SIZE",
    }
)  # fmt: skip
_IS_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]*:[0-9a-f:]+")
_LEAST_LIMIT_MS = 1000  # the first collective alone takes longer, as it connects the ranks
# Of each kind of line that decides: how sure it is, and its fixes.
_DECIDING = {
    "refused": (0.96, ("accepted",)),
    "no_algorithm": (0.96, ("unforced",)),
    "unknown_word": (0.95, ("unforced",)),
    "bad_address": (0.95, ("no-address",)),
    "no_network": (0.9, ("free-choice", "loadable")),
    "no_plugin": (0.75, ("free-choice", "loadable")),
}
_FORCED = ("NCCL_ALGO", "NCCL_PROTO")


@rule("network-interface")
def network_interface(s: Situation) -> Found | None:
    """Lines that name it, and failed connections that are not the echo of a death; the clearest line decides."""
    if looped := _over_own_address(s):
        words = {"count": len({e.host for e in looped}), **looped[0].fields}
        return found_in(s, looped, 0.93, (), say="own", words=words, fixes=_WAYS)
    failed = s.events.of(*_FAILED)
    if somebody_died(s, failed):  # a dead process does not take the route away
        failed = tuple(e for e in failed if e["error"] in _UNREACHABLE or _is_unreachable(e) or _is_loopback(e))
    retries = [e for e in s.events.of("fabric.connect_retry") if _is_nearly_last(e)]
    if s.case.attempt and any("Connection refused" in e["reason"] for e in failed):
        return None
    if s.events.has("elastic.restarting") and any(has_worked(s, e) for e in (*failed, *retries)):
        return None  # after a restart a peer that is not there is no wrong way to it
    # Where NCCL has said that it found an interface, an address that is none came of another NCCL, or of no NCCL.
    addressless = () if s.events.has("fabric.bootstrap_using") else s.events.of("fabric.no_address")
    found = in_order(s.events.of(*_NAMED), addressless, failed, retries)
    if any(e.kind == "gloo.connect_failed" for e in found):
        found = in_order(found, (e for e in s.events.of(_FELL_BACK) if "loopback" in e.text))
    events = not_outlived(s, found or _on_a_link_only(s))
    if not events or named_interface(s):
        return None
    best = max(events, key=_weight)
    before = after = ""
    if _is_loopback(best) or best.kind == _FELL_BACK:
        before = (
            "The peer advertised a loopback address: its host name resolves to 127.x, which no other node can reach. "
        )
    elif best["address"].startswith(_LOCAL):
        before = "The peer advertised an address that is valid on its own link or bridge only. "
    elif best["error"] == "Connection refused":
        after = " A refusal may also mean that the peer had already ended; nothing in the log shows that it had."
    words = {
        "interface": best["interface"] or best["looked_up"],
        "address": best["address"] or "the address of another node",
        "error": best["error"] or "it gives up",
        "before": before,
        "after": after,
    }
    if old := _from_an_old_file(s, best):
        words |= old[0].fields
        return found_in(s, [*old, best], 0.8, (), words=words, say="file", cause="stale-store", fixes=("new file",))
    at = _chosen_at(s, best)
    words |= {"spot": w.spot(at), "line": line_text(at.file, at.line)} if at is not None else {}
    fixes = ("another one", *_WAYS) if at is not None else _WAYS
    return found_in(s, events, _weight(best), (), say=best.kind, words=words, fixes=fixes, location=at)


def _chosen_at(s: Situation, event: LogEvent) -> Frame | None:
    """The program's own line that names an interface which is not there."""
    name = event["interface"] or event["looked_up"]
    frames = (f for e in s.case.ranks.values() for f in user_frames(e.main_frames))
    folders = dict.fromkeys(f.file.rpartition("/")[0] for f in frames) if name else ()
    return next((at for x in folders if (at := set_at(x, _OF_INTERFACES, name)) is not None), None)


_OF_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def _over_own_address(s: Situation) -> tuple[LogEvent, ...]:
    """NCCL chose the same address on several hosts, of the loopback or of a bridge, and no communicator of theirs was seen to come up."""
    told = [e for e in s.events.of("fabric.over_own_address") if e.host]
    moved = bool(told) and any(e.is_progress and e.order > told[-1].order for e in s.events)
    alike = grouped((e["address"], e) for e in told)
    found = (tuple(x) for x in alike.values() if len({e.host for e in x}) >= _SEVERAL)
    return () if moved or s.events.has("nccl.init_complete") else next(found, ())


def _from_an_old_file(s: Situation, refused: LogEvent) -> Sequence[LogEvent]:
    """The file by which the ranks meet, where NCCL's first connection is refused at an address that nobody in the log has: an earlier run had left it there."""
    here = {e["address"] for e in s.events.of("fabric.bootstrap_using")}
    is_refused = refused.kind == "fabric.connect_failed" and refused["error"] == "Connection refused"
    is_old = is_refused and refused["address"] not in {"", *here} and not refused["address"].startswith(_LOCAL)
    return s.events.of("launchers.by_file")[:1] if is_old and here and not s.events.has("nccl.init_complete") else ()


def named_interface(s: Situation) -> tuple[LogEvent, ...]:
    """NCCL_SOCKET_IFNAME as NCCL took it from the environment, or a shell set it, where no interface of that name was found then."""
    names = [
        e
        for e in s.events.of("environment.nccl_set", "environment.exported")
        if e["name"] == "NCCL_SOCKET_IFNAME" and e["value"].strip()
    ]
    missing = [e for e in s.events.of("fabric.no_interface") if "socket interface found" in e.text]
    return in_order(names[:1], missing) if names and missing and names[0].order < missing[0].order else ()


def _on_a_link_only(s: Situation) -> tuple[LogEvent, ...]:
    """NCCL listens on an address of one link (fe80::), or of Docker's bridge, and a system call failed that nothing else explains: of a bridge, in its start."""
    local = _LOCAL if s.events.has("fabric.bootstrap_failed") else "fe80:"
    using = tuple(e for e in s.events.of("fabric.bootstrap_using") if e["address"].startswith(local))
    errors = s.events.of("nccl.error", "nccl.result")
    is_system = any(e["result"] == "SystemError" or e["what"] == "unhandled system error" for e in errors)
    is_explained = not is_system or s.events.has(*_OTHER) or somebody_died(s, errors)
    return () if is_explained else using


def _is_loopback(event: LogEvent) -> bool:
    return event["address"].startswith(_LOOPBACK) or "remote=[127." in event["reason"]


def _is_unreachable(event: LogEvent) -> bool:
    return any(e in event["reason"] for e in _UNREACHABLE)


def _is_nearly_last(event: LogEvent) -> bool:
    attempt, attempts = event.number("attempt"), event.number("attempts")
    return attempt is not None and bool(attempts) and 2 * attempt >= (attempts or 0)


def _weight(event: LogEvent) -> float:
    if event.kind in _NAMED or event.kind == "fabric.no_address":
        return 0.96
    if event.kind == _FELL_BACK:
        return 0.97  # taken up only where connections then failed
    if event.kind == "fabric.bootstrap_using":
        return 0.66
    if event["error"] in _UNREACHABLE:
        return 0.93 if event.kind != "fabric.connect_retry" else 0.9
    if _is_loopback(event) or event["address"].startswith(_LOCAL):
        return 0.88
    if event.kind == "gloo.connect_failed" and _is_unreachable(event):
        return 0.93
    if event["error"] in _BLOCKED or event["what"]:
        return 0.78
    return 0.72 if event.kind == "gloo.connect_failed" else 0.62


@rule("network-unstable")
def network_unstable(s: Situation) -> Found | None:
    """What NCCL said of open connections; else what torch said of those to the store; else what all ranks say of theirs."""
    lost, resets = s.events.of("fabric.connection_lost"), s.events.of("fabric.connection_reset")
    both = {e["call"] in _SENDING for e in resets} == {True, False}
    events = in_order(lost, resets if both or lost else ())
    if s.events.has("nccl.echo_peer_closed") and not lost:
        events = ()  # an orderly end of a connection: its process ended, and the resets may be that as well
    if events and not somebody_died(s, events):
        return found_in(s, events, 0.8 if lost else 0.72, (), say="seen", fixes=_OF_CONNECTIONS)
    if refused := _reset_at_the_store(s):
        joined, ranks = max(s.events.of(*_JOINED), key=lambda e: e.number("joined") or 0), ranks_in(refused)
        words = {"who": w.name_ranks(ranks), "joined": joined["joined"], "host": refused[0]["host"]}
        return found_in(s, (*refused, joined), 0.83, ranks, words=words, say="joining", fixes=_AT_THE_STORE)
    broken = _broken_everywhere(s)
    if not broken:
        return None
    words = {"who": w.name_ranks(sorted(f.rank for f in broken))}
    errors = [(f.rank, f.error) for f in broken[:4] if f.error]
    evidence = [EvidenceLine(f"rank {rank} exception", f"{e.type}: {e.message[:200]}") for rank, e in errors]
    return Found(0.72, (), evidence, words, say="everywhere", fixes=_OF_CONNECTIONS)


def _reset_at_the_store(s: Situation) -> list[LogEvent]:
    """Connections to the store that were reset in the start, while it counted more ranks than failed so: it is there, and not each of them came through."""
    refused = still_starting(s, s.events.of("store.connect_refused"))
    resets = [e for e in refused if e.number("errno") in _ON_THE_WAY and e.rank is not None]
    if all(e.number("errno") != _RESET for e in resets):
        return []
    joined = [e.number("joined") or 0 for e in s.events.of(*_JOINED) if e.order > resets[0].order]
    return resets if max(joined, default=0) > len({e.rank for e in resets}) else []


def _broken_everywhere(s: Situation) -> tuple[Failure, ...]:
    """Two or more failures, if ranks lost connections while every process of the job lived.

    Ranks that felt nothing were ended by the launcher, after the first that failed had ended.
    """
    broken = tuple(f for f in s.failures if f.kind == "exception" and f.error is not None and f.error.time_ns)
    ends = {r: e.exit.time_ns for r, e in s.case.ranks.items() if e.exit is not None}
    if len(broken) < 2 or sorted(ends) != list(s.case.world) or any(not f.secondary for f in s.failures):
        return ()
    first, first_end = min(f.error.time_ns for f in broken if f.error), min(ends.values())
    lost = {f.rank for f in broken}
    ended = {r for r, e in s.case.ranks.items() if e.exit and e.exit.kind == "signal" and e.exit.code == -15}  # told to
    is_alive = first_end > first and all(r in lost or (ends[r] > first_end and r in ended) for r in s.case.world)
    gave_up = any(is_timeout(h) for e in s.case.ranks.values() for h in e.handled)
    is_broken = all(f.error and _BROKEN.search(f.error.message) for f in broken)
    return broken if is_alive and is_broken and not gave_up else ()


@rule("misconfigured-env")
def misconfigured_env(s: Situation) -> Iterator[Found]:
    """The deciding lines; else pieces of different size, with the settings that differ, of which both ends are to blame."""
    deciding = not_outlived(s, s.events.of(*(f"environment.{name}" for name in _DECIDING)))
    if deciding:
        first = deciding[0]
        say = first.kind.removeprefix("environment.")
        confidence, fixes = _DECIDING[say]
        network = [e for e in s.events.of("environment.nccl_set") if e["name"].startswith("NCCL_NET")]
        words = {name: first[name] for name in ("name", "value", "function")}
        words |= {"repr": repr(first["value"]), "word": repr(first["word"])}
        words |= {"none": "none of the networks that it may use"}
        if say == "bad_address":
            words["value"] = f"={first['value']}" if first["value"] else ""
        if say == "no_plugin" and network:
            confidence = 0.9
            words["none"] = f"no network that fits {network[0]['name']}={network[0]['value']}"
        culprits = None if say == "refused" else ()
        events = [e for e in deciding if e.kind == first.kind]
        yield found_in(s, events, confidence, culprits, words=words, say=say, fixes=fixes)
        return
    forced = [e for e in s.events.of("environment.nccl_set") if e["name"] in _FORCED]
    if forced and (no_way := not_outlived(s, s.events.of("environment.no_way"))):
        words = {name: forced[0][name] for name in ("name", "value")}
        yield found_in(s, [forced[0], *no_way], 0.9, (), words=words, say="no_way", fixes=("unforced",))
        return
    addresses = [e for e in s.events.of("gloo.no_interface") if _IS_ADDRESS.fullmatch(e["interface"])]
    if addresses:
        words = {"name": "GLOO_SOCKET_IFNAME", "value": addresses[0]["interface"]}
        yield found_in(s, addresses, 0.97, (), words=words, say="address", fixes=("right-name",))
        return
    if named := named_interface(s):
        words = {"name": named[0]["name"], "value": named[0]["value"].strip().rstrip(".")}
        yield found_in(s, named, 0.95, (), words=words, say="no_interface", fixes=("right-name",))
        return
    limits = {x.limit_ms for x in s.watchdogs.timed_out}
    if limits and all(limit is not None and 0 <= limit < _LEAST_LIMIT_MS for limit in limits):
        events = [e for x in s.watchdogs.timed_out for e in x.events]
        words = {"limit": str(max(filter(None, limits), default=0))}
        yield found_in(s, events, 0.9, (), words=words, say="limit", fixes=("limit",))
        return
    differ = s.events.of("environment.sizes_differ")
    if differ and not s.events.has("fingerprint.mismatch", "fingerprint.nccl"):
        unequal = _unequal(s)
        values = dict.fromkeys(f"{e['value']} on {e['node']}" for e in unequal)
        words = {"name": unequal[0]["name"] if unequal else "", "values": " and ".join(values)}
        words |= {"local": differ[0]["local"], "remote": differ[0]["remote"]}
        say, confidence = ("set", 0.92) if unequal else ("sizes", 0.68)
        events = [*unequal, *differ]
        yield found_in(s, events, confidence, (), words=words, say=say, fixes=("compare", "one-place"))


def _unequal(s: Situation) -> Sequence[LogEvent]:
    """The lines of the first setting that must agree and does not, one line for each value."""
    by_name: dict[str, dict[str, LogEvent]] = {}
    for event in s.events.of("environment.nccl_set"):
        if event["name"] in MUST_AGREE and event["node"]:
            by_name.setdefault(event["name"], {}).setdefault(_same(event["value"]), event)
    unequal = (v for v in by_name.values() if len(v) > 1 and len({e["node"] for e in v.values()}) > 1)
    return tuple(next(unequal, {}).values())


def _same(value: str) -> str:
    """Two spellings of one value are one value."""
    from unhang.rules.env.values import number  # with it come the tables of all variables

    found = number(value)
    return str(found) if found is not None and value.strip().isdecimal() else value.strip().lower()
