"""Judges environment variables: each by its name and its value, and all of one source together."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePath

from unhang.model import EvidenceLine, Finding, Fix, Location
from unhang.model.findings import WRONG
from unhang.read.environment import (
    STRICT,
    Assignment,
    Launch,
    Settings,
    Variable,
    beliefs,
    tables,
    variables,
    whose_variable,
)
from unhang.rules.env.values import (
    AGAINST,
    CAUSE,
    USELESS,
    WITHOUT,
    Opinion,
    instead,
    is_off,
    is_on,
    judge_single,
    judge_value,
    number,
    shown,
    without,
)

__all__ = ["EnvVerdict", "judge_settings", "shown"]

# Whether a variable exists: unknown, old or gone names.

_UNKNOWN, _OLD = "env-unknown", "env-deprecated"
_MIN_FOR_TWO, _MIN_FOR_ONE = 12, 8
_TIME_LIMIT = re.compile(r"(?:TORCH_)?(?:NCCL|GLOO|DIST|DISTRIBUTED)_\w*TIMEOUT\w*")
# The old name is the only one that most installed versions know: no opinion.
_STILL_USUAL = frozenset({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"})


def distance(a: str, b: str, most: int) -> int:
    """Edits (insert, delete, replace, swap of neighbours) between two names; `most` + 1 where there are more."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, previous[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return most + 1
    return row[-1]


@lru_cache(4096)
def nearest(name: str) -> str:
    """The real variable that was probably meant; "" where none is near enough."""
    known = variables()
    for candidate in (f"TORCH_{name}", name.removeprefix("TORCH_"), name.removeprefix("PYTORCH_")):
        if candidate != name and candidate in known:
            return candidate
    words = sorted(name.split("_"))
    same_words = [k for k in known if sorted(k.split("_")) == words]
    if same_words:
        return same_words[0]
    most = 2 if len(name) >= _MIN_FOR_TWO else 1 if len(name) >= _MIN_FOR_ONE else 0
    found = sorted((d, k) for k in known if (d := distance(name, k, most)) <= most and known[k].meaning)
    found = found or sorted((d, k) for k in known if (d := distance(name, k, most)) <= most)
    return found[0][1] if found and most else ""


def judge_name(s: Settings, a: Assignment, used_elsewhere: Collection[str]) -> Opinion | None:
    """On a name that no library reads, or reads no longer. `used_elsewhere`: names that the job's own code reads."""
    name = a.name
    variable = variables().get(name)
    if variable is not None:
        return _judge_real(s, a, variable)
    if name in used_elsewhere or name in s.mentions:
        return None
    nothing = f"{name} does nothing: neither NCCL nor torch reads it"
    if belief := beliefs().get(name):
        what = f"Use {belief.instead.split(' (')[0].split(';')[0]}" if belief.name else "Set it where it counts"
        fix = Fix(what, f"unhang env: no finding on {name}", setting=belief.instead, undo="-")
        because = f"It is set for {belief.meant}. No library reads a variable of that name, so the job runs as if it were not set; {belief.instead} is what does it."
        return Opinion(_UNKNOWN, 0.92, nothing, because, (fix, WITHOUT))
    if whose_variable(name):
        return None
    near = nearest(name)
    if _TIME_LIMIT.fullmatch(name) and not near:
        because = "The time limit of collectives is no variable: it is the timeout of init_process_group, and of every new_group its own."
        limit = "dist.init_process_group(timeout=datetime.timedelta(minutes=...))"
        return Opinion(_UNKNOWN, 0.85, nothing, because, (instead(s, a, limit, "Set it where it counts"), WITHOUT))
    versions = " and ".join(f"{t.library} {t.version}" for t in tables())
    if near:
        title = f"{name} does nothing: no library reads it; {near} is near"
        because = (
            f"The name is not in the tables of {versions}. {near}: {variables()[near].meaning or 'a real variable'}."
        )
        return Opinion(_UNKNOWN, 0.9, title, because, (f"{near}={a.value or '...'}", WITHOUT))
    if not name.startswith(STRICT):
        return None
    because = f"The name is not in the tables of {versions}, and no real name is near. It may belong to a plug-in, to another version, or to the job's own code."
    return Opinion(_UNKNOWN, 0.6, f"{name}: no library is known to read it", because)


