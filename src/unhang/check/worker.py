"""The process of one rank that makes collective calls, started and ended by who needs it; what libraries print goes to stderr.

`cases`: those of the suite, one after the other. It writes one JSON line to stdout when a case is entered and one when it has ended.
`groups`: for the search of bad links it forms a group, tests it, leaves it, and waits for the next one. Commands come as JSON lines on
stdin, `{"test": 3, "ranks": [0, 2], "prefix": "...", "limit_s": 10}`; each is answered by one line on stdout:
`{"test": 3, "state": "ok", "seconds": 0.01, "reason": ""}`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from unhang.check.children import die_with_maker
from unhang.check.collectives.suite import Case, State, Stuck, as_fields, group_of, make_plan
from unhang.inside.recorder import flight

if TYPE_CHECKING:
    from unhang.check.collectives.patterns import Bench

# What torch says when a backend has no such operation. Everything else that is raised is an error.
_REFUSAL = re.compile(
    r"(not|n't) (currently |yet )?support|unsupported|only (be )?(implemented|supported)|not implemented|invalid scalar type"
    r"|does not implement|cannot use reduceop|has no attribute|unconvertible", re.IGNORECASE,
)  # fmt: skip
_UNEVEN_REFUSAL = re.compile(r"invalid tensor size|same (size|shape)", re.IGNORECASE)
_MOST_TEXT = 500
_MOST_RANKS = 64
# The group's own limit is only a last resort: it must not end a call that the runner is about to call hung.
_GROUP_TIMEOUT_MARGIN_S = 30.0


class Reporter:
    """Writes the lines, and reports from a thread of its own where the main thread stands when a case takes too long."""

    def __init__(self, descriptor: int, limit_s: float) -> None:
        self._descriptor, self._case_limit_s, self._limit_s = descriptor, limit_s, limit_s
        self._before: int | None = None
        self._case: int | None = None
        self._since = 0.0
        self._main = threading.get_ident()
        threading.Thread(target=self._watch, name="limit", daemon=True).start()

    def line(self, **fields: Any) -> None:
        """Writes one line, whole."""
        os.write(self._descriptor, json.dumps(fields).encode() + b"\n")

    def begin(self, case: int, limit_s: float | None = None) -> None:
        """The time of this case counts from now on."""
        self._limit_s, self._before = limit_s or self._case_limit_s, _issued()
        self._since, self._case = time.monotonic(), case

    def _watch(self) -> None:
        reported = None
        while True:
            time.sleep(min(0.2, self._case_limit_s / 4))
            case = self._case
            if case is not None and case != reported and time.monotonic() - self._since > self._limit_s:
                reported, now = case, _issued()
                issued = now - self._before if now is not None and self._before is not None else None
                self.line(event="stuck", case=case, stuck=as_fields(Stuck(self._stack(), issued)))

    def _stack(self) -> tuple[str, ...]:
        frame = sys._current_frames().get(self._main)
        lines = [f"{f.filename}:{f.lineno} in {f.name}" for f in traceback.extract_stack(frame)] if frame else []
        return tuple(line for line in lines if not line.startswith("<frozen"))


def _issued() -> int | None:
    """How many collectives torch says it has been given in this process, in all groups; None where it keeps no record."""
    if not any(flight.recorders("_json")):
        return None
    try:
        dumps = flight.as_json(includeCollectives=False)
        groups = [status for dump in dumps for status in (dump.get("pg_status") or {}).values()]
        return sum(max(int(status["last_enqueued_collective"]), 0) for status in groups)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_refusal(error: Exception, case: Case) -> bool:
    text = str(error)
    if isinstance(error, NotImplementedError) or _REFUSAL.search(text):
        return True
    if case.op.endswith("uneven") and _UNEVEN_REFUSAL.search(text):
        return True
    return case.reduction == "avg" and "can't be cast" in text


def _first_line(error: Exception) -> str:
    """Torch's own words, without the guesses that gloo adds to them."""
    text = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
    return text.split(" This is typically caused by")[0][:_MOST_TEXT]


