"""Rules on the start of a job, as the machines were read before it: who came, where they meet, by which addresses, and the devices of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unhang.analyze.situation import Situation
from unhang.model import Reading, grouped
from unhang.model.evidence import as_numbers
from unhang.rules.base import Found, rule
from unhang.rules.machine import (
    cite,
    compares,
    devices_of,
    found_by,
    hosts_of,
    is_only_planned,
    named,
    of_each_rank,
    ranks_of,
    spans_hosts,
    users_of,
)
from unhang.rules.machine.pairs import way_to_master


@rule("rank-never-came", reads=("party.size",))
def rank_never_came(s: Situation) -> Iterator[Found]:
    """All that are missing."""
    if missing := s.readings.of("party.missing"):
        ranks = ranks_of(missing)
        more = f" and {len(ranks) - 8} others" if len(ranks) > 8 else ""
        came = any(not r.text("reason").startswith("never came") for r in missing)
        words = {"plural": "s" if len(ranks) > 1 else "", "ranks": ", ".join(map(str, ranks[:8])) + more}
        words["what"] = "stopped answering" if came else "never came"
        yield Found(0.97, ranks, cite(missing), words, victims=s.others(ranks))


@rule("store-out-of-reach", reads=("setup.job",))
def store_out_of_reach(s: Situation) -> Iterator[Found]:
    """This rank's own view: it met nobody who could tell more."""
    if failed := s.readings.of("party.unreachable"):
        first = failed[0]
        host, _, port = first.subject.rpartition(":")
        words = {"rank": first.rank, "place": first.subject, "host": host, "port": port}
        words |= {"open": "open" if first["is_holder"] is True else "reach", "reason": first.text("reason")}
        yield found_by(failed, 0.95, words)


_SLOW_S = 1.0
_NUMERIC = ("127.", "localhost", "::1")
_OUTCOMES = {"timed out": "dropped (no answer)"}


@rule("master-name", reads=("network.master",))
def master_name(s: Situation) -> Iterator[Found]:
    """The gravest problem of each host; hosts with the same problem are one finding."""
    masters = s.readings.of("network.master")
    groups = grouped((problem, master) for master in masters if (problem := _master_problem(s, master)))
    if not groups and (odd := _odd_masters(masters)):
        groups[f"resolves to {odd[0].text('addresses')}, unlike on the other hosts", 0.75] = odd
    for (what, confidence), found in groups.items():
        words, victims = {"name": found[0].subject, "what": what}, s.others(ranks_of(found))
        yield found_by(found, confidence, words, evidence=cite(masters), victims=victims)


def _master_problem(s: Situation, master: Reading) -> tuple[str, float] | None:
    """What is wrong with one host's view, and how sure that is."""
    itself = f"resolves to {master.text('addresses')}, the host itself"
    connect = master["connect"] if master["connect"] != "connected" else None
    if master["error"]:
        return f"does not resolve: {master.text('error')}", 0.96
    if master["is_loopback"] is True and spans_hosts(s) and _must_be_elsewhere(s, master):
        return itself, 0.95
    if master["is_loopback"] is True and connect:
        return f"{itself}, where nobody holds the store", 0.95
    if master["families"] == "IPv6" and master["own_families"] == "IPv4":
        return "has only IPv6 addresses, and the host has none", 0.95
    if master["route_error"]:
        return f"has no route: {master.text('route_error')}", 0.95
    if connect:
        return f"does not answer: a connection to its port is {_OUTCOMES.get(str(connect), connect)}", 0.95
    if (took_s := master.number("took_s") or 0) > _SLOW_S:
        return f"takes {took_s:.1f} s to resolve", 0.75
    return None


def _must_be_elsewhere(s: Situation, master: Reading) -> bool:
    """Whether the master is surely another host: rank 0 is on one, or the name says loopback on any host."""
    if master.subject.startswith(_NUMERIC):
        return master.rank != 0 or is_only_planned(s)
    holders = {r.host for r in s.readings.of("network.master") if r.rank == 0}
    return bool(holders) and master.host not in holders


