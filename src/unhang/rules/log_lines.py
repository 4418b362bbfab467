"""What rules on the lines of a log share: quoting them, whose they are, the finding that they establish, and the cause that a text establishes by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import chain, takewhile
from pathlib import PurePath
from typing import Any

from unhang.analyze.failures import is_communication_error
from unhang.analyze.lines.first_errors import SeenError, errors_of, first_to_end, outlived, ranks_of
from unhang.analyze.lines.log_progress import bar_name, elapsed_s
from unhang.analyze.lines.own_lines import OwnLine
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, LogEvent, LogLine, RaisedError
from unhang.model.lazy_pattern import lazy_pattern
from unhang.read.logs import kinds_in
from unhang.read.logs.catalogue import LAYERS, Row, best_cause, weighed, whole
from unhang.rules import wording as w
from unhang.rules.base import Found
from unhang.rules.failure import first_exception

MAX_QUOTED = 6
MAX_QUOTE = 300
MOST_WORDS = 100
_MOST_NODES = 3
_LEAST_QUIET_S, _LEAST_LIMIT_S, _MOST_OF = 600, 300, 0.5
_BARE = re.compile(r"\+ (?:\w+=\S* )*(?:\S*/)?python")
_TOLD_TO_END = (None, 0, -15, -9)
_MOST_BETWEEN = 64  # lines
_OF_UCX, _PRINTS_ON = "UCX", 3
_OF_FAILURE = lazy_pattern(r"(?i)error|fail|abort|fatal|killed|exited with")


def quote(events: Iterable[LogEvent], most: int = MAX_QUOTED) -> tuple[EvidenceLine, ...]:
    """The first lines, with file and line number; lines that read the same are quoted once."""
    found: dict[str, EvidenceLine] = {}
    for event in events:
        if len(found) < most:
            line = _quoted(event, event.rank)
            found.setdefault(line.text, line)
    return tuple(found.values())


def quote_own(lines: Iterable[OwnLine]) -> tuple[EvidenceLine, ...]:
    """Lines of the ranks' own, each with its rank."""
    return tuple(line for x in lines if (line := _quoted(x.line, x.rank)).text)[:MAX_QUOTED]


def _quoted(line: LogEvent | LogLine, rank: int | None) -> EvidenceLine:
    name = PurePath(line.source.path).name or "log"
    place = f"{name}:{line.source.line}" if line.source.line else name
    who = f"{place}, rank {rank}" if rank is not None else place
    return EvidenceLine(who, line.text.strip()[:MAX_QUOTE], line.source.line)


def ranks_in(events: Iterable[LogEvent]) -> tuple[int, ...]:
    """The ranks that printed these lines, in ascending order, as far as the lines say."""
    return tuple(sorted({e.rank for e in events if e.rank is not None}))


def in_order(*events: Iterable[LogEvent]) -> tuple[LogEvent, ...]:
    """Events of several sorts as one, in the order of the log."""
    return tuple(sorted(chain.from_iterable(events), key=lambda e: e.order))


def on_nodes(events: Iterable[LogEvent]) -> str:
    """` on node-a`, ` on node-a and 4 other nodes`; nothing where no line tells its host."""
    hosts = list(dict.fromkeys(e.host for e in events if e.host))
    if len(hosts) > _MOST_NODES:
        return f" on {hosts[0]} and {len(hosts) - 1} other nodes"
    return f" on {', '.join(hosts)}" if hosts else ""


def found_in(
    s: Situation, events: Sequence[LogEvent], confidence: float, culprits: tuple[int, ...] | None = None, **more: Any
) -> Found:
    """What lines of a log establish: they are quoted; the ranks that printed them are the culprits where nothing else is said.

    Where the lines do not tell their rank, it is the one that the launcher saw fail, if it raised what they say.

    `more`: other fields of `Found`.
    """
    ranks = (ranks_in(events) or _raised_by(s, events)) if culprits is None else culprits
    return Found(confidence, ranks, quote(events), **more)


