"""Values that libraries accept and that do harm, or do something else than is meant."""

from __future__ import annotations

import re
from collections.abc import Callable

from unhang.model import Fix
from unhang.read.environment import Assignment, Settings
from unhang.rules.env.known import HARMFUL, USELESS, VALUE, WITHOUT, Opinion, instead, is_off, is_on, number, without

_BYTES_PER_ENTRY = 520
_MANY_ENTRIES = 100_000
_SPEED = "bandwidth of an all-reduce (nccl-tests, all_reduce_perf) with and without it"

Judge = Callable[[Settings, Assignment, str], Opinion | None]
_JUDGES: dict[str, Judge] = {}


def judge_single(s: Settings, a: Assignment) -> Opinion | None:
    """On one variable by itself."""
    judge = _JUDGES.get(a.name)
    return judge(s, a, (a.value or "").strip()) if judge is not None else None


def _of(*names: str) -> Callable[[Judge], Judge]:
    """Makes a function the judge of these variables."""

    def register(judge: Judge) -> Judge:
        _JUDGES.update(dict.fromkeys(names, judge))
        return judge

    return register


_COSTS = {
    "NCCL_P2P_DISABLE": "Slower within a node: GPUs exchange data through host memory instead of NVLink or PCI. It is right only where "
    "direct traffic is broken: virtualised machines, PCI access control (ACS) or an IOMMU in the way, a faulty driver.",
    "NCCL_IB_DISABLE": "Much slower between nodes: traffic leaves InfiniBand or RoCE for IP sockets. It is right only where InfiniBand "
    "does not work on every node; on one node it changes nothing.",
    "NCCL_SHM_DISABLE": "Slower within a node: what cannot go directly goes over the network. It is right only where /dev/shm is too small "
    "and cannot be made larger.",
}


@_of(*_COSTS)
def _costly(s: Settings, a: Assignment, value: str) -> Opinion | None:
    if a.name == "NCCL_IB_DISABLE" and s.is_one_node and is_on(a):
        because = "InfiniBand and RoCE are for traffic between nodes. Where the script is copied for several nodes, it makes them much slower."
        return Opinion(USELESS, 0.5, f"{a.name}={a.value} changes nothing on one node", because)
    if is_off(a):
        because = f"{a.name} switches something off when it is 1; 0 does not switch it on where it does not work."
        return Opinion(USELESS, 0.5, f"{a.name}={a.value} is the default: it has no effect", because)
    if not is_on(a):
        return None
    cost = _COSTS[a.name]
    because = f"{cost} As an experiment it is fine: one run with it and one without; left on, it costs in every run and hides the fault."
    fix = without(s, a, f"Take {a.name} out once the experiment is over", _SPEED)
    return Opinion(HARMFUL, 0.75, f"{a.name}=1 left on: {cost.partition(':')[0].lower()}", because, (fix,))


@_of("NCCL_IB_TIMEOUT")
def _ib_timeout(s: Settings, a: Assignment, value: str) -> Opinion | None:
    n = number(value) or 0  # NCCL reads a word as 0
    if a.value is None or not value:
        return None
    if n == 0 or n >= 32:
        because = (
            "It is not a number of seconds but an exponent, 4.096 us x 2^n for n from 1 to 31, times the retries; 0 and 32 or more are "
            "infinite. With 20 (the default) and 7 retries a lost transfer is an error after about 30 s. It is not the time limit of collectives."
        )
        longer = instead(s, a, "NCCL_IB_TIMEOUT=22", "For a large or busy network: 22 is about 2 minutes")
        title = f"NCCL_IB_TIMEOUT={value} means for ever: a broken link becomes a silent hang"
        return Opinion(VALUE, 0.95, title, because, (WITHOUT, longer))
    if n < 0:
        title = f"NCCL_IB_TIMEOUT={value} is out of range: 1 to 31"
        return Opinion(VALUE, 0.9, title, "It is an exponent: 4.096 us x 2^n.")
    seconds = 4.096e-6 * 2**n * 7
    if seconds <= 600:
        return None
    title = f"NCCL_IB_TIMEOUT={value}: a lost transfer is an error only after {seconds / 60:.0f} minutes"
    because = "That is longer than torch's own limit for collectives (10 minutes with NCCL): the watchdog ends the job first, and what it says is not the cause."
    return Opinion(HARMFUL, 0.7, title, because)


