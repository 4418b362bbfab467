"""Rules on devices and the node they sit in, from what a job and the kernel printed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from unhang.analyze.failures import is_timeout
from unhang.analyze.lines.first_errors import errors_of
from unhang.analyze.lines.going_on import silent_ranks
from unhang.analyze.lines.pasted import lost_copies
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, LogEvent
from unhang.read.logs.attempts import stood_until_tried
from unhang.rules import wording as w
from unhang.rules.base import Found, Names, rule
from unhang.rules.failure import (
    FirstException,
    died_of_own_memory,
    first_exception,
    found_at_first,
    in_trouble,
    is_before,
    name_or,
    somebody_died,
)
from unhang.rules.log_lines import failed_alone, found_in, in_order, not_outlived, on_nodes, ranks_in

_SPINS, _MOVED_S = 95.0, 1.0
_MOST_QUOTED_FACTS = 4
# The driver's error numbers (Xid) that accuse device, bus or link, not the program: how surely, and what they mean.
# Source: NVIDIA, Xid catalogue.
XIDS = {
    48: (0.95, "uncorrectable (double bit) ECC error"),
    61: (0.7, "breakpoint of the internal micro-controller"),
    62: (0.75, "the internal micro-controller halted"),
    63: (0.6, "a row of memory was marked for remapping"),
    64: (0.93, "remapping of a row of memory failed"),
    74: (0.88, "error of an NVLink"),
    79: (0.96, "the device has fallen off the bus"),
    92: (0.7, "high rate of single bit ECC errors"),
    94: (0.93, "contained uncorrectable memory error"),
    95: (0.95, "uncontained uncorrectable memory error"),
    121: (0.75, "error of the chip-to-chip link"),
    136: (0.8, "error of an NVLink"),
    140: (0.93, "unrecovered ECC error"),
    145: (0.85, "error of an NVLink"),
    149: (0.8, "error of an NVLink"),
    155: (0.8, "an NVLink could not be trained"),
}
_OF_FIRMWARE = (119, 120)
_ENDED = re.compile(r"\^C|\b(?:Terminated|Killed|Aborted)\b|\bhangs?\b|\bstuck\b|^\S*[$#] ")
_RUNS = ("work.serving", "ending.succeeded")
_ACCUSING = {
    "kernel.ecc_uncorrectable": 0.97,
    "kernel.ecc_rank": 0.97,
    "kernel.nvlink_uncorrectable": 0.9,
    "kernel.amd_uncorrectable": 0.9,
    "kernel.off_the_bus": 0.97,
    "kernel.device_lost": 0.93,
    "kernel.driver_init_failed": 0.8,
    "nccl.nvlink_p2p_disabled": 0.66,
}
_STORM = 3
_ALONE = 0.74  # what is no more certain than this a device may report and go on
_CAUSED_BY = re.compile(r"previous Xid (\d{1,3})")

_BIG = 1_000_000  # elements; a barrier or a flag is smaller, and waits for ranks that are late
_BUS = ("kernel.iommu_fault", "kernel.p2p_wrong_data")
_SETTINGS = ("kernel.acs_redirect", "kernel.iommu_on")
_BULK = frozenset({"BROADCAST", "ALLREDUCE", "_ALLGATHER_BASE", "ALLGATHER", "_REDUCE_SCATTER_BASE", "REDUCE"})
_OTHER = (
    "fabric.", "rdma.", "shm.", "kernel.xid", "kernel.off_the_bus", "nccl.result", "nccl.channel_net", "work.", "progress.step",
)  # fmt: skip

SHM_NAMED = ("shm.no_space", "shm.worker_bus_error")
SHM_FAILED = ("shm.segment_failed", "shm.torch_failed")
SHM_SIGNALS = ("shm.bus_error", "shm.bus_error_exit")
_NEAR = 4  # lines within which a full file system was met by the semaphore that was just made
_BESIDE = 20  # lines within which another error of CUDA explains that a segment could not be made


@rule("gpu-hardware")
def gpu_hardware(s: Situation) -> Found | None:
    """Lines that accuse the device, errors of its port only beside them; the clearest line decides."""
    least = 0.0 if in_trouble(s) else _ALONE
    accusing = [e for e in s.events.of(*_ACCUSING, "kernel.xid", "kernel.sxid") if _weight(e) > least]
    ports, fields = s.events.of("kernel.pcie_error"), s.events.of("kernel.smi_error_field")
    if not accusing and not _is_storm(s, ports, fields):
        return None
    events = in_order(accusing, ports, fields)
    best = max(events, key=_weight)
    code = _code(best) or 0
    words = {
        "where": f" ({best['bus']})" if best["bus"] else "",
        "nodes": on_nodes([best]),
        "code": code,
        "meaning": XIDS.get(code, (0.0, ""))[1],
        "first": best["first"],
        "second": best["second"],
    }
    say = f"{best.kind}/{'' if ranks_in(events) else 'nobody'}"
    return found_in(
        s, events, _weight(best) or 0.75, _users(s, events) or silent_ranks(s) or None, say=say, words=words
    )


def _users(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks on the device, where a line tells them. Of torch's own lines the rank may stand in the text only."""
    pids = {e.number("pid") for e in events} - {None}
    ranks = {*ranks_in(events), *(r for r, evidence in s.case.ranks.items() if evidence.identity.pid in pids)}
    if not ranks:
        ranks = {r for e in events if "PG " not in e.text and (r := e.number("group_rank")) is not None}
    return tuple(sorted(ranks))


