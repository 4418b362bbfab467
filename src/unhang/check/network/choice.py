"""Which interface and address gloo and NCCL will choose for themselves, from the variables and the host's own name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unhang.check.areas import Context
from unhang.check.network.interfaces import (
    Interface,
    family_of,
    holder_of,
    is_loopback,
    is_of_use,
    network_id,
    read_interfaces,
)
from unhang.check.network.master import Resolved, can_bind, resolve, way_to
from unhang.model import Reading

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_NCCL_ORDER = (
    ("ib", "ib*"),
    ("^docker,lo", "the first that is neither docker* nor lo*"),
    ("docker", "docker*"),
    ("lo", "lo*"),
)
_FAMILIES = {"AF_INET": "IPv4", "AF_INET6": "IPv6"}
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


def read_choices(context: Context, interfaces: Sequence[Interface]) -> Iterator[Reading]:
    """What each backend of the job will choose."""
    for choice in _choices(context, interfaces):
        fields = asdict(choice) | {"family": choice.family, "is_loopback": is_loopback(choice.address)}
        fields["is_main"] = mains(context.environ, context.options.backend)[0] == choice.backend
        fields["network_id"] = network_id()
        yield Reading("network.choice", str(fields.pop("backend")), fields)


def _choices(context: Context, interfaces: Sequence[Interface]) -> list[Choice]:
    name = context.member.host
    asked = context.environ.get("GLOO_SOCKET_IFNAME", "")
    host = Resolved(name) if asked.strip() else resolve(name)
    choices = [gloo_choice(context.environ, interfaces, host)]
    if "nccl" in mains(context.environ, context.options.backend):
        choices.append(nccl_choice(context.environ, interfaces))
    return choices


@dataclass(frozen=True, slots=True)
class Choice:
    """What a backend chooses. `how`: the variable, `host name`, `fallback` or `order`; `asked`: its value.

    `problem`: empty, `absent`, `down` or `no address`.
    """

    backend: str
    how: str
    asked: str
    interface: str = ""
    kind: str = ""
    address: str = ""
    problem: str = ""

    @property
    def family(self) -> str:
        """Of the address."""
        return family_of(self.address) if self.address else ""


def gloo_choice(
    environ: Mapping[str, str],
    interfaces: Sequence[Interface],
    host: Resolved,
    is_usable: Callable[[str], bool] = can_bind,
) -> Choice:
    """Gloo takes the interface of the variable, or the first address of the host's own name that it can bind.

    Without any it falls back to 127.0.0.1. `host`: what the host's name resolves to.
    """
    if asked := environ.get(_GLOO, "").strip():
        choices = [_by_name(name.strip(), asked, interfaces) for name in asked.split(",") if name.strip()]
        return next((c for c in choices if c.problem), choices[0] if choices else Choice("gloo", _GLOO, asked))
    for address in host.addresses:
        if is_usable(address):
            holder = holder_of(address, interfaces)
            name, kind = (holder.name, holder.kind) if holder else ("", "")
            return Choice("gloo", "host name", host.name, name, kind, address)
    return Choice("gloo", "fallback", host.name, "lo", "loopback", "127.0.0.1")


def _by_name(name: str, asked: str, interfaces: Sequence[Interface]) -> Choice:
    found = next((i for i in interfaces if i.name == name), None)
    if found is None:
        return Choice("gloo", _GLOO, asked, name, problem="absent")
    return _choice("gloo", _GLOO, asked, found, found.addresses)


def _choice(backend: str, how: str, asked: str, found: Interface, addresses: Sequence[str]) -> Choice:
    problem = "no address" if not addresses else "" if found.is_up and found.has_carrier else "down"
    return Choice(backend, how, asked, found.name, found.kind, next(iter(addresses), ""), problem)


def nccl_choice(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Choice:
    """NCCL takes what the variable names (prefixes; `=` exact, `^` all but these), else the first that fits its order.

    Source: NCCL user guide, NCCL_SOCKET_IFNAME: ib*, then anything but docker* and lo*, then docker*, then lo*.
    """
    family = _FAMILIES.get(environ.get("NCCL_SOCKET_FAMILY", ""), "")
    asked = environ.get(_NCCL, "").strip()
    for pattern, how in ((asked, _NCCL),) if asked else _NCCL_ORDER:
        fitting = [i for i in interfaces if fits(pattern, i.name)]
        addressed = sorted((i for i in fitting if _of(family, i)), key=lambda i: family_of(_of(family, i)[0]))
        usable = [i for i in addressed if i.is_up]
        if usable or (asked and addressed):
            first = (usable or addressed)[0]
            return _choice("nccl", how if asked else "order", asked or how, first, _of(family, first))
        if asked:
            return Choice(
                "nccl", _NCCL, asked, fitting[0].name if fitting else "", problem="no address" if fitting else "absent"
            )
    return Choice("nccl", "order", "", problem="no address")


def _of(family: str, interface: Interface) -> tuple[str, ...]:
    return tuple(a for a in interface.addresses if not family or family_of(a) == family)


def fits(pattern: str, name: str) -> bool:
    """Whether a name is meant by a pattern of NCCL: `eth`, `=eth0`, `^docker,lo`, `^=eth1`, several with commas."""
    excludes = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    is_exact = rest.startswith("=")
    names = [n.split(":")[0] for n in rest.removeprefix("=").split(",") if n]
    return any(name == n if is_exact else name.startswith(n) for n in names) != excludes


def has_devices() -> bool:
    """Whether there is a GPU that NCCL or RCCL could use."""
    return any(Path(path).exists() for path in _DEVICES)


def mains(environ: Mapping[str, str], backend: str) -> tuple[str, ...]:
    """The backends that the job uses, as far as is known; the first mainly. `backend`: what was asked for."""
    if backend:
        return (backend, *("gloo",) * (backend != "gloo"))
    if has_devices():
        return ("nccl", "gloo")
    return ("gloo", *("nccl",) * bool(environ.get(_NCCL)))


def own_addresses(context: Context) -> tuple[dict[str, str], list[str]]:
    """Own addresses that the job would give its peers -> why, and those that it perhaps does not use.

    Where none is of use to others, the one that leads to the master.
    """
    try:
        interfaces = read_interfaces()
    except OSError:
        interfaces = ()
    main = mains(context.environ, context.options.backend)[0]
    chosen = [c for c in _choices(context, interfaces) if c.address and is_of_use(c.address)]
    chosen.sort(key=lambda c: c.backend != main)
    found: dict[str, str] = {}
    for choice in chosen:
        found.setdefault(choice.address, f"{choice.backend} by {choice.how}, {choice.interface}")
    minor = [address for address in found if all(c.backend != main for c in chosen if c.address == address)]
    return found or _leading_to_master(context, interfaces), minor


def _leading_to_master(context: Context, interfaces: tuple[Interface, ...]) -> dict[str, str]:
    way = way_to(resolve(context.member.address).addresses, interfaces)
    source = way.get("source_address", "")
    if source and is_of_use(source):
        return {source: f"the way to MASTER_ADDR, {way['source_interface']}"}
    usable = (i for i in interfaces if i.is_up and i.has_carrier and i.kind != "container-bridge")
    return next(({a: f"the first address, {i.name}"} for i in usable for a in i.addresses if is_of_use(a)), {})
