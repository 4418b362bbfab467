"""What is said of one variable by its value: that its library does not understand it, or that it does harm, or something else than is meant."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeGuard

from unhang.model import Fix
from unhang.read.environment import Assignment, Settings, Variable, variables

# What is said of environment variables: why it is wrong, where it is set, what to do, how to take it back.

CAUSE = "misconfigured-env"
VALUE, HARMFUL, USELESS, AGAINST = "env-value", "env-harmful", "env-without-effect", "env-contradiction"
WITHOUT = ""
_SHOWN = 120


class Opinion(NamedTuple):
    """What is said of a variable, or of several that stand against each other.

    `rule`: by which; `fixes`: what to set instead of the first variable, or WITHOUT to take it out, or whole fixes.
    """

    rule: str
    confidence: float
    title: str
    because: str
    fixes: Sequence[str | Fix] = (WITHOUT,)


def shown(assignment: Assignment) -> str:
    """NAME=VALUE, for people."""
    value = assignment.value if assignment.value is not None else assignment.expression
    return f"{assignment.name}={value}" if len(value) <= _SHOWN else f"{assignment.name}={value[:_SHOWN]}..."


def without(s: Settings, a: Assignment, title: str = "", verify: str = "") -> Fix:
    """Takes the variable out."""
    checked = verify or f"unhang env{f' {s.path}' if a.line else ''}: no finding on {a.name}"
    title = title or f"{'Unset' if s.is_live else 'Take'} {a.name}{'' if s.is_live else ' out'}"
    if s.is_live:
        return Fix(title, checked, command=f"unset {a.name}", undo=f"export {shown(a)}")
    if s.form == "log":
        return Fix(title, checked, setting=f"no {a.name} where the job is started", undo=f"set {shown(a)} again")
    return Fix(title, checked, advice=f"- {shown(a)}    ({_place(s, a)})", undo="put the line back")


def instead(s: Settings, a: Assignment, change: str, title: str = "", verify: str = "") -> Fix:
    """Sets something else."""
    undo = f"export {shown(a)}" if s.is_live else f"back to {shown(a)} at {_place(s, a)}"
    return Fix(title or f"Set {change}", verify or f"unhang env: no finding on {a.name}", setting=change, undo=undo)


def _place(s: Settings, a: Assignment) -> str:
    """Where it is set, for people: a file and its line, or a process."""
    return f"{s.path}:{a.line}" if a.line else s.path


_NUMBER = re.compile(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))")
_YES, _NO = ("y", "yes", "1", "t", "true"), ("n", "no", "0", "f", "false")
# Read by torch's C++ code, which refuses what it cannot parse.
_CHECKED_BY_TORCH = ("TORCH_NCCL_", "TORCH_FR_", "NCCL_")
_OWN_JUDGEMENT = frozenset({"NCCL_IB_TIMEOUT"})


def number(text: str) -> int | None:
    """A number as C reads it: what follows it does not matter."""
    match = _NUMBER.match(text)
    try:
        return int(match[1], 0) if match else None
    except ValueError:  # 010 is octal for C
        return int(match[1], 8) if match and re.fullmatch(r"[+-]?[0-7]+", match[1]) else None


def is_on(a: Assignment | None) -> TypeGuard[Assignment]:
    """Whether a switch is set to something that means yes."""
    if a is None or a.value is None:
        return False
    value, variable = a.value.strip().lower(), variables().get(a.name)
    takes_words = variable is None or variable.library != "NCCL"
    return (takes_words and value in _YES) or (number(value) or 0) != 0


def is_off(a: Assignment | None) -> TypeGuard[Assignment]:
    """Whether a switch is set to something that means no."""
    return a is not None and a.value is not None and a.value.strip().lower() in _NO


def judge_value(s: Settings, a: Assignment) -> Opinion | None:
    """On a value that is out of range or cannot be parsed; None for one that is computed when the job runs."""
    variable = variables().get(a.name)
    if variable is None or a.value is None or a.name in _OWN_JUDGEMENT:
        return None
    value, kind = a.value.strip(), variable.type
    if not value and not (variable.library == "torch" and kind in ("int", "bool")):
        return None
    if kind == "bool" and value.lower() not in (*_YES, *_NO) and a.name.startswith(_CHECKED_BY_TORCH):
        return _refused(a, "0 or 1")
    if kind in ("int", "flag"):
        return _judge_number(s, a, variable, value)
    if kind == "choice" and value.upper() not in {v.upper() for v in variable.values}:
        return _out_of(a, variable)
    if kind == "list":
        words = [w.strip().upper() for w in value.lstrip("^").split(",") if w.strip()]
        if unknown := [w for w in words if w not in variable.values]:
            because = f"It knows {', '.join(variable.values)}; others are passed over."
            return Opinion(VALUE, 0.9, f"{a.name}={value}: no {' and no '.join(unknown)}", because)
    if kind == "level" and value not in variable.values and number(value) is None:
        if value.upper() not in variable.values:
            return _out_of(a, variable)
        title = f"{a.name}={value} is not read: the names are in capitals"
        because = (
            f"NCCL compares them letter by letter and passes over what it does not know. {_sentence(variable.meaning)}"
        )
        return Opinion(VALUE, 0.9, title, because, (f"{a.name}={value.upper()}", WITHOUT))
    return None


def _refused(a: Assignment, accepted: str) -> Opinion:
    what = f"{a.value!r}" if a.value else "the empty value"
    title = f"{a.name}: torch refuses {what}, and the process group cannot be made"
    because = (
        f"torch takes {accepted} here and raises 'Invalid value for environment variable: {a.name}' for anything else."
    )
    return Opinion(VALUE, 0.95, title, because, (f"{a.name}={accepted.split(' ')[0]}", WITHOUT))


def _judge_number(s: Settings, a: Assignment, variable: Variable, value: str) -> Opinion | None:
    found = number(value)
    if found is None:
        if variable.library == "torch" and a.name.startswith(_CHECKED_BY_TORCH):
            return _refused(a, variable.accepts)
        return _no_number(s, a, variable, value) if variable.library == "NCCL" else _out_of(a, variable)
    low, high = (0, 1) if variable.type == "flag" else (variable.low, variable.high)
    is_known = not variable.values or str(found) in variable.values
    is_within = (low is None or found >= low) and (high is None or found <= high)
    return None if is_known and is_within else _out_of(a, variable)


def _no_number(s: Settings, a: Assignment, variable: Variable, value: str) -> Opinion:
    default = f" ({variable.default})" if variable.default else ""
    because = f"NCCL takes numbers here, {variable.accepts}: up to 2.29 it reads a word as 0 without a warning, later versions take the default{default}."
    meant = "1" if value.lower() in _YES else "0" if value.lower() in _NO else ""
    change = f"{a.name}={meant}"
    fixes = (*((instead(s, a, change, f"If that was meant: {change}"),) if meant else ()), WITHOUT)
    title = f"{a.name}={value} means 0 to NCCL: it takes numbers, no words"
    return Opinion(VALUE, 0.75 if meant == "0" else 0.92, title, because, fixes)


def _out_of(a: Assignment, variable: Variable) -> Opinion:
    default = f" The default is {variable.default}." if variable.default else ""
    title = f"{a.name}={a.value} is out of range: {variable.accepts}"
    return Opinion(VALUE, 0.75 if variable.type == "flag" else 0.9, title, f"{_sentence(variable.meaning)}{default}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


# Values that libraries accept and that do harm, or do something else than is meant.

_BYTES_PER_ENTRY = 520
_MANY_ENTRIES = 100_000
_SPEED = "bandwidth of an all-reduce (nccl-tests, all_reduce_perf) with and without it"

Judge = Callable[[Settings, Assignment, str], Opinion | None]
_JUDGES: dict[str, Judge] = {}


class _Row(NamedTuple):
    """A value of these variables of which always the same is said, with {name} and {value} put in."""

    names: tuple[str, ...]
    holds: Callable[[Assignment, str], bool]
    confidence: float
    title: str
    because: str
    fixes: Sequence[str] = (WITHOUT,)
    rule: str = HARMFUL


_ROWS = (
    _Row(
        ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"), lambda a, _: is_on(a), 0.75,
        "{name}=1: slower, and it switches error handling and desync reports off",
        "The host waits in every call, so work is no longer queued ahead and steps get slower; and torch switches asynchronous error "
        "handling and desync reports off. It does not make a hang end earlier than the watchdog does, nor does it find its cause.",
    ),
    _Row(
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"), lambda _, value: number(value) == 0, 0.85,
        "{name}=0: a call that times out does not end the job",
        "The watchdog then does nothing about errors: a hang lasts until somebody notices. The default (3) ends the process.",
    ),
    _Row(
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"), lambda _, value: number(value) == 2, 0.7,
        "{name}=2 aborts the communicators and lets the process go on",
        "The program then computes with data that never arrived, unless it handles that itself. The default (3) ends the process.",
    ),
    _Row(
        ("TORCH_NCCL_ENABLE_MONITORING",), lambda a, _: is_off(a), 0.75, "{name}={value}: a stuck watchdog is never noticed",
        "When the watchdog thread itself is stuck (in a CUDA call, for want of the GIL), nothing ends the job. It is right only under a debugger.",
    ),
    _Row(
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",), lambda _, value: (number(value) or 0) >= 3600, 0.65,
        "{name}={value} does not give collectives more time",
        "It is how long a watchdog thread may be stuck. A collective's limit is init_process_group(timeout=...), and of every new_group its own.",
    ),
    _Row(
        ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), lambda _, value: number(value) == 0, 0.6,
        "{name}=0 switches the flight recorder off",
        "Then nothing tells after a hang which call each rank was in. It costs about 2 us per call.", ("{name}=2000", WITHOUT),
    ),
    _Row(
        ("TORCH_DISTRIBUTED_DEBUG",), lambda _, value: value.upper() == "DETAIL", 0.75,
        "TORCH_DISTRIBUTED_DEBUG=DETAIL left on: slow, and a crash with DDP on torch 2.13",
        "Every collective is compared among the ranks before it is made, which is slow; with torch 2.13 on CPU and gloo, building "
        "DistributedDataParallel under it crashed every rank. For one short run without DDP it names a mismatch exactly; INFO is safe.",
        ("TORCH_DISTRIBUTED_DEBUG=INFO", WITHOUT),
    ),
    _Row(
        ("CUDA_LAUNCH_BLOCKING",), lambda a, _: is_on(a), 0.8,
        "CUDA_LAUNCH_BLOCKING=1 left on: no overlap, and another order of kernels",
        "Every kernel is waited for. That is right for finding the line of a CUDA error in one run; left on, nothing overlaps any more, and "
        "collectives of several groups on one device can wait for each other.",
    ),
    _Row(
        ("CUDA_VISIBLE_DEVICES",), lambda _, value: value == "-1", 0.7, "CUDA_VISIBLE_DEVICES={value} hides all GPUs",
        "CUDA takes devices up to the first that does not exist: there is none before it.",
    ),
    _Row(
        ("NCCL_DEBUG",), lambda _, value: value.upper() == "TRACE", 0.55, "NCCL_DEBUG=TRACE prints no more than INFO in usual builds",
        "TRACE lines are only in an NCCL that was built for them (TRACE=1); in others it is the same as INFO.",
        ("NCCL_DEBUG=INFO",), USELESS,
    ),
    _Row(
        ("NCCL_DEBUG_SUBSYS",), lambda _, value: "ALL" in [w.strip().upper() for w in value.split(",")], 0.6,
        "NCCL_DEBUG_SUBSYS=ALL floods the log",
        "With NCCL_DEBUG=INFO it prints lines for every call of every rank: gigabytes in a long run. INIT,ENV,NET tells the connections, the flight recorder the calls.",
        ("NCCL_DEBUG_SUBSYS=INIT,ENV,NET", WITHOUT),
    ),
    _Row(
        ("NCCL_DEBUG_FILE",), lambda _, value: bool(value) and "%p" not in value and not value.startswith("/dev/"), 0.8,
        "NCCL_DEBUG_FILE={value} is one file for all processes",
        "NCCL opens it in every process and overwrites what is there: of all ranks but one the output is lost.",
        ("NCCL_DEBUG_FILE={value}.%h.%p",), VALUE,
    ),
    _Row(
        ("NCCL_PROTO",), lambda _, value: "LL128" in value.upper() and not value.startswith("^"), 0.8, "NCCL_PROTO={value} forces LL128",
        "NCCL uses LL128 by itself where the hardware keeps its promises; forced where it does not, data is corrupted without an error.",
    ),
)  # fmt: skip


def judge_single(s: Settings, a: Assignment) -> Opinion | None:
    """On one variable by itself."""
    judge, value = _JUDGES.get(a.name), (a.value or "").strip()
    if judge is not None and (opinion := judge(s, a, value)) is not None:
        return opinion
    row = next((row for row in _ROWS if a.name in row.names and row.holds(a, value)), None)
    if row is None:
        return None
    title, *fixes = (text.format(name=a.name, value=value) for text in (row.title, *row.fixes))
    return Opinion(row.rule, row.confidence, title, row.because, fixes)


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
    return None


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
    return None


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