@_of("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
def _recorder_size(s: Settings, a: Assignment, value: str) -> Opinion | None:
    n, usual = number(value), (f"{a.name}=2000", WITHOUT)
    if n is not None and n > _MANY_ENTRIES:
        size_gb = n * _BYTES_PER_ENTRY / 1e9
        title = f"{a.name}={value} is {size_gb:.1f} GB of host memory per rank: it counts entries, not bytes"
        because = "An entry takes half a kilobyte or more. A buffer of a million entries has had jobs killed for host memory; the last few thousand calls are what a hang needs."
        return Opinion(HARMFUL, 0.95 if size_gb > 5 else 0.75, title, because, usual)
    if n == 0:
        because = "Then nothing tells after a hang which call each rank was in. It costs about 2 us per call."
        return Opinion(HARMFUL, 0.6, f"{a.name}=0 switches the flight recorder off", because, usual)
    return None


@_of("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
def _blocking_wait(s: Settings, a: Assignment, value: str) -> Opinion | None:
    because = (
        "The host waits in every call, so work is no longer queued ahead and steps get slower; and torch switches asynchronous error "
        "handling and desync reports off. It does not make a hang end earlier than the watchdog does, nor does it find its cause."
    )
    title = f"{a.name}=1: slower, and it switches error handling and desync reports off"
    return Opinion(HARMFUL, 0.75, title, because) if is_on(a) else None


@_of("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
def _async_handling(s: Settings, a: Assignment, value: str) -> Opinion | None:
    if number(value) == 0:
        because = "The watchdog then does nothing about errors: a hang lasts until somebody notices. The default (3) ends the process."
        return Opinion(HARMFUL, 0.85, f"{a.name}=0: a call that times out does not end the job", because)
    if number(value) == 2:
        because = "The program then computes with data that never arrived, unless it handles that itself. The default (3) ends the process."
        return Opinion(HARMFUL, 0.7, f"{a.name}=2 aborts the communicators and lets the process go on", because)
    return None


@_of("TORCH_NCCL_ENABLE_MONITORING")
def _monitoring(s: Settings, a: Assignment, value: str) -> Opinion | None:
    because = "When the watchdog thread itself is stuck (in a CUDA call, for want of the GIL), nothing ends the job. It is right only under a debugger."
    title = f"{a.name}={value}: a stuck watchdog is never noticed"
    return Opinion(HARMFUL, 0.75, title, because) if is_off(a) else None


@_of("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
def _heartbeat(s: Settings, a: Assignment, value: str) -> Opinion | None:
    because = "It is how long a watchdog thread may be stuck. A collective's limit is init_process_group(timeout=...), and of every new_group its own."
    title = f"{a.name}={value} does not give collectives more time"
    return Opinion(HARMFUL, 0.65, title, because) if (number(value) or 0) >= 3600 else None


@_of("TORCH_DISTRIBUTED_DEBUG")
def _debug_detail(s: Settings, a: Assignment, value: str) -> Opinion | None:
    because = (
        "Every collective is compared among the ranks before it is made, which is slow; with torch 2.13 on CPU and gloo, building "
        "DistributedDataParallel under it crashed every rank. For one short run without DDP it names a mismatch exactly; INFO is safe."
    )
    title = "TORCH_DISTRIBUTED_DEBUG=DETAIL left on: slow, and a crash with DDP on torch 2.13"
    fixes = ("TORCH_DISTRIBUTED_DEBUG=INFO", WITHOUT)
    return Opinion(HARMFUL, 0.75, title, because, fixes) if value.upper() == "DETAIL" else None


@_of("CUDA_LAUNCH_BLOCKING")
def _launch_blocking(s: Settings, a: Assignment, value: str) -> Opinion | None:
    because = (
        "Every kernel is waited for. That is right for finding the line of a CUDA error in one run; left on, nothing overlaps any more, and "
        "collectives of several groups on one device can wait for each other."
    )
    title = "CUDA_LAUNCH_BLOCKING=1 left on: no overlap, and another order of kernels"
    return Opinion(HARMFUL, 0.8, title, because) if is_on(a) else None


@_of("CUDA_VISIBLE_DEVICES")
def _devices(s: Settings, a: Assignment, value: str) -> Opinion | None:
    if a.value is None and re.search(r"local_?rank|LOCALID|local_?id", a.expression, re.IGNORECASE):
        because = (
            "A rank that sees only its own GPU cannot open the memory of its peers (peer-to-peer and IPC fail or fall back), and "
            "cuda:{LOCAL_RANK} is an invalid device there, as the only one is cuda:0."
        )
        fix = Fix(
            "Let every rank see all GPUs and choose its own",
            "all ranks tell another device: torch.cuda.current_device()",
            advice="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
            undo="put the line back",
        )
        return Opinion(
            HARMFUL, 0.75, "CUDA_VISIBLE_DEVICES is set to one device for each rank", because, (fix, WITHOUT)
        )
    names = [d.strip() for d in value.split(",") if d.strip()]
    if doubled := sorted({d for d in names if names.count(d) > 1}):
        because = "CUDA takes the list up to the doubled entry or rejects it: ranks then share a device or find none."
        return Opinion(VALUE, 0.9, f"CUDA_VISIBLE_DEVICES={value} names {', '.join(doubled)} twice", because)
    because = "CUDA takes devices up to the first that does not exist: there is none before it."
    return Opinion(HARMFUL, 0.7, f"CUDA_VISIBLE_DEVICES={value} hides all GPUs", because) if value == "-1" else None


@_of("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
def _interfaces(s: Settings, a: Assignment, value: str) -> Opinion | None:
    if not value:
        return None
    if a.name == "GLOO_SOCKET_IFNAME" and value[0] in "^=":
        because = "gloo looks for an interface of exactly that name; excluding and prefixes are NCCL's notation."
        return Opinion(VALUE, 0.92, f"GLOO_SOCKET_IFNAME={value}: gloo takes names, no ^ and no =", because)
    names = [n.strip() for n in value.lstrip("^=").split(",") if n.strip()]
    if missing := _missing(s, a.name, value, names):
        there = ", ".join(sorted(s.interfaces or ()))
        because = f"The interfaces here are {there}. With none that fits, the start fails; with some, ranks may choose differently on different nodes."
        return Opinion(VALUE, 0.92, f"{a.name}={value}: this machine has no interface {', '.join(missing)}", because)
    if names == ["lo"] and value[0] != "^" and not s.is_one_node:
        because = "Ranks on other nodes are told to connect to 127.0.0.1, which is themselves."
        return Opinion(HARMFUL, 0.7, f"{a.name}={value}: works within one machine only", because)
    if a.name == "NCCL_SOCKET_IFNAME" and value[0] == "^" and all(n.startswith(("lo", "docker")) for n in names):
        because = "lo and docker* are left out by default; setting it switches NCCL's own choice off, which prefers interfaces named ib*."
        return Opinion(USELESS, 0.55, f"{a.name}={value} is what NCCL does anyway", because)
    return None


def _missing(s: Settings, name: str, value: str, names: list[str]) -> list[str]:
    if s.interfaces is None or value.startswith("^"):
        return []
    exact = value.startswith("=") or name == "GLOO_SOCKET_IFNAME"
    here = s.interfaces
    return [n for n in names if not (n in here if exact else any(i.startswith(n) for i in here))]


@_of("NCCL_DEBUG")
def _debug(s: Settings, a: Assignment, value: str) -> Opinion | None:
    because = "TRACE lines are only in an NCCL that was built for them (TRACE=1); in others it is the same as INFO."
    title = "NCCL_DEBUG=TRACE prints no more than INFO in usual builds"
    return Opinion(USELESS, 0.55, title, because, ("NCCL_DEBUG=INFO",)) if value.upper() == "TRACE" else None


@_of("NCCL_DEBUG_SUBSYS")
def _subsystems(s: Settings, a: Assignment, value: str) -> Opinion | None:
    if "ALL" not in [w.strip().upper() for w in value.split(",")]:
        return None
    because = "With NCCL_DEBUG=INFO it prints lines for every call of every rank: gigabytes in a long run. INIT,ENV,NET tells the connections, the flight recorder the calls."
    fixes = ("NCCL_DEBUG_SUBSYS=INIT,ENV,NET", WITHOUT)
    return Opinion(HARMFUL, 0.6, "NCCL_DEBUG_SUBSYS=ALL floods the log", because, fixes)


@_of("NCCL_DEBUG_FILE")
def _debug_file(s: Settings, a: Assignment, value: str) -> Opinion | None:
    if not value or "%p" in value or value.startswith("/dev/"):
        return None
    because = "NCCL opens it in every process and overwrites what is there: of all ranks but one the output is lost."
    fixes = (f"NCCL_DEBUG_FILE={value}.%h.%p",)
    return Opinion(VALUE, 0.8, f"NCCL_DEBUG_FILE={value} is one file for all processes", because, fixes)


@_of("NCCL_PROTO")
def _protocol(s: Settings, a: Assignment, value: str) -> Opinion | None:
    because = "NCCL uses LL128 by itself where the hardware keeps its promises; forced where it does not, data is corrupted without an error."
    is_forced = "LL128" in value.upper() and not value.startswith("^")
    return Opinion(HARMFUL, 0.8, f"NCCL_PROTO={value} forces LL128", because) if is_forced else None
