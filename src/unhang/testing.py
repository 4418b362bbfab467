"""For those who write rules: cases in a short notation, and the judgement of them. Public.

Example::

    case = make_case({0: ["barrier@main:3 !"], 1: ["all_reduce[8]@main:4 !"]}, world=2)
    assert judge(case).findings[0].culprit_ranks == (0,)

A call path is written outermost first, `main:10>step:20` (functions and lines of `train.py`); `~lock`, `~loader`, `~comm` and
`~backward` stand for the library frames below it. A call is `group/op[sizes] dtype@path`, with ` !` at the end while it has not
completed: `all_reduce[8]@main:10>step:20 !`. Sizes of outputs follow an arrow, `[4->16]`; point-to-point: `send>3[8]`, `recv<2[8]`.
What is reduced by, and the root: `all_reduce[8] by MAX@main:10`, `broadcast[8] root 1@main:10`.
"""

from __future__ import annotations

import linecache
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from unhang.model.calls import REDUCE_OPS, CallState, TableBuilder
from unhang.model.case import Case, HangObservation, Job
from unhang.model.evidence import (
    LogLine,
    PendingCall,
    ProcessExit,
    ProcessGroup,
    ProcessState,
    RaisedError,
    RankEvidence,
    RankIdentity,
    Reading,
    Source,
    ThreadStack,
    Unavailable,
    Value,
)
from unhang.model.frames import Frame
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.logs.case import log_case
from unhang.rules.registry import judge

__all__ = [
    "Fires",
    "Quiet",
    "ended",
    "judge",
    "log_case",
    "make_case",
    "path",
    "pending",
    "raised",
    "read",
    "readings_case",
]

_CALL = lazy_pattern(
    r"^(?:(?P<group>\w+)/)?(?P<op>\w+)(?:(?P<arrow>[<>])(?P<peer>\d+))?(?:\[(?P<sizes>[\d,x ]*)(?:->(?P<out>[\d,x ]*))?\])?"
    r"(?: (?P<dtype>(?!by\b|root\b)\w+))?(?: by (?P<reduce>\w+))?(?: root (?P<root>\d+))?(?:@(?P<path>[^\s!]+))?(?: thread=(?P<thread>\w+))?(?P<open> !)?$"
)
_LIBRARY = {
    "logging": ("/usr/lib/python3.11/logging/__init__.py", 377, "getMessage"),
    "lock": ("/usr/lib/python3.11/threading.py", 320, "wait"),
    "child": ("/usr/lib/python3.11/subprocess.py", 1264, "wait"),
    "queue": ("/usr/lib/python3.11/queue.py", 171, "get"),
    "join": ("/usr/lib/python3.11/queue.py", 90, "join"),
    "loader": ("/site-packages/torch/utils/data/dataloader.py", 1283, "_try_get_data"),
    "comm": ("/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"),
    "barrier": ("/site-packages/torch/distributed/distributed_c10d.py", 5060, "barrier"),
    "backward": ("/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward"),
    "destroy": ("/site-packages/torch/distributed/distributed_c10d.py", 2300, "destroy_process_group"),
    "thread": ("/usr/lib/python3.11/threading.py", 1002, "_bootstrap"),
    "shutdown": ("/usr/lib/python3.11/threading.py", 1590, "_shutdown"),
    "rendezvous": (
        "/site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
        1170,
        "next_rendezvous",
    ),
}
_SECOND_NS = 1_000_000_000
_START_NS = 1_000 * _SECOND_NS
_HOST = "node{}"


@dataclass(frozen=True)
class _Example:
    """A case, or what makes one."""

    given: Case | Callable[[], Case]

    @cached_property
    def case(self) -> Case:
        """The case, made when it is first asked for."""
        return self.given if isinstance(self.given, Case) else self.given()


@dataclass(frozen=True)
class Fires(_Example):
    """A case in which a rule must speak, and what it must say. `cause`: where it is another one than the card's."""

    culprits: tuple[int, ...]
    line: int | None = None
    cause: str = ""


@dataclass(frozen=True)
class Quiet(_Example):
    """A case in which a rule must say nothing. `why`: the false alarm that it guards against."""

    why: str