def run_plan(bench: Bench, plan: Sequence[Case], reporter: Reporter) -> bool:
    """All cases but the first, which was the joining. False if one raised: what follows would only hang."""
    from unhang.check.collectives.operations import keep_group_count

    for number, case in enumerate(plan[1:], 1):
        reporter.begin(number)
        if group_of(case.group, bench.rank, bench.world_size):
            state, found = _run_case(bench, case, number, reporter)
        else:
            if case.op == "new_group":
                keep_group_count(bench)
            state, found = State.OUTSIDE, {"reason": f"this rank is in none of the {case.group}"}
        reporter.line(event="end", case=number, state=state, **found)
        if state is State.ERROR:
            return False
    return True


def _run_case(bench: Bench, case: Case, number: int, reporter: Reporter) -> tuple[State, dict[str, Any]]:
    from unhang.check.collectives.operations import prepare

    try:
        prepared = prepare(bench, case, number)
        bench.sync()
        reporter.line(event="start", case=number)
        started = time.perf_counter()
        prepared.call()
        bench.sync()
        seconds = time.perf_counter() - started
        wrong = prepared.check()
    except Exception as error:  # noqa: BLE001 - whatever torch raises is the case's result
        return State.SKIPPED if _is_refusal(error, case) else State.ERROR, {"reason": _first_line(error)}
    found = {"seconds": seconds, "wrong": as_fields(wrong), "figures": as_fields(prepared.figures)}
    return State.WRONG if wrong else State.OK, {**found, "reason": str(wrong or "")}


def _join(options: argparse.Namespace, reporter: Reporter) -> Bench:
    """Meets the other workers in the store, names those that do not come, and makes the default group."""
    import torch
    import torch.distributed as dist

    from unhang.check.collectives.patterns import Bench

    start_limit = timedelta(seconds=options.start_limit)
    host, port = options.store.rsplit(":", 1)
    tcp = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=start_limit)
    store = dist.PrefixStore(options.prefix, tcp)
    _wait_for_all(store, "came", options.rank, options.world, options.start_limit, reporter)
    reporter.line(event="start", case=0)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", options.local_rank % max(torch.cuda.device_count(), 1))
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=options.limit + _GROUP_TIMEOUT_MARGIN_S)
    dist.init_process_group(options.backend, store=store, rank=options.rank, world_size=options.world, timeout=timeout)
    return Bench(options.rank, options.world, device, store, timeout)


def _wait_for_all(store: Any, key: str, rank: int, world_size: int, limit_s: float, reporter: Reporter) -> None:
    """Signs and waits until all ranks have signed. One who waits for long says for whom.

    Raises:
        TimeoutError: somebody did not come within the limit.
    """
    store.set(f"{key}/{rank}", b"1")
    store.add(key, 1)
    started, pause_s, missing = time.monotonic(), 0.01, []
    while store.add(key, 0) < world_size:
        waited_s = time.monotonic() - started
        if waited_s > 1:
            missing = [r for r in range(world_size) if not store.check([f"{key}/{r}"])][:_MOST_RANKS]
            reporter.line(event="waiting", ranks=missing)
        if waited_s > limit_s:
            raise TimeoutError(f"ranks {missing} did not come within {limit_s:g} s")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.5)
    reporter.line(event="waiting", ranks=[])


def own_stdout() -> int:
    """A descriptor for our lines alone: what anybody else prints to stdout goes to stderr from now on."""
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours


def _run_cases(options: argparse.Namespace, ours: int) -> int:
    """Joins, runs, leaves. The exit code is 0 when the plan was run to its end, whatever its results."""
    reporter = Reporter(ours, options.limit)
    plan = make_plan(options.world, options.names.split(","), options.largest)
    started = time.monotonic()
    reporter.begin(0, options.start_limit)
    try:
        bench = _join(options, reporter)
    except Exception as error:  # noqa: BLE001 - reported, whatever it is
        reporter.line(event="end", case=0, state=State.ERROR, reason=_first_line(error))
        reporter.line(event="done")
        return 1
    reporter.line(event="end", case=0, state=State.OK, seconds=time.monotonic() - started)
    is_complete = run_plan(bench, plan, reporter)
    reporter.line(event="done")
    if is_complete:  # all are through before anybody leaves: nobody loses a peer in its last case
        import torch.distributed as dist

        with suppress(Exception):
            _wait_for_all(bench.store, "done", options.rank, options.world, options.limit, reporter)
            dist.destroy_process_group()
    return 0 if is_complete else 1


# Groups, for the search of bad links.

