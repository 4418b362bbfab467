"""Secures the evidence from inside the ranks where nothing watches from outside: calls and stacks, once a collective is stuck."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.guard.in_background import Turns
from unhang.guard.telling import tell
from unhang.recorder import flight, page, recording, variables
from unhang.recorder.recording import Recording
from unhang.recorder.writing import write_json

STALL_AFTER_S = 60.0
VERDICT = "verdict.json"
_TURN_S = 0.5
_STATUS = slice(4096 // 8, 8192 // 8)
_SLOTS, _SLOT_WORDS = 128, 4
_RING, _RECORD_WORDS = 8192 // 8, 32
_NO_CALL = (1 << 64) - 1


def watch_after(limit_s: float) -> None:
    """Sets after how many quiet seconds in a collective a rank counts as stalled."""
    global _limit_s
    _limit_s = limit_s


def start() -> None:
    """Starts the watch of this process, once; a forked child has none before it becomes a rank itself."""
    global _watch
    if _watch is None or _watch.pid != os.getpid():
        _watch = StallWatch(_limit_s)
        Turns("unhang-stalls", _watch.turn)


class StallWatch:
    """What the thread knows: when this rank last moved, and for which stall of the job it has written its evidence."""

    def __init__(self, limit_s: float) -> None:
        self.pid = os.getpid()
        self._limit_s = limit_s
        self._movement: tuple[Any, ...] = ()
        self._moved_at, self._moved_ns = time.monotonic(), time.time_ns()
        self._is_mine = self._was_looked_at = False
        self._answered = 0

    def turn(self) -> float:
        """One look; returns the seconds until the next."""
        rec = recording.current
        if rec is not None and rec.pid == self.pid:
            self._look(rec)
        return min(_TURN_S, self._limit_s / 4)

    def _look(self, rec: Recording) -> None:
        movement = movement_of(rec)
        if movement != self._movement:
            self._movement, self._was_looked_at = movement, False
            self._moved_at, self._moved_ns = time.monotonic(), time.time_ns()
            self._moves_again(rec)
        elif not self._was_looked_at and time.monotonic() - self._moved_at >= self._limit_s:
            self._was_looked_at = True
            if is_waiting(rec):
                self._declare(rec)
        self._answer(rec)

    def _declare(self, rec: Recording) -> None:
        """This rank waits: says so to the others by the verdict file, unless one of them was first."""
        known = _read(_verdict_path(rec))
        if known and not known.get("withdrawn"):
            return
        self._is_mine = True
        seconds = time.monotonic() - self._moved_at
        number = rec.identity["rank"]
        verdict = {
            "kind": "suspected",
            "onset_ns": self._moved_ns,
            "detected_ns": time.time_ns(),
            "waiting_ranks": [number],
            "reason": f"rank {number} has waited in a collective for {seconds:.0f} s",
            "withdrawn": False,
        }
        write_json(str(_verdict_path(rec)), verdict)
        report = _verdict_path(rec).parent.parent
        tell("unhang", f"rank {number} has waited for {seconds:.0f} s; see: unhang diagnose {report}")

    def _answer(self, rec: Recording) -> None:
        """Writes calls and stacks, once for each stall that any rank has declared."""
        verdict = _read(_verdict_path(rec))
        moment = verdict.get("detected_ns", 0)
        if not moment or verdict.get("withdrawn") or moment == self._answered:
            return
        self._answered = moment
        write_evidence(rec)

    def _moves_again(self, rec: Recording) -> None:
        if not self._answered:
            return
        with suppress(OSError):
            os.unlink(rec.path("flight.pickle"))
        if self._is_mine:
            self._is_mine = False
            write_json(str(_verdict_path(rec)), {**_read(_verdict_path(rec)), "withdrawn": True})
            tell("unhang", f"rank {rec.identity['rank']} moves again")


_limit_s = STALL_AFTER_S
_watch: StallWatch | None = None


def write_evidence(rec: Recording) -> None:
    """The calls of this rank and the stacks of its threads, into its folder. Takes some ten milliseconds."""
    recording.attempt("variables.json", variables.write, rec)
    if rec.page.words[page.INITIALIZED] == 1:
        recording.attempt("flight.pickle", flight.dump, rec, "flight.pickle")
    with suppress(OSError), open(rec.path("faulthandler.txt"), "a", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=True)


def movement_of(rec: Recording) -> tuple[Any, ...]:
    """What changes when the rank gets on: steps, calls of each group, calls in the ring."""
    words = rec.page.words
    return words[page.STEPS], words[page.RECORDS], words[page.INITIALIZED], words[_STATUS].tobytes()


def is_waiting(rec: Recording) -> bool:
    """Whether a call of this rank is under way. The cheap signs come first: only they make the flight recorder speak."""
    words = rec.page.words
    if _has_open_record(words):
        return True
    if words[page.INITIALIZED] != 1 or not _has_open_status(words):
        return False
    bindings: Any = sys.modules.get("torch._C._distributed_c10d")
    ask = getattr(bindings, "_dump_fr_trace_json", None) or getattr(bindings, "_dump_nccl_trace_json", None)
    if ask is None:
        return True
    entries = json.loads(ask()).get("entries", [])
    return any(not (e.get("retired") or e.get("state") == "completed") for e in entries)


def _has_open_record(words: memoryview) -> bool:
    """A point-to-point call, or the making of a group, that has not come back."""
    records = range(_RING, len(words), _RECORD_WORDS)
    return any(words[at] and not words[at + 5] and words[at + 1] not in (page.ISEND, page.IRECV) for at in records)


def _has_open_status(words: memoryview) -> bool:
    for slot in range(_SLOTS):
        at = _STATUS.start + slot * _SLOT_WORDS
        if words[at] and words[at + 1] not in (words[at + 2], _NO_CALL):
            return True
    return False


def _verdict_path(rec: Recording) -> Path:
    return Path(rec.folder).parent.parent / VERDICT


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
