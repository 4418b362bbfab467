"""Rules on devices, their links and their drivers, as they were read on the machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from unhang.analyze.situation import Situation
from unhang.model import Reading, grouped
from unhang.model.evidence import as_numbers
from unhang.rules.base import Found, rule
from unhang.rules.job.device import XIDS
from unhang.rules.machine import (
    NEIGHBOUR_BYTES,
    SHARE,
    Needs,
    ago,
    cite,
    devices_of,
    found_by,
    found_on,
    less_than_peers,
    majority,
    needs_of,
    of_each_rank,
    ranks_of,
    size,
    users_of,
)

_LITTLE_BYTES = 256 << 20
_MUCH = 0.5
_MOST_NAMED = 3
_NEAR_C = 2
# What a device says of itself, worst first.
_FAULTS = {"problem": 0.96, "rows_failed": 0.95, "ecc_uncorrected": 0.9, "rows_pending": 0.8, "pages_pending": 0.8}
_KERNEL = {
    "kernel.off_the_bus": ("a device has fallen off the bus", 0.95),
    "kernel.device_lost": ("a device is lost", 0.93),
    "kernel.ecc_uncorrectable": ("uncorrectable ECC errors of a device", 0.9),
    "kernel.nvlink_uncorrectable": ("uncorrectable errors of an NVLink", 0.9),
    "kernel.amd_uncorrectable": ("uncorrectable errors of a device", 0.9),
    "kernel.driver_init_failed": ("the driver could not start a device", 0.92),
    "kernel.gsp_timeout": ("a device's system processor does not answer", 0.85),
    "kernel.machine_check": ("machine checks: errors of a processor or of memory", 0.7),
}
_WORTH_SAYING, _MOST_OF_IT = 0.05, 0.5  # shares of /dev/shm
_DEFAULT_SHM = 64 << 20
_SMALL_BATCH, _MEDIUM_BATCH = 1_000_000, 8_000_000
_UNCORRECTED = ("Uncorrected", "Uncorrectable", "Multiple Uncorrected", "Fatal")


@rule("nvlink-down", reads=("devices.device",))
def nvlink_down(s: Situation) -> Iterator[Found]:
    """Links that are down, and links that were."""
    devices = devices_of(s)
    less, usual = less_than_peers(devices, "nvlinks_up")
    if less:
        words = {"up": f"{min(d.number('nvlinks_up') or 0 for d in less):g}", "usual": f"{usual:g}"}
        yield found_on(s, less, 0.9, words, say="less")
    again = [d for d in devices if d["nvlink_recoveries"] and d not in less]
    if again:
        yield found_on(s, again, 0.7, say="again")


@rule("pcie-narrow", reads=("devices.device",))
def pcie_narrow(s: Situation) -> Iterator[Found]:
    """Lanes, and the generation of devices that are at full clock."""
    devices = devices_of(s)
    busy = [d for d in devices if d["performance_state"] == 0]
    for name, compared in (("pcie_width", devices), ("pcie_gen", busy)):
        less, usual = less_than_peers(compared, name)
        less = tuple(d for d in less if (d.number(name) or 0) < (d.number(f"max_{name}") or 0))
        if less:
            words = {"least": f"{min(d.number(name) or 0 for d in less):g}", "usual": f"{usual:g}"}
            yield found_on(s, less, 0.78, words, say=name)


@rule("device-occupied", reads=("devices.device",))
def device_occupied(s: Situation) -> Iterator[Found]:
    """Devices that let nobody in, then those that are in use."""
    using: dict[tuple[str, str], dict[str, Reading]] = {}
    for process in s.readings.of("devices.process"):
        if (process.number("used_bytes") or 0) >= _LITTLE_BYTES:
            using.setdefault((process.host, process.text("uuid")), {})[process.text("pid")] = process
    devices = [(d, tuple(using.get((d.host, d.text("uuid")), {}).values())) for d in devices_of(s)]
    shut = [d for d, own in devices if _is_shut(d, bool(own))]
    if shut:
        yield found_on(s, shut, 0.92, {"mode": shut[0]["compute_mode"]}, say="shut")
    used = [(d, own) for d, own in devices if d not in shut and (own or _share(d) > _MUCH)]
    if used:
        full, found = [d for d, _ in used], [p for _, own in used for p in own]
        who = ", ".join(f"{p.text('command') or 'process'} {p['pid']}" for p in found[:_MOST_NAMED])
        words = {"by": f" by {who}" if who else "", "held": size(max(d.number("used_bytes") or 0 for d in full))}
        yield found_on(s, full, 0.78, words, cite([*found, *full]), say="used")


def _share(device: Reading) -> float:
    total = device.number("memory_bytes")
    return (device.number("used_bytes") or 0) / total if total else 0.0


def _is_shut(device: Reading, is_used: bool) -> bool:
    mode = device["compute_mode"]
    return mode == "prohibited" or (is_used and mode in ("exclusive process", "exclusive thread"))


@rule("device-slowed", reads=("devices.device",))
def device_slowed(s: Situation) -> Found | None:
    """All devices that the driver calls slowed, or that are hot."""
    slowed = [d for d in devices_of(s) if d["slowdowns"] or _is_hot(d)]
    reasons = dict.fromkeys(d.text("slowdowns") or f"{d['temperature_c']} degrees" for d in slowed)
    return found_on(s, slowed, 0.78, {"reasons": "; ".join(reasons)}) if slowed else None


def _is_hot(device: Reading) -> bool:
    temperature, limit = device.number("temperature_c"), device.number("slowdown_at_c")
    return temperature is not None and bool(limit) and temperature > (limit or 0) - _NEAR_C


@rule("device-unhealthy", reads=("devices.device",))
def device_unhealthy(s: Situation) -> Iterator[Found]:
    """Each sort of fault; a device is named with its worst only."""
    faulty = grouped(
        (fault, device) for device in devices_of(s) if (fault := next((f for f in _FAULTS if device[f]), None))
    )
    for fault, devices in faulty.items():
        words, victims = {"has": "has" if len(devices) == 1 else "have"}, s.others(users_of(s, devices))
        yield found_on(s, devices, _FAULTS[fault], words, say=fault, victims=victims)


@rule("devices-unlike", reads=("devices.device", "devices.visible"))
def devices_unlike(s: Situation) -> Iterator[Found]:
    """Hosts with fewer devices, devices of another model, and those with less memory."""
    hosts = {r.host: r for r in s.readings.of("devices.visible") if r["local_rank"] == 0}
    usual = majority([r.text("present") for r in hosts.values()])
    fewer = [r for r in hosts.values() if usual and (r.number("present") or 0) < int(usual)]
    if fewer:
        least = min(int(r.number("present") or 0) for r in fewer)
        words = {"least": least, "usual": usual}
        yield found_by(fewer, 0.8, words, say="fewer")
    devices = [d for d in devices_of(s) if d["name"]]
    model = majority([d.text("name") for d in devices])
    others = [d for d in devices if model and d.text("name") != model]
    if others:
        yield found_on(s, others, 0.72, {"name": others[0]["name"], "model": model}, say="model")
    memory = majority([d.text("memory_bytes") for d in devices if d.text("name") == model and d["memory_bytes"]])
    small = [d for d in devices if memory and 0 < (d.number("memory_bytes") or 0) < 0.9 * int(memory)]
    small = [d for d in small if d not in others]
    if small:
        yield found_on(s, small, 0.75, say="memory")


@rule("driver-silent", reads=("devices.driver",))
def driver_silent(s: Situation) -> Found | None:
    """All hosts where it does not answer, or was not loaded again."""
    bad = [r for r in s.readings.of("devices.driver") if r["problem"]]
    if not bad:
        return None
    is_mismatch = any(r["is_mismatch"] for r in bad)
    confidence = 0.96 if is_mismatch or any(r["is_silent"] for r in bad) else 0.92
    say = "mismatch" if is_mismatch else "silent"
    return found_by(bad, confidence, {}, say, victims=s.others(ranks_of(bad)))


@rule("fabric-not-ready", reads=("devices.device",))
def fabric_not_ready(s: Situation) -> Found | None:
    """All devices that wait for it."""
    waiting = [d for d in devices_of(s) if d["fabric"] in ("not started", "in progress") or d["fabric_error"]]
    if not waiting:
        return None
    states = dict.fromkeys(f"error {d['fabric_error']}" if d["fabric_error"] else d.text("fabric") for d in waiting)
    return found_on(s, waiting, 0.93, {"states": ", ".join(states)}, victims=s.others(users_of(s, waiting)))


@rule("p2p-redirected", reads=("devices.peers", "devices.pci"))
def p2p_redirected(s: Situation) -> Iterator[Found]:
    """ACS, and the IOMMU, each for all hosts."""
    direct = {r.host: r for r in s.readings.of("devices.peers") if r["pcie_pairs"]}
    buses = [r for r in s.readings.of("devices.pci") if r.host in direct and not r["is_virtual"]]
    acs = [r for r in buses if r["redirecting"] and direct[r.host]["switch_pairs"]]
    iommu = [r for r in buses if r not in acs and r.text("iommu").startswith("DMA")]
    for say, bad in (("acs", acs), ("iommu", iommu)):
        if bad:
            evidence = cite([*bad, *(direct[r.host] for r in bad)])
            yield found_by(bad, 0.75, {}, say, evidence=evidence)


@rule("kernel-device-error", reads=("machine.kernel_log",))
def kernel_device_error(s: Situation) -> Iterator[Found]:
    """The worst of each host, as each has devices of its own."""
    by_host: dict[str, list[tuple[float, str, Reading]]] = {}
    for reading in s.readings.of("machine.kernel"):
        what, weight = _accused(reading)
        if weight:
            by_host.setdefault(reading.host, []).append((weight, what, reading))
    for here in by_host.values():
        weight, what, worst = max(here, key=lambda t: t[0])
        readings = [r for _, _, r in here]
        bus = f" ({worst['bus']})" if worst["bus"] else ""
        words = {"what": what, "bus": bus, "age": ago(worst.number("age_s") or 0)}
        yield found_by(readings, weight, words)


def _accused(reading: Reading) -> tuple[str, float]:
    """What a message accuses, and how sure that is; 0: nothing."""
    kind = reading.subject
    if kind == "kernel.xid":
        code = int(reading.text("code")) if reading.text("code").isdecimal() else 0
        weight, meaning = XIDS.get(code, (0.0, ""))
        return (f"Xid {code}, {meaning}", min(weight, 0.95)) if weight >= 0.7 else ("", 0.0)
    if kind == "kernel.sxid" and reading.text("severity") == "Fatal":
        return f"a fatal error of an NVSwitch (SXid {reading.text('code')})", 0.88
    if kind == "kernel.pcie_error" and reading.text("severity") in _UNCORRECTED:
        return "uncorrected errors of the PCIe bus", 0.8
    return _KERNEL.get(kind, ("", 0.0))


@rule("shm-forecast", reads=("machine.shared_memory", "setup.job"))
def shm_forecast(s: Situation) -> Found | None:
    """All hosts where it is too small, with the numbers of the worst."""
    asked = [(r, needs_of(s, r)) for r in s.readings.of("machine.shared_memory")]
    short = [(r, needs, *lack) for r, needs in asked if (lack := _lack_of_shm(r, needs))]
    if not short:
        return None
    readings = [r for r, *_ in short]
    _, needs, confidence, say, words = max(short, key=lambda x: x[2])
    words = {**words, "place": needs.place("shm_bytes", readings)}
    return found_by(readings, confidence, words, say, evidence=cite([needs.job, *readings]))


def _lack_of_shm(reading: Reading, needs: Needs) -> tuple[float, str, dict[str, object]] | None:
    """How sure it is that one host has too little, and what to say of it."""
    planned = needs.planned("shm_bytes")
    have = planned or reading.number("free_bytes") or 0.0
    words: dict[str, object] = {
        "have": size(have) + ("" if planned else " free"),
        "who": needs.who,
        "default": " 64 MB is what containers get by default." if have <= _DEFAULT_SHM else "",
    }
    if not planned and reading["is_writable"] is False:
        return (0.93, "shut", words) if needs.workers else None
    devices = needs.job.number("gpus_per_node") or reading.number("gpus") or 0
    nccl = NEIGHBOUR_BYTES * needs.ranks if devices and needs.ranks > 1 else 0
    if needs.loader_bytes:
        wanted = needs.loader_bytes + nccl
        words |= {"batches": needs.batches, "batch": size(needs.batch_bytes or 0), "wanted": size(wanted)}
        if wanted > SHARE * have:
            return 0.93 if wanted > have else 0.75, "batches", words
    elif needs.workers:
        most = max(0.0, have - nccl) / (needs.ranks * needs.batches)
        words |= {"most": size(most), "beside": f" beside the {size(nccl)} of NCCL" if nccl else ""}
        if most < _MEDIUM_BATCH:
            return 0.85 if most < _SMALL_BATCH else 0.75, "room", words
    words |= {"nccl": size(nccl), "ranks": needs.ranks}
    return (0.75, "nccl", words) if nccl > SHARE * have else None


@rule("shm-leftovers", reads=("machine.shm_leftovers",))
def shm_leftovers(s: Situation) -> Found | None:
    """All hosts; a note, unless they take most of the room."""
    found = [
        (r, (r.number("bytes") or 0) / (r.number("size_bytes") or 1)) for r in s.readings.of("machine.shm_leftovers")
    ]
    full = [(r, share) for r, share in found if r["size_bytes"] and share >= _WORTH_SAYING]
    if not full:
        return None
    readings = [r for r, _ in full]
    worst, share = max(full, key=lambda x: x[1])
    count, names = int(worst.number("count") or 0), worst.text("names").split()
    words = {
        "files": f"{count} file{'s' * (count > 1)}",
        "taken": size(worst.number("bytes") or 0),
        "age": ago(worst.number("newest_age_s") or 0),
        "names": " ".join(f"/dev/shm/{name}" for name in names),
        "others": "   # and the others: ls -la /dev/shm" if count > len(names) else "",
    }
    return found_by(readings, 0.8 if share >= _MOST_OF_IT else 0.6, words)


class _BadVersions(NamedTuple):
    """Versions that fail together, and where that was established.

    `versions`: component -> (first bad version, first good version after it); an empty text is no limit. `where`: a variable or
    a component, its value, and whether it fails with that value alone, or with any other.
    """

    versions: Mapping[str, tuple[str, str]]
    symptom: str
    remedy: str
    source: str
    confidence: float
    where: tuple[str, str, bool] = ("", "", False)

    def matches(self, found: Mapping[str, str]) -> bool:
        """Whether a rank with these versions and variables is one that fails."""
        name, value, is_with = self.where
        is_there = not name or (found.get(name) == value) is is_with
        return is_there and all(_between(found.get(name, ""), *limits) for name, limits in self.versions.items())


def _between(version: str, first: str, good: str) -> bool:
    found = as_numbers(version)
    return bool(found) and found >= as_numbers(first) and (not good or found < as_numbers(good))


_BAD_VERSIONS = (
    _BadVersions(
        {"torch": ("2.7.0", "2.7.1"), "NCCL": ("2.26", "2.27")},
        "init_process_group(device_id=...) makes communicators that do not block, and these hang at random",
        "torch 2.7.1 or newer, or TORCH_NCCL_USE_COMM_NONBLOCKING=0",
        "pytorch/pytorch issue 153960, pull request 154055",
        0.8,
        ("TORCH_NCCL_USE_COMM_NONBLOCKING", "0", False),
    ),
    _BadVersions(
        {"NCCL": ("2.29.2", "2.29.3")},
        "a regression that hangs; 2.29.3 was released to fix it",
        "NCCL 2.29.3 or newer",
        "pytorch/pytorch pull request 174338",
        0.8,
    ),
    _BadVersions(
        {"NCCL": ("2", "2.29.3")},
        "builds by gcc before 10 lose operations of the proxy on ARM: collectives between nodes stop without an error",
        "NCCL 2.29.3 or newer",
        "NCCL release notes 2.29.3; marin-community/marin issue 7344",
        0.72,
        ("processor", "aarch64", True),
    ),
    _BadVersions(
        {"NCCL": ("2.14", "2.17")},
        "collectives between nodes hang with CUDA_LAUNCH_BLOCKING=1",
        "unset CUDA_LAUNCH_BLOCKING, or NCCL 2.17 or newer",
        "NVIDIA/nccl issue 750, pull request 774; pytorch/pytorch pull request 97843",
        0.92,
        ("CUDA_LAUNCH_BLOCKING", "1", True),
    ),
    _BadVersions(
        {"torch": ("1", "2.3"), "numpy": ("2", "")},
        "torch cannot use this numpy: from_numpy, and loaders that make arrays, raise 'Numpy is not available'",
        "pip install 'numpy<2', or torch 2.3 or newer",
        "pytorch/pytorch issues 107302 and 132179",
        0.9,
    ),
)


@rule("known-bad-versions", reads=("versions.component",))
def known_bad_versions(s: Situation) -> Iterator[Found]:
    """Each entry of the list, with the ranks that have these versions."""
    settings = of_each_rank(s.readings.of("versions.setting"))
    for known in _BAD_VERSIONS:
        bad = [
            found[name]
            for rank, found in of_each_rank(s.readings.of("versions.component")).items()
            if known.matches(_texts(found, "version") | _texts(settings.get(rank, {}), "value"))
            for name in known.versions
        ]
        if bad:
            first = dict.fromkeys(f"{r.subject} {r['version']}" for r in bad[: len(known.versions)])
            words = known._asdict() | {"versions": " with ".join(first)}
            yield found_by(bad, known.confidence, words)


def _texts(found: Mapping[str, Reading], name: str) -> dict[str, str]:
    return {subject: reading.text(name) for subject, reading in found.items()}