def _judge_real(s: Settings, a: Assignment, variable: Variable) -> Opinion | None:
    name, now = variable.name, variable.now
    if name in _STILL_USUAL or not (now or variable.until):
        return None
    value = a.value if a.value is not None else "..."
    if variable.until and variable.library == "NCCL" and all(name not in table.names for table in tables()):
        what = f"; {now} is what there is today" if now else ""
        because = f"It was for: {variable.meaning}. Later versions do not read it."
        return Opinion("env-removed", 0.85, f"{name} has no effect in NCCL later than {variable.until}{what}", because)
    if not now or s.last(now) is not None:
        return None
    title, meaning = f"{name} is an old name: {now}", variables()[now].meaning
    if variable.library == "torch":
        because = f"Newer torch reads it with a warning, older torch knows only this name. {meaning}."
        new = instead(s, a, f"{now}={value}", verify="torch's warning that the name is deprecated is gone")
        both = instead(s, a, f"{name}={value} {now}={value}", "For old and new torch: set both")
        return Opinion(_OLD, 0.6, title, because, (new, both))
    return Opinion(_OLD, 0.5, title, f"It is still read, and {now} takes its place. {meaning}.", (f"{now}={value}",))


# Variables and options of launchers that stand against each other, and those that another one leaves without effect.

_IB_SETTINGS = (
    "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ROCE_VERSION_NUM",
)  # fmt: skip
_MOST_SOCKETS = 64
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")

_Said = Iterator[tuple[Sequence[Assignment], Opinion]]


def judge_together(s: Settings) -> Iterator[Finding]:
    """Findings on pairs of variables of one source, and on the command lines of its launchers."""
    for judge in (_blocking, _switched_off, _recorder, _debug, _limits):
        for assignments, opinion in judge(s):
            yield finding_of(s, assignments, opinion)
    for launch in s.launches:
        yield from _of_launch(s, launch)


def _either(s: Settings, *names: str) -> Assignment | None:
    return next((a for n in names if (a := s.last(n)) is not None), None)


