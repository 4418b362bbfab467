"""The area `network`: interfaces, what the backends choose of them, the master's name, ports, and the ways between the hosts."""

from __future__ import annotations

from collections.abc import Iterator

from unhang.check.areas import Context
from unhang.check.network.addresses import own_addresses, read_choices, read_master
from unhang.check.network.interfaces import Interface, interface_reading, read_interfaces
from unhang.check.network.pairs import read_pairs
from unhang.check.network.ports import read_ports
from unhang.model import Reading, Unavailable

SCOPE = "host"
LIMIT_S = 10.0
_MOST_INTERFACES = 64


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """Interfaces, what gloo and NCCL would choose, the master's name, and ports."""
    interfaces: tuple[Interface, ...] = ()
    try:
        interfaces = read_interfaces()
        choices = list(read_choices(context, interfaces))
    except OSError as error:
        reason = f"this system does not tell of its interfaces: {error}"
        yield from (Unavailable(kind, reason) for kind in ("network.interface", "network.choice"))
    else:
        yield from map(interface_reading, interfaces[:_MOST_INTERFACES])
        yield from choices
    yield from read_master(context, interfaces)
    yield from read_ports(context)


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """The ways between the hosts."""
    if context.participants.is_alone:
        yield Unavailable("network.pair", "one process; torchrun or srun starts it on all nodes")
        return
    yield from read_pairs(context.participants, *own_addresses(context))
