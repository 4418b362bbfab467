"""Rules on InfiniBand and RoCE: locked memory, adapters with their links, and how queue pairs are set up, from what a job printed."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unhang.analyze.lines.first_errors import errors_of
from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.rules.base import Found, rule
from unhang.rules.failure import has_worked, in_trouble, somebody_died
from unhang.rules.log_lines import found_in, in_order, may_lock_all, not_outlived, on_nodes, only_probed, ranks_in

# Of locked memory.
_NOT_LOCKED = ("rdma.register_no_memory", "rdma.create_no_memory")
_WARNING = "rdma.memlock_warning"
# Of adapters and their links.
_ADAPTER = ("rdma.device_fatal", "rdma.adapter_failed")
_DOWN = ("rdma.port_error", "rdma.link_down")
_RETRIES_EXCEEDED = "12"
_FLAPPING = 3
_OF_THIS_SIDE = "No data available"  # the adapter's own table has no address at that index
_MODIFY = {
    "Network is unreachable": 0.95,
    "No route to host": 0.95,
    "Connection timed out": 0.88,
    "Invalid argument": 0.86,
    "No such device": 0.86,
    "No data available": 0.9,
    "No such file or directory": 0.8,
}


@rule("memlock-limit")
def memlock_limit(s: Situation) -> Found | None:
    """Failed registrations; the warning alone only where the job is in trouble with RDMA, and nothing where the log shows that there is no limit."""
    events = not_outlived(s, s.events.of(*_NOT_LOCKED, _WARNING))
    kinds = {e.kind for e in events}
    has_failed = s.events.has("nccl.error", "nccl.result") and s.events.has("rdma.ofi_failed", "nccl.ib_device")
    if (
        not kinds
        or only_probed(s, events)
        or may_lock_all(s, events)
        or (kinds == {_WARNING} and not (has_failed and in_trouble(s)))
    ):
        return None
    if kinds == {_WARNING}:
        confidence = 0.6
    elif _WARNING in kinds:  # it names the limit
        confidence = 0.96
    else:
        confidence = 0.88 if "rdma.register_no_memory" in kinds else 0.8
    limit = next((e["limit"] or f"{e['kbytes']} kB" for e in events if e["limit"] or e["kbytes"]), "")
    return found_in(s, events, confidence, words={"limit": f" ({limit})" if limit else ""})


def _retried(s: Situation) -> list[LogEvent]:
    return [e for e in s.events.of("rdma.completion_error") if e["status"] == _RETRIES_EXCEEDED or e["retries"]]


@rule("ib-link")
def ib_link(s: Situation) -> Found | None:
    """Events of the adapter with retries exceeded beside them, or these alone on InfiniBand.

    The ranks whose own adapter reports are the culprits; who only gets no answer is a victim.
    """
    fatal, down, retried = s.events.of(*_ADAPTER), s.events.of(*_DOWN), _retried(s)
    events = in_order(fatal, down, retried)
    if fatal:
        culprits = ranks_in(fatal) or ranks_in(down)
        return found_in(s, events, 0.96, culprits, say="fatal", words={"where": on_nodes(fatal)})
    active = s.events.of("rdma.port_active", "rdma.link_up")
    if down and (in_trouble(s) or not (active and active[-1].order > down[-1].order)):
        words = {"where": on_nodes(down), "times": f" ({len(down)} times)" if len(down) > 1 else ""}
        confidence = 0.92 if retried else 0.85 if len(down) >= _FLAPPING else 0.76
        return found_in(s, events, confidence, ranks_in(down), say="down", words=words)
    is_ib = s.events.has("nccl.ib_device") or any(e["link"].startswith("I") for e in retried)
    is_ib = is_ib and not s.events.has("nccl.roce_device", "rdma.gid_change")
    if not retried or not is_ib or somebody_died(s, retried) or not has_worked(s, retried[0]):
        return None
    return found_in(s, retried, 0.6, (), say="retried")


_NCCL_FAILED = re.compile(r"\bNCCL error|\bnccl(?:Invalid|System|Internal|Remote|Unhandled)")


_ASKED, _ADAPTERS = (("NCCL_IB_DISABLE", "0"),), "NCCL_IB_HCA"


@rule("ib-roce-config")
def ib_roce_config(s: Situation) -> Found | None:
    """What speaks for the configuration, and not for a link or a dead peer."""
    named, retried = not_outlived(s, s.events.of("rdma.modify_qp_failed", "rdma.wrong_type")), _retried(s)
    if named:
        return _not_connected(s, named)
    if s.events.has(*_ADAPTER, *_DOWN):
        return None
    changed = s.events.of("rdma.gid_change")
    if changed and (retried or in_trouble(s)):
        events = in_order(changed, retried)
        say = f"{'changed' if events[0].kind == 'rdma.gid_change' else 'retried'}/changed"
        return found_in(s, events, 0.93 if retried else 0.62, (), say=say, fixes=("addresses", "gid", "timeout"))
    is_ib = s.events.has("nccl.ib_device") or any(e["network"] == "IB" for e in s.events.of("nccl.channel_net"))
    is_known = bool(retried) and (is_ib or _is_roce(s, retried))
    if is_known and not somebody_died(s, retried) and not has_worked(s, retried[0]):
        return found_in(s, retried, 0.68, (), say="retried", fixes=("gid", "same", "rails"))
    networks = _different_networks(s) if in_trouble(s) and not retried else ()
    if not networks:
        return _asked_in_vain(s)
    chosen = ", ".join(sorted({f"{_network(e)} on {_node(e)}" for e in networks})[:4])
    return found_in(s, networks, 0.7, (), say="networks", words={"chosen": chosen}, fixes=("gid", "same", "rails"))


def _asked_in_vain(s: Situation) -> Found | None:
    """RDMA that somebody asked for by name, an adapter that is seen and cannot be opened, and sockets in its place."""
    asked = [
        e for e in s.events.of("environment.nccl_set") if (e["name"], e["value"]) in _ASKED or e["name"] == _ADAPTERS
    ]
    closed, networks = s.events.of("rdma.not_opened"), s.events.of("nccl.network")
    if not asked or not closed or not networks or any((e["network"] or e["network_"]) != "Socket" for e in networks):
        return None
    words = {"device": closed[0]["device"], "setting": f"{asked[0]['name']}={asked[0]['value']}"}
    events = in_order(asked[:1], closed[:1], networks[-1:])
    return found_in(s, events, 0.65, (), say="closed", words=words, fixes=("container",), is_root=True)


def _not_connected(s: Situation, named: Sequence[LogEvent]) -> Found:
    """Queue pairs that cannot be connected, or the marks of two kinds of network."""
    modify = [e for e in named if e.kind == "rdma.modify_qp_failed"]
    reason = "modify" if len(modify) == len(named) else "marks"
    fixes = ("gid", "same", "rails")
    if not modify:
        return found_in(s, named, 0.85, (), say=reason, fixes=fixes)
    gid = modify[0]["gid"]
    words = {"gid": f" from GID {gid}" if gid else "", "error": modify[0]["error"]}
    confidence = max(_MODIFY.get(e["error"], 0.75) for e in named)
    is_several = len({line.host for line in s.case.log if line.host}) > 1  # else the other side may lack it as well
    own = ranks_in(e for e in modify if is_several and e["error"] == _OF_THIS_SIDE)
    return found_in(s, named, confidence, own, say=f"modify/{reason}", words=words, fixes=fixes)


def _node(event: LogEvent) -> str:
    return event["node"] or event["node_"]


def _network(event: LogEvent) -> str:
    name = event["network"] or event["network_"]
    return "IB" if name.startswith("IB") else name


def _different_networks(s: Situation) -> tuple[LogEvent, ...]:
    """The first choice of each node, where not all chose the same: InfiniBand (with or without a plugin) or another."""
    chosen: dict[str, LogEvent] = {}
    for event in s.events.of("nccl.network"):
        chosen.setdefault(_node(event), event)
    kinds = {_network(e) for e in chosen.values()}
    is_failing = s.is_hang or s.events.has("nccl.error", "nccl.result", "nccl.echo_peer_closed", "nccl.echo_proxy")
    is_failing = is_failing or any(_NCCL_FAILED.search(e.text) for e in errors_of(s))
    alone = not s.events.has("fabric.connect_failed", "shm.", "cuda.", "oom.device", "fabric.too_many_files")
    return tuple(chosen.values()) if len(kinds) > 1 and "IB" in kinds and is_failing and alone else ()


def _is_roce(s: Situation, retried: Sequence[LogEvent]) -> bool:
    """Whether the adapters are known to be RoCE: NCCL prints a GID for these only, and UCX the kind of the link."""
    if any(e["gid"] or e["link"] == "RoCE" for e in retried):
        return True
    return s.events.has("nccl.roce_device") and not s.events.has("nccl.ib_device")