def _weight(event: LogEvent) -> float:
    if event.kind == "kernel.xid":
        return 0.0 if "Nonfatal" in event["detail"] else XIDS.get(_code(event) or 0, (0.0, ""))[0]
    if event.kind == "kernel.sxid":
        return 0.85 if event["severity"] == "Fatal" else 0.0
    return _ACCUSING.get(event.kind, 0.0)


def _code(event: LogEvent) -> int | None:
    """The error number; of a clean-up (45) the number of what it cleans up after."""
    caused = _CAUSED_BY.search(event.text)
    return int(caused[1]) if caused else event.number("code")


def _is_storm(s: Situation, ports: Sequence[LogEvent], fields: Sequence[LogEvent]) -> bool:
    """Whether the bus is in trouble and the device shows it."""
    is_fatal = any(e["severity"].startswith("Uncorrect") for e in ports)
    shows = bool(fields) or s.events.has("kernel.device_unknown_error")
    return shows and (is_fatal or len(ports) >= _STORM)


@rule("driver-bug")
def driver_bug(s: Situation) -> Found | None:
    """Lines about the GSP, unless the device itself is accused."""
    xids = s.events.of("kernel.xid")
    is_accused = any(e.number("code") in XIDS for e in xids)
    if is_accused or s.events.has("kernel.off_the_bus", "kernel.ecc_uncorrectable"):
        return None
    events = in_order((e for e in xids if e.number("code") in _OF_FIRMWARE), s.events.of("kernel.gsp_timeout"))
    return found_in(s, events, 0.82) if events else None


@rule("fabric-manager")
def fabric_manager(s: Situation) -> Found | None:
    """The full message names it; a bare code is weaker, and want of memory may be want of multicast slots."""
    events = not_outlived(s, s.events.of("fabric.multicast_failed", "fabric.system_not_ready", "fabric.manager_failed"))
    if not events:
        return None
    kinds, codes = {e.kind for e in events}, {e["code"] for e in events}
    if kinds != {"fabric.multicast_failed"} or "401" in codes:
        confidence = 0.96
    elif "2" in codes:
        confidence = 0.75
    else:
        confidence = 0.9 if any("Failed to bind" in e.text for e in events) else 0.82
    multicast = "multicast" if "fabric.multicast_failed" in kinds else ""
    say = multicast or ("not_ready" if "fabric.system_not_ready" in kinds else "failed")
    return found_in(s, events, confidence, failed_alone(s), say=say)


@rule("p2p-acs-iommu")
def p2p_acs_iommu(s: Situation) -> Found | None:
    """What the bus says; else a first bulk transfer that never moved, with nothing else to explain it."""
    bus, settings = s.events.of(*_BUS), s.events.of(*_SETTINGS) if s.is_hang else ()
    refused = [e for e in bus if e["device"] and not s.has_ended_well]  # no healthy job makes a GPU do so
    if bus and (s.is_hang or len(refused) >= 3 or s.events.has("kernel.p2p_wrong_data", "nccl.")):
        kinds = {e.kind for e in bus}
        say = "fault" if "kernel.iommu_fault" in kinds else "wrong"
        confidence = 0.9 if "kernel.p2p_wrong_data" in kinds else 0.84
        return found_in(s, in_order(bus, settings), confidence, (), say=say)
    if slow := lost_copies(s):
        lines = [w.log_line("log", x) for x in slow]
        return Found(0.9, (), lines, {}, "slow")
    if tried := _ran_without_p2p(s):
        return found_in(s, in_order(s.events.of(*_SETTINGS), tried), 0.85, (), say="tried")
    first = _first_bulk(s)
    is_direct = s.events.has("nccl.channel_p2p")
    if not (first or (settings and is_direct)) or somebody_died(s, (*first, *settings)):
        return None
    weak = 0.62 if len({e.rank for e in first}) > 1 or is_direct else 0.55
    return found_in(s, in_order(settings, first), 0.68 if settings else weak, (), say="first")