def _raised_by(s: Situation, events: Iterable[LogEvent]) -> tuple[int, ...]:
    raised = [(e, said) for e in errors_of(s) for said in (e.error, *e.error.before) if said.message.strip()]
    for event in events:
        for error, said in raised:
            is_of_it = error.order <= event.order or said is not error.error
            if is_of_it and said.message.split("\n", 1)[0][:80] in event.text and (ranks := ranks_of(s, error)):
                return ranks
    return only_rank(s)


def failed_alone(s: Situation) -> tuple[int, ...]:
    """Whom a launcher saw fail: those that ended with one code of their own, if all others were only told to end; whom a launcher names as the first to end."""
    ended = first_to_end(s)
    if ended is not None and ended.rank is not None:
        return (ended.rank,)
    codes = {r: e.exit.code for r, e in s.case.ranks.items() if e.exit is not None and e.exit.code not in _TOLD_TO_END}
    is_one = len(set(codes.values())) == 1 and not s.watchdogs.ranks
    return tuple(sorted(codes)) if is_one else ()


def only_rank(s: Situation) -> tuple[int, ...]:
    """Rank 0, of a job of one process."""
    return (0,) if s.case.job.world_size == 1 else ()


def ranks_of_pids(s: Situation, events: Iterable[LogEvent]) -> tuple[int, ...]:
    """The ranks of the processes that lines name by number, as far as their launcher, on one node, told whom it started."""
    told = [(e.number("pid"), e.number("local_rank")) for e in s.events.of("launchers.spawned")]
    ranks = dict(told) if len({rank for _, rank in told}) == len(told) else {}
    ranks |= {e.identity.pid: rank for rank, e in s.case.ranks.items() if e.identity.pid is not None}
    named = (ranks.get(pid) for e in events if (pid := e.number("pid")) is not None)
    return tuple(sorted({rank for rank in named if rank is not None}))


