"""Rules on the network of each host (chosen addresses, searched links, what the kernel says), and on the collectives that ran over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unhang.analyze.situation import Situation
from unhang.model import Reading, grouped
from unhang.rules.base import Found, rule
from unhang.rules.machine.pairs import way_to_master
from unhang.rules.readings import ago, cite, hosts_of, is_only_planned, ranks_of, size, spans_hosts

_BACKENDS = ("gloo", "nccl")
_ANY = "<the interface that `ip route get OTHER_NODE` names>"
_PROBLEMS = {
    "absent": "there is no such interface",
    "down": "that interface is down",
    "no address": "it has no address",
}
_FLAPS = 3
_ENOUGH_LOCKED = 64 << 30


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


@rule("kernel-link-flaps", reads=("machine.kernel_log", "setup.job"))
def kernel_link_flaps(s: Situation) -> Iterator[Found]:
    """Each link, where the job has more than one node."""
    if not any((job.number("nodes") or 0) > 1 for job in s.readings.of("setup.job")):
        return
    for reading in s.readings.of("machine.kernel", subject="kernel.link_down"):
        if (reading.number("count") or 0) >= _FLAPS:
            words = {**reading.fields, "hosts": hosts_of([reading]), "age": ago(reading.number("age_s") or 0)}
            yield Found(0.75, ranks_of([reading]), cite([reading]), words)


@rule("locked-memory", reads=("machine.limit",))
def locked_memory(s: Situation) -> Found | None:
    """All ranks that are limited."""
    short = [
        r
        for r in s.readings.of("machine.limit", subject="memlock")
        if (r.number("rdma_devices") or 0) > 0
        and not r["is_exempt"]
        and (r.number("soft") or _ENOUGH_LOCKED) < _ENOUGH_LOCKED
    ]
    if not short:
        return None
    has_devices = any((r.number("gpus") or 0) > 0 for r in short)
    words = {"size": size(min(r.number("soft") or 0 for r in short)), "hosts": hosts_of(short)}
    return Found(0.9 if has_devices else 0.75, ranks_of(short), cite(short), words)


@rule("bad-link", reads=("links.search",))
def bad_link(s: Situation) -> Iterator[Found]:
    """Links between two hosts."""
    for reading in s.readings.of("links.bad_link"):
        if len(_hosts_between(s, reading)) == 2:
            yield _bad(s, reading)


@rule("bad-rank", reads=("links.search",))
def bad_rank(s: Situation) -> Iterator[Found]:
    """Ranks that are bad, those that got stuck, and bad links within a host."""
    for reading in s.readings.of("links.stuck"):
        yield _bad(s, reading, "stuck")
    for reading in s.readings.of("links.bad_rank", "links.bad_link"):
        if reading.kind == "links.bad_rank" or len(_hosts_between(s, reading)) < 2:
            yield _bad(s, reading)


def _bad(s: Situation, reading: Reading, say: str = "") -> Found:
    """What the search found, with the groups that failed."""
    ranks, hosts = _ranks_named(reading), _hosts_between(s, reading)
    words = {
        "rank": ranks[0],
        "other": ranks[-1],
        "where": f" ({' and '.join(hosts)})" if hosts else "",
        "tests": reading.text("failed_tests"),
        "said": f" It was said: {reading.text('reason')}." if reading.text("reason") else "",
    }
    return Found(
        0.95,
        ranks,
        cite([reading, *s.readings.of("links.search")]),
        words,
        say or ("link" if len(ranks) == 2 else "rank"),
        victims=s.others(ranks),
    )


def _hosts_between(s: Situation, reading: Reading) -> list[str]:
    evidence = [s.case.ranks.get(rank) for rank in _ranks_named(reading)]
    return sorted({e.identity.host for e in evidence if e and e.identity.host})


def _ranks_named(reading: Reading) -> tuple[int, ...]:
    """The ranks that a reading of the search names: `2`, or `1-3`."""
    return tuple(int(rank) for rank in reading.subject.split("-"))


@rule("checked-collective-failed", reads=("collectives.suite",))
def checked_collective_failed(s: Situation) -> Found | None:
    """All failures: the first one, and whom they accuse together."""
    failures = s.readings.of("collectives.failure")
    if not failures:
        return None
    blamed = s.readings.of("collectives.blame")
    ranks, first = ranks_of(blamed), failures[0]
    why = [b.text("because") for b in blamed[:1]] or [first.text("because")]
    words = {
        "who": f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: " if ranks else "",
        "which": first.subject,
        "more": f" (and {len(failures) - 1} more)" if len(failures) > 1 else "",
        "why": why[0] or "The ranks stand alike",
        "unsure": "" if ranks else "The evidence does not tell which rank is at fault. ",
    }
    victims = s.others(ranks) if ranks else ()
    return Found(0.96, ranks, cite((*failures, *blamed)), words, first.text("verdict"), victims=victims)
