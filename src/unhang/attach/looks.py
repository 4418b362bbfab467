"""Looks at ranks from outside: stacks by py-spy and /proc, several times, and whether each rank has moved in between.

Nothing runs in the job and no signal is sent. py-spy stops a process for some ten milliseconds. Local variables are compared
and never kept: they may be secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unhang.analyze.activity import goes_through_loader, in_communication
from unhang.attach.processes import devices, unsent
from unhang.attach.ranks import Rank
from unhang.model import Frame, ThreadStack
from unhang.read.stack_texts import read_threads
from unhang.watch.evidence import MOST_WORKERS
from unhang.watch.process import ProcessProbe, children_of, take_stacks
from unhang.watch.process_tree import kernel_waits, line_of, sleep_left_s, stat_of

FOR_S, EVERY_S, LEAST_LOOKS = 3.0, 0.75, 3
LOOK_LIMIT_S = 2.0
LOCALS, _NATIVE = "--locals", "--native"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_POLLS = ("nanosleep", "poll", "epoll_wait", "select", "recvfrom", "recvmsg", "read")
# A wait of five seconds that is begun again and again, as the loader's, wakes once in this time.
_WAKES = 2
_WORKS_SHARE = 0.03
_SHORT_SLEEP_S = 90.0  # who looks for a file now and then sleeps like that
_MOST_HELPERS = 64
_MOST_TRIES, _TRY_S = 10, 0.03
_AUTOGRAD = "pt_autograd"


@dataclass(frozen=True)
class _Threads:
    """Counters of a process and of what it started. `wakes`: how often the main thread has slept; `autograd`: those of torch's engine."""

    wakes: int | None
    cpu_s: float
    autograd: int
    helpers: Mapping[int, tuple[int, float]]


@dataclass
class _Seen:
    """One rank over all looks. `slept`, `used_s`, `autograd`, `helped`: sums over the times between looks."""

    rank: Rank
    probe: ProcessProbe
    threads: list[Any] = field(default_factory=list)
    prints: list[str] = field(default_factory=list)
    own_prints: list[str] = field(default_factory=list)
    places: list[tuple[str, ...]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    changed_at: int = 0
    calls: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    slept: int = 0
    used_s: float = 0.0
    autograd: int = 0
    helped: bool = False
    between_s: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)
    unsent: list[list[dict[str, Any]]] = field(default_factory=list)
    device: dict[str, int] = field(default_factory=dict)
    sleeps_s: float | None = None
    is_gone: bool = False


@dataclass(frozen=True)
class Looked:
    """What was seen of one rank. `threads`: py-spy's, without variables. `look`: the fields of look.json. `state`: of proc.json.

    `is_still`: nothing of it has changed since the look before the last.
    """

    rank: Rank
    threads: Sequence[Mapping[str, Any]]
    look: Mapping[str, Any]
    state: Mapping[str, Any]
    is_still: bool = False


def take_looks(
    ranks: Sequence[Rank], for_s: float, native: bool, is_enough: Callable[[list[Looked]], bool]
) -> list[Looked]:
    """Looks at all ranks again and again, for so long, or until `is_enough` says so.

    Blocks: `for_s` and the last look.
    """
    seen = [_Seen(r, ProcessProbe(r.process.pid)) for r in ranks]
    began = time.monotonic()
    _look(seen, native)
    while True:
        before = {s.rank.process.pid: _counters(s.rank.process.pid) for s in seen if not s.is_gone}
        moment = time.monotonic()
        looks = len(seen[0].prints) if seen else 0
        time.sleep(max(0.05, min(EVERY_S, began + for_s - moment)))
        _count(seen, before, time.monotonic() - moment)
        _look(seen, native)
        found = [_summed(s, time.monotonic() - began) for s in seen]
        is_over = time.monotonic() - began >= for_s
        if is_over or (looks + 1 >= LEAST_LOOKS and is_enough(found)):
            return found


def _look(seen: Sequence[_Seen], native: bool) -> None:
    alive = [s for s in seen if not s.is_gone]
    for s in alive:
        s.state = _state(s.probe)
        s.states.append(s.state["state"])
        s.is_gone = s.state["state"] in ("gone", "Z", "X")
    pids = [s.rank.process.pid for s in alive if not s.is_gone]
    stopped = [s.rank.process.pid for s in alive if s.state["state"] in "Tt"]
    found = take_stacks(pids, stopped, LOOK_LIMIT_S, [LOCALS, *([_NATIVE] if native else [])])
    on = devices(pids)
    for s in alive:
        s.device = on.get(s.rank.process.pid, s.device)
        s.unsent.append(unsent(s.rank.process.pid))
        if (threads := found.get(s.rank.process.pid)) is not None:
            _note(s, threads)