def path(text: str, file: str = "train.py") -> tuple[Frame, ...]:
    """Frames, innermost first, of a path in the short notation."""
    frames = []
    for part in filter(None, text.split(">")):
        if part.startswith("~"):
            frames.append(Frame(*_LIBRARY[part[1:]]))
        else:
            function, _, line = part.partition(":")
            frames.append(Frame(file, int(line), function))
    return tuple(reversed(frames))


def _sizes(text: str | None) -> tuple[tuple[int, ...], ...]:
    return () if text is None else tuple(tuple(int(n) for n in s.split("x") if n.strip()) for s in text.split(","))


def _add(
    builder: TableBuilder, groups: Mapping[str, int], rank: int, order: int, seqs: dict[str, int], text: str, file: str
) -> None:
    match = _CALL.match(text)
    if match is None:
        raise ValueError(f"not a call: {text!r}")
    name = match["group"] or "0"
    counted = name + ("p2p" if match["arrow"] else "")
    seqs[counted] = seqs.get(counted, 0) + 1
    builder.add(
        rank=rank,
        group=groups[name],
        seq=seqs[counted],
        op=match["op"],
        in_sizes=_sizes(match["sizes"]),
        out_sizes=_sizes(match["out"]),
        dtype=match["dtype"] or "",
        state=CallState.SCHEDULED if match["open"] else CallState.COMPLETED,
        created_ns=_START_NS + order * 10_000_000 + rank,
        frames=path(match["path"], file) if match["path"] else None,
        thread=match["thread"] or "main",
        record_id=order,
        is_p2p=bool(match["arrow"]),
        peer=int(match["peer"] or -1),
        timeout_ms=1_800_000,
        reduce_op=REDUCE_OPS.index(match["reduce"]) if match["reduce"] else -1,
        root=int(match["root"]) if match["root"] else -1,
    )


def _stacks(spec: str | ThreadStack, rank: int, file: str = "train.py") -> ThreadStack:
    if isinstance(spec, ThreadStack):
        return spec
    text, _, flags = spec.partition(" ")
    is_holder = "gil" in flags.split()
    return ThreadStack(
        "MainThread", path(text, file), is_main=True, owns_gil=is_holder, source=Source("stack", f"rank {rank}")
    )


def _variables(spec: str | ThreadStack, file: str) -> tuple[tuple[Frame, str, str], ...]:
    """Those behind a stack: `main:10 step=3`, of the innermost frame in the program's own file."""
    text, _, flags = spec.partition(" ") if isinstance(spec, str) else ("", "", "")
    pairs = [flag.split("=") for flag in flags.split() if "=" in flag]
    at = next((f for f in path(text, file) if f.file == file), None) if pairs else None
    return tuple((at, name, value) for name, value in pairs) if at else ()


def raised(text: str, at_s: float = 10.0, **more: Any) -> RaisedError:
    """`ValueError: corrupt@main:10>step:20` as an exception raised `at_s` seconds after the start."""
    head, _, where = text.rpartition("@")
    kind, _, message = head.partition(": ")
    return RaisedError(kind, message, _START_NS + int(at_s * _SECOND_NS), path(where), **more)


def ended(kind: str, code: int | None = 0, at_s: float = 10.0, where: str = "", text: str = "") -> ProcessExit:
    """The end of a process. `text`: how it is known."""
    return ProcessExit(kind, code, _START_NS + int(at_s * _SECOND_NS), path(where), text)


def pending(
    kind: str, peer: int | None = None, done: bool = False, index: int = 1, where: str = "", detail: str = ""
) -> PendingCall:
    """A call that the flight recorder does not show."""
    return PendingCall(kind, index, "0", peer, _START_NS, _START_NS + 1000 if done else None, path(where), detail)


def _prime(source: str) -> str:
    """Makes a source text readable under a name of its own, which is returned."""
    if not source:
        return "train.py"
    name = f"/example/{zlib.crc32(source.encode()):08x}/train.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return name


def _in_file(frames: tuple[Frame, ...], file: str) -> tuple[Frame, ...]:
    return tuple(replace(f, file=file) if f.file == "train.py" else f for f in frames)


