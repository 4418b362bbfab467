"""Which interface and address gloo and NCCL will choose for themselves, from the variables and the host's own name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unhang.probe.interfaces import Interface, family_of, holder_of
from unhang.probe.names import Resolved
from unhang.probe.routes import can_bind

_GLOO, _NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_NCCL_ORDER = (
    ("ib", "ib*"),
    ("^docker,lo", "the first that is neither docker* nor lo*"),
    ("docker", "docker*"),
    ("lo", "lo*"),
)
_FAMILIES = {"AF_INET": "IPv4", "AF_INET6": "IPv6"}
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


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
            return Choice("nccl", _NCCL, asked, fitting[0].name if fitting else "", problem=_lack(fitting))
    return Choice("nccl", "order", "", problem="no address")


def _lack(fitting: Sequence[Interface]) -> str:
    return "no address" if fitting else "absent"


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
    """The backends that the job uses, as far as that can be told; the first mainly. `backend`: what was asked for."""
    if backend:
        return (backend, *("gloo",) * (backend != "gloo"))
    if has_devices():
        return ("nccl", "gloo")
    return ("gloo", *("nccl",) * bool(environ.get(_NCCL)))