def _state(probe: ProcessProbe) -> dict[str, Any]:
    """What /proc tells of it, once another one who looks at it has let it go; a debugger does not."""
    for _ in range(_MOST_TRIES):
        state = probe.read()
        if state["state"] != "t":
            break
        time.sleep(_TRY_S)
    return state


def _note(s: _Seen, threads: list[Any]) -> None:
    main = next((t for t in threads if t.get("os_thread_id") == s.rank.process.pid), threads[0])
    frames = main.get("frames") or []
    mine = [f for f in frames if Frame(str(f.get("filename")), 0, "").is_user]
    s.prints.append(_print(frames))
    s.own_prints.append(_print(mine))
    if s.prints[-2:-1] not in ([], s.prints[-1:]):
        s.changed_at = len(s.prints) - 1
    s.places.append(tuple(f"{f.get('filename')}:{f.get('name')}" for f in mine))
    s.lines.append("|".join(f"{f.get('filename')}:{f.get('line')}" for f in frames))
    s.calls.append(kernel_waits(s.rank.process.pid).get(str(s.rank.process.pid), {}).get("call", ""))
    s.sleeps_s = sleep_left_s(s.rank.process.pid)
    s.threads = threads


def _print(frames: Sequence[Mapping[str, Any]]) -> str:
    """Equal for equal places with equal variables."""
    values = [[f.get("name"), f.get("filename"), f.get("line"), f.get("locals")] for f in frames]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _count(seen: Sequence[_Seen], before: Mapping[int, _Threads], seconds: float) -> None:
    """Adds what happened between two looks: py-spy's own stops count as sleep too."""
    for s in seen:
        first, last = before.get(s.rank.process.pid), _counters(s.rank.process.pid)
        if first is None or s.is_gone or last.wakes is None or first.wakes is None:
            continue
        slept = max(0, last.wakes - first.wakes - 1)  # one may be the way back to sleep after the look
        if slept >= _WAKES or last.autograd > first.autograd:
            s.changed_at = len(s.prints)
        s.slept += slept
        s.used_s += last.cpu_s - first.cpu_s
        s.autograd += last.autograd - first.autograd
        s.between_s += seconds
        for pid, (wakes, cpu_s) in last.helpers.items():
            wakes_before, cpu_before = first.helpers.get(pid, (0, 0.0))
            s.helped = s.helped or wakes - wakes_before >= _WAKES or cpu_s - cpu_before > _WORKS_SHARE * seconds


def _counters(pid: int) -> _Threads:
    wakes, autograd = _wakes(pid, pid), 0
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                if Path(f"/proc/{pid}/task/{task}/comm").read_text().startswith(_AUTOGRAD):
                    autograd += _wakes(pid, int(task)) or 0
    helpers: dict[int, tuple[int, float]] = {}
    todo = children_of(pid)
    while todo and len(helpers) < _MOST_HELPERS:
        child = todo.pop()
        helpers[child] = (_wakes(child, child) or 0, _cpu_s(child))
        todo += children_of(child)
    return _Threads(wakes, _cpu_s(pid), autograd, helpers)


def _wakes(pid: int, task: int) -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        return int(line_of(f"/proc/{pid}/task/{task}/status", "voluntary_ctxt_switches:"))
    return None


