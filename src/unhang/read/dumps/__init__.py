"""Flight-recorder dumps of many ranks: found, decoded in parallel into columns, and joined.

Where to begin: `locate.locate(paths)` finds the dumps, `reader.DumpReader(files)` reads them as far as the question
needs, and a `Shard` (here) holds what a part of them gave, or all, and what it says of the job. What a field of an entry
means is said in `entries`, and of what stands before the entries in `head`; nowhere else. docs/design/0003-dumps.md
tells the reasons.

`partial(files) -> Shard` runs anywhere, on any subset of the files; `merge(shards) -> Shard` is associative: the two
halves that every engine runs. Then groups get one description each, and it is asked whether the job stood still.

Two groups can bear one name: torch counts the groups that a process creates, so the count differs where only members
create a group. Then one of them keeps the name, and the others get their ranks appended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unhang.model import (
    CallState,
    CollectiveTable,
    HangObservation,
    ProcessGroup,
    RankEvidence,
    RankIdentity,
    Unavailable,
    different,
    grouped,
    join,
)
from unhang.numeric import np, npt

LEAST_QUIET_S = 15.0
_PAUSES = 2.0
_OF_TIMEOUT = 0.9
_SECOND_NS = 1_000_000_000
_CLOCKS_APART_NS = 60_000_000_000
MAX_NAMED = 16


@dataclass(frozen=True, slots=True)
class DumpFile:
    """Where the dump of one rank lies.

    `path`: a local path, or an fsspec URL. `member`: its name within a tar archive. `size`: bytes on disk, 0 if unknown.
    `written_ns`: modification time (wall clock), 0 if unknown.
    """

    rank: int
    path: str
    member: str = ""
    size: int = 0
    written_ns: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else self.path


@dataclass(frozen=True, slots=True)
class RankDump:
    """What one dump is, apart from its calls. Times are wall-clock nanoseconds, 0 if unknown.

    `entries`: calls in the dump, of which the table may hold only the last. `last_ns`: the latest time it mentions.
    """

    file: DumpFile
    version: str = ""
    backend: str = ""
    entries: int = 0
    has_frames: bool = False
    first_ns: int = 0
    last_ns: int = 0


@dataclass(frozen=True)
class Shard:
    """The calls of some ranks, what their dumps are, and what could not be read.

    `parts`: what a task gives that asks something else of the dumps than their calls.
    """

    table: CollectiveTable = field(default_factory=CollectiveTable.empty)
    dumps: Mapping[int, RankDump] = field(default_factory=dict)
    absent: tuple[Unavailable, ...] = ()
    parts: tuple[Any, ...] = ()


def merge(shards: Sequence[Shard]) -> Shard:
    """Several shards as one. No rank may be in two of them."""
    if not shards:
        return Shard()
    return Shard(
        table=join([s.table for s in shards]),
        dumps={rank: dump for s in shards for rank, dump in s.dumps.items()},
        absent=tuple(a for s in shards for a in s.absent),
        parts=tuple(part for s in shards for part in s.parts),
    )


def ranks_of(shard: Shard) -> dict[int, RankEvidence]:
    """What is known of each rank that left a dump: that it was there."""
    world = world_size(shard)
    return {
        rank: RankEvidence(RankIdentity(rank, world, backend=dump.backend))
        for rank, dump in sorted(shard.dumps.items())
    }


def world_size(shard: Shard) -> int:
    """Ranks of the job, by the groups that the dumps name."""
    named = [max(group.ranks) for group in shard.table.groups if group.ranks]
    return max([*named, *shard.dumps], default=-1) + 1


def observed_hang(shard: Shard) -> HangObservation | None:
    """Whether the job stood still: calls are open, and nothing had moved for long when the dumps were written.

    A wait that is short beside the pauses that this job makes is no hang. The files' times say at most how long it was, for
    a copy is younger: where they show no short wait, open calls are taken for a hang, which is what dumps are written for.
    """
    table = shard.table
    open_rows = np.flatnonzero(table["state"] != CallState.COMPLETED)
    if not len(open_rows):
        return None
    quiet_s = quiet_before_dump_s(shard)
    if quiet_s is not None and not _is_long(table, open_rows, quiet_s):
        return None
    waiting = tuple(sorted(set(table["rank"][open_rows].tolist())))  # np.unique would import the masked arrays
    return HangObservation("suspected", None, None, waiting, "calls were open when the dumps were written")


def quiet_before_dump_s(shard: Shard) -> float | None:
    """Seconds from the last event in the dumps to the times of the files; None where these are unknown or earlier.

    Archives, and some file systems, keep whole seconds: such a time is up to a second early.
    """
    waits = [_after_ns(d.file.written_ns, d.last_ns) for d in shard.dumps.values() if d.file.written_ns and d.last_ns]
    return min(waits) / 1e9 if waits and min(waits) >= 0 else None


def _after_ns(written_ns: int, last_ns: int) -> int:
    is_whole = written_ns % _SECOND_NS == 0 and -_SECOND_NS < written_ns - last_ns < 0
    return 0 if is_whole else written_ns - last_ns


def _is_long(table: CollectiveTable, open_rows: npt.NDArray[np.int64], quiet_s: float) -> bool:
    limits_ms = table["timeout_ms"][open_rows]
    limits_ms = limits_ms[limits_ms > 0]
    if len(limits_ms) and quiet_s >= _OF_TIMEOUT * float(limits_ms.min()) / 1000:
        return True
    return quiet_s >= max(LEAST_QUIET_S, _PAUSES * longest_pause_s(table))


def longest_pause_s(table: CollectiveTable) -> float:
    """The longest time between two calls of one rank."""
    created, rank = table["created_ns"], table["rank"]
    pauses = np.diff(created)[(np.diff(rank) == 0) & (created[1:] > 0) & (created[:-1] > 0)]
    return float(pauses.max(initial=0)) / 1e9


def unify_groups(table: CollectiveTable) -> CollectiveTable:
    """One number for each group: dumps that know less of it join those that know its members.

    Of groups with equal names and other members one keeps the name, the others get their ranks appended.
    """
    by_name = grouped((group.name, i) for i, group in enumerate(table.groups))
    groups: list[ProcessGroup] = []
    new = np.zeros(len(table.groups) + 1, dtype=np.int32)
    of_rank: dict[int, dict[int, int]] = {}
    for name, indexes in by_name.items():
        known: dict[tuple[int, ...], int] = {}
        for i in indexes:
            group = table.groups[i]
            if group.ranks in known:
                at = known[group.ranks]
                groups[at] = _together(groups[at], group)
            else:
                at = known[group.ranks] = len(groups)
                groups.append(group)
            new[i] = at
        members = [ranks for ranks in known if ranks]
        if () in known and len(members) == 1:
            groups[known[members[0]]] = _together(groups[known[members[0]]], groups[known[()]])
            new[[i for i in indexes if not table.groups[i].ranks]] = known[members[0]]
        elif () in known and members:
            for i in (i for i in indexes if not table.groups[i].ranks):
                of_rank[i] = {r: known[ranks] for ranks in members for r in ranks}
        for ranks in sorted(members)[1:]:
            groups[known[ranks]] = replace(groups[known[ranks]], name=_own_name(name, ranks, groups))
    used = sorted({*new[: len(table.groups)].tolist(), *(at for ranks in of_rank.values() for at in ranks.values())})
    place = np.full(len(groups) + 1, -1, dtype=np.int32)
    place[used] = np.arange(len(used))
    of_rank = {i: {r: int(place[at]) for r, at in ranks.items()} for i, ranks in of_rank.items()}
    return _renumbered(table, tuple(groups[i] for i in used), place[new], of_rank)


def complete_batches(table: CollectiveTable) -> CollectiveTable:
    """Completes the batches of dumps of open calls alone.

    Of a batch only the last entry has a true state. It is left out when the batch is done, and the others stay as if open. So
    a rank whose last completed transfer is still shown makes batches. Else what is shown is open, though its number be lower
    than that of the last completed one: transfers with several peers end in any order.
    """
    partial = np.flatnonzero(np.isin(table["rank"], list(table.active_ranks)))
    if not len(partial):
        return table
    is_p2p, state = table["is_p2p"][partial], table["state"].copy()
    tracks = np.array(["coalesced" in op for op in table.ops] or [False])[table["op"][partial]]
    keys = np.stack([table[name][partial].astype(np.int64) for name in ("rank", "group", "is_p2p", "seq")])
    _, batch, size = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    _, channel = np.unique(keys[:3], axis=1, return_inverse=True)
    batch, channel = batch.reshape(-1), channel.reshape(-1)
    is_tracked, is_batched = np.zeros(len(size), dtype=bool), np.zeros(int(channel.max()) + 1, dtype=bool)
    is_tracked[batch[tracks]] = True
    is_batched[channel[is_p2p & ((size > 1)[batch] | tracks)]] = True  # a ring may have lost half of a batch
    counted = _completed_transfers(table)[table["rank"][partial], table["group"][partial]]
    is_batched[channel[is_p2p & (table["seq"][partial] == counted) & ~is_tracked[batch]]] = True
    is_done = ~is_tracked[batch] & ((size > 1)[batch] | is_batched[channel])
    state[partial[is_done]] = CallState.COMPLETED
    return replace(table, columns={**table.columns, "state": state})


def _completed_transfers(table: CollectiveTable) -> npt.NDArray[np.int64]:
    """`[ranks, groups]`: the last send or receive that a rank says is done; -1 where its word may mean a collective."""
    progress = table.progress
    most = int(max(table["rank"].max(initial=0), progress["rank"].max(initial=0))) + 1
    found = np.full((most, len(table.groups)), -1, dtype=np.int64)
    found[progress["rank"], progress["group"]] = progress["completed"]
    found[:, different(table["group"][~table["is_p2p"]])] = -1
    rows = np.flatnonzero(table["is_p2p"])
    shown, enqueued = np.full_like(found, -1), np.full_like(found, -1)
    np.maximum.at(shown, (table["rank"][rows], table["group"][rows]), table["seq"][rows])
    enqueued[progress["rank"], progress["group"]] = progress["enqueued"]
    found[shown > enqueued] = -1  # it counts collectives, of which none is left
    return found


def with_world(table: CollectiveTable, ranks: Collection[int]) -> CollectiveTable:
    """Gives the default group its members where no dump names them (gloo): all ranks up to the last that left a file."""
    world = tuple(range(max(ranks, default=-1) + 1))
    if len(ranks) * 2 < len(world):
        return table
    is_world = [g.name == DEFAULT_GROUP and not g.ranks for g in table.groups]
    groups = (replace(g, ranks=world) if i else g for g, i in zip(table.groups, is_world, strict=True))
    return replace(table, groups=tuple(groups)) if any(is_world) else table


def _own_name(name: str, ranks: tuple[int, ...], groups: Sequence[ProcessGroup]) -> str:
    """The name with the ranks, and with their number where the first ranks are those of another group too."""
    own = name_with_ranks(name, ranks)
    return own if all(g.name != own for g in groups) else f"{own}({len(ranks)})"


def _together(known: ProcessGroup, other: ProcessGroup) -> ProcessGroup:
    return replace(
        known,
        desc=known.desc or other.desc,
        backend=known.backend or other.backend,
        timeout_s=known.timeout_s or other.timeout_s,
    )


def _renumbered(
    table: CollectiveTable,
    groups: tuple[ProcessGroup, ...],
    new: npt.NDArray[np.int32],
    of_rank: dict[int, dict[int, int]],
) -> CollectiveTable:
    columns, progress = dict(table.columns), dict(table.progress)
    for part in (columns, progress):
        old = part["group"]
        part["group"] = new[old]
        for i, ranks in of_rank.items():
            rows = np.flatnonzero(old == i)
            part["group"][rows] = [ranks.get(r, new[i]) for r in part["rank"][rows].tolist()]
    return replace(table, columns=columns, progress=progress, groups=groups)


def unseen(shard: Shard) -> tuple[Unavailable, ...]:
    """The ranks of the job that left no dump; named one by one only while they are few."""
    named = {what.what for what in shard.absent}
    lost = [r for r in range(world_size(shard)) if r not in shard.dumps and f"dump of rank {r}" not in named]
    if len(lost) > MAX_NAMED:
        shown = ", ".join(map(str, lost[:MAX_NAMED]))
        return (Unavailable(f"{len(lost)} of {world_size(shard)} ranks ({shown}, ...)", "no dump of them was found"),)
    return tuple(Unavailable(f"rank {r}", "no dump of it was found") for r in lost)


def stale_ranks(shard: Shard) -> Sequence[int]:
    """Ranks whose dump is of an earlier run: it ends before the others' first call was made.

    Only where the others' dumps reach back to their first call does that say anything.
    """
    table = shard.table
    firsts = sorted(d.first_ns for r, d in shard.dumps.items() if d.first_ns and r not in table.wrapped_ranks)
    if len(firsts) < 2:
        return ()
    began = firsts[len(firsts) // 2]
    stale = [r for r, d in shard.dumps.items() if 0 < d.last_ns < began - _CLOCKS_APART_NS]
    return sorted(stale) if len(stale) * 2 < len(shard.dumps) else ()


DEFAULT_GROUP = "0"
Groups = Mapping[str, ProcessGroup]


class Membership:
    """Finds a rank's group by the name under which the rank mentions it."""

    def __init__(self, saved: Mapping[int, Iterable[ProcessGroup]], world: tuple[int, ...]) -> None:
        """`saved`: for each rank the groups that it noted itself. `world`: the ranks of a default group nobody noted."""
        self._saved = {rank: {g.name: g for g in groups} for rank, groups in saved.items()}
        self._world = ProcessGroup(DEFAULT_GROUP, "default_pg", world)
        self._keepers: dict[str, ProcessGroup] = {}
        self._variants: dict[str, ProcessGroup] = {}
        known = [group for groups in self._saved.values() for group in groups.values()]
        holders = Counter((group.name, group.ranks) for group in known)
        fullness = {(g.name, g.ranks): g for g in sorted(known, key=lambda g: (g.timeout_s is not None, bool(g.desc)))}
        for key, _ in sorted(holders.items(), key=lambda item: (-item[1], item[0][1])):
            self._keepers.setdefault(key[0], fullness[key])

    def of_rank(self, rank: int, configured: Groups) -> dict[str, ProcessGroup]:
        """All groups as this rank names them. `configured`: those that its dump describes; what it noted wins."""
        own = {n: self._registered(g) for n, g in {**configured, **self._saved.get(rank, {})}.items() if g.ranks}
        return {DEFAULT_GROUP: self._world, **self._keepers, **own}

    def all_groups(self) -> tuple[ProcessGroup, ...]:
        """Every group that any rank has described so far."""
        return (*self._keepers.values(), *self._variants.values())

    def world(self) -> tuple[int, ...]:
        """The ranks of the default group, where a rank has described it."""
        return self._keepers[DEFAULT_GROUP].ranks if DEFAULT_GROUP in self._keepers else ()

    def _registered(self, group: ProcessGroup) -> ProcessGroup:
        keeper = self._keepers.setdefault(group.name, group)
        if keeper.ranks == group.ranks:
            return keeper
        name = name_with_ranks(group.name, group.ranks)
        return self._variants.setdefault(name, replace(group, name=name))


def name_with_ranks(name: str, ranks: tuple[int, ...]) -> str:
    """The name of a group that shares its own with another one: `1@2-3`."""
    return f"{name}@{'-'.join(map(str, ranks[:4]))}{'-...' if len(ranks) > 4 else ''}"