def _odd_masters(masters: Sequence[Reading]) -> list[Reading]:
    """Those that share no address with the majority, where there is one."""
    found = [(m, set(m.text("addresses").split())) for m in masters if m["addresses"] and m["is_loopback"] is not True]
    if len(found) < 3:
        return []
    usual = max((addresses for _, addresses in found), key=lambda a: sum(bool(a & b) for _, b in found))
    odd = [m for m, addresses in found if not addresses & usual]
    return odd if 2 * len(odd) < len(found) else []


@rule("port-held", reads=("network.port",))
def port_held(s: Situation) -> Iterator[Found]:
    """Each held port of a host."""
    ports = [p for p in s.readings.of("network.port") if p["is_free"] is False and p["is_ours"] is not True]
    firsts = {(p.host, p.subject): p for p in reversed(ports)}
    for port in (p for p in ports if p is firsts[p.host, p.subject]):
        role, pid, is_orphan = port.text("role"), port.number("pid"), port["is_orphan"] is True
        say = role if role in ("asked", "default") else "store"
        culprits = () if port.rank is None or role == "default" else (port.rank,)
        orphan = f" The holder was rank {port.text('rank_of_holder')} of a job whose launcher is gone."
        words = {
            "port": port.subject,
            "role": "" if role == "asked" else f" ({role})",
            "host": port.host or "this machine",
            "held": _held_by(port),
            "orphan": orphan if is_orphan else "",
            "option": "--ports" if role == "asked" else "MASTER_PORT",
            "pid": int(pid or 0),
        }
        fixes = ("end", "other") if is_orphan and pid is not None else ("other",)
        victims = s.others(culprits) if culprits else ()
        yield Found(0.5 if role == "default" else 0.96, culprits, cite([port]), words, say, fixes, victims)


def _held_by(port: Reading) -> str:
    pid = port.number("pid")
    if pid is None:
        if not port["listens"] and port["reason"] not in (None, "Address already in use"):
            return f"cannot be bound: {port.text('reason')}"
        how = "a socket that is not ours" if port["listens"] else "a connection, no listener"
        return f"is held by {how} (its process is not visible: another user, or another container)"
    kind = "an orphan of an earlier job" if port["is_orphan"] is True else "a live process"
    facts = (f"user {port.text('user')}" if port["user"] else "", _age(port.number("age_s")))
    return f"is held by {kind}: {port.text('command')} (pid {int(pid)}, {', '.join(filter(None, facts))})"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"for {seconds / unit:.0f} {name}"
    return f"for {seconds:.0f} s"


