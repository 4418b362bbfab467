"""Rules on ranks that talk over connections of their own: a request that nobody answers, a circle in which each sends, or reads, first."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from unhang.analyze.activity import awaited_in
from unhang.analyze.program.source import frame_at, function_at
from unhang.analyze.program.trees import Function, inside, last_name, program_nodes
from unhang.analyze.situation import Situation
from unhang.analyze.waits.open_calls import answerer_of
from unhang.model import EvidenceLine, Frame, RankEvidence, ThreadStack, grouped, user_frames
from unhang.rules import wording as w
from unhang.rules.base import Found, rule

# Of the standard library: what serves one request after the other, and what takes its place.
_ONE_BY_ONE = {
    "HTTPServer": "http.server.ThreadingHTTPServer",
    "TCPServer": "socketserver.ThreadingTCPServer",
    "UnixStreamServer": "socketserver.ThreadingUnixStreamServer",
}


@rule("request-not-answered", needs=("stacks",))
def request_not_answered(s: Situation) -> Found | None:
    """Ranks that wait for a rank's answer, where all threads of that one that could give it wait at one line for another thing of the process."""
    if s.case.hang is None or not s.is_hang or s.failures or s.proven:
        return None
    asked = grouped((of, r) for r in s.case.ranks if (of := answerer_of(s, r)) is not None)
    for rank, waiting in asked.items():
        evidence = s.case.ranks[rank]
        held = _held(evidence, is_own=rank in waiting)
        if not held:
            continue
        place, asks = user_frames(held[0].frames)[0], s.activities[waiting[0]].frame
        alone = _serves_alone(held[0])
        made = _maker(place) if alone else None
        words = {
            "waiting": w.name_ranks(waiting), "wait": w.verb(waiting, "⟨waits|waited⟩", "⟨wait|waited⟩"), "rank": rank, "asks": w.at(asks),
            "thread": f"thread {held[0].name}".strip(), "awaits": awaited_in(held[0]), "at": w.at(place), "spot": w.spot(place),
            "alone": " It serves one request after the other: the next one, which may end that wait, is not read before." if alone else "",
        }  # fmt: skip
        if made is not None:
            line, name = made
            words |= {"made_at": w.spot(line), "maker": name, "instead": _ONE_BY_ONE[name]}
        lines = [_line(rank, t) for t in held[:3]] + w.stack_lines(s.case.ranks[waiting[0]], 3)
        fixes = ("threads",) if made else ("not in the handler",)
        victims = tuple(r for r in waiting if r != rank)
        return Found(0.9 if alone else 0.85, (rank,), lines, words, fixes=fixes, victims=victims, location=place)
    return None


def _line(rank: int, thread: ThreadStack) -> EvidenceLine:
    return EvidenceLine(f"rank {rank} thread {thread.name}", " < ".join(map(str, user_frames(thread.frames)[:3])))


def _held(evidence: RankEvidence, is_own: bool) -> list[ThreadStack]:
    """The threads of a process that are in the program's code, but for the main one: all of them, if they wait at one line within the process.

    `is_own`: the main thread has asked itself. Else that may be the one that serves.
    """
    threads = [t for t in evidence.own_stacks if user_frames(t.frames) and not t.is_main]
    if not threads and not is_own and evidence.main_stack is not None:
        threads = [t for t in (evidence.main_stack,) if _serves_alone(t)]
    waits = [awaited_in(t) for t in threads]
    within = ("an event or condition", "a lock", "a queue", "a full queue", "the result of another thread")
    is_idle = any(t.is_active for t in threads) or any(x not in within for x in waits)
    return threads if threads and not is_idle and len({user_frames(t.frames)[0] for t in threads}) == 1 else []


def _serves_alone(thread: ThreadStack) -> bool:
    """Whether a thread handles a request in the loop that takes the requests in."""
    of_server = {f.function for f in thread.frames if f.file.endswith("/socketserver.py")}
    return {"serve_forever", "finish_request"} <= of_server or {"handle_request", "finish_request"} <= of_server


def _maker(place: Frame) -> tuple[Frame, str] | None:
    """The one line of the program that makes such a server, and its class."""
    folder = place.file.rpartition("/")[0]
    calls = [
        (path, c) for path, f in program_nodes(folder) for c in inside(f, ast.Call) if isinstance(f, ast.FunctionDef)
    ]
    made = {(path, c.lineno, last_name(c.func)) for path, c in calls if last_name(c.func) in _ONE_BY_ONE}
    path, line, name = next(iter(made)) if len(made) == 1 else ("", 0, "")
    return (frame_at(path, line), name) if path else None


_SENDS, _READS = "room in a socket", "a socket"


@rule("circle-of-sockets", needs=("stacks",))
def circle_of_sockets(s: Situation) -> Found | None:
    """All ranks at one line, at which each sends to another one and none reads yet; or each reads, and none has sent."""
    if not s.is_hang or s.failures or s.proven or len(s.case.world) < 2 or set(s.activities) != set(s.case.world):
        return None
    places = {(a.awaits, a.frame) for a in s.activities.values()}
    awaits, at = places.pop() if len(places) == 1 else ("", None)
    peers = [answerer_of(s, r) for r in s.case.world]
    if at is None or awaits not in (_SENDS, _READS) or any(p == r for p, r in zip(peers, s.case.world, strict=True)):
        return None
    later = _call_behind(_path(s.case.ranks[0], at), _READ if awaits == _SENDS else _SENT)
    if later is None or (awaits == _READS and None in peers):
        return None
    ranks = list(s.case.world)
    is_task = any(t.frames and at in t.frames for e in s.case.ranks.values() for t in e.tasks)
    words = {
        "ranks": w.name_ranks(ranks), "at": w.at(at), "spot": w.spot(at), "later": w.spot(later[0]), "call": later[1],
    }  # fmt: skip
    variant = "send" if awaits == _SENDS else "read"
    fixes = ("read first",) if variant == "read" else ("both at once",) if is_task else ("by turns",)
    lines = [EvidenceLine(f"rank {r} stack", " < ".join(map(str, _path(s.case.ranks[r], at)[:3]))) for r in ranks[:3]]
    return Found(0.9, (), lines, words, variant, fixes=fixes, location=at)


_READ = frozenset(("recv", "recv_into", "recv_bytes", "receive", "read", "readexactly", "readline", "readinto"))
_SENT = frozenset(("send", "sendall", "send_bytes", "write", "sendfile"))


def _path(evidence: RankEvidence, at: Frame) -> tuple[Frame, ...]:
    """The program's frames of the thread or task that stands at that line, innermost first."""
    stacks = (*(t.frames for t in evidence.tasks), *(t.frames for t in evidence.own_stacks))
    return next((mine for frames in stacks if (mine := user_frames(frames))[:1] == (at,)), (at,))


def _call_behind(path: Sequence[Frame], names: Collection[str]) -> tuple[Frame, str] | None:
    """The first call of one of these names behind the lines of a path, in their functions: itself, or in a function of the program that is called there."""
    for frame in path:
        function = function_at(frame.file, frame.line)
        if function is None:
            continue
        folder = frame.file.rpartition("/")[0]
        called = {
            f.name
            for _, f in program_nodes(folder)
            if isinstance(f, Function) and any(last_name(c.func) in names for c in inside(f, ast.Call))
        }
        behind = sorted((c for c in inside(function, ast.Call) if c.lineno > frame.line), key=lambda c: c.lineno)
        found = next((c for c in behind if last_name(c.func) in {*names, *called}), None)
        if found is not None:
            return frame_at(frame.file, found.lineno), last_name(found.func)
    return None