def _cpu_s(pid: int) -> float:
    fields = stat_of(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def with_workers(looked: Sequence[Looked]) -> list[Looked]:
    """With the stacks of the processes that a rank has started, where it waits for its data loader. Blocks: some seconds at most."""
    waiting = {s.rank.process.pid: children_of(s.rank.process.pid)[:MOST_WORKERS] for s in looked if _is_in_loader(s)}
    found = take_stacks([pid for children in waiting.values() for pid in children], timeout_s=LOOK_LIMIT_S)
    workers = {
        own: [_without_variables(thread, pid) for pid in children for thread in found.get(pid, ())]
        for own, children in waiting.items()
    }
    return [replace(s, threads=[*s.threads, *workers.get(s.rank.process.pid, ())]) for s in looked]


def _is_in_loader(looked: Looked) -> bool:
    main = _main_of(looked.threads)
    return main is not None and goes_through_loader(main.frames)


def _main_of(threads: Sequence[Mapping[str, Any]]) -> ThreadStack | None:
    return next((t for t in read_threads(threads) if t.is_main), None)


# What the looks say of one rank


def _summed(s: _Seen, seconds: float) -> Looked:
    threads = [_without_variables(t, s.rank.process.pid) for t in s.threads]
    main = _main_of(threads)
    share = s.used_s / s.between_s if s.between_s else 0.0
    moved, how = _moved(s, main, share)
    look: dict[str, Any] = {"looks": len(s.prints), "seconds": round(seconds, 2), "moved": moved, "how": how}
    look["changed"] = len(set(s.own_prints)) > 1 or (len(set(s.prints)) > 1 and share >= _WORKS_SHARE)
    if stuck := _unsent(s):
        look["unsent"] = stuck
    if s.device:
        look["device"] = s.device
    if call := _call(s.threads, s.rank.process.pid):
        look["call"] = call
    state = {**s.state, "cpu_share": round(share, 2), **({"state": "gone"} if s.is_gone else {})}
    return Looked(s.rank, threads, look, state, s.changed_at < len(s.prints) - 1)


def _unsent(s: _Seen) -> list[dict[str, Any]]:
    """What the connections had still to send in all looks: it did not grow less."""
    least = {w["peer"]: w["bytes"] for w in s.unsent[-1]} if len(s.unsent) > 1 else {}
    for look in s.unsent[:-1]:
        before = {w["peer"]: w["bytes"] for w in look}
        least = {peer: left for peer, left in least.items() if 0 < before.get(peer, 0) <= left}
    return [{"peer": peer, "bytes": left} for peer, left in least.items()]


def _moved(s: _Seen, main: ThreadStack | None, share: float) -> tuple[bool | None, str]:
    """(whether it has moved, None where that cannot be told; how). Two looks prove no hang: the words are those of the looks."""
    if s.is_gone:
        return None, "it ended while it was looked at"
    if s.state.get("state") in ("T", "t"):
        return False, "it is stopped"
    if main is None:
        return None, "no stack could be taken"
    if len(set(s.places)) > 1:
        return True, "it stood in different functions of the program"
    waits = in_communication(main)
    if waits and len(set(s.prints)) > 1 and not main.frames[0].is_user:
        # A line that waits for its device may be of an endless loop.
        return True, "the variables of its main thread changed"
    if len(set(s.own_prints)) > 1:
        return None, "it runs in one function" if share >= _WORKS_SHARE else "it goes round in one function"
    if waits:
        return _in_call(s, share)
    if s.helped:
        return True, "what it started is at work"
    if s.slept >= _WAKES:
        return None, "it stands at one line, and wakes again and again"
    if s.sleeps_s is not None and s.sleeps_s < _SHORT_SLEEP_S:
        return None, f"it sleeps, and wakes in {s.sleeps_s:.0f} s"
    if share < _WORKS_SHARE and set(s.states) == {"D"}:
        return False, "it sits in the kernel in all looks (state D)"
    if share >= _WORKS_SHARE or s.state.get("state") in ("R", "D"):
        return None, "it uses the processor at one line"
    return False, "it stands at one line and uses no processor"


def _in_call(s: _Seen, share: float) -> tuple[bool | None, str]:
    """Of a rank that stands in the same call with others in all looks."""
    if s.autograd:
        return True, "its backward passes go on"
    if s.slept >= _WAKES and not any(call in _POLLS for call in s.calls):
        return True, "its main thread slept and woke in between"
    if share >= _WORKS_SHARE and "torch/distributed/" not in s.lines[-1]:
        return None, "it uses the processor in a call that may wait for its device, or work"
    return False, "it stands in one call"


def _without_variables(thread: Mapping[str, Any], pid: int) -> dict[str, Any]:
    frames = [{k: f.get(k) for k in ("name", "filename", "line")} for f in thread.get("frames") or ()]
    return {**{k: v for k, v in thread.items() if k != "frames"}, "pid": thread.get("pid") or pid, "frames": frames}


_PEERS = {"recv": "src", "send": "dst", "irecv": "src", "isend": "dst"}  # global ranks, where they were given


def _call(threads: Iterable[Mapping[str, Any]], pid: int) -> dict[str, Any]:
    """Of the call in which the main thread stands: the peer, the tag, whether it was given a group, the number of one that it makes. Numbers alone are kept."""
    main = next((t for t in threads if t.get("os_thread_id") == pid), None)
    found: dict[str, Any] = {}
    for frame in (main or {}).get("frames") or ():
        if "torch/distributed/" not in str(frame.get("filename")):
            if found or "site-packages/" not in str(frame.get("filename")):
                break
            continue
        name = str(frame.get("name")).rsplit(".", 1)[-1]
        local = {x.get("name"): str(x.get("repr")) for x in frame.get("locals") or ()}
        if name == "wrapper":
            found["has_group"] = any("ProcessGroup at" in local.get(part, "") for part in ("args", "kwargs"))
        elif (number := local.get("group_name", "").strip("'\"")).isdecimal():
            found.setdefault("group_number", int(number))  # the counter of groups that this process made
        elif name in _PEERS:
            peer = local.get(_PEERS[name], "")
            if peer.isdecimal():
                found |= {"kind": name, "peer": int(peer)}
                if local.get("tag", "").isdecimal():
                    found["tag"] = int(local["tag"])
    return found