def _ran_without_p2p(s: Situation) -> tuple[LogEvent, ...]:
    """The start with NCCL_P2P_DISABLE=1 after one whose devices had connected directly and that never moved, if the later one came further."""
    if not (tried := stood_until_tried([*s.events])):
        return ()
    begin = tried[-1].order
    after = [e for e in s.events if e.order > begin]
    if any(e.says for e in after) or any(e.says == "crash" for e in s.events if e.order < begin):
        return ()
    runs = [e for e in after if e.kind in _RUNS or e.is_progress]
    return (*tried, *runs[:1]) if runs or _spoke_after_nccl(s, begin) else ()


def _spoke_after_nccl(s: Situation, begin: int) -> bool:
    """Whether the program printed something behind the last line of NCCL after this place, and nobody had to end it."""
    lines = s.case.log[begin + 1 :]
    of_nccl = [i for i, line in enumerate(lines) if " NCCL INFO " in line.text]
    behind = [x for x in lines[of_nccl[-1] + 1 :] if x.text.strip()] if of_nccl else []
    return bool(behind) and not any(_ENDED.search(x.text) for x in behind)


def _first_bulk(s: Situation) -> tuple[LogEvent, ...]:
    """The timeouts, where all are of the very first call, and of many elements or of every rank: nobody is late then."""
    timeouts = s.events.of("watchdog.timeout")
    if not timeouts or s.events.has(*_OTHER) or len({e.host for e in timeouts}) > 1 or _spans_nodes(s):
        return ()
    calls = {(e.number("seq"), e["op"], e.number("numel_in")) for e in timeouts}
    ranks = {e.rank for e in timeouts}
    if len(calls) != 1 or (len(ranks) > 1 and ranks != set(range(len(ranks)))):
        return ()  # a rank among them did not time out: it may never have come
    seq, op, numel = calls.pop()
    is_first = seq == 1 and op in _BULK and ((numel or 0) >= _BIG or _is_everyone(s, timeouts))
    return timeouts if is_first else ()


def _spans_nodes(s: Situation) -> bool:
    """Whether ranks print from several nodes, by what stands before their lines: between nodes nothing goes over PCIe alone."""
    lines = s.events.of("gloo.connected", "launchers.", "work.", "progress.")
    return len({e.host for e in lines if e.rank is not None}) > 1


def _is_everyone(s: Situation, timeouts: Sequence[LogEvent]) -> bool:
    """Whether every rank of the job is known to have issued the call."""
    sizes = [n for e in s.events.of("nccl.init_complete") if (n := e.number("group_size")) is not None]
    world = s.case.job.world_size or max(sizes, default=0)
    return world > 1 and {e.rank for e in timeouts} == set(range(world))


@rule("shm-too-small")
def shm_too_small(s: Situation) -> Found | None:
    """Segments that could not be made, and bus errors: of a launcher's line the local rank is the rank on one node."""
    cuda = [e.order for e in s.events.of("nccl.cuda_failure")]
    failed = [e for e in s.events.of(*SHM_FAILED) if not any(0 <= e.order - c <= _BESIDE for c in cuda)]
    found = not_outlived(s, (*s.events.of(*SHM_NAMED, *SHM_SIGNALS), *failed, *_semaphores(s)))
    is_of_the_program = {e.kind for e in found} <= set(SHM_SIGNALS) and died_of_own_memory(s)
    if not found or is_of_the_program or s.events.has("shm.forbidden"):
        return None
    events = in_order(found, s.events.of("shm.default_limit"))
    kinds = {e.kind for e in events}
    segment = "segment" if kinds & {"shm.no_space", *SHM_FAILED, "shm.errno_28"} else "bus"
    say = "worker" if "shm.worker_bus_error" in kinds else segment
    numbers = {e.number("local_rank" if e["local_rank"] else "failed") for e in s.events.of("shm.bus_error_local_rank")}
    ranks = tuple(sorted({*ranks_in(events), *(n for n in numbers if n is not None)}))
    return found_in(s, events, _sureness_of_shm(s, kinds), ranks or None, say=say)


