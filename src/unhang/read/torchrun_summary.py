"""How ranks ended, as torchrun and torch.multiprocessing print it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

_FIELD = re.compile(r"\s+(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)")
_RULE = re.compile(r"={20,}$")
_RECORD = re.compile(r"\[(\d+)\]:$")
_NUMBER = re.compile(r"-?\d+")
_PID = re.compile(r"\(pid: (\d+)\)")
_LINES = (
    re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)"),
    re.compile(r"process (?P<rank>\d+) terminated with signal (?P<signal>SIG\w+)"),
    re.compile(r"process (?P<rank>\d+) terminated with exit code (?P<code>-?\d+)"),
)
_SIGNALS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGSEGV": 11,
    "SIGTERM": 15,
}


@dataclass
class RankExit:
    """How the launcher saw one rank end. `code` is negative for a signal; `is_root`: the failure it saw first."""

    rank: int | None = None
    pid: int | None = None
    code: int | None = None
    time_ns: int = 0
    error_file: str = ""
    is_root: bool = False
    line: int = 0


class SummaryReader:
    """Takes the lines of the launcher's output. `exits` is what it found so far, in the order printed."""

    def __init__(self) -> None:
        self.exits: list[RankExit] = []
        self._in_block = False
        self._is_root = False

    def take(self, line: str, number: int = 0) -> bool:
        """Takes one line; returns whether it lies in the summary block."""
        if line.startswith("Root Cause (first observed failure)"):
            self._in_block = self._is_root = True
        elif line == "Failures:" or line.startswith("Other Failures:"):
            self._in_block, self._is_root = True, False
        elif self._in_block and _RULE.match(line):
            self._in_block = False
            return True
        elif self._in_block:
            self._field(line, number)
        else:
            self._single(line, number)
        return self._in_block

    def _field(self, line: str, number: int) -> None:
        if _RECORD.match(line):
            self.exits.append(RankExit(is_root=self._is_root, line=number))
            return
        match = _FIELD.match(line)
        if match is None or not self.exits:
            return
        found, (key, value) = self.exits[-1], (match[1], match[2].strip())
        first = _NUMBER.match(value)
        if key == "time":
            found.time_ns = _wall_ns(value)
        elif key == "rank" and first:
            found.rank = int(first[0][:9])
        elif key == "exitcode" and first:
            pid = _PID.search(value)
            found.code, found.pid = int(first[0][:9]), int(pid[1][:9]) if pid else None
        elif key == "error_file" and value != "<N/A>":
            found.error_file = value

    def _single(self, line: str, number: int) -> None:
        for pattern in _LINES:
            if match := pattern.search(line):
                parts = match.groupdict()
                code = -_SIGNALS.get(parts.get("signal") or "", 0) or int((parts.get("code") or "0")[:9])
                pid = int(parts["pid"][:9]) if parts.get("pid") else None
                self.exits.append(RankExit(int(parts["rank"][:9]), pid, code or None, line=number))
                return

    def by_rank(self) -> dict[int, RankExit]:
        """The fullest record of each rank: the block's before a single line's, which knows only the local rank."""
        found: dict[int, RankExit] = {}
        for seen in self.exits:
            if seen.rank is None:
                continue
            known = found.get(seen.rank)
            if known is None or (seen.time_ns and not known.time_ns):
                found[seen.rank] = seen
        return found


def _wall_ns(value: str) -> int:
    """`2026-11-21_09:35:20`, local time of the launcher."""
    try:
        return int(datetime.strptime(value, "%Y-%m-%d_%H:%M:%S").timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):
        return 0