def ranks_of_devices(s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
    """The ranks by the devices' numbers, as NCCL has told of each host; else as on one node, where one of them is not 0.

    Processes that each see one device call it 0: then the number tells nothing.
    """
    devices = {(e.host, n) for e in events if (n := e.number("device")) is not None}
    numbers = {n for _, n in devices}
    if not numbers or numbers == {0}:
        return ()
    told = {(e.host, e.number("device")): e.number("group_rank") for e in s.events.of("nccl.init_complete")}
    if None not in (ranks := {told.get(device) for device in devices}):
        return tuple(sorted(r for r in ranks if r is not None))
    hosts = {x.host for x in s.case.log if x.host}
    return tuple(sorted(numbers)) if max(numbers) < 8 and len(hosts) < 2 and (s.case.job.world_size or 0) <= 8 else ()


def rank_of_actor(s: Situation) -> tuple[int, ...]:
    """The rank of the one actor that Ray says has died, where its name tells it: verl counts the workers of its first group of machines."""
    ranks = {
        n for e in s.events.of("ending.ray_actor") if (n := e.number("rank" if e["rank"] else "rank_")) is not None
    }
    return tuple(ranks) if len(ranks) == 1 else ()


def died_alone(s: Situation) -> tuple[int, ...]:
    """The one rank that a server's parent process saw dead, where the code that it saw is that of a SIGKILL."""
    told = s.events.of("ending.worker")
    ranks = ranks_in(told)
    return ranks if len(ranks) == 1 and any(e["code"] == "-9" for e in told) else ()


def seconds_between(first: LogEvent, last: LogEvent) -> float:
    """Seconds between two lines, by the times that they tell in words, else by their stamps; 0 where one has neither."""
    since, until = _time_of(first), _time_of(last)
    return (until - since).total_seconds() if since and until else 0.0


def stood_before(s: Situation, moves: Sequence[LogEvent], end: LogEvent) -> bool:
    """Whether a job did nothing for most of its time before its end at a limit.

    By the stamp of its last move; without stamps its bars had run for less than any limit that somebody sets.
    """
    first = next((e for e in s.events if e.time_ns is not None), None)
    if moves[-1].time_ns is not None and first is not None:
        return seconds_between(moves[-1], end) > max(_LEAST_QUIET_S, _MOST_OF * seconds_between(first, end))
    bars = [e for e in moves if e["elapsed"]]
    ran = {bar_name(e): elapsed_s(e) or 0 for e in bars}
    return bool(bars) and bars[-1].order == moves[-1].order and sum(ran.values()) < _LEAST_LIMIT_S


def _time_of(event: LogEvent) -> datetime | None:
    """By the clock that the line itself shows."""
    try:
        return datetime.fromisoformat(event["at"])
    except ValueError:
        stamp_ns = event.time_ns
    return None if stamp_ns is None else datetime(1970, 1, 1) + timedelta(microseconds=stamp_ns // 1000)


USER = "user-exception"
# Types of exceptions that say nothing of what went wrong: libraries below the program raise them as well.
GENERAL_TYPE = re.compile(
    r"(?:[\w.]*\.)?(?:RuntimeError|Exception|OSError|SystemError|ConnectionError|TimeoutError|Dist\w*Error)(?::|$)"
)
_BELOW_FRAMEWORKS = LAYERS[: LAYERS.index("store") + 1]
_OF_ITS_OWN = ("user",)  # the layer of what a program, its loader or Python itself says


def row_of_exception(text: str) -> Row | None:
    """The message that an exception is, given as `Type: message`, if that names a cause which is not just that it was raised."""
    row = best_cause(text)
    return row if row is not None and row.cause != USER else None


def known_of(error: RaisedError) -> tuple[Row, RaisedError] | None:
    """The same of an exception or, where its own words name no cause, of one that it was raised from; with the exception."""
    chain_of_causes = (error, *takewhile(lambda e: e.is_cause, reversed(error.before)))
    return next(((row, e) for e in chain_of_causes if (row := row_of_exception(e.text)) is not None), None)


def is_not_of_the_program(text: str) -> bool:
    """Whether an exception says by itself what went wrong, and that is not the program, or only that a library below it failed."""
    return row_of_exception(text) is not None or _is_witness(text.partition("\n")[0])


def _is_witness(line: str) -> bool:
    row = next(iter(weighed().rows_of(line)), None)
    if row is not None:
        return row.role == "witness" and row.layer not in _OF_ITS_OWN
    if not GENERAL_TYPE.match(line):
        return False
    row = next(iter(whole().rows_of(line)), None)
    return row is not None and row.role in ("witness", "echo") and row.layer in _BELOW_FRAMEWORKS


# What rules on the start of a job share: what its lines and exceptions say, and whether the start, or something else, failed.

BESIDE_ANOTHER_ERROR = 0.6
_KILLED = (-4, -7, -8, -9, -11)
# Families whose errors are about the start itself, and exceptions that only pass on the failure of another process.
_OF_THE_START = ("store.", "elastic.", "launchers.", "gloo.", "device.", "version.", "files.")
_WRAPPER = re.compile(
    r"(?:ChildFailedError|ProcessRaisedException|ProcessExitedException|SignalException|SystemExit|KeyboardInterrupt|"
    r"CalledProcessError|RayTaskError|RayActorError|MultiprocessingError)"
)


def is_over_after(s: Situation, event: LogEvent, *kinds: str) -> bool:
    """Whether the log shows after an event that the start was over (steps of training, or `kinds`): the event ended nothing."""
    if event.source.reader != "output":
        return False
    later = s.events.of("progress.step", *kinds)
    return bool(later) and later[-1].order > event.order


def was_killed(s: Situation) -> bool:
    """Whether a process came to a violent end: those that could not reach it, or waited for it, are its victims."""
    failure = s.primary_failure
    return (failure is not None and failure.kind == "signal") or any(
        (e.number("code") or 0) in _KILLED for e in s.events.of("elastic.worker_failed")
    )


def has_other_error(s: Situation) -> bool:
    """Whether it began with an exception that is not about the start, or with the violent end of a process."""
    first = first_exception(s)
    return was_killed(s) or (first is not None and _is_of_its_own(first.error))


def _is_of_its_own(error: RaisedError) -> bool:
    if not error.type or _WRAPPER.search(error.type) or is_communication_error(error):
        return False
    return not any(kind.startswith(_OF_THE_START) for kind in kinds_in(error.text))


def still_starting(s: Situation, events: Iterable[LogEvent], *over: str) -> list[LogEvent]:
    """The events after which no step of training, and nothing of the kinds `over`, shows that the start was over."""
    return [e for e in events if not is_over_after(s, e, *over)]


def numbered_twice(s: Situation) -> list[LogEvent]:
    """What the processes of a start said of themselves, where ranks came twice that others never took, and nothing went on."""
    events = still_starting(s, s.events.of("launchers.member"), "elastic.restarting", "work.")
    ranks, worlds = [e.rank for e in events], {e.number("world_size") or len(s.case.world) for e in events}
    world = worlds.pop() if len(worlds) == 1 else 0
    joined = max((e.number("joined") or 0 for e in s.events.of("store.barrier_waiting")), default=0)
    if world < 2 or not len(set(ranks)) < min(len(ranks), world) or joined > len(ranks):
        return []  # of some that came the log does not tell
    return [] if s.has_ended_well else events


def beyond_their_world(s: Situation) -> list[LogEvent]:
    """What sets the size of the world, and the processes that came with ranks above it, where the job failed; or a launcher's arguments that say both."""
    said, events = list(s.events.of("launchers.world_set")), list(s.events.of("launchers.member"))
    sizes = {e.number("set_size") for e in said}
    size = sizes.pop() if len(sizes) == 1 else None
    above = [e for e in events if size is not None and e.rank is not None and e.rank >= size]
    if above and s.is_crash:
        return [said[0], *above]
    given = still_starting(s, s.events.of("launchers.given_rank"), "progress.step")
    ranks, worlds = {e["given"] for e in given}, {e["of"] for e in given}
    is_whole = worlds == {str(len(ranks))}  # else it may be the rank of a matrix
    above = [e for e in given if is_whole and int(e["given"]) >= int(e["of"])]
    return [] if s.has_ended_well else above


def other_sizes(s: Situation) -> list[str]:
    """The numbers of processes per node that launchers print, where they differ."""
    sizes = {e["value"] for e in s.events.of("elastic.launch_config") if e["name"] == "nproc_per_node"}
    return sorted(sizes) if len(sizes) > 1 else []


_LOOPBACK = ("127.", "localhost", "::1", "[::1]")


def own_loopback(s: Situation) -> list[LogEvent]:
    """Where a job of several nodes was told to meet, where that is on each of them its own loopback address."""
    told = list(s.events.of("launchers.endpoint"))
    nodes = [e.number("nodes") for e in s.events.of("launchers.nodes")]
    is_loopback = bool(told) and all(e["endpoint"].startswith(_LOOPBACK) for e in told)
    return told[:2] if is_loopback and nodes and all(n is not None and n > 1 for n in nodes) else []


def other_ports(s: Situation, *over: str) -> list[LogEvent]:
    """A line of each port at which the processes of one start look for each other, where these are several and one stood there; `over`: as in `still_starting`."""
    told = {e["port"]: e for e in reversed(s.events.of("launchers.port"))}
    waits = [e.order for e in s.events.of("elastic.launcher_frame") if "/torch/distributed/rendezvous.py" in e.text]
    lines = sorted(told.values(), key=lambda e: e.order)
    if len(lines) < 2 or not waits or lines[-1].order > min(waits):
        return []
    began_again = any(lines[0].order < e.order < lines[-1].order for e in s.events.of("launchers.started"))
    return [] if began_again else still_starting(s, lines, *over)


def started_bare(s: Situation) -> list[LogEvent]:
    """The lines that show a batch script which starts one process itself, where Slurm was to start all of them: no more ranks came."""
    started, members = s.events.of("launchers.started"), s.events.of("launchers.member")
    by_slurm = s.events.of("launchers.of_slurm")
    is_bare = bool(started) and all(_BARE.match(e.text) and e["launcher"].startswith("python") for e in started)
    is_alone = {e.rank for e in members} == {0} and all((e.number("world_size") or 0) > 1 for e in members)
    if not (is_bare and is_alone and by_slurm):
        return []
    return still_starting(s, [started[-1], by_slurm[0], members[-1]])


def doubled_and_missing(s: Situation, events: Sequence[LogEvent]) -> dict[str, object]:
    """The words on the ranks that came more than once, and on those that never came."""
    ranks, world = [e.rank for e in events if e.rank is not None], events[0].number("world_size") or len(s.case.world)
    twice, never = sorted({r for r in ranks if ranks.count(r) > 1}), sorted(set(range(world)) - set(ranks))
    return {"twice": w.name_ranks(twice), "never": w.name_ranks(never), "world": world}


def started_fewer(s: Situation) -> list[LogEvent]:
    """What a launcher of all nodes said of the number of processes that it starts, and the larger world that each of them then took; nothing where the start went on."""
    told = still_starting(s, s.events.of("launchers.world"))
    starts, wanted = [e for e in told if e["starts"]], [e for e in told if not e["starts"]]
    sizes, worlds = ({e.number("world_size") or 0 for e in side} for side in (starts, wanted))
    is_less = len(sizes) == len(worlds) == 1 and min(sizes) < min(worlds) and len(wanted) >= min(sizes)
    failed = s.events.of(
        "store.connect_timed_out", "store.connect_failed", "store.clients_joined", "store.barrier_timed_out"
    )
    return [starts[0], wanted[-1], *s.events.of("launchers.here_only"), *failed[:1]] if is_less and failed else []


def sure_beside(s: Situation, confidence: float, events: Iterable[LogEvent] = ()) -> float:
    """The confidence of a rule on the start: less where an exception of another kind may have come first, of whose traceback no event is a line."""
    first = first_exception(s)
    is_said_there = first is not None and first.seen is not None and any(is_line_of(first.seen, e) for e in events)
    return min(confidence, BESIDE_ANOTHER_ERROR) if has_other_error(s) and not is_said_there else confidence


def not_outlived(s: Situation, events: Iterable[LogEvent]) -> list[LogEvent]:
    """The events after which the training moved no more: what failed before, it did without."""
    return [e for e in events if not outlived(s, e)]


def only_probed(s: Situation, events: Sequence[LogEvent]) -> bool:
    """Whether UCX alone complains, which is asked also where another way is taken then, and the program prints on with nothing else wrong."""
    if (
        not all(_OF_UCX in e.text for e in events)
        or errors_of(s)
        or any(e.says and _OF_UCX not in e.text for e in s.events)
    ):
        return False
    behind = [x.text for x in s.case.log[events[-1].order + 1 :] if x.text.strip() and _OF_UCX not in x.text]
    return len(behind) >= _PRINTS_ON and not any(_OF_FAILURE.search(text) for text in behind)


def may_lock_all(s: Situation, events: Iterable[LogEvent]) -> bool:
    """Whether every node that failed told that a process may lock all memory: something else keeps it from registering."""
    asked = {(e.host, e.order) for e in s.events.of("rdma.limit_asked")}
    told = [e for e in s.events.of("rdma.limit_none") if not e["answer"] or _is_answer(e, asked)]
    hosts = {e.host for e in told}
    return bool(hosts) and ("" in hosts or {e.host for e in events} <= hosts)


def _is_answer(event: LogEvent, asked: set[tuple[str, int]]) -> bool:
    """Whether the question stands before it; other nodes may have printed between."""
    return any(host == event.host and 0 < event.order - order <= _MOST_BETWEEN for host, order in asked)


def is_line_of(error: SeenError, event: LogEvent) -> bool:
    """Whether a line is one of a traceback's own."""
    return error.order <= event.order <= error.order + 4 * len(error.frames) + 2


def why_never_came(s: Situation) -> str:
    """What is known of ranks that never registered: two processes may run under one number."""
    for rank, evidence in s.case.ranks.items():
        if evidence.twins:
            pids = " and ".join(map(str, (*evidence.twins, evidence.identity.pid)))
            return f"processes {pids} both run as rank {rank} (see what sets RANK)"
    return "the process was not started, or died before it imported torch.distributed"