def _sureness_of_shm(s: Situation, kinds: set[str]) -> float:
    """Where the line names shared memory it is sure; a bare bus error is an inference."""
    if kinds & set(SHM_NAMED):
        return 0.97
    if kinds & {"shm.torch_failed", "shm.errno_28"}:
        return 0.93
    if "shm.segment_failed" in kinds or ("shm.default_limit" in kinds and kinds & set(SHM_SIGNALS)):
        return 0.9
    return 0.88 if "shm.bus_error" in kinds and s.events.has("shm.frame", "nccl.") else 0.8


def _semaphores(s: Situation) -> list[LogEvent]:
    """A full file system met by a semaphore, which is a file in /dev/shm; anything else may have filled a disk."""
    made = [e.order for e in s.events.of("shm.semaphore")]
    return [e for e in s.events.of("shm.errno_28") if any(0 < e.order - m <= _NEAR for m in made)]


@rule("device-spins", names=Names.REMARK)
def device_spins(s: Situation) -> Iterator[Found]:
    """Devices that say they are fully used, in a job that stands."""
    hang, course = s.case.hang, s.case.course
    if hang is None or hang.withdrawn or hang.onset_s is None or course is None:
        return
    spins = {}
    for name, values in course.samples.items():
        if name.startswith("device ") and name.endswith(" use"):
            times = course.samples.get("at_s", ())
            since = [v for t, v in zip(times, values, strict=False) if t is not None and t > hang.onset_s + _MOVED_S]
            if len(since) > 1 and all(v is not None and v >= _SPINS for v in since):
                spins[name.removesuffix(" use")] = since
    if spins:
        used = {name: ", ".join(f"{v:.0f} %" for v in values[:6] if v) for name, values in spins.items()}
        lines = [EvidenceLine("NVML", f"{name}: {values}") for name, values in used.items()]
        numbers = ", ".join(name.removeprefix("device ") for name in list(spins)[:16])
        devices = f"device{'s' if len(spins) > 1 else ''} {numbers}"
        yield Found(0.7, (), lines[:_MOST_QUOTED_FACTS], {"devices": devices})


@rule("cuda-kernel-error")
def cuda_kernel_error(s: Situation) -> Found | None:
    """The first exception, else a line of the watchdog or of the kernel itself that came before it."""
    events = not_outlived(s, s.events.of("cuda.assertion", "cuda.watchdog_error", "cuda.kernel_error"))
    first = first_exception(s)
    assertion = next((e["assertion"] for e in events if e["assertion"]), "")
    sure, words = (0.97 if assertion else 0.92), {"assertion": f": assertion `{assertion}`" if assertion else ""}
    if first is not None and first.names("cause.kernel"):
        seen = FirstException(first.error, first.ranks or _watched(s, events), first.failures, first.seen)
        weak = "EXECUTION_FAILED" in first.text and len(events) < 2
        return found_at_first(s, seen, 0.75 if weak else sure, words, say="failed" if first.failures else "seen")
    if events and is_before(events[0], first) and not (first and first.names("cause.device_memory")):
        ranks = _watched(s, events)
        words |= {"who": name_or(ranks, "a rank"), "at": "", "after": ""}
        sure = sure if any(e["what"] or assertion for e in events) else 0.75
        return found_in(s, events, sure, ranks, words=words, say="seen")
    return None


def _watched(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks by prefix, else by the watchdog's own number, which is the global one in the default group; else the only one that raised anything."""
    of_all = [e for e in events if "default_pg" in e.text or "[PG" not in e.text]
    by_number = {n for e in of_all if (n := e.number("group_rank")) is not None}
    raised = {e.rank for e in errors_of(s) if e.rank is not None and not is_timeout(e.error)}
    raised |= {e.rank for e in s.events.of("python.traceback") if e.rank is not None}
    return ranks_in(events) or tuple(sorted(by_number)) or (tuple(raised) if len(raised) == 1 else ())