# The oldest driver for Linux on which programs of a major version of CUDA run.
OLDEST_DRIVER: Mapping[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580"}


@rule("driver-too-old", reads=("versions.component",))
def driver_too_old(s: Situation) -> Iterator[Found]:
    """All ranks on such hosts."""
    if bad := [found for found in of_each_rank(s.readings.of("versions.component")).values() if _is_too_old(found)]:
        drivers, cuda = [found["NVIDIA driver"] for found in bad], bad[0]["torch CUDA"]
        words = {"cuda": cuda["version"], "driver": drivers[0]["version"]}
        words["oldest"] = OLDEST_DRIVER[as_numbers(cuda.text("version"))[0]]
        evidence, victims = cite([drivers[0], cuda]), s.others(ranks_of(drivers))
        yield found_by(drivers, 0.93, words, evidence=evidence, victims=victims)


def _is_too_old(found: Mapping[str, Reading]) -> bool:
    if not {"NVIDIA driver", "torch CUDA"} <= set(found):
        return False
    compatible = found.get("CUDA compatibility")
    if compatible is not None and compatible["version"]:
        return False
    cuda, driver = (as_numbers(found[name].text("version")) for name in ("torch CUDA", "NVIDIA driver"))
    return bool(cuda and driver) and driver < as_numbers(OLDEST_DRIVER.get(cuda[0], ""))


def _on_gloo(s: Situation) -> bool:
    """Whether the check was told that the job runs without devices."""
    return any(r["backend"] == "gloo" for r in s.readings.of("devices.visible"))


@rule("mig-mode", reads=("devices.device", "setup.job"))
def mig_mode(s: Situation) -> Iterator[Found]:
    """All devices that are cut."""
    has_several = any((j.number("world_size") or 1) > 1 for j in s.readings.of("setup.job"))
    sliced = [d for d in devices_of(s) if d["is_mig"]]
    if sliced and has_several and not _on_gloo(s):
        yield Found(0.85, users_of(s, sliced), cite(sliced), {"devices": named(sliced)}, victims=())


@rule("devices-hidden", reads=("devices.visible",), lacks=compares("devices.visible"))
def devices_hidden(s: Situation) -> Iterator[Found]:
    """All hosts on which ranks see one device each, and not the same one."""
    hidden: list[Reading] = []
    seen = s.readings.of("devices.visible")
    for host in dict.fromkeys(r.host for r in seen):
        alone = [r for r in seen if r.host == host and r["count"] == 1 and (r.number("present") or 0) > 1 and r["own"]]
        if len({r["own"] for r in alone}) > 1:
            hidden += alone
    if hidden and not _on_gloo(s):
        yield found_by(hidden, 0.6, {"variable": hidden[0]["variable"]})


@rule("shared-device", reads=("devices.visible",), lacks=compares("devices.visible"))
def shared_device(s: Situation) -> Iterator[Found]:
    """Each device that is taken twice."""
    by_device = grouped(
        ((reading.host, reading.text("own")), reading)
        for reading in s.readings.of("devices.visible")
        if reading["own"] and not _on_gloo(s)
    )
    for (host, uuid), sharing in by_device.items():
        ranks = ranks_of(sharing)
        if len(ranks) > 1:
            is_certain = sum(r["count"] == 1 and _uses_devices(r) for r in sharing) > 1
            chosen = [f"rank {r.rank}: {r['variable']}={r['value']}" for r in sharing[:4] if r["value"] is not None]
            words = {"ranks": ", ".join(map(str, ranks)), "host": host or "this machine", "device": uuid[:16]}
            words["chosen"] = f"{', '.join(chosen)}. " if chosen else ""
            yield Found(0.95 if is_certain else 0.8, ranks, cite(sharing), words, victims=s.others(ranks))


def _uses_devices(reading: Reading) -> bool:
    """Whether somebody chose devices for the rank, so that it is no job without."""
    return reading["value"] is not None or reading["backend"] == "nccl"


@rule("too-few-devices", reads=("devices.visible", "setup.job"))
def too_few_devices(s: Situation) -> Iterator[Found]:
    """Ranks that have no device; of a plan, hosts that have too few."""
    seen = s.readings.of("devices.visible")
    if _on_gloo(s) or all(r["is_hidden"] for r in seen):
        return
    plan = next((j for j in s.readings.of("setup.job", subject="plan") if j["gpus_per_node"]), None)
    if plan is not None:
        needed = int(plan.number("gpus_per_node") or 0)
        short = [r for r in seen if r["local_rank"] == 0 and (r.number("present") or 0) < needed]
        if short:
            least = min(int(r.number("present") or 0) for r in short)
            words: dict[str, object] = {"needed": needed, "hosts": hosts_of(short), "least": least}
            ranks = ranks_of(short)
            yield Found(0.92, ranks, cite([plan, *short]), words, "plan", victims=s.others(ranks))
    elif without := [r for r in seen if r["own"] is None and not r["problem"]]:
        first, ranks = without[0], ranks_of(without)
        words = {"rank": first.rank, "host": hosts_of([first]), "local_rank": first["local_rank"]}
        words |= {"devices": f"{first['count']} device{'' if first['count'] == 1 else 's'}"}
        words |= {"more": f"; {len(without) - 1} more like it" if len(without) > 1 else ""}
        is_meant = any(r["backend"] == "nccl" or r["value"] for r in without)
        yield Found(0.93 if is_meant else 0.85, ranks, cite(without), words, "rank", victims=s.others(ranks))


@rule("visible-devices-wrong", reads=("devices.visible",))
def visible_devices_wrong(s: Situation) -> Iterator[Found]:
    """All ranks with the same value."""
    wrong = [r for r in s.readings.of("devices.visible") if r["problem"]]
    for value in dict.fromkeys(r.text("value") for r in wrong):
        same = [r for r in wrong if r.text("value") == value]
        words = {"value": value, "name": same[0].text("variable")}
        words |= {name: str(same[0][name]) for name in ("problem", "count", "present")}
        yield found_by(same, 0.94, words, victims=s.others(ranks_of(same)))


# By which addresses the ranks reach each other.

_BACKENDS = ("gloo", "nccl")
_ANY = "<the interface that `ip route get OTHER_NODE` names>"
_PROBLEMS = {
    "absent": "there is no such interface",
    "down": "that interface is down",
    "no address": "it has no address",
}


@rule("address-not-unique", reads=("network.choice",))
def address_not_unique(s: Situation) -> Iterator[Found]:
    """Loopback addresses first, then those that several hosts have."""
    if not spans_hosts(s):
        return
    for backend in _BACKENDS:
        choices = [c for c in s.readings.of("network.choice", subject=backend) if not c["problem"] and c["address"]]
        loops = [c for c in choices if c["is_loopback"] is True]
        if loops:
            how = loops[0].text("how")
            yield _misleading(s, backend, loops, how.replace(" ", "_") if how in ("host name", "fallback") else "loop")
        by_address = grouped(
            (choice.text("address"), choice) for choice in choices if choice["is_loopback"] is not True
        )
        for same in by_address.values():
            if len({c.text("network_id") for c in same}) > 1:
                yield _misleading(s, backend, same, "same")


def _misleading(s: Situation, backend: str, choices: Sequence[Reading], say: str) -> Found:
    ranks, first = ranks_of(choices), choices[0]
    words = {
        "backend": backend,
        "hosts": hosts_of(choices),
        "count": len({c.host for c in choices}),
        "variable": f"{backend.upper()}_SOCKET_IFNAME",
        "name": way_to_master(s) or _ANY,
        **{name: first.text(name) for name in ("address", "interface", "asked", "how")},
    }
    confidence = 0.95 if first["is_main"] and not is_only_planned(s) else 0.72
    return Found(confidence, ranks, cite(choices), words, say, victims=s.others(ranks))


@rule("family-differs", reads=("network.choice",))
def family_differs(s: Situation) -> Iterator[Found]:
    """The majority is the reference; where there is none, all are named."""
    for backend in _BACKENDS:
        groups = grouped(
            (choice.text("family"), choice)
            for choice in s.readings.of("network.choice", subject=backend)
            if choice["family"] and choice["is_loopback"] is not True
        )
        if len(groups) < 2:
            continue
        (most, usual), (least, odd) = sorted(groups.items(), key=lambda item: -len(item[1]))
        is_even = len(odd) == len(usual)
        ranks = ranks_of([*odd, *usual] if is_even else odd)
        words = {
            "backend": backend,
            "least": least,
            "odd": hosts_of(odd),
            "most": most,
            "usual": hosts_of(usual),
            "name": odd[0].text("asked") or odd[0].host,
        }
        confidence = 0.95 if odd[0]["is_main"] else 0.72
        evidence = cite([*odd[:4], *usual[:4]])
        yield Found(confidence, ranks, evidence, words, "even" if is_even else "odd", victims=s.others(ranks))


@rule("interface-not-usable", reads=("network.choice",))
def interface_not_usable(s: Situation) -> Iterator[Found]:
    """Each value and problem, for all hosts alike."""
    groups = grouped(
        ((choice.text("how"), choice.text("asked"), choice.text("problem")), choice)
        for choice in s.readings.of("network.choice")
        if choice["problem"] and choice.text("how").endswith("_IFNAME")
    )
    for (variable, asked, problem), choices in groups.items():
        is_idle = variable.startswith("NCCL") and not any(c["is_main"] for c in choices)
        hosts, ranks = {c.host for c in choices}, ranks_of(choices)
        usable = [
            i for i in s.readings.of("network.interface") if i.host in hosts and i["addresses"] and i["is_up"] is True
        ]
        own = {i.subject for i in usable if i["kind"] in ("device", "infiniband")}
        name = choices[0].text("interface") or asked
        words = {
            "variable": variable,
            "asked": asked,
            "of": f" ({name})" if name != asked else "",
            "problem": _PROBLEMS.get(problem, problem),
            "hosts": hosts_of(choices),
            "name": way_to_master(s, hosts) or (own.pop() if len(own) == 1 else _ANY),
        }
        confidence = 0.6 if is_idle else 0.9 if problem == "down" else 0.95
        evidence = cite([*choices, *usable])
        yield Found(confidence, ranks, evidence, words, "idle" if is_idle else "used", victims=s.others(ranks))
