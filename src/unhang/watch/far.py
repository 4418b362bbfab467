"""Ranks of other nodes: their files as they travel, and what the hub keeps of them (`nodes/<node>/` in its run directory)."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unhang.errors import UnreadableInput
from unhang.model.findings import name_ranks
from unhang.watch.folders import write_whole
from unhang.watch.messages import Beat, FarRank, Push, Row, Said, State

NODES, NODE_FILE = "nodes", "node.json"
MOST_RANKS, MOST_BYTES, MOST_FILE = 4096, 64 << 20, 32 << 20
PAGE, UNKNOWN_WHY = "page.bin", "no message came any more"
_TRAVEL = (
    *(
        PAGE,
        "identity.json",
        "groups.jsonl",
        "proc.json",
        "pyspy.json",
        "waits.json",
        "variables.json",
        "notes.jsonl",
        "facts.jsonl",
        "shapes.json",
        "native.json",
        "reductions.json",
    ),
    *("error.json", "handled.jsonl", "held.json", "exit.json", "faulthandler.txt", "interrupt.txt"),
    *("flight.json", "flight.pickle", "flight_exit.pickle"),
)
_PATH = re.compile(rf"job\.json|ranks/(r\d{{1,9}}-\d{{1,9}})/({'|'.join(map(re.escape, _TRAVEL))})")
_WITH_MEMBERS = (
    "groups.jsonl",
    "flight.json",
    "flight.pickle",
    "flight_exit.pickle",
)  # lists of all ranks of each group
PROBE_S = 0.5


class Packer:
    """The files of this node's ranks, each time those that are new.

    The shared-memory pages, which always change, only where `pages_wanted` has grown since; another thread makes it grow.
    `is_brief`: of a job of many ranks nothing but job.json, until the hub asks; `only`: then the ranks of which files are sent.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._sent: dict[str, tuple[int, int, int]] = {}
        self.pages_wanted, self._pages_given = 1, 0
        self.is_brief, self.only = False, frozenset[int]()

    def pack(self, everything: bool) -> tuple[dict[str, bytes], list[str], bool]:
        """What changed, what is gone, and whether that is all: the rest comes next time."""
        if everything:
            self._sent, self._pages_given = {}, 0
        wanted, before = self.pages_wanted, self._pages_given
        self._pages_given = wanted
        found: dict[str, bytes] = {}
        seen, size = set(), 0
        for name, path, mark in self._files():
            seen.add(name)
            is_page = path.name == PAGE
            if (is_page and wanted == before) or (not is_page and self._sent.get(name) == mark):
                continue
            if size > MOST_BYTES:
                self._pages_given = before
                return found, [], False
            self._sent[name] = mark
            if (data := _content(path, self.only if self.is_brief else None)) is not None:
                found[name] = data
                size += len(data)
        gone = [name for name in self._sent if name not in seen] if self.only or not self.is_brief else []
        for name in gone:
            del self._sent[name]
        return found, gone, True

    def _files(self) -> Iterator[tuple[str, Path, tuple[int, int, int]]]:
        folders: list[str] = []
        only = self.only
        with suppress(OSError):
            folders = os.listdir(self._run_dir / "ranks") if only or not self.is_brief else []
        for name in ("job.json", *(f"ranks/{folder}/{file}" for folder in folders for file in _TRAVEL)):
            path = self._run_dir / name
            with suppress(OSError):
                status = path.stat()
                of_lists = hash(only) if path.name in _WITH_MEMBERS else 0
                yield name, path, (status.st_mtime_ns, status.st_size, of_lists)


def _content(path: Path, only: Collection[int] | None) -> bytes | None:
    """A file as it travels: a page without its empty end, a pickle as JSON; lists of members with none but `only`."""
    with suppress(OSError):
        data = path.read_bytes()
        if path.suffix == ".pickle":
            return _as_json(path, without_members=only is not None)
        if only is not None and path.name in _WITH_MEMBERS:
            return shortened(path.name, data, only)
        data = data.rstrip(b"\0") if path.name == PAGE else data
        return data if len(data) <= MOST_FILE else None
    return None


def shortened(name: str, data: bytes, only: Collection[int]) -> bytes | None:
    """A file in which groups list their members, each of which is as many ranks as the job has: these alone, and how many others."""
    with suppress(ValueError, AttributeError, TypeError):
        if name == "flight.json":
            calls = json.loads(data)
            return json.dumps({**calls, "pg_config": _config_apart(calls)}).encode()
        lines = []
        for line in data.splitlines():
            fields = json.loads(line)
            members = fields.get("ranks") or []
            kept = [rank for rank in members if rank in only]
            lines.append(json.dumps({**fields, "ranks": kept, "left_out": len(members) - len(kept)}).encode() + b"\n")
        return b"".join(lines)
    return None


def _config_apart(calls: dict[str, Any]) -> dict[str, Any]:
    """Of the groups that groups.jsonl does not know: the other half of those that two backends serve."""
    return {name: group for name, group in (calls.get("pg_config") or {}).items() if "@" in name}


def _as_json(path: Path, without_members: bool) -> bytes | None:
    import msgspec

    from unhang.read.dumps.objects import load

    with suppress(UnreadableInput, TypeError, ValueError, OverflowError):
        calls = load(path, trusted=True)
        if without_members and isinstance(calls, dict):
            calls = {**calls, "pg_config": _config_apart(calls)}
        data = msgspec.json.encode(calls)
        return data if len(data) <= MOST_FILE else None
    return None


