"""The area `network`: interfaces, names, ports, and the ways between the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from unhang.model import Reading, Unavailable
from unhang.preflight.context import Context
from unhang.preflight.net_choice import Choice, gloo_choice, mains, nccl_choice
from unhang.preflight.net_ports import read_ports
from unhang.preflight.pairs import network_id, read_pairs
from unhang.probe.interfaces import Interface, family_of, holder_of, is_link_local, is_loopback, read_interfaces
from unhang.probe.names import Resolved, resolve
from unhang.probe.routes import connect_outcome, source_address

SCOPE = "host"
LIMIT_S = 10.0
_RESOLVE_LIMIT_S, _CONNECT_LIMIT_S = 3.0, 2.0
_MOST_INTERFACES = 64


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """Interfaces, what gloo and NCCL would choose, the master's name, and ports."""
    interfaces: tuple[Interface, ...] = ()
    try:
        interfaces = read_interfaces()
        choices = _choices(context, interfaces)
    except OSError as error:
        reason = f"this system does not tell of its interfaces: {error}"
        yield from (Unavailable(kind, reason) for kind in ("network.interface", "network.choice"))
    else:
        yield from map(_interface, interfaces[:_MOST_INTERFACES])
        yield from (_choice(choice, context) for choice in choices)
    yield from _master(context, interfaces)
    yield from read_ports(context)


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """The ways between the hosts."""
    if context.party.is_alone:
        yield Unavailable("network.pair", "one process; torchrun or srun starts it on all nodes")
        return
    yield from read_pairs(context.party, *_own_addresses(context))


def _choices(context: Context, interfaces: tuple[Interface, ...]) -> list[Choice]:
    name = context.member.host
    asked = context.environ.get("GLOO_SOCKET_IFNAME", "")
    host = Resolved(name) if asked.strip() else resolve(name, _RESOLVE_LIMIT_S)
    choices = [gloo_choice(context.environ, interfaces, host)]
    if "nccl" in mains(context.environ, context.options.backend):
        choices.append(nccl_choice(context.environ, interfaces))
    return choices


def _interface(interface: Interface) -> Reading:
    fields = asdict(interface) | {"addresses": " ".join(interface.addresses)}
    return Reading("network.interface", str(fields.pop("name")), fields)


def _choice(choice: Choice, context: Context) -> Reading:
    fields = asdict(choice) | {"family": choice.family, "is_loopback": is_loopback(choice.address)}
    fields["is_main"] = mains(context.environ, context.options.backend)[0] == choice.backend
    fields["network_id"] = network_id()
    return Reading("network.choice", str(fields.pop("backend")), fields)


def _master(context: Context, interfaces: tuple[Interface, ...]) -> Iterator[Reading | Unavailable]:
    """What the master's address resolves to, and which interface leads there."""
    member = context.member
    address = member.address or context.environ.get("MASTER_ADDR", "")
    if not address:
        yield Unavailable("network.master", "MASTER_ADDR is not set")
        return
    found = resolve(address, _RESOLVE_LIMIT_S)
    own = [a for a in found.addresses if is_loopback(a) or holder_of(a, interfaces) is not None]
    fields: dict[str, str | float | bool | None] = {
        "addresses": " ".join(found.addresses),
        "took_s": round(found.took_s, 3),
        "error": found.error,
        "is_loopback": bool(found.addresses) and all(map(is_loopback, found.addresses)),
        "is_own": bool(own),
        "families": " ".join(sorted({family_of(a) for a in found.addresses})),
    }
    if interfaces:
        fields["own_families"] = " ".join(sorted({family_of(a) for i in interfaces for a in i.addresses if _counts(a)}))
    if found.addresses:
        fields |= _way(found.addresses, interfaces)
    if context.party.is_alone and member.world_size > 1 and member.rank != 0 and member.port and found.addresses:
        fields["connect"] = connect_outcome(address, member.port, _CONNECT_LIMIT_S)
    yield Reading("network.master", address, fields)


def _counts(address: str) -> bool:
    """Whether it says that the host speaks this family with others."""
    return not is_loopback(address) and not is_link_local(address)


def _way(addresses: tuple[str, ...], interfaces: tuple[Interface, ...]) -> dict[str, str]:
    """The way to the first address that there is one to."""
    problem = ""
    for address in addresses:
        try:
            source = source_address(address)
        except OSError as error:
            problem = problem or (error.strerror or str(error))
        else:
            holder = holder_of(source, interfaces)
            return {"source_address": source, "source_interface": holder.name if holder else ""}
    return {"route_error": problem}


def _own_addresses(context: Context) -> tuple[dict[str, str], list[str]]:
    """Own addresses that the job would tell its peers -> why, and those that it perhaps does not use.

    Where none is of use to others, the one that leads to the master.
    """
    try:
        interfaces = read_interfaces()
    except OSError:
        interfaces = ()
    main = mains(context.environ, context.options.backend)[0]
    chosen = [c for c in _choices(context, interfaces) if c.address and _counts(c.address)]
    chosen.sort(key=lambda c: c.backend != main)
    found: dict[str, str] = {}
    for choice in chosen:
        found.setdefault(choice.address, f"{choice.backend} by {choice.how}, {choice.interface}")
    minor = [address for address in found if all(c.backend != main for c in chosen if c.address == address)]
    return found or _leading_to_master(context, interfaces), minor


def _leading_to_master(context: Context, interfaces: tuple[Interface, ...]) -> dict[str, str]:
    way = _way(resolve(context.member.address, _RESOLVE_LIMIT_S).addresses, interfaces)
    source = way.get("source_address", "")
    if source and _counts(source):
        return {source: f"the way to MASTER_ADDR, {way['source_interface']}"}
    usable = (i for i in interfaces if i.is_up and i.has_carrier and i.kind != "container-bridge")
    return next(({a: f"the first address, {i.name}"} for i in usable for a in i.addresses if _counts(a)), {})