def _blocking(s: Settings) -> _Said:
    wait = _either(s, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    handling = _either(s, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
    desync = _either(s, "TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG")
    if is_on(wait) and is_on(handling):
        title = f"{wait.name}=1 and {handling.name}={handling.value} exclude each other: only the blocking wait counts"
        because = "torch switches asynchronous error handling off when the blocking wait is on. They are two ways to notice a timeout; the second is the default."
        yield (wait, handling), Opinion(AGAINST, 0.92, title, because)
    is_unhandled = handling is not None and handling.value is not None and number(handling.value) == 0
    reason = wait if is_on(wait) else handling if is_unhandled else None
    if is_on(desync) and reason is not None:
        title = f"{desync.name}=1 has no effect beside {reason.name}={reason.value}"
        because = "The report on ranks that are behind is made by the asynchronous error handling, which is off."
        yield (desync, reason), Opinion(USELESS, 0.9, title, because, (without(s, reason),))


def _switched_off(s: Settings) -> _Said:
    off, level = s.last("NCCL_P2P_DISABLE"), s.last("NCCL_P2P_LEVEL")
    if is_on(off) and level is not None:
        title = f"NCCL_P2P_LEVEL={level.value or level.expression} has no effect beside NCCL_P2P_DISABLE=1"
        because = "One says how far direct traffic may reach, the other that there is none. NCCL_P2P_LEVEL=LOC alone says the same as NCCL_P2P_DISABLE=1."
        yield (off, level), Opinion(AGAINST, 0.9, title, because)
    no_ib = s.last("NCCL_IB_DISABLE")
    idle = [a for n in _IB_SETTINGS if (a := s.last(n)) is not None]
    if is_on(no_ib) and idle:
        title = f"{', '.join(a.name for a in idle)}: no effect beside NCCL_IB_DISABLE=1"
        because = "They tune InfiniBand and RoCE, which NCCL_IB_DISABLE=1 takes out of use."
        yield (*idle, no_ib), Opinion(USELESS, 0.9, title, because, (without(s, no_ib), WITHOUT))
    monitor, heartbeat = s.last("TORCH_NCCL_ENABLE_MONITORING"), s.last("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")
    if is_off(monitor) and heartbeat is not None:
        title = f"{heartbeat.name}={heartbeat.value} has no effect beside {monitor.name}={monitor.value}"
        yield (heartbeat, monitor), Opinion(USELESS, 0.9, title, "The monitor whose limit it is does not run.")
    out_of_band, interface = s.last("NCCL_OOB_NET_ENABLE"), s.last("NCCL_OOB_NET_IFNAME")
    if interface is not None and (is_off(out_of_band) or (s.is_live and out_of_band is None)):
        title = f"{interface.name} has no effect without NCCL_OOB_NET_ENABLE=1"
        yield (interface,), Opinion(USELESS, 0.85, title, "Start-up traffic goes over sockets unless that is on.")


def _recorder(s: Settings) -> _Said:
    old, new, dump = map(s.last, ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"))
    size = new or old
    if size is not None and (size.value or "").strip() == "0" and is_on(dump):
        title = f"{dump.name}={dump.value} has no effect beside {size.name}=0"
        because = "There is nothing to dump: the flight recorder is off."
        yield (dump, size), Opinion(USELESS, 0.9, title, because, (without(s, size),))
    if old and new and None not in (old.value, new.value) and old.value != new.value:
        title = f"TORCH_FR_BUFFER_SIZE={new.value} and TORCH_NCCL_TRACE_BUFFER_SIZE={old.value} are one setting with two values"
        because = "Newer torch takes the first, older torch the second; parts of newer torch still look at the second."
        yield (new, old), Opinion(AGAINST, 0.8, title, because)


def _debug(s: Settings) -> _Said:
    level = s.last("NCCL_DEBUG")
    for detail in filter(None, map(s.last, ("NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"))):
        if level is None and s.is_live:
            title = f"{detail.name}={detail.value} has no effect without NCCL_DEBUG"
            yield (detail,), Opinion(USELESS, 0.85, title, "NCCL prints nothing unless NCCL_DEBUG is set.")
        is_quiet = level is not None and (level.value or "").strip().upper() in ("VERSION", "WARN", "NONE")
        if is_quiet and level is not None and detail.name == "NCCL_DEBUG_SUBSYS":
            title = f"{detail.name}={detail.value} has no effect beside NCCL_DEBUG={level.value}"
            because = "It chooses among the lines of NCCL_DEBUG=INFO."
            yield (detail, level), Opinion(USELESS, 0.85, title, because)


def _limits(s: Settings) -> _Said:
    threads, sockets = s.last("NCCL_SOCKET_NTHREADS"), s.last("NCCL_NSOCKS_PERTHREAD")
    if threads and sockets:
        product = (number(threads.value or "") or 0) * (number(sockets.value or "") or 0)
        if product > _MOST_SOCKETS:
            title = f"NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD = {product}: at most {_MOST_SOCKETS}"
            yield (threads, sockets), Opinion(AGAINST, 0.9, title, "NCCL has no more sockets for one connection.")
    for what in ("NCHANNELS", "CTAS"):
        least, most = s.last(f"NCCL_MIN_{what}"), s.last(f"NCCL_MAX_{what}")
        a, b = (number((x.value if x else "") or "") for x in (least, most))
        if least and most and a is not None and b is not None and a > b:
            title = f"{least.name}={a} is more than {most.name}={b}"
            yield (least, most), Opinion(AGAINST, 0.9, title, "There is no number of channels that is both.")


def _of_launch(s: Settings, launch: Launch) -> Iterator[Finding]:
    options = launch.options
    if re.search(r"torchrun|torch\.distributed\.run", launch.program):
        yield from _standalone(s, launch)
        for assignments, opinion in _overwritten(s, options):
            yield finding_of(s, assignments, opinion)
    wanted = options.get("nproc-per-node") or options.get("num-processes") or ""
    devices = s.last("CUDA_VISIBLE_DEVICES")
    is_of_all_nodes = "num-processes" in options and (options.get("num-machines") or "1") != "1"
    if wanted.isdecimal() and devices is not None and devices.value and not is_of_all_nodes:
        here = sum(bool(d.strip()) for d in devices.value.split(","))
        if 0 < here < int(wanted):
            title = f"{wanted} processes on a node, and CUDA_VISIBLE_DEVICES={devices.value} shows {here} device{'s' if here > 1 else ''}"
            because = "The ranks beyond that find no device of their number (invalid device ordinal), or share one, which NCCL refuses."
            yield finding_of(s, (devices,), Opinion(AGAINST, 0.85, title, because))
    nodes = options.get("nnodes") or options.get("num-machines") or ""
    if nodes.isdecimal() and int(nodes) > 1:
        yield from _loopback(s, launch, f"with {nodes} nodes: every node waits for itself")


def _standalone(s: Settings, launch: Launch) -> Iterator[Finding]:
    options = launch.options
    ignored = [o for o in ("master-port", "master-addr", "rdzv-endpoint", "rdzv-id", "nnodes") if o in options]
    is_one_node = ignored == ["nnodes"] and options["nnodes"] in ("", "1", "1:1")
    if "standalone" in options and ignored and not is_one_node:
        title = f"{_as_typed({o: options[o] for o in ignored})}: no effect beside --standalone"
        because = "--standalone means one node and a free port that torchrun chooses itself; addresses and ports given beside it are not used."
        change = "torchrun --standalone ...  without " + ", ".join(f"--{o}" for o in ignored)
        confidence = 0.9 if ignored != ["nnodes"] else 0.85
        yield _on_launch(s, launch, Opinion(USELESS, confidence, title, because, (change,)))


def _overwritten(s: Settings, options: Mapping[str, str]) -> _Said:
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
        by_hand = s.last(name)
        if by_hand is not None and by_hand.line and name not in s.mentions:
            title = f"{name} set by hand has no effect: torchrun sets it for each worker"
            because = "torchrun gives every worker its own value and overwrites what is there."
            yield (by_hand,), Opinion(USELESS, 0.8, title, because)
    port, is_alone = s.last("MASTER_PORT"), "standalone" in options
    is_chosen = is_alone or options.get("rdzv-backend") == "c10d" or "rdzv-endpoint" in options
    if is_chosen and port is not None and "MASTER_PORT" not in s.mentions:
        title = f"MASTER_PORT has no effect beside {'--standalone' if is_alone else 'a rendezvous endpoint'}"
        because = "torchrun finds a port through its rendezvous and gives that to the workers as MASTER_PORT; the one set before is overwritten."
        yield (port,), Opinion(USELESS, 0.75, title, because)


def _loopback(s: Settings, launch: Launch, what: str) -> Iterator[Finding]:
    because = "The address must be that of one node, as the others reach it."
    for option in ("master-addr", "rdzv-endpoint", "main-process-ip"):
        host = launch.options.get(option, "")
        if host.rsplit(":", 1)[0] in _LOOPBACK:
            change = f"--{option}=<host name or address of the first node>"
            yield _on_launch(s, launch, Opinion(AGAINST, 0.92, f"--{option}={host} {what}", because, (change,)))
            return
    address = s.last("MASTER_ADDR")
    if address is not None and (address.value or "") in _LOOPBACK and not address.is_default:
        yield finding_of(s, (address,), Opinion(AGAINST, 0.85, f"MASTER_ADDR={address.value} {what}", because))


def _on_launch(s: Settings, launch: Launch, opinion: Opinion) -> Finding:
    where, typed = s.path.rsplit("/", 1)[-1], f"{launch.program} {_as_typed(launch.options)}"
    change, undo = str(opinion.fixes[0]), "restore the command line"
    fix = Fix("Change the command line", "unhang env: no finding on it", command=change, undo=undo)
    return _said(opinion, Location(s.path, launch.line, ""), (EvidenceLine(where, typed, launch.line),), (fix,))


def _as_typed(options: Mapping[str, str]) -> str:
    return " ".join(f"--{name}={value}" if value else f"--{name}" for name, value in options.items())


def finding_of(s: Settings, assignments: Sequence[Assignment], opinion: Opinion) -> Finding:
    """The opinion as a finding; the first of the variables is where the change belongs."""
    first = assignments[0]
    name = PurePath(s.path).name or s.path
    fixes = (
        without(s, first) if f == WITHOUT else instead(s, first, f) if isinstance(f, str) else f for f in opinion.fixes
    )
    location = Location(s.path, first.line, "") if first.line else None
    evidence = (
        EvidenceLine(f"{name}, {a.reported_by}" if first.line and a.reported_by else name, shown(a), a.line)
        for a in assignments
    )
    return _said(opinion, location, evidence, fixes)


def _said(
    opinion: Opinion, location: Location | None, evidence: Iterable[EvidenceLine], fixes: Iterable[Fix]
) -> Finding:
    """The opinion as a finding on this place."""
    return Finding(
        rule=opinion.rule,
        cause=CAUSE,
        title=opinion.title,
        confidence=opinion.confidence,
        culprit_ranks=(),
        because=opinion.because,
        location=location,
        evidence=tuple(evidence),
        fixes=tuple(fixes),
    )


@dataclass(frozen=True, slots=True)
class EnvVerdict:
    """What was found, the worst first; `judged`: how many settings of variables were looked at, in how many sources."""

    findings: tuple[Finding, ...]
    judged: int
    sources: int


def judge_settings(sources: Sequence[Settings]) -> EnvVerdict:
    """The verdict on everything that the sources set."""
    used = frozenset().union(*(s.mentions for s in sources if s.form == "python")) if sources else frozenset()
    found = _once(f for s in sources for f in _of_source(s, used))
    ordered = sorted(
        found, key=lambda f: (-f.confidence, *((f.location.file, f.location.line) if f.location else ("", 0)), f.title)
    )
    numbered = tuple(replace(f, id=f"F{i + 1}") for i, f in enumerate(ordered))
    judged = [s for s in sources if s.assignments or s.launches]
    return EnvVerdict(
        numbered, sum(len(s.assignments) + len(s.launches) for s in judged), len({s.path for s in judged})
    )


def _of_source(s: Settings, used: frozenset[str]) -> Iterator[Finding]:
    together = list(judge_together(s))
    covered = {(f.evidence[0].text, f.evidence[0].line) for f in together}
    for assignment in s.assignments:
        if by_name := judge_name(s, assignment, used):
            yield finding_of(s, (assignment,), by_name)
        by_value = judge_value(s, assignment) or judge_single(s, assignment)
        if by_value is None:
            continue
        found = finding_of(s, (assignment,), by_value)
        # What a pair says of a variable is more than what the variable says alone, unless its value is wrong by itself.
        if found.confidence >= WRONG or (found.evidence[0].text, found.evidence[0].line) not in covered:
            yield found
    yield from together


def _once(findings: Iterator[Finding]) -> list[Finding]:
    """Findings that say the same of several places become one, with all places as evidence."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.title, finding.location.file if finding.location else finding.evidence[0].source)
        first = kept.setdefault(key, finding)
        if first is not finding:
            more = tuple(e for e in finding.evidence if e not in first.evidence)
            kept[key] = replace(first, evidence=(*first.evidence, *more))
    return list(kept.values())