@dataclass
class _Parts:
    """The per-rank arguments of `make_case`."""

    stacks: Mapping[int, str | ThreadStack] = field(default_factory=dict)
    errors: Mapping[int, str | RaisedError] = field(default_factory=dict)
    handled: Mapping[int, RaisedError] = field(default_factory=dict)
    exits: Mapping[int, ProcessExit] = field(default_factory=dict)
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    pending: Mapping[int, Sequence[PendingCall]] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)
    more: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def rank(self, rank: int, world: int, file: str) -> RankEvidence:
        error = self.errors.get(rank)
        evidence = RankEvidence(
            identity=RankIdentity(rank, world, rank, 1000 + rank, "node1", backend="gloo"),
            stacks=(_stacks(self.stacks[rank], rank, file),) if rank in self.stacks else (),
            error=raised(error) if isinstance(error, str) else error,
            handled=(self.handled[rank],) if rank in self.handled else (),
            exit=self.exits.get(rank),
            state=self.states.get(rank, ProcessState("S", cpu_share=0.0)),
            pending=tuple(replace(c, frames=_in_file(c.frames, file)) for c in self.pending.get(rank, ())),
            steps=self.steps.get(rank),
            initialized=True,
            variables=_variables(self.stacks[rank], file) if rank in self.stacks else (),
        )
        return replace(evidence, **self.more.get(rank, {}))


def make_case(
    calls: Mapping[int, Sequence[str]] | None = None,
    *,
    world: int = 4,
    groups: Mapping[str, Sequence[int]] | None = None,
    hang: str | None = "proven",
    exit_code: int | None = None,
    log: Sequence[str] = (),
    launcher: str = "",
    source: str = "",
    absent: Sequence[int] = (),
    out_of_sight: Sequence[int] = (),
    backend: str = "gloo",
    interrupted_by: str = "",
    **parts: Any,
) -> Case:
    """A case in the short notation. `groups`: name -> ranks, beside the default group "0"; `source`: the text of train.py.

    `absent`: ranks that never registered or left no dump; `out_of_sight`: those of another node.
    `parts`: stacks, errors, handled, exits, states, pending, steps, more; each by rank.
    """
    file = _prime(source)
    builder = TableBuilder()
    known = {"0": tuple(range(world)), **{k: tuple(v) for k, v in (groups or {}).items()}}
    indexes = {
        name: builder.group(ProcessGroup(name, "default_pg" if name == "0" else name, ranks, backend=backend))
        for name, ranks in known.items()
    }
    for rank, texts in (calls or {}).items():
        seqs: dict[str, int] = {}
        for order, text in enumerate(texts):
            _add(builder, indexes, rank, order, seqs, text, file)
    table = builder.build()
    by_rank = _Parts(**parts)
    waiting = tuple(range(world))
    return Case(
        job=Job(
            world_size=world,
            backend=backend,
            exit_code=exit_code,
            ended_by_us=hang is not None and not interrupted_by,
            interrupted_by=interrupted_by,
            started_ns=_START_NS,
        ),
        ranks={r: by_rank.rank(r, world, file) for r in range(world) if r not in (*absent, *out_of_sight)},
        groups=table.groups,
        calls=table,
        log=tuple(LogLine(text, Source("output", "output.log", i + 1)) for i, text in enumerate(log)),
        launcher_stacks=(_stacks(launcher, -1),) if launcher else (),
        hang=HangObservation(hang, 1.0, 3.0, waiting) if hang else None,
        present=("calls", "stacks"),
        out_of_sight=tuple(out_of_sight),
    )


def read(what: str, rank: int | None = 0, host: str = "", **fields: Value) -> Reading:
    """A reading: `read("machine.limit nofile", rank=1, soft=1024)`. Two ranks share a host: 0 and 1 are on node0."""
    kind, _, subject = what.partition(" ")
    return Reading(kind, subject, fields, rank, host or (_HOST.format(rank // 2) if rank is not None else "node0"))


def readings_case(
    *readings: Reading | Iterable[Reading], world: int = 4, absent: Mapping[str, str] | None = None
) -> Case:
    """A case of readings. `absent`: kind or area -> why it could not be read."""
    flat = [r for part in readings for r in ([part] if isinstance(part, Reading) else part)]
    return Case(
        job=Job(world_size=world, nodes=max(1, world // 2)),
        ranks={r: RankEvidence(RankIdentity(r, world, r % 2, host=_HOST.format(r // 2))) for r in range(world)},
        readings=tuple(flat),
        present=("party", "setup"),
        absent=tuple(Unavailable(what, reason) for what, reason in (absent or {}).items()),
    )