class FarNode:
    """One other node, as the hub knows it. `unheard`: why nothing is heard of it, "" as long as it is heard."""

    def __init__(self, said: Said, run_dir: Path) -> None:
        self.id, self.name = said.node, ""
        self.folder = run_dir / NODES / said.node
        self.ranks: dict[str, FarRank] = {}
        self.address = said.address
        self.state, self.heard_at, self.closed_at = State(), said.at, 0.0
        self.unheard, self.is_probed = "", False
        self._there = 0.0  # on its own clock, when its ranks' quiets were so
        self._beat = Beat()
        self.longest_s = 0.0  # the longest quiet of its ranks, as was last said
        self._clock: tuple[int, int] | None = None
        self._is_written = False

    def hear(self, push: Push, said: Said, hub: str, keep_files: bool) -> list[FarRank]:
        """Takes a message; returns the ranks that are new. `hub`: our nonce. `keep_files`: not what comes after the job was ended by us."""
        self.name, self.address = push.name, said.address
        self.state = push.state if push.state.hub == hub else State(ranks=push.state.ranks, is_over=push.state.is_over)
        self.heard_at, self.closed_at = said.at, 0.0
        is_back, self.unheard = bool(self.unheard), ""
        if keep_files:
            self._keep(push)
        self._is_written = self._is_written and not is_back and (push.offset_ns, push.trip_ns) == self._clock
        self._clock = push.offset_ns, push.trip_ns
        found = []
        self._there = push.state.at
        self.longest_s = max((state.quiet_s for state in push.state.ranks), default=0.0)
        for state in push.state.ranks[:MOST_RANKS]:
            rank = self.ranks.get(state.folder)
            if rank is not None:
                rank.is_unheard = False
                rank.hear(state, said.at, push.state.at)
            elif _PATH.fullmatch(f"ranks/{state.folder}/{PAGE}") and len(self.ranks) < MOST_RANKS:
                rank = self.ranks[state.folder] = FarRank(
                    self.folder / "ranks" / state.folder, state, said.at, push.state.at, self._beat
                )
                found.append(rank)
        return found

    def hear_row(self, row: Row, at: float) -> None:
        """Takes what another node passed on, where nothing is new but the quiets: of very many ranks, nearly always."""
        grown_s, quiet_s, self._there = row.at - self._there, row.quiet_s, row.at
        if quiet_s < 0:
            self._beat.grown_s += grown_s
        else:
            moved = row.at - quiet_s, at - quiet_s, time.time_ns() - int(quiet_s * 1e9)
            self._beat.hear(quiet_s, *moved, have_followers=len(self._beat.apart) < len(self.ranks))
        self.longest_s = quiet_s if quiet_s >= 0 else self.longest_s + grown_s
        if self.state.hub:  # what it did is for this hub
            state = self.state
            state.looked, state.still, state.is_still = row.looked, row.still, row.is_still
            state.told = row.told or state.told
        self.heard_at, self.closed_at = at, 0.0
        if self.unheard:
            self.unheard, self._is_written = "", False
            for rank in self.ranks.values():
                rank.is_unheard = False
            self.write()

    def has_life(self) -> bool:
        """Whether one of its ranks lives."""
        for rank in self.ranks.values():  # noqa: SIM110  of very many nodes, half as long as any()
            if rank.is_alive:
                return True
        return False

    def poll(self) -> float | None:
        """The length of the longest quiet that was heard to have ended on any of its ranks, if one did."""
        return self._beat.poll()

    def dead_now(self) -> list[FarRank]:
        """Ranks of which the end was heard and not noted yet."""
        ended = {s.folder for s in self.state.ranks if s.dead_s >= 0}
        return [rank for name, rank in self.ranks.items() if rank.is_alive and name in ended]

    def lose(self, reason: str = UNKNOWN_WHY) -> None:
        """Nothing is known any more of what its ranks do."""
        self.is_probed = reason != UNKNOWN_WHY
        self.unheard = reason
        for rank in self.ranks.values():
            rank.is_unheard = True
        self._is_written = False
        self.write()

    def write(self) -> None:
        """Writes `node.json` where it is not as it was: what the reader must know of where these files come from."""
        if self._is_written:
            return
        self._is_written = True
        self.folder.mkdir(parents=True, exist_ok=True)
        fields: Mapping[str, object] = {
            "host": self.name,
            "unheard": self.unheard,
            "clock_offset_ns": self._clock[0] if self._clock else 0,
            "round_trip_ns": self._clock[1] if self._clock else 0,
        }
        write_whole(self.folder / NODE_FILE, json.dumps(fields).encode())

    def _keep(self, push: Push) -> None:
        for name, data in push.files.items():
            is_odd = len(data) > MOST_FILE or (name.endswith(".pickle") and data[:1] != b"{")
            if is_odd or not _PATH.fullmatch(name):
                continue
            with suppress(OSError):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(self.folder / name, data)
        for name in push.gone:
            if _PATH.fullmatch(name):
                with suppress(OSError):
                    (self.folder / name).unlink()


def words_on(node: FarNode, now: float) -> str:
    """A line on a node that is not heard."""
    ranks = name_ranks(sorted({r.rank for r in node.ranks.values() if r.is_alive and not r.is_earlier}))
    return (
        f"node {node.name} ({ranks or 'no ranks'}) has not been heard for {now - node.heard_at:.0f} s: {node.unheard}"
    )


def why_silent(address: tuple[str, int], is_closed: bool) -> str:
    """What can be told apart from here. Blocks: up to PROBE_S."""
    try:
        with socket.create_connection(address, PROBE_S):
            return "its watcher answers no more, though it runs"
    except ConnectionRefusedError:
        return "its watcher is gone, and its machine answers"
    except OSError as error:
        what = os.strerror(error.errno) if error.errno else "no answer"
        said = " after its watcher's connection had closed" if is_closed else ""
        return f"its machine is down, or the network to it ({what}{said})"