_REPEATS = 3
_MOST_BYTES = 32 << 20  # of one rank's buffer
_CHUNK_BYTES = 256 << 10  # to each other rank
_MOST_REASON = 300
_MODULUS = 65_521  # prime: no pattern of sender, receiver and place repeats within a chunk


def chunk_elements(ranks: int) -> int:
    """How many 32-bit integers each rank sends to each other one."""
    return max(1, min(_CHUNK_BYTES, _MOST_BYTES // ranks) // 4)


class Tester:
    """Tests groups that this rank is in."""

    def __init__(self, rank: int, backend: str, device: str, store: str, start_limit_s: float) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.backend = rank, backend
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        host, port = store.rsplit(":", 1)
        limit = timedelta(seconds=start_limit_s)
        self.store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)

    def test(self, ranks: Sequence[int], prefix: str, limit_s: float) -> tuple[str, float | None, str]:
        """State (ok, wrong, error), median seconds of one exchange, and what was wrong. Blocks up to about `limit_s`."""
        import torch.distributed as dist

        try:
            dist.init_process_group(
                self.backend,
                store=dist.PrefixStore(prefix, self.store),
                rank=list(ranks).index(self.rank),
                world_size=len(ranks),
                timeout=timedelta(seconds=limit_s),
            )
            seconds, wrong = self._exchange(ranks)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return "error", None, f"{type(error).__name__}: {error}".splitlines()[0][:_MOST_REASON]
        finally:
            with suppress(Exception):
                dist.destroy_process_group()
        return ("wrong" if wrong else "ok"), seconds, wrong

    def _exchange(self, ranks: Sequence[int]) -> tuple[float, str]:
        """Every rank sends something else to every other one, so that each link carries something; then all reduce."""
        import torch
        import torch.distributed as dist

        size = chunk_elements(len(ranks))
        sent = torch.cat([self._chunk(self.rank, other, size) for other in ranks])
        expected = torch.cat([self._chunk(other, self.rank, size) for other in ranks])
        times: list[float] = []
        for _ in range(_REPEATS):
            received = torch.empty_like(sent)
            started = time.perf_counter()
            dist.all_to_all_single(received, sent)
            self._sync()
            times.append(time.perf_counter() - started)
            differs = (received != expected).nonzero()
            if len(differs):
                source = ranks[int(differs[0]) // size]
                wrong = f"{len(differs)} of {len(expected)} elements are wrong, the first one from rank {source}"
                return median(times), wrong
        total = torch.full((size,), self.rank + 1, dtype=torch.int32, device=self.device)
        dist.all_reduce(total)
        self._sync()
        if bool((total != sum(ranks) + len(ranks)).any()):
            return median(times), "an all_reduce gave a wrong sum"
        return median(times), ""

    def _chunk(self, source: int, target: int, size: int) -> Any:
        import torch

        places = torch.arange(size, dtype=torch.int64, device=self.device)
        return ((places * 31 + source * 7919 + target * 104_729) % _MODULUS).to(torch.int32)

    def _sync(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)


def _test_groups(options: argparse.Namespace, ours: int) -> int:
    """Answers commands until stdin ends."""
    tester = Tester(options.rank, options.backend, options.device, options.store, options.start_limit)
    os.write(ours, b'{"ready": true}\n')
    for line in sys.stdin:
        command = json.loads(line)
        state, seconds, reason = tester.test(command["ranks"], command["prefix"], command["limit_s"])
        answer = {"test": command["test"], "state": state, "seconds": seconds, "reason": reason}
        os.write(ours, json.dumps(answer).encode() + b"\n")
    return 0


_OF_BOTH = {"rank": int, "backend": str, "device": str, "store": str, "start-limit": float}
_OF_CASES = {"world": int, "local-rank": int, "largest": int, "prefix": str, "names": str, "limit": float}


def main(task: str, *arguments: str) -> int:
    """Does one of the two tasks; its exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m unhang.check.worker {task}", description=__doc__)
    for name, kind in (_OF_BOTH | (_OF_CASES if task == "cases" else {})).items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args(arguments)
    die_with_maker()
    return (_run_cases if task == "cases" else _test_groups)(options, own_stdout())


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    # Not through the destructors: a group that failed, or has calls under way, can hang or abort there, and all has been said.
    os._exit(code)
