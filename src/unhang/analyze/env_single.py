"""Values that libraries accept and that do harm, or do something else than is meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from unhang.analyze.env_finding import instead, opinion, without
from unhang.analyze.env_values import is_off, is_on, number
from unhang.model import Finding, Fix
from unhang.read.environment.settings import Assignment, Settings

HARMFUL, USELESS = "env-harmful", "env-without-effect"
BYTES_PER_ENTRY = 520
MANY_ENTRIES = 100_000
_SPEED = "bandwidth of an all-reduce (nccl-tests, all_reduce_perf) with and without it"

Judge = Callable[[Settings, Assignment, str], Finding | None]


def judge_single(settings: Settings, assignment: Assignment) -> Finding | None:
    """A finding on one variable by itself."""
    judge = _JUDGES.get(assignment.name)
    if judge is None:
        return None
    return judge(settings, assignment, (assignment.value or "").strip())


def _costly(settings: Settings, assignment: Assignment, cost: str, right: str) -> Finding | None:
    name = assignment.name
    if is_off(assignment):
        title = f"{assignment.name}={assignment.value} is the default: it has no effect"
        because = f"{name} switches something off when it is 1; 0 does not switch it on where it does not work."
        return opinion(settings, (assignment,), USELESS, 0.5, title, because)
    if not is_on(assignment):
        return None
    because = f"{cost} {right} As an experiment it is fine: one run with it and one without; left on, it costs in every run and hides the fault."
    fix = without(settings, assignment, f"Take {name} out once the experiment is over", _SPEED)
    return opinion(
        settings, (assignment,), HARMFUL, 0.75, f"{name}=1 left on: {cost.split(':')[0].lower()}", because, (fix,)
    )


def _p2p(s: Settings, a: Assignment, value: str) -> Finding | None:
    return _costly(
        s,
        a,
        "Slower within a node: GPUs exchange data through host memory instead of NVLink or PCI.",
        "It is right only where direct traffic is broken: virtualised machines, PCI access control (ACS) or an IOMMU in the way, a faulty driver.",
    )


def _ib(s: Settings, a: Assignment, value: str) -> Finding | None:
    if s.is_one_node and is_on(a):
        because = "InfiniBand and RoCE are for traffic between nodes. Where the script is copied for several nodes, it makes them much slower."
        return opinion(s, (a,), USELESS, 0.5, f"{a.name}={value} changes nothing on one node", because)
    return _costly(
        s,
        a,
        "Much slower between nodes: traffic leaves InfiniBand or RoCE for IP sockets.",
        "It is right only where InfiniBand does not work on every node; on one node it changes nothing.",
    )


def _shm(s: Settings, a: Assignment, value: str) -> Finding | None:
    return _costly(
        s,
        a,
        "Slower within a node: what cannot go directly goes over the network.",
        "It is right only where /dev/shm is too small and cannot be made larger.",
    )


def _ib_timeout(s: Settings, a: Assignment, value: str) -> Finding | None:
    if a.value is None or not value:
        return None
    n = number(value) or 0  # NCCL reads a word as 0
    if n == 0 or n >= 32:
        title = f"NCCL_IB_TIMEOUT={value} means for ever: a broken link becomes a silent hang"
        because = (
            "It is no number of seconds but an exponent, 4.096 us x 2^n for n from 1 to 31, times the retries; 0 and 32 or more are "
            "infinite. With 20 (the default) and 7 retries a lost transfer is an error after about 30 s. It is not the time limit of collectives."
        )
        fixes = (
            without(s, a),
            instead(s, a, "NCCL_IB_TIMEOUT=22", "For a large or busy network: 22 is about 2 minutes"),
        )
        return opinion(s, (a,), "env-value", 0.95, title, because, fixes)
    if n < 0:
        return opinion(
            s,
            (a,),
            "env-value",
            0.9,
            f"NCCL_IB_TIMEOUT={value} is out of range: 1 to 31",
            "It is an exponent: 4.096 us x 2^n.",
        )
    seconds = 4.096e-6 * 2**n * 7
    if seconds > 600:
        title = f"NCCL_IB_TIMEOUT={value}: a lost transfer is an error only after {seconds / 60:.0f} minutes"
        because = "That is longer than torch's own limit for collectives (10 minutes with NCCL): the watchdog ends the job first, and what it says is not the cause."
        return opinion(s, (a,), HARMFUL, 0.7, title, because)
    return None


def _recorder_size(s: Settings, a: Assignment, value: str) -> Finding | None:
    n = number(value)
    if n is None or n < 0:
        return None
    if n > MANY_ENTRIES:
        size_gb = n * BYTES_PER_ENTRY / 1e9
        title = f"{a.name}={value} is {size_gb:.1f} GB of host memory per rank: it counts entries, not bytes"
        because = "An entry takes half a kilobyte or more. A buffer of a million entries has had jobs killed for host memory; the last few thousand calls are what a hang needs."
        return opinion(
            s,
            (a,),
            HARMFUL,
            0.95 if size_gb > 5 else 0.75,
            title,
            because,
            (instead(s, a, f"{a.name}=2000"), without(s, a)),
        )
    if n == 0:
        title = f"{a.name}=0 switches the flight recorder off"
        because = "Then nothing tells after a hang which call each rank was in. It costs about 2 us per call."
        return opinion(s, (a,), HARMFUL, 0.6, title, because, (instead(s, a, f"{a.name}=2000"), without(s, a)))
    return None


def _blocking_wait(s: Settings, a: Assignment, value: str) -> Finding | None:
    if not is_on(a):
        return None
    because = (
        "The host waits in every call, so work is no longer queued ahead and steps get slower; and torch switches asynchronous error "
        "handling and desync reports off. It does not make a hang end earlier than the watchdog does, nor does it find its cause."
    )
    return opinion(
        s, (a,), HARMFUL, 0.75, f"{a.name}=1: slower, and it switches error handling and desync reports off", because
    )


def _async_handling(s: Settings, a: Assignment, value: str) -> Finding | None:
    n = number(value)
    if n == 0:
        title = f"{a.name}=0: a call that times out does not end the job"
        because = "The watchdog then does nothing about errors: a hang lasts until somebody notices. The default (3) ends the process."
        return opinion(s, (a,), HARMFUL, 0.85, title, because)
    if n == 2:
        title = f"{a.name}=2 aborts the communicators and lets the process go on"
        because = "The program then computes with data that never arrived, unless it handles that itself. The default (3) ends the process."
        return opinion(s, (a,), HARMFUL, 0.7, title, because)
    return None


def _monitoring(s: Settings, a: Assignment, value: str) -> Finding | None:
    if not is_off(a):
        return None
    because = "When the watchdog thread itself is stuck (in a CUDA call, for want of the GIL), nothing ends the job. It is right only under a debugger."
    return opinion(s, (a,), HARMFUL, 0.75, f"{a.name}={value}: a stuck watchdog is never noticed", because)


def _debug_detail(s: Settings, a: Assignment, value: str) -> Finding | None:
    if value.upper() != "DETAIL":
        return None
    because = (
        "Every collective is compared among the ranks before it is made, which is slow; with torch 2.13 on CPU and gloo, building "
        "DistributedDataParallel under it crashed every rank. For one short run without DDP it names a mismatch exactly; INFO is safe."
    )
    fix = instead(s, a, "TORCH_DISTRIBUTED_DEBUG=INFO")
    return opinion(
        s,
        (a,),
        HARMFUL,
        0.75,
        "TORCH_DISTRIBUTED_DEBUG=DETAIL left on: slow, and a crash with DDP on torch 2.13",
        because,
        (fix, without(s, a)),
    )


def _launch_blocking(s: Settings, a: Assignment, value: str) -> Finding | None:
    if not is_on(a):
        return None
    because = (
        "Every kernel is waited for. That is right for finding the line of a CUDA error in one run; left on, nothing overlaps any more, and "
        "collectives of several groups on one device can wait for each other."
    )
    return opinion(
        s, (a,), HARMFUL, 0.8, "CUDA_LAUNCH_BLOCKING=1 left on: no overlap, and another order of kernels", because
    )


def _devices(s: Settings, a: Assignment, value: str) -> Finding | None:
    expression = a.expression
    if a.value is None and re.search(r"local_?rank|LOCALID|local_?id", expression, re.IGNORECASE):
        title = "CUDA_VISIBLE_DEVICES is set to one device for each rank"
        because = (
            "A rank that sees only its own GPU cannot open the memory of its peers (peer-to-peer and IPC fail or fall back), and "
            "cuda:{LOCAL_RANK} is an invalid device there, as the only one is cuda:0."
        )
        fix = Fix(
            "Let every rank see all GPUs and choose its own",
            "all ranks tell another device: torch.cuda.current_device()",
            patch="torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
            undo="put the line back",
        )
        return opinion(s, (a,), HARMFUL, 0.75, title, because, (fix, without(s, a)))
    if a.value is None:
        return None
    names = [d.strip() for d in value.split(",")] if value else []
    doubled = sorted({d for d in names if d and names.count(d) > 1})
    if doubled:
        because = "CUDA takes the list up to the doubled entry or rejects it: ranks then share a device or find none."
        return opinion(
            s, (a,), "env-value", 0.9, f"CUDA_VISIBLE_DEVICES={value} names {', '.join(doubled)} twice", because
        )
    if value == "-1":
        because = "CUDA takes devices up to the first that does not exist: there is none before it."
        return opinion(s, (a,), HARMFUL, 0.7, f"CUDA_VISIBLE_DEVICES={value} hides all GPUs", because)
    return None


def _interfaces(s: Settings, a: Assignment, value: str) -> Finding | None:
    if a.value is None or not value:
        return None
    if a.name == "GLOO_SOCKET_IFNAME" and value[0] in "^=":
        because = "gloo looks for an interface of exactly that name; excluding and prefixes are NCCL's notation."
        return opinion(
            s, (a,), "env-value", 0.92, f"GLOO_SOCKET_IFNAME={value}: gloo takes names, no ^ and no =", because
        )
    names = [n.strip() for n in value.lstrip("^=").split(",") if n.strip()]
    if missing := _missing(s, a.name, value, names):
        there = ", ".join(sorted(s.interfaces or ()))
        title = f"{a.name}={value}: this machine has no interface {', '.join(missing)}"
        because = f"The interfaces here are {there}. With none that fits, the start fails; with some, ranks may choose differently on different nodes."
        return opinion(s, (a,), "env-value", 0.92, title, because)
    if names == ["lo"] and value[0] != "^" and not s.is_one_node:
        title = f"{a.name}={value}: works within one machine only"
        because = "Ranks on other nodes are told to connect to 127.0.0.1, which is themselves."
        return opinion(s, (a,), HARMFUL, 0.7, title, because)
    if a.name == "NCCL_SOCKET_IFNAME" and value[0] == "^" and all(n.startswith(("lo", "docker")) for n in names):
        title = f"{a.name}={value} is what NCCL does anyway"
        because = "lo and docker* are left out by default; setting it switches NCCL's own choice off, which prefers interfaces named ib*."
        return opinion(s, (a,), USELESS, 0.55, title, because)
    return None


def _missing(s: Settings, name: str, value: str, names: list[str]) -> list[str]:
    if s.interfaces is None or value.startswith("^"):
        return []
    exact = value.startswith("=") or name == "GLOO_SOCKET_IFNAME"
    here = s.interfaces
    return [n for n in names if not (n in here if exact else any(i.startswith(n) for i in here))]


def _debug(s: Settings, a: Assignment, value: str) -> Finding | None:
    if value.upper() != "TRACE":
        return None
    because = "TRACE lines are only in an NCCL that was built for them (TRACE=1); in others it is the same as INFO."
    return opinion(
        s,
        (a,),
        USELESS,
        0.55,
        "NCCL_DEBUG=TRACE prints no more than INFO in usual builds",
        because,
        (instead(s, a, "NCCL_DEBUG=INFO"),),
    )


def _subsystems(s: Settings, a: Assignment, value: str) -> Finding | None:
    if "ALL" not in [w.strip().upper() for w in value.split(",")]:
        return None
    because = "With NCCL_DEBUG=INFO it prints lines for every call of every rank: gigabytes in a long run. INIT,ENV,NET tells the connections, the flight recorder the calls."
    return opinion(
        s,
        (a,),
        HARMFUL,
        0.6,
        "NCCL_DEBUG_SUBSYS=ALL floods the log",
        because,
        (instead(s, a, "NCCL_DEBUG_SUBSYS=INIT,ENV,NET"), without(s, a)),
    )


def _debug_file(s: Settings, a: Assignment, value: str) -> Finding | None:
    if a.value is None or not value or "%p" in value or value.startswith("/dev/"):
        return None
    because = "NCCL opens it in every process and overwrites what is there: of all ranks but one the output is lost."
    return opinion(
        s,
        (a,),
        "env-value",
        0.8,
        f"NCCL_DEBUG_FILE={value} is one file for all processes",
        because,
        (instead(s, a, f"NCCL_DEBUG_FILE={value}.%h.%p"),),
    )


def _protocol(s: Settings, a: Assignment, value: str) -> Finding | None:
    if value.startswith("^") or "LL128" not in value.upper():
        return None
    because = "NCCL uses LL128 by itself where the hardware keeps its promises; forced where it does not, data is corrupted without an error."
    return opinion(s, (a,), HARMFUL, 0.8, f"NCCL_PROTO={value} forces LL128", because)


def _heartbeat(s: Settings, a: Assignment, value: str) -> Finding | None:
    n = number(value)
    if n is None or n < 3600:
        return None
    title = f"{a.name}={value} does not give collectives more time"
    because = "It is how long a watchdog thread may be stuck. A collective's limit is init_process_group(timeout=...), and of every new_group its own."
    return opinion(s, (a,), HARMFUL, 0.65, title, because)


_JUDGES: Mapping[str, Judge] = {
    "NCCL_P2P_DISABLE": _p2p,
    "NCCL_IB_DISABLE": _ib,
    "NCCL_SHM_DISABLE": _shm,
    "NCCL_IB_TIMEOUT": _ib_timeout,
    "TORCH_FR_BUFFER_SIZE": _recorder_size,
    "TORCH_NCCL_TRACE_BUFFER_SIZE": _recorder_size,
    "TORCH_NCCL_BLOCKING_WAIT": _blocking_wait,
    "NCCL_BLOCKING_WAIT": _blocking_wait,
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": _async_handling,
    "NCCL_ASYNC_ERROR_HANDLING": _async_handling,
    "TORCH_NCCL_ENABLE_MONITORING": _monitoring,
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": _heartbeat,
    "TORCH_DISTRIBUTED_DEBUG": _debug_detail,
    "CUDA_LAUNCH_BLOCKING": _launch_blocking,
    "CUDA_VISIBLE_DEVICES": _devices,
    "NCCL_SOCKET_IFNAME": _interfaces,
    "GLOO_SOCKET_IFNAME": _interfaces,
    "NCCL_DEBUG": _debug,
    "NCCL_DEBUG_SUBSYS": _subsystems,
    "NCCL_DEBUG_FILE": _debug_file,
    "NCCL_PROTO": _protocol,
}
